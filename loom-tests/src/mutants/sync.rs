//! Mutants of the primitives.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "brief_lock_without_comparing",
        does: "Two threads may find the lock free and both take it.",
        file: "sync/brief.rs",
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
        name: "watch_checks_before_it_listens",
        does: "A watch checks its condition before it enters the event's list.",
        file: "sync/watch.rs",
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
