//! Mutants of the word with the tickets, and of the wait list on event-listener.

use super::{Edit, Mutant};

const LISTENER: &str = "pool/waitlist/listener.rs";
const WORD: &str = "pool/waitlist/word.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "tickets_are_swapped_without_comparing",
        does: "Two threads may take the same ticket, or claim it.",
        file: WORD,
        edits: &[Edit {
            within: "fn swap",
            right: "self.0.compare_exchange(seen.pack(), new.pack(), order, Ordering::Relaxed).is_ok()",
            wrong: "
                self.0.store(new.pack(), order);
                true
            ",
        }],
    },
    Mutant {
        name: "last_waiter_is_claimed_without_the_lock",
        does: "The last waiter is claimed without the lock, so the flags stay raised.",
        file: LISTENER,
        edits: &[Edit { within: "fn try_claim", right: "seen.span() < 2", wrong: "seen.span() == 0" }],
    },
    Mutant {
        name: "claim_ignores_the_generation",
        does: "A claim without the lock hands a stale connection over.",
        file: LISTENER,
        edits: &[Edit { within: "fn try_claim", right: "!is_current()", wrong: "false" }],
    },
    Mutant {
        name: "claim_ignores_openers_and_gaps",
        does: "A claim without the lock takes the first ticket although its waiter has left or openers wait.",
        file: LISTENER,
        edits: &[Edit { within: "fn try_claim", right: "seen.by_lock", wrong: "false" }],
    },
    Mutant {
        name: "waiter_leaves_under_the_granters",
        does: "A waiter that leaves does not keep granters from claiming it without the lock.",
        file: LISTENER,
        edits: &[Edit { within: "fn remove", right: "word.by_lock || word.holds(ticket)", wrong: "word.by_lock" }],
    },
    Mutant {
        name: "grant_does_not_wait_for_its_waiter",
        does: "A grant is dropped if its waiter does not listen yet.",
        file: LISTENER,
        edits: &[Edit { within: "fn grant", right: "notified == 1", wrong: "true" }],
    },
    Mutant {
        name: "newcomers_listen_out_of_turn",
        does: "A newcomer does not wait until the one before it at its place listens.",
        file: LISTENER,
        edits: &[
            Edit { within: "fn begin", right: "place.listened.load(Ordering::Relaxed) != turn", wrong: "false" },
            Edit { within: "fn try_join", right: "self.waiters.is_next_place_free(seen)", wrong: "true" },
        ],
    },
    Mutant {
        name: "waiter_behind_an_empty_queue_listens_out_of_turn",
        does: "A waiter that joined an empty queue does not wait until the one before it at its place listens.",
        file: LISTENER,
        edits: &[Edit { within: "fn begin", right: "place.listened.load(Ordering::Relaxed) != turn", wrong: "false" }],
    },
    Mutant {
        name: "later_waiters_share_the_hall",
        does: "Waiters that come after a clear listen at the places of those that it turned away.",
        file: LISTENER,
        edits: &[Edit { within: "fn turn_away", right: "self.other_hall(present)", wrong: "None" }],
    },
    Mutant {
        name: "waker_of_a_poll_is_forgotten",
        does: "A waiter that is polled with a new waker keeps its old one.",
        file: LISTENER,
        edits: &[Edit { within: "fn poll(", right: "discard(unsafe { node.waker.replace(Some(waker)) });", wrong: "" }],
    },
    Mutant {
        name: "waker_is_replaced_while_it_is_registered",
        does: "A waiter replaces its waker while a granter may be taking it.",
        file: LISTENER,
        edits: &[Edit {
            within: "fn poll(",
            right: "
                if let Some(grant) = node.try_take() {
                    discard(waker);
                    return Poll::Ready(grant);
                }
            ",
            wrong: "",
        }],
    },
    Mutant {
        name: "waiter_that_leaves_stays_in_the_word",
        does: "The ticket of a waiter that has left is not skipped.",
        file: LISTENER,
        edits: &[Edit { within: "fn tidy", right: "gaps.beyond(seen.first)", wrong: "seen.first" }],
    },
    Mutant {
        name: "refused_waiter_may_not_leave",
        does: "A waiter that was turned away and leaves is not left out.",
        file: LISTENER,
        edits: &[Edit { within: "fn claim_turned_away", right: "entry.gaps.beyond(first)", wrong: "first" }],
    },
];
