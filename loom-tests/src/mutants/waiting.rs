//! Mutants of a check-out's search, the queue and the grants.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hit_ignores_the_subscribers",
        does: "A hit takes a connection although its events would have to be emitted.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "fn try_hit", right: "self.attention.is_needed()", wrong: "false" }],
    },
    Mutant {
        name: "newcomers_ignore_waiters",
        does: "A new check-out is served although others wait.",
        file: "pool/core/acquire.rs",
        edits: &[
            Edit { within: "fn seek", right: "self.own_shard().is_waited_for()", wrong: "false" },
            Edit {
                within: "fn seek",
                right: "self.take_any()",
                wrong: "
                    match self.take_any() {
                        Popped::Waiting => Popped::Empty,
                        found => found,
                    }
                ",
            },
            Edit { within: "fn seek", right: "counts.waiting", wrong: "false" },
        ],
    },
    Mutant {
        name: "counts_read_after_the_search",
        does: "A check-out reads the counts for its permit after its search, and misses a push between the two.",
        file: "pool/core/acquire.rs",
        edits: &[Edit {
            within: "fn seek",
            right: "
                if counts.admits(self.limits()) {
                    match self.try_admit(counts) {
                        Ok(Some(permit)) => return Sought::Granted(Grant::Permit(permit)),
                        Ok(None) => {}
                        Err(()) => continue,
                    }
                }
            ",
            wrong: "
                let counts = self.capacity.load();
                if counts.admits(self.limits()) {
                    match self.try_admit(counts) {
                        Ok(Some(permit)) => return Sought::Granted(Grant::Permit(permit)),
                        Ok(None) => {}
                        Err(()) => continue,
                    }
                }
            ",
        }],
    },
    Mutant {
        name: "phase_is_not_read_again",
        does: "A check-out queues up without checking again that the pool is ready.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "fn queue_up", right: "self.state.load().phase != Phase::Ready", wrong: "false" }],
    },
    Mutant {
        name: "look_precedes_the_flag",
        does: "The first waiter raises a shard's flag in a separate step, after the step that finds the shard empty.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn pop_or_flag",
            right: "Head { waiting: true, ..head.next() }",
            wrong: "{ head = self.load(); Head { waiting: true, ..head.next() } }",
        }],
    },
    Mutant {
        name: "cancelled_check_out_keeps_its_grant",
        does: "A cancelled check-out does not give its grant back.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "fn leave", right: "drop(grant);", wrong: "std::mem::forget(grant);" }],
    },
    Mutant {
        name: "stale_connection_is_handed_over",
        does: "A check-in hands a stale connection to a waiter.",
        file: "pool/core/held.rs",
        edits: &[Edit { within: "fn claim_first", right: "!self.is_current(generation)", wrong: "false" }],
    },
    Mutant {
        name: "flags_lowered_over_openers",
        does: "The last waiter to leave lowers the flags although openers still wait.",
        file: "pool/core/core.rs",
        edits: &[Edit { within: "fn lower_flags", right: "queue.is_empty(Lane::Openers)", wrong: "true" }],
    },
    Mutant {
        name: "check_out_is_queued_again_behind_waiters",
        does: "A check-out whose connection went stale queues up as a newcomer does.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "for Reacquire<'_, E, T>", right: "Lane::Requeued", wrong: "Lane::Waiters" }],
    },
    Mutant {
        name: "stale_connection_is_closed_first",
        does: "A check-out closes its stale connection before it is in the queue, and so passes on the capacity.",
        file: "pool/core/acquire.rs",
        edits: &[Edit {
            within: "for Reacquire<'_, E, T>",
            right: "acquire.is_queued()",
            wrong: "{ drop(useless.take()); acquire.is_queued() }",
        }],
    },
    Mutant {
        name: "check_outs_queued_again_are_not_refused",
        does: "A clear does not turn away waiters that are queued again.",
        file: "pool/core/waitlist/locked.rs",
        edits: &[Edit {
            within: "fn turn_away",
            right: "self.is_empty(lane)",
            wrong: "self.is_empty(lane) || lane == Lane::Requeued",
        }],
    },
];
