//! Mutants of the primitives.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "brief_lock_without_comparing",
        does: "Two threads may find the lock free and both take it.",
        file: "pool/sync/brief.rs",
        edits: &[Edit {
            within: "fn try_acquire",
            right: "self.held.compare_exchange(false, true, order, Ordering::Relaxed).is_ok()",
            wrong: "
                let was_held = self.held.load(Ordering::Acquire);
                self.held.store(true, Ordering::Relaxed);
                !was_held
            ",
        }],
    },
    Mutant {
        name: "brief_lock_leaves_a_request_behind",
        does: "The thread of the first request waits for a holder that has not seen the request.",
        file: "pool/sync/brief.rs",
        edits: &[Edit {
            within: "fn wait",
            right: "before.is_null() || backoff.is_long()",
            wrong: "backoff.is_long()",
        }],
    },
    Mutant {
        name: "brief_lock_is_given_without_the_later_requests",
        does: "A thread that is given the lock does not serve the requests that came with it.",
        file: "pool/sync/brief.rs",
        edits: &[Edit {
            within: "fn take_over",
            right: "self.guard(request.next.with(|next| unsafe { *next }))",
            wrong: "
                let _ = request;
                self.guard(ptr::null())
            ",
        }],
    },
    Mutant {
        name: "brief_lock_is_given_and_released",
        does: "A holder that gives the lock to a thread releases it as well.",
        file: "pool/sync/brief.rs",
        edits: &[Edit {
            within: "fn serve",
            right: "if run.is_none() { return; }",
            wrong: "
                if run.is_none() {
                    return self.release();
                }
            ",
        }],
    },
    Mutant {
        name: "brief_lock_reads_a_request_that_was_served",
        does: "A holder reads the next request from a request that it has served, whose thread may have gone on.",
        file: "pool/sync/brief.rs",
        edits: &[
            Edit { within: "fn serve", right: "left = request.next.with(|next| unsafe { *next });", wrong: "" },
            Edit {
                within: "fn serve",
                right: "served += 1;",
                wrong: "
                    left = request.next.with(|next| unsafe { *next });
                    served += 1;
                ",
            },
        ],
    },
    Mutant {
        name: "slot_stack_tag_not_counted",
        does: "A stack of slots that was changed and changed back seems unchanged.",
        file: "pool/sync/slots.rs",
        edits: &[Edit { within: "fn change", right: "head.tag.wrapping_add(1)", wrong: "head.tag" }],
    },
    Mutant {
        name: "slots_are_detached_in_two_steps",
        does: "The slots of a stack are detached in two steps, so another thread may take or push one in between.",
        file: "pool/sync/slots.rs",
        edits: &[Edit {
            within: "fn detach",
            right: "self.change(|head| (head.top != NONE).then_some((NONE, head.top)))",
            wrong: "
                let top = StackHead::unpack(self.head.load(Ordering::Acquire)).top;
                self.head.store(StackHead { tag: 0, top: NONE }.pack(), Ordering::Release);
                (top != NONE).then_some(top)
            ",
        }],
    },
    Mutant {
        name: "front_is_held_by_two",
        does: "Two threads may both hold the front.",
        file: "pool/sync/front.rs",
        edits: &[Edit {
            within: "fn hold",
            right: "self.state.compare_exchange(state, HELD, order, Ordering::Relaxed).is_ok()",
            wrong: "
                let was = self.state.load(order) == state;
                self.state.store(HELD, Ordering::Relaxed);
                was
            ",
        }],
    },
    Mutant {
        name: "watch_checks_before_it_listens",
        does: "A watch checks its condition before it enters the event's list.",
        file: "pool/sync/watch.rs",
        edits: &[Edit {
            within: "fn poll",
            right: "holds()",
            wrong: "
                let held = holds();
                event_listener::Listener::discard(std::mem::replace(listener, self.event.listen()));
                held
            ",
        }],
    },
];
