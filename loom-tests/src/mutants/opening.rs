//! Mutants of the counts, of the permits and of opening connections.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "admission_without_comparing",
        does: "A check-out counts itself in although the counts have changed since it compared them to the limits.",
        file: "pool/capacity.rs",
        edits: &[Edit {
            within: "fn try_admit",
            right: "seen.with_one_more()",
            wrong: "return self.update(|counts| Some(counts.with_one_more())).map(drop).map_err(drop)",
        }],
    },
    Mutant {
        name: "admit_then_wait",
        does: "A check-out is refused in one step and notes that it waits in another.",
        file: "pool/capacity.rs",
        edits: &[Edit {
            within: "fn admit_or_wait",
            right: "
                self.update(|counts| Some(if counts.admits(limits) { counts.with_one_more() } else { waits(counts) }))
                    .unwrap_or_else(|refused| refused)
            ",
            wrong: "
                let admitted = self.admit_first(limits);
                let changed = self.update(|counts| admitted.is_err().then(|| waits(counts)));
                return admitted.map_err(|counts| changed.map_or(counts, waits))
            ",
        }],
    },
    Mutant {
        name: "shared_permit_stays",
        does: "A shared permit is given to neither of its two owners.",
        file: "pool/permit.rs",
        edits: &[Edit { within: "fn take", right: "self.0.lock().take()", wrong: "None" }],
    },
    Mutant {
        name: "shared_permit_is_lost",
        does: "A shared permit is taken and never given back.",
        file: "pool/permit.rs",
        edits: &[Edit {
            within: "fn take",
            right: "self.0.lock().take()",
            wrong: "std::mem::forget(self.0.lock().take()); None",
        }],
    },
    Mutant {
        name: "created_outside_the_lock",
        does: "An opener emits its event after it has released the lock under which its connection got its number.",
        file: "pool/permit.rs",
        edits: &[Edit {
            within: "fn create",
            right: "
                core.emit_locked(|| PoolEvent::ConnectionCreated { address: core.address.clone(), connection_id });
                drop(registry);
            ",
            wrong: "
                drop(registry);
                core.emit_locked(|| PoolEvent::ConnectionCreated { address: core.address.clone(), connection_id });
            ",
        }],
    },
    Mutant {
        name: "unused_permit_is_kept",
        does: "A permit that is dropped still counts.",
        file: "pool/permit.rs",
        edits: &[Edit {
            within: "Drop for Permit",
            right: "if self.core.capacity.release(1, 1) { self.core.serve_permits(); }",
            wrong: "return;",
        }],
    },
    Mutant {
        name: "pending_dropped_first",
        does: "A new connection stops counting as pending before it is available.",
        file: "pool/tokens.rs",
        edits: &[Edit {
            within: "fn hand_on",
            right: "
                if let Some(idle) = unclaimed { idle.offer_as_new(); }
                drop(self);
            ",
            wrong: "
                drop(self);
                if let Some(idle) = unclaimed { idle.offer_as_new(); }
            ",
        }],
    },
    Mutant {
        name: "return_that_fails_is_lost",
        does: "A connection whose quick return fails is not returned in the other way.",
        file: "pool/lease.rs",
        edits: &[Edit { within: "fn give_back", right: "held.touch();", wrong: "return;" }],
    },
    Mutant {
        name: "permits_are_not_served",
        does: "A permit that comes free is not handed to the check-out that waits for it.",
        file: "pool/permit.rs",
        edits: &[Edit { within: "fn serve_permits", right: "queue.len(Lane::Waiters) == 0", wrong: "true" }],
    },
    Mutant {
        name: "warm_up_ignores_waiters",
        does: "The background takes a permit for which a check-out waits.",
        file: "pool/maintenance.rs",
        edits: &[Edit { within: "fn populate", right: "counts.waiting", wrong: "false" }],
    },
];
