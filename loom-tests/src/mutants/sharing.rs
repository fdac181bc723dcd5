//! Mutants of budgets.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "place_is_taken_and_stays_free",
        does: "A pool takes a place that the budget still counts as free.",
        file: "pool/core/budget.rs",
        edits: &[Edit { within: "fn try_take", right: "books.free -= 1;", wrong: "" }],
    },
    Mutant {
        name: "place_given_back_serves_no_pool",
        does: "A pool that gives a place back does not serve the pools in the queue.",
        file: "pool/core/sharing.rs",
        edits: &[Edit { within: "fn give_back", right: "self.settle_budget();", wrong: "" }],
    },
    Mutant {
        name: "settling_ends_after_the_look",
        does: "A thread that finds nothing to settle says in a second step that it has ended.",
        file: "pool/core/budget.rs",
        edits: &[Edit {
            within: "fn settle",
            right: "
                is_mine = step.is_some();
                books.is_settling = is_mine;
            ",
            wrong: "
                is_mine = step.is_some();
                books.is_settling = true;
                if !is_mine {
                    drop(books);
                    self.0.books.lock().is_settling = false;
                    return;
                }
            ",
        }],
    },
    Mutant {
        name: "pool_without_a_waiter_stays_in_the_queue",
        does: "A pool whose last waiter has left stays in the budget's queue.",
        file: "pool/core/core.rs",
        edits: &[Edit { within: "fn settle", right: "self.leave_budget_queue();", wrong: "" }],
    },
    Mutant {
        name: "pool_in_the_queue_does_not_look_again",
        does: "Maintenance does not look for connections that have become idle in other pools.",
        file: "pool/core/maintenance.rs",
        edits: &[Edit { within: "fn maintain", right: "self.look_for_idle_elsewhere();", wrong: "" }],
    },
    Mutant {
        name: "leaving_places_are_not_counted",
        does: "Pools close connections for a pool to which a place is on its way.",
        file: "pool/core/budget.rs",
        edits: &[Edit { within: "fn lacks_places(", right: "self.free + leaving", wrong: "self.free" }],
    },
    Mutant {
        name: "flags_stay_raised_while_the_budget_is_settled",
        does: "A check-out that may not wait raises the flags and settles the budget, although the queue is empty.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "fn queue_up", right: "self.lower_flags(&queue);", wrong: "" }],
    },
];
