//! Mutants of the delivery of events, and of the end of a pool.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "end_of_delivery_wakes_no_task",
        does: "The delivery of the last event does not wake the tasks that wait for the end.",
        file: "delivery.rs",
        edits: &[Edit { within: "fn take_turns", right: "self.change.notify(usize::MAX);", wrong: "" }],
    },
    Mutant {
        name: "panic_ends_the_delivery",
        does: "The panic of a subscriber ends the delivery without freeing the deliverer's role.",
        file: "delivery.rs",
        edits: &[Edit {
            within: "fn deliver_from",
            right: "contain(|| on_event(&event));",
            wrong: "if contain(|| on_event(&event)).is_none() { return Turn::Leave; }",
        }],
    },
    Mutant {
        name: "queue_is_checked_before_the_role_is_freed",
        does: "The deliverer checks the queue in one locked section and frees its role in the next.",
        file: "delivery.rs",
        edits: &[Edit {
            within: "fn deliver_from",
            right: "deliverer.left = deliverer.left.saturating_sub(1);",
            wrong: "
                deliverer.left = deliverer.left.saturating_sub(1);
                if self.state.lock().queue.is_empty() {
                    let told = self.state.lock().free_the_role();
                    told.into_iter().for_each(|(signal, verdict)| signal.give(verdict));
                    return Turn::Leave;
                }
            ",
        }],
    },
    Mutant {
        name: "look_again_wakes_no_task",
        does: "A task that waits for the end is not woken when its other condition changes.",
        file: "delivery.rs",
        edits: &[Edit { within: "fn look_again", right: "self.change.notify(usize::MAX);", wrong: "" }],
    },
    Mutant {
        name: "ended_before_the_queue_is_empty",
        does: "The end is reported while events are queued.",
        file: "delivery.rs",
        edits: &[Edit { within: "fn has_ended", right: "state.queue.is_empty()", wrong: "true" }],
    },
    Mutant {
        name: "ended_while_the_last_is_delivered",
        does: "The end is reported while a subscriber still receives the last event.",
        file: "delivery.rs",
        edits: &[Edit { within: "fn has_ended", right: "state.role == Role::Free", wrong: "true" }],
    },
    Mutant {
        name: "tired_deliverers_are_not_relieved",
        does: "No caller relieves a deliverer that has finished its turn.",
        file: "delivery.rs",
        edits: &[Edit { within: "impl<T> State<T>", right: "self.role == Role::Tired", wrong: "false" }],
    },
    Mutant {
        name: "callers_leave_any_number_behind",
        does: "Callers leave more events behind than there is room for.",
        file: "delivery.rs",
        edits: &[Edit { within: "impl<T> State<T>", right: "ahead > share.room.into()", wrong: "false" }],
    },
    Mutant {
        name: "subscribers_wait_too",
        does: "A thread inside of a subscriber waits for a subscriber.",
        file: "delivery.rs",
        edits: &[Edit { within: "impl<T> State<T>", right: "!Inside::is_entered()", wrong: "true" }],
    },
    Mutant {
        name: "role_is_freed_for_the_successor",
        does: "The role is free between a deliverer and its successor.",
        file: "delivery.rs",
        edits: &[Edit {
            within: "fn delivered_one",
            right: "self.role = Role::Held;",
            wrong: "self.role = Role::Free;",
        }],
    },
    Mutant {
        name: "waiting_callers_are_forgotten",
        does: "The last deliverer gives no verdict to the callers that wait.",
        file: "delivery.rs",
        edits: &[Edit { within: "fn free_the_role", right: "self.let_go(self.waiting.len())", wrong: "Told::new()" }],
    },
    Mutant {
        name: "verdict_wakes_no_thread",
        does: "A sleeping caller gets a verdict but is not woken.",
        file: "delivery/signal.rs",
        edits: &[Edit { within: "fn give", right: "self.given.notify_one();", wrong: "" }],
    },
];
