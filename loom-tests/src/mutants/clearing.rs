//! Mutants of ready, clear and close, of interruptions and of drains.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "ready_announced_late",
        does: "The pool becomes ready before it emits `PoolReady`.",
        file: "pool/core/phases.rs",
        edits: &[Edit {
            within: "fn begin_ready",
            right: "
                self.emit_locked(|| PoolEvent::PoolReady { address: self.address.clone() });
                self.state.store(PoolState { phase: Phase::Ready, ..state });
            ",
            wrong: "
                self.state.store(PoolState { phase: Phase::Ready, ..state });
                drop(registry);
                self.emit_locked(|| PoolEvent::PoolReady { address: self.address.clone() });
            ",
        }],
    },
    Mutant {
        name: "stale_announced_early",
        does: "A clear notifies the watches before the connections are stale.",
        file: "pool/core/phases.rs",
        edits: &[
            Edit {
                within: "fn begin_clear(",
                right: "if self.options.load_balanced { return Err(InvalidOption::missing(\"serviceId\", \"to clear a pool in load-balanced mode\")); }",
                wrong: "self.environment.connections_went_stale(super::environment::WentStale::All);",
            },
            Edit { within: "fn conclude", right: "self.environment.connections_went_stale(which);", wrong: "" },
        ],
    },
    Mutant {
        name: "cleared_announced_early",
        does: "A clear emits `PoolCleared` before the generation changes.",
        file: "pool/core/phases.rs",
        edits: &[
            Edit {
                within: "fn begin_clear(",
                right: "
                    self.begin_generation(&mut registry, PoolState { phase: Phase::Paused, generation: state.generation + 1 });
                ",
                wrong: "
                    self.emit_locked(|| PoolEvent::PoolCleared {
                        address: self.address.clone(),
                        service_id: None,
                        interrupt_in_use_connections: clear.interrupt_in_use_connections,
                        error: clear.cause.clone().map(EventError::from),
                    });
                    self.begin_generation(&mut registry, PoolState { phase: Phase::Paused, generation: state.generation + 1 });
                ",
            },
            Edit {
                within: "fn begin_clear(",
                right: "
                    self.emit_locked(|| PoolEvent::PoolCleared {
                        address: self.address.clone(),
                        service_id: None,
                        interrupt_in_use_connections: clear.interrupt_in_use_connections,
                        error: clear.cause.clone().map(EventError::from),
                    });
                ",
                wrong: "",
            },
        ],
    },
    Mutant {
        name: "paused_clear_announced",
        does: "A clear of a paused pool emits `PoolCleared`.",
        file: "pool/core/phases.rs",
        edits: &[Edit { within: "fn begin_clear(", right: "state.phase == Phase::Ready", wrong: "true" }],
    },
    Mutant {
        name: "interruption_reaches_the_new_generation",
        does: "A clear interrupts connections of the generation that it begins.",
        file: "pool/core/phases.rs",
        edits: &[Edit { within: "fn begin_clear(", right: "Some(state.generation)", wrong: "Some(state.generation + 1)" }],
    },
    Mutant {
        name: "refused_before_announced",
        does: "A clear fails the waiters before it emits `PoolCleared`.",
        file: "pool/core/phases.rs",
        edits: &[Edit {
            within: "fn begin_clear(",
            right: "registry.set_cause(clear.cause.clone())",
            wrong: "
                let before = registry.set_cause(clear.cause.clone());
                self.refuse(self.turn_away(), || Refusal::Paused { cause: clear.cause.clone(), never_ready: false });
                before
            ",
        }],
    },
    Mutant {
        name: "clear_detaches_first",
        does: "A clear empties the shards before it changes the generation.",
        file: "pool/core/phases.rs",
        edits: &[
            Edit { within: "fn begin_generation", right: "self.state.store(state);", wrong: "" },
            Edit {
                within: "fn begin_generation",
                right: "self.detach_all()",
                wrong: "
                    let early = self.detach_all();
                    self.state.store(state);
                    early
                ",
            },
        ],
    },
    Mutant {
        name: "close_detaches_first",
        does: "A close empties the shards before it changes the phase.",
        file: "pool/core/phases.rs",
        edits: &[
            Edit {
                within: "fn close",
                right: "self.state.store(PoolState { phase: Phase::Closed, generation: state.generation + 1 });",
                wrong: "",
            },
            Edit {
                within: "fn close",
                right: "self.detach_all()",
                wrong: "
                    let early = self.detach_all();
                    let _registry = self.registry.lock();
                    let state = self.state.load();
                    self.state.store(PoolState { phase: Phase::Closed, generation: state.generation + 1 });
                    early
                ",
            },
        ],
    },
    Mutant {
        name: "close_leaves_the_counts_alone",
        does: "A close does not write the counts, so the end of the last connection may go unnoticed.",
        file: "pool/core/phases.rs",
        edits: &[Edit { within: "fn close", right: "self.capacity.order_releases();", wrong: "" }],
    },
    Mutant {
        name: "interrupts_without_the_lock",
        does: "An interruption takes the waker under a different lock than the one the owner waits for.",
        file: "pool/core/slab.rs",
        edits: &[Edit {
            within: "fn interrupt",
            right: "self.interrupting.lock()",
            wrong: "Box::leak(Box::new(Mutex::new(()))).lock()",
        }],
    },
    Mutant {
        name: "mark_is_not_read_again",
        does: "An owner that registers its waker does not check whether the interruption came first.",
        file: "pool/core/slab.rs",
        edits: &[Edit { within: "fn watch", right: "before.interrupted", wrong: "false" }],
    },
    Mutant {
        name: "interrupter_is_not_awaited",
        does: "An owner does not wait for the interruption that may still be taking its waker.",
        file: "pool/core/slab.rs",
        edits: &[Edit { within: "fn await_interrupter", right: "drop(self.interrupting.lock());", wrong: "" }],
    },
    Mutant {
        name: "drained_connection_is_not_made_available",
        does: "A connection that was drained is not made available.",
        file: "pool/core/draining.rs",
        edits: &[Edit { within: "Drop for Draining", right: "held.make_available(held.core().preferred_shard());", wrong: "" }],
    },
    Mutant {
        name: "draining_connection_is_available",
        does: "A connection is available while it is drained.",
        file: "pool/core/draining.rs",
        edits: &[Edit {
            within: "fn drain",
            right: "if is_wanted { core.serve_permits(); }",
            wrong: "
                if is_wanted { core.serve_permits(); }
                draining.held.make_available(core.preferred_shard());
            ",
        }],
    },
    Mutant {
        name: "drain_ignores_waiters",
        does: "A drain that begins does not check whether a check-out waits for its capacity.",
        file: "pool/core/draining.rs",
        edits: &[Edit { within: "fn drain", right: "core.enter_drain(&self)", wrong: "(core.enter_drain(&self).0, false)" }],
    },
    Mutant {
        name: "waiters_ignore_drains",
        does: "A check-out that queues up does not displace a drain for its capacity.",
        file: "pool/core/acquire.rs",
        edits: &[Edit {
            within: "fn queue_up",
            right: "refused.is_some_and(|counts| counts.wants_a_drain_displaced(limits))",
            wrong: "false",
        }],
    },
    Mutant {
        name: "connection_that_fails_its_check_is_available",
        does: "A connection that has not passed its check becomes available again.",
        file: "pool/core/checking.rs",
        edits: &[Edit {
            within: "Drop for Checking",
            right: "held.close(ConnectionClosedReason::Error, error, CountsAs::Established);",
            wrong: "drop((error, ConnectionClosedReason::Error, CountsAs::Established)); drop(held.into_idle());",
        }],
    },
    Mutant {
        name: "connection_that_fails_its_check_is_kept",
        does: "A connection that has not passed its check is not closed.",
        file: "pool/core/checking.rs",
        edits: &[Edit {
            within: "Drop for Checking",
            right: "held.close(ConnectionClosedReason::Error, error, CountsAs::Established);",
            wrong: "drop((error, ConnectionClosedReason::Error, CountsAs::Established));",
        }],
    },
    Mutant {
        name: "connection_that_is_given_up_still_counts",
        does: "Two worn connections are closed because the pool can spare one.",
        file: "pool/core/perished.rs",
        edits: &[Edit {
            within: "fn give_up",
            right: "held.slot().give_up();",
            wrong: "let _ = held;",
        }],
    },
    Mutant {
        name: "drains_are_not_displaced",
        does: "A freed permit does not displace a drain for a waiting check-out.",
        file: "pool/core/permit.rs",
        edits: &[Edit {
            within: "fn serve_permits",
            right: "counts.wants_a_drain_displaced(limits)",
            wrong: "false",
        }],
    },
    Mutant {
        name: "drain_that_ends_stays_in_the_queue",
        does: "A drain can be displaced after it has ended.",
        file: "pool/core/drain_queue.rs",
        edits: &[Edit {
            within: "fn leave_drains",
            right: "registry.drains.present.remove(&number)",
            wrong: "registry.drains.present.get(&number).map(|drain| Drain { index: drain.index, waker: None })",
        }],
    },
    Mutant {
        name: "displaced_connection_is_kept",
        does: "A connection whose drain was displaced is not closed.",
        file: "pool/core/draining.rs",
        edits: &[Edit { within: "fn leave", right: "held.retire_displaced();", wrong: "" }],
    },
    Mutant {
        name: "displaced_drain_is_not_told",
        does: "A drain that is displaced is not woken.",
        file: "pool/core/drain_queue.rs",
        edits: &[Edit { within: "fn displace_oldest_drain", right: "wake(waker);", wrong: "discard(waker);" }],
    },
    Mutant {
        name: "displacing_never_ends",
        does: "After a drain was displaced, the pool expects its capacity for ever.",
        file: "pool/core/capacity.rs",
        edits: &[Edit {
            within: "fn end_displacing",
            right: "Counts { total: counts.total - 1, displacing: false, ..counts.next() }",
            wrong: "Counts { total: counts.total - 1, ..counts.next() }",
        }],
    },
    Mutant {
        name: "flag_lowered_over_drains",
        does: "A drain that ends lowers the draining flag although other drains remain.",
        file: "pool/core/drain_queue.rs",
        edits: &[Edit { within: "fn note_drains", right: "registry.drains.present.is_empty()", wrong: "true" }],
    },
];
