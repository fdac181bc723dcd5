//! Mutants of the wait list that ships.

use super::{Edit, Mutant};

const LIST: &str = "pool/waitlist/places.rs";
const NODE: &str = "pool/waitlist/places/node.rs";
const LOCKED: &str = "pool/waitlist/places/locked.rs";
const BOOKS: &str = "pool/waitlist/places/books.rs";
const HALL: &str = "pool/waitlist/places/hall.rs";
const WORD: &str = "pool/waitlist/word.rs";
const PLACE: &str = "pool/waitlist/places/place.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "word_that_became_the_same_again_is_not_acquired",
        does: "A claim does not acquire a word that changed and became the same again since the granter has read it.",
        file: WORD,
        edits: &[Edit { within: "fn swap", right: "Ordering::AcqRel", wrong: "Ordering::Release" }],
    },
    Mutant {
        name: "last_waiter_is_taken_without_the_lock",
        does: "The last waiter is claimed without the lock, so the flags stay raised.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "seen.span() < 2", wrong: "seen.span() == 0" }],
    },
    Mutant {
        name: "first_waiter_is_taken_for_a_stale_connection",
        does: "A claim without the lock hands a stale connection over.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "!is_current()", wrong: "false" }],
    },
    Mutant {
        name: "first_waiter_is_taken_before_openers_and_elders",
        does: "A claim without the lock takes the first ticket although its waiter has left, or others come first.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "seen.by_lock", wrong: "false" }],
    },
    Mutant {
        name: "waiter_is_not_withheld",
        does: "A waiter that leaves or changes its waker does not keep granters from claiming it without the lock.",
        file: LOCKED,
        edits: &[Edit {
            within: "fn withhold",
            right: "self.lanes.queue(lane).tickets.go_by_lock()",
            wrong: "self.word(lane)",
        }],
    },
    Mutant {
        name: "second_waiter_is_claimed_first",
        does: "The second of two waiters is served before the first.",
        file: LIST,
        edits: &[Edit {
            within: "fn try_claim",
            right: "present.number(seen.first)",
            wrong: "present.number(if seen.span() == 2 { seen.first.after() } else { seen.first })",
        }],
    },
    Mutant {
        name: "place_is_looked_up_after_the_claim",
        does: "A claim without the lock looks its place up after it has changed the word, when the hall may be another one.",
        file: LIST,
        edits: &[Edit {
            within: "fn try_claim",
            right: "Some(Claimed(spot))",
            wrong: "
                drop(spot);
                let present = hall(queue.hall(seen));
                Some(Claimed(present.spot(present.number(seen.first))))
            ",
        }],
    },
    Mutant {
        name: "elders_are_passed_over",
        does: "The tickets in the word are served before those of a hall that was full.",
        file: LOCKED,
        edits: &[Edit { within: "fn claim_first", right: "self.books.elders(lane).first", wrong: "None" }],
    },
    Mutant {
        name: "gap_stays_in_the_word",
        does: "The ticket of a waiter that has left is not skipped.",
        file: LOCKED,
        edits: &[Edit { within: "fn tidy", right: "present.beyond(seen.first, seen.next)", wrong: "seen.first" }],
    },
    Mutant {
        name: "waker_is_not_renewed",
        does: "A waiter that is polled with a new waker keeps its old one.",
        file: NODE,
        edits: &[Edit {
            within: "fn would_wake",
            right: "self.waker.with(|present| unsafe { (*present).assume_init_ref().will_wake(waker) })",
            wrong: "true",
        }],
    },
    Mutant {
        name: "granter_writes_the_waker",
        does: "The granter writes to the waker that the owner may be reading.",
        file: NODE,
        edits: &[Edit {
            within: "fn move_waker_out",
            right: "self.waker.with(|waker| unsafe { (*waker).assume_init_read() })",
            wrong: "self.waker.with_mut(|waker| unsafe { (*waker).assume_init_read() })",
        }],
    },
    Mutant {
        name: "turned_away_waiters_still_count",
        does: "Check-outs that a clear has turned away still count as waiters when they leave.",
        file: BOOKS,
        edits: &[Edit { within: "fn chain_of", right: "era != self.era", wrong: "false" }],
    },
    Mutant {
        name: "turned_away_waiter_stays_in_its_run",
        does: "A check-out that was turned away and leaves is refused all the same.",
        file: BOOKS,
        edits: &[Edit { within: "fn skip", right: "hall(of).beyond(from, end)", wrong: "from" }],
    },
    Mutant {
        name: "newcomer_takes_an_occupied_place",
        does: "A newcomer takes a ticket although the one before it at its place is not done with it.",
        file: HALL,
        edits: &[Edit { within: "fn admits", right: "is_before(number, limit)", wrong: "true" }],
    },
    Mutant {
        name: "early_grant_is_not_seen",
        does: "A waiter that comes after its grant does not look for it.",
        file: PLACE,
        edits: &[Edit { within: "fn take(", right: "state(before) != GRANTED", wrong: "true" }],
    },
    Mutant {
        name: "place_is_freed_before_its_early_grant_is_taken",
        does: "A waiter makes its place free for the next turn while its own grant is still there.",
        file: PLACE,
        edits: &[Edit {
            within: "fn take_early",
            right: "self.early.with_mut(|early| unsafe { (*early).take() })",
            wrong: "
                {
                    self.word.store(word(next, FREE), Ordering::Release);
                    made_progress();
                    self.early.with_mut(|early| unsafe { (*early).take() })
                }
            ",
        }],
    },
    Mutant {
        name: "early_grant_is_left_for_a_waiter_that_came",
        does: "A granter that has found no waiter leaves the grant although the waiter has come meanwhile.",
        file: PLACE,
        edits: &[Edit {
            within: "fn grant_early",
            right: "self.word.compare_exchange(seen, word(next, GRANTED), order, Ordering::Acquire)",
            wrong: "
                {
                    self.word.store(word(next, GRANTED), order);
                    Ok::<*mut Node<G>, *mut Node<G>>(seen)
                }
            ",
        }],
    },
    Mutant {
        name: "place_publishes_no_node",
        does: "A waiter does not publish what it has written to its node.",
        file: PLACE,
        edits: &[Edit { within: "fn take(", right: "Ordering::AcqRel", wrong: "Ordering::Acquire" }],
    },
    Mutant {
        name: "early_grant_is_not_acquired",
        does: "A waiter reads a grant that came first without acquiring it.",
        file: PLACE,
        edits: &[Edit { within: "fn take(", right: "Ordering::AcqRel", wrong: "Ordering::Release" }],
    },
];
