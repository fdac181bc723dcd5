//! Mutants of the records of holders.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hold_is_written_without_a_fence",
        does: "The words of a use may be seen before the end of the last one.",
        file: "pool/core/hold.rs",
        edits: &[Edit { within: "fn begin", right: "fence(Ordering::Release);", wrong: "" }],
    },
    Mutant {
        name: "hold_is_read_without_a_fence",
        does: "The second reading of the sequence may be older than the words.",
        file: "pool/core/hold.rs",
        edits: &[Edit { within: "fn read", right: "fence(Ordering::Acquire);", wrong: "" }],
    },
    Mutant {
        name: "hold_is_read_once",
        does: "A reader does not check whether the record has changed meanwhile.",
        file: "pool/core/hold.rs",
        edits: &[Edit { within: "fn read", right: "self.sequence.load(Ordering::Relaxed) == word", wrong: "true" }],
    },
    Mutant {
        name: "hold_ends_in_two_steps",
        does: "The end of a use may overwrite the mark that it was reported.",
        file: "pool/core/hold.rs",
        edits: &[Edit {
            within: "fn end",
            right: "
                Sequence::unpack(self.sequence.swap(free.pack(), Ordering::Relaxed))
            ",
            wrong: "
                let before = Sequence::unpack(self.sequence.load(Ordering::Relaxed));
                self.sequence.store(free.pack(), Ordering::Relaxed);
                before
            ",
        }],
    },
    Mutant {
        name: "earlier_hold_is_reported_without_a_second_look",
        does: "A use that was not noted is reported although it may have ended before its entry.",
        file: "pool/core/holding.rs",
        edits: &[Edit {
            within: "fn report(",
            right: "self.noted(found.slot).is_none() || !self.holding.reports.lock().unnoted.remove(&id)",
            wrong: "true",
        }],
    },
    Mutant {
        name: "earlier_hold_that_ends_meanwhile_is_not_reported",
        does: "A use that was not noted is reported only as ended if it ends while it is reported.",
        file: "pool/core/holding.rs",
        edits: &[Edit {
            within: "fn report(",
            right: "!self.holding.reports.lock().unnoted.remove(&id)",
            wrong: "{ self.holding.reports.lock().unnoted.remove(&id); false }",
        }],
    },
    Mutant {
        name: "noted_check_out_ends_no_earlier_hold",
        does: "A check-out does not check whether its connection was reported on its way.",
        file: "pool/core/holding.rs",
        edits: &[Edit {
            within: "fn begin_hold(",
            right: "
                if before.switch != switch {
                    self.end_unnoted_hold();
                }
            ",
            wrong: "_ = before;",
        }],
    },
    Mutant {
        name: "check_out_is_noted_after_the_earlier_hold_ends",
        does: "A check-out checks whether its connection was reported on its way before it is noted.",
        file: "pool/core/holding.rs",
        edits: &[Edit {
            within: "fn begin_hold(",
            right: "
                let before = self.slot().hold_or_new().begin(switch, &noted);
                if before.switch != switch {
                    self.end_unnoted_hold();
                }
            ",
            wrong: "
                self.end_unnoted_hold();
                self.slot().hold_or_new().begin(switch, &noted);
            ",
        }],
    },
    Mutant {
        name: "check_out_that_gives_up_ends_no_hold",
        does: "A connection whose check-out gives up is not noted as free.",
        file: "pool/core/tokens.rs",
        edits: &[Edit { within: "impl<E: Environment> Drop for Idle<E> {", right: "self.0.end_hold();", wrong: "" }],
    },
];
