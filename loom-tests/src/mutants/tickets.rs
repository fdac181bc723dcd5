//! Mutants of the wait list: the words, the cells and the segments.

use super::{Edit, Mutant};

const CELL: &str = "pool/core/waitlist/cell.rs";
const EVENT: &str = "pool/core/waitlist/event.rs";
const LIST: &str = "pool/core/waitlist/mod.rs";
const LOCKED: &str = "pool/core/waitlist/locked.rs";
const OWN: &str = "pool/core/waitlist/own.rs";
const WORD: &str = "pool/core/waitlist/word.rs";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "tickets_are_swapped_without_comparing",
        does: "Two threads may take or claim the same ticket.",
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
        name: "word_that_became_the_same_again_is_not_acquired",
        does: "A claim does not acquire a word that changed and changed back since the granter read it.",
        file: WORD,
        edits: &[Edit { within: "fn swap", right: "Ordering::AcqRel", wrong: "Ordering::Release" }],
    },
    Mutant {
        name: "last_waiter_is_claimed_without_the_lock",
        does: "The last waiter is claimed without the lock, so the flags stay raised.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "seen.span() < 2", wrong: "seen.span() == 0" }],
    },
    Mutant {
        name: "claim_ignores_the_generation",
        does: "A claim without the lock hands over a stale connection.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "!is_current()", wrong: "false" }],
    },
    Mutant {
        name: "claim_ignores_openers_and_gaps",
        does: "A claim without the lock takes the first ticket although its waiter has left, or openers wait.",
        file: LIST,
        edits: &[Edit { within: "fn try_claim", right: "seen.by_lock", wrong: "false" }],
    },
    Mutant {
        name: "waiter_is_not_withheld",
        does: "A waiter that leaves or changes its waker can be claimed without the lock meanwhile.",
        file: LOCKED,
        edits: &[Edit {
            within: "fn withhold",
            right: "self.lanes.queue(seat.lane).tickets.go_by_lock()",
            wrong: "self.word(seat.lane)",
        }],
    },
    Mutant {
        name: "second_waiter_is_claimed_first",
        does: "The second of two waiters is served before the first.",
        file: LIST,
        edits: &[Edit {
            within: "fn try_claim",
            right: "Claimed::of(queue, seen.first)",
            wrong: "Claimed::of(queue, if seen.span() == 2 { seen.first.after() } else { seen.first })",
        }],
    },
    Mutant {
        name: "gap_stays_in_the_word",
        does: "The ticket of a waiter that has left is not skipped.",
        file: LOCKED,
        edits: &[Edit { within: "fn tidy", right: "queue.beyond(seen.first, seen.next)", wrong: "seen.first" }],
    },
    Mutant {
        name: "turned_away_waiter_stays_in_its_range",
        does: "A check-out that was turned away and leaves is refused all the same.",
        file: LOCKED,
        edits: &[Edit {
            within: "fn skip_away",
            right: "queue.beyond(away.range.first.plus(claimed), away.range.end)",
            wrong: "away.range.first.plus(claimed)",
        }],
    },
    Mutant {
        name: "turned_away_waiters_are_claimed",
        does: "Check-outs that a clear has turned away stay in the word.",
        file: LOCKED,
        edits: &[Edit { within: "fn turn_away(", right: "seen.emptied()", wrong: "seen" }],
    },
    Mutant {
        name: "newcomer_takes_a_ticket_without_a_cell",
        does: "A newcomer takes a ticket although its segment is not there.",
        file: LIST,
        edits: &[Edit { within: "fn try_join", right: "!queue.has_room(seen.next)", wrong: "false" }],
    },
    Mutant {
        name: "early_grant_is_not_seen",
        does: "A waiter that comes after its grant does not look for it.",
        file: CELL,
        edits: &[Edit { within: "fn park(", right: "before != tag_of(ticket) | GRANTED", wrong: "true" }],
    },
    Mutant {
        name: "early_grant_is_left_for_a_waiter_that_came",
        does: "A granter that found no waiter leaves the grant although the waiter has come meanwhile.",
        file: CELL,
        edits: &[Edit {
            within: "fn grant(",
            right: "cell.state.compare_exchange(seen, tag_of(ticket) | GRANTED, order, Ordering::Acquire).is_ok()",
            wrong: "
                {
                    cell.state.store(tag_of(ticket) | GRANTED, order);
                    true
                }
            ",
        }],
    },
    Mutant {
        name: "cell_is_over_before_its_grant_is_taken",
        does: "A waiter gives its cell up while its grant is still there.",
        file: CELL,
        edits: &[Edit {
            within: "fn take_out(",
            right: "cell.grant.with_mut(|grant| unsafe { (*grant).take() })",
            wrong: "
                {
                    cell.state.store(tag_of(ticket) | OVER, Ordering::Release);
                    made_progress();
                    cell.grant.with_mut(|grant| unsafe { (*grant).take() })
                }
            ",
        }],
    },
    Mutant {
        name: "segment_is_removed_before_it_is_over",
        does: "A segment is removed although a waiter has not taken its grant yet.",
        file: LOCKED,
        edits: &[Edit { within: "fn sweep", right: "Self::is_over(segment)", wrong: "true" }],
    },
    Mutant {
        name: "waker_is_not_renewed",
        does: "A waiter that is polled with a new waker keeps its old one.",
        file: LIST,
        edits: &[Edit {
            within: "fn wakes(",
            right: "seat.as_ref().is_some_and(|seat| seat.cell().wakes(parked, waker))",
            wrong: "true",
        }],
    },
    Mutant {
        name: "granter_writes_the_waker",
        does: "The granter writes to the waker that the waiter may be reading.",
        file: OWN,
        edits: &[Edit {
            within: "fn move_waker_out",
            right: "self.waker.with(|waker| unsafe { (*waker).assume_init_read() })",
            wrong: "self.waker.with_mut(|waker| unsafe { (*waker).assume_init_read() })",
        }],
    },
    Mutant {
        name: "granter_takes_the_waker_after_the_grant",
        does: "The granter takes the waker out of a cell that may be in use again.",
        file: OWN,
        edits: &[Edit {
            within: "fn release(",
            right: "
                // The cell, and even the list, may be gone from this point on.
                grant();
                Some(waker)
            ",
            wrong: "
                std::mem::forget(waker);
                grant();
                Some(unsafe { self.move_waker_out() })
            ",
        }],
    },
    Mutant {
        name: "waiter_does_not_wait_for_its_listener",
        does: "A waiter takes its grant before the granter notifies its listener.",
        file: EVENT,
        edits: &[Edit {
            within: "fn is_released",
            right: "parked.0.as_mut().is_none_or(Listening::is_notified)",
            wrong: "true",
        }],
    },
    Mutant {
        name: "granter_does_not_notify",
        does: "A waiter that has been granted something is not woken.",
        file: EVENT,
        edits: &[Edit {
            within: "fn release(",
            right: "self.event.notify(1.additional().relaxed().tag(()));",
            wrong: "",
        }],
    },
];
