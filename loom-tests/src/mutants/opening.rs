//! Mutants of the counts, the permits and the opening of connections.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "admission_without_comparing",
        does: "A check-out takes a permit although the counts have changed since it compared them with the limits.",
        file: "pool/core/capacity.rs",
        edits: &[Edit {
            within: "fn try_admit",
            right: "seen.with_one_more()",
            wrong: "return self.update(|counts| Some(counts.with_one_more())).map(drop).map_err(drop)",
        }],
    },
    Mutant {
        name: "admit_then_wait",
        does: "A check-out is refused a permit in one step, and sets the waiting flag in another.",
        file: "pool/core/capacity.rs",
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
        name: "shared_permit_is_never_taken",
        does: "Neither of its two owners can take a shared permit.",
        file: "pool/core/permit.rs",
        edits: &[Edit { within: "fn take", right: "self.0.lock().take()", wrong: "None" }],
    },
    Mutant {
        name: "shared_permit_is_lost",
        does: "A shared permit is taken and never given back.",
        file: "pool/core/permit.rs",
        edits: &[Edit {
            within: "fn take",
            right: "self.0.lock().take()",
            wrong: "std::mem::forget(self.0.lock().take()); None",
        }],
    },
    Mutant {
        name: "created_outside_the_lock",
        does: "`ConnectionCreated` is emitted after the release of the lock under which the connection got its number.",
        file: "pool/core/permit.rs",
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
        file: "pool/core/permit.rs",
        edits: &[Edit {
            within: "Drop for Permit",
            right: "
                let is_awaited = self.core.capacity.release(1, 1);
                self.core.give_back(is_awaited, false);
            ",
            wrong: "return;",
        }],
    },
    Mutant {
        name: "pending_count_drops_early",
        does: "A new connection stops counting as pending before it is available.",
        file: "pool/core/tokens.rs",
        edits: &[Edit {
            within: "fn hand_on",
            right: "
                if let Some(idle) = unclaimed {
                    let held = ManuallyDrop::new(idle).0;
                    held.offer(held.core().preferred_shard(), Lane::OF_NEW, || self.stop_counting());
                }
            ",
            wrong: "
                self.stop_counting();
                if let Some(idle) = unclaimed {
                    let held = ManuallyDrop::new(idle).0;
                    held.offer(held.core().preferred_shard(), Lane::OF_NEW, || {});
                }
            ",
        }],
    },
    Mutant {
        name: "counted_as_pending_until_after_the_grant",
        does: "A new connection that is handed to a waiter stops counting as pending only after the hand-over.",
        file: "pool/core/held.rs",
        edits: &[Edit {
            within: "fn grant_to",
            right: "before_grant(); wake(claimed.grant(Grant::Connection(self.into_idle())));",
            wrong: "wake(claimed.grant(Grant::Connection(self.into_idle()))); before_grant();",
        }],
    },
    Mutant {
        name: "second_end_of_an_opening_overtakes_the_first",
        does: "The second to end a shared opening may return before the connection has stopped counting as pending.",
        file: "pool/core/tokens.rs",
        edits: &[Edit { within: "fn end", right: "shared.iter_mut().for_each(Opening::stop_counting);", wrong: "" }],
    },
    Mutant {
        name: "permit_of_a_shared_opening_is_lost",
        does: "A shared opening that ends does not give its permit to the check-out that waits for it.",
        file: "pool/core/tokens.rs",
        edits: &[Edit { within: "fn end", right: "drop(ended);", wrong: "std::mem::forget(ended);" }],
    },
    Mutant {
        name: "capacity_is_released_before_the_close",
        does: "A connection stops counting before it is closed.",
        file: "pool/core/tokens.rs",
        edits: &[
            Edit {
                within: "fn of(core",
                right: "Self { core, counts_as }",
                wrong: "{ let this = Self { core, counts_as }; this.release(); this }",
            },
            Edit { within: "Drop for Closing", right: "self.release();", wrong: "" },
        ],
    },
    Mutant {
        name: "return_that_fails_is_lost",
        does: "A connection that is not pushed at once is lost.",
        file: "pool/core/nearby.rs",
        edits: &[Edit { within: "fn push(", right: "self.make_available(shard);", wrong: "" }],
    },
    Mutant {
        name: "permits_are_not_served",
        does: "A freed permit is not given to the check-out that waits for it.",
        file: "pool/core/permit.rs",
        edits: &[Edit { within: "fn serve_permits", right: "queue.first_waiting_lane()", wrong: "None" }],
    },
    Mutant {
        name: "resize_outdates_no_reading",
        does: "A resize does not make the admissions fail that have read the old limits.",
        file: "pool/core/control.rs",
        edits: &[Edit { within: "fn try_resize", right: "self.capacity.outdate_readings();", wrong: "" }],
    },
    Mutant {
        name: "growth_is_not_served",
        does: "A resize does not give the new capacity to the check-outs that wait.",
        file: "pool/core/control.rs",
        edits: &[Edit { within: "fn try_resize", right: "self.serve_permits();", wrong: "" }],
    },
    Mutant {
        name: "maintenance_leaves_a_surplus",
        does: "Maintenance does not close the connections that are too many after a resize.",
        file: "pool/core/maintenance.rs",
        edits: &[Edit { within: "fn maintain", right: "self.trim();", wrong: "" }],
    },
    Mutant {
        name: "background_task_ignores_waiters",
        does: "The background task takes a permit for which a check-out waits.",
        file: "pool/core/maintenance.rs",
        edits: &[Edit { within: "fn create_towards", right: "counts.waiting", wrong: "false" }],
    },
];
