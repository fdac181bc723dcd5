//! Mutants of event delivery and of a pool's closing.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "end_of_delivery_wakes_no_task",
        does: "The delivery of the last event does not wake the tasks that wait for the end.",
        file: "pool/delivery.rs",
        edits: &[Edit { within: "fn take_steps", right: "self.change.notify(usize::MAX);", wrong: "" }],
    },
    Mutant {
        name: "panic_ends_the_delivery",
        does: "The panic of a subscriber ends the delivery without freeing the deliverer's role.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn deliver_from",
            right: "contain(|| on_event(&event));",
            wrong: "if contain(|| on_event(&event)).is_none() { return Next::Leave; }",
        }],
    },
    Mutant {
        name: "queue_is_checked_before_the_role_is_freed",
        does: "The deliverer checks the queue in one locked section and frees its role in the next.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn deliver_from",
            right: "deliverer.left = deliverer.left.saturating_sub(1);",
            wrong: "
                deliverer.left = deliverer.left.saturating_sub(1);
                if self.locked(|queue| queue.events.is_empty()) {
                    let told = self.locked(|queue| queue.free_the_role());
                    told.into_iter().for_each(|(signal, verdict)| signal.give(verdict));
                    return Next::Leave;
                }
            ",
        }],
    },
    Mutant {
        name: "look_again_wakes_no_task",
        does: "A task that waits for the end is not woken when its other condition changes.",
        file: "pool/delivery.rs",
        edits: &[Edit { within: "fn look_again", right: "self.change.notify(usize::MAX);", wrong: "" }],
    },
    Mutant {
        name: "ended_before_the_queue_is_empty",
        does: "The end is reported while events are queued.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn has_ended", right: "self.events.is_empty()", wrong: "true" }],
    },
    Mutant {
        name: "ended_while_the_last_is_delivered",
        does: "The end is reported while a subscriber still receives the last event.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn has_ended", right: "self.role == Role::Free", wrong: "true" }],
    },
    Mutant {
        name: "tired_deliverers_are_not_relieved",
        does: "No caller relieves a deliverer that has finished its turn.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn arrive", right: "self.role == Role::Tired", wrong: "false" }],
    },
    Mutant {
        name: "callers_leave_any_number_behind",
        does: "Callers leave more events behind than there is room for.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn arrive", right: "caller.is_behind(self.delivered)", wrong: "false" }],
    },
    Mutant {
        name: "subscribers_wait_too",
        does: "A thread inside a subscriber waits for a subscriber.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn arrive", right: "!inside::is_inside()", wrong: "true" }],
    },
    Mutant {
        name: "role_is_freed_for_the_successor",
        does: "The role is free between a deliverer and its successor.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit {
            within: "fn delivered_one",
            right: "self.role = Role::Held;",
            wrong: "self.role = Role::Free;",
        }],
    },
    Mutant {
        name: "waiting_callers_are_forgotten",
        does: "The last deliverer gives no verdict to the callers that wait.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn free_the_role", right: "self.let_go(self.waiting.len())", wrong: "Told::new()" }],
    },
    Mutant {
        name: "verdict_wakes_no_thread",
        does: "A sleeping caller gets a verdict but is not woken.",
        file: "pool/delivery/signal.rs",
        edits: &[Edit { within: "fn give", right: "self.given.notify_one();", wrong: "" }],
    },
    Mutant {
        name: "queued_event_raises_no_flag",
        does: "An event that is queued under a lock is noticed by inline deliveries only when a caller delivers it.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn emit",
            right: "self.locked(|queue| queue.push(event, self.address()));",
            wrong: "self.queue.lock().push(event, self.address());",
        }],
    },
    Mutant {
        name: "idle_while_an_event_is_delivered",
        does: "The queue counts as idle while the last event that was in it is delivered.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn is_idle", right: "self.role == Role::Free", wrong: "true" }],
    },
    Mutant {
        name: "inline_callers_leave_events_behind",
        does: "A caller delivers inline while events that were queued before are left behind.",
        file: "pool/delivery.rs",
        edits: &[Edit { within: "fn catch_up", right: "queue.arrive(0)", wrong: "queue.arrive(self.share.room)" }],
    },
    Mutant {
        name: "subscribers_deliver_inline",
        does: "An event that is emitted inside a subscriber is delivered inside the present delivery.",
        file: "pool/delivery/inside.rs",
        edits: &[Edit {
            within: "fn inline",
            right: "if nesting.outermost.get() != OUTSIDE { return None; }",
            wrong: "",
        }],
    },
    Mutant {
        name: "inline_delivery_delivers_the_queue",
        does: "A subscriber that emits an event inside an inline delivery is called for queued events meanwhile.",
        file: "pool/delivery.rs",
        edits: &[
            Edit { within: "fn deliver(", right: "!inside::is_inline_in(self.address())", wrong: "true" },
            Edit { within: "fn publish(", right: "inside::is_inline_in(self.address())", wrong: "false" },
        ],
    },
    Mutant {
        name: "embargo_is_ignored",
        does: "Other threads deliver an event that was emitted inside an inline delivery before that delivery has ended.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn go_on", right: "self.embargoes.contains(&embargo)", wrong: "false" }],
    },
    Mutant {
        name: "reserved_role_is_not_taken",
        does: "A thread does not take the role that is reserved for it.",
        file: "pool/delivery/queue.rs",
        edits: &[Edit { within: "fn lift", right: "self.role = Role::Free;", wrong: "" }],
    },
    Mutant {
        name: "embargo_is_not_lifted",
        does: "The end of an inline delivery does not release the events that were emitted inside it.",
        file: "pool/delivery.rs",
        edits: &[Edit { within: "fn deliver_inline", right: "self.lift(embargo, on_event)", wrong: "{}" }],
    },
    Mutant {
        name: "inline_event_is_left_behind",
        does: "A caller that should deliver inline leaves its event to the queue, and does not wait for it.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn deliver_inline",
            right: "
                if self.busy.load(unless_mutant(\"idle_acquires_nothing\", Ordering::Acquire)) {
                    self.catch_up(&on_event);
                }
            ",
            wrong: "return self.emit(event.clone());",
        }],
    },
    Mutant {
        name: "turns_do_not_end",
        does: "A deliverer is never tired.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn deliver_from",
            right: "deliverer.left = deliverer.left.saturating_sub(1);",
            wrong: "",
        }],
    },
    Mutant {
        name: "panic_ends_the_inline_delivery",
        does: "The panic of a subscriber leaves its inline delivery.",
        file: "pool/delivery.rs",
        edits: &[Edit {
            within: "fn deliver_inline",
            right: "_ = contain(|| on_event(event))",
            wrong: "on_event(event)",
        }],
    },
];
