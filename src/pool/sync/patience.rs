//! Lets a thread in a model wait for another thread's step.
//!
//! A thread that waits by polling makes loom try all orders of its polls. A model in which two threads wait for a third
//! in this way never finishes. Here, a thread polls twice and then sleeps until another thread has made progress. Only
//! the poll after that progress matters, so polling before then would reveal nothing.
//!
//! loom allows a poll to read old values, and a thread must not sleep after such a poll. There may be many old values,
//! so a yield is not enough: it only rules out values that are older than the values already seen. So a thread that
//! pauses is ordered after all progress so far, and its next poll reads everything that was written before. The same
//! holds for a thread that is woken. This ordering is stronger than the code promises, but it does not hide anything,
//! because loom also tries the executions in which the waiting thread arrives late and succeeds at its first poll.

use std::cell::RefCell;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{self, Thread};

use super::explored::unexplored;

/// The progress of a model's threads, which is not part of the model, because loom switches threads only at its own
/// objects.
#[derive(Default)]
struct Progress {
    steps: u64,
    asleep: Vec<Thread>,
}

std::thread_local! {
    // loom runs all threads of a model on one thread.
    static PROGRESS: RefCell<Progress> = RefCell::default();
}

loom::lazy_static! {
    /// Orders the pausing thread after all progress so far.
    static ref ORDER: AtomicUsize = AtomicUsize::new(0);
}

/// Wakes the threads that are waiting for another thread's step.
pub(crate) fn made_progress() {
    unexplored(|| ORDER.fetch_add(1, Ordering::Release));
    let asleep = PROGRESS.with_borrow_mut(|progress| {
        progress.steps += 1;
        std::mem::take(&mut progress.asleep)
    });
    asleep.iter().for_each(Thread::unpark);
}

#[derive(Debug)]
pub(crate) struct Patience {
    /// The number of steps that had been taken before the last poll. `None` until the second poll.
    seen: Option<u64>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { seen: None }
    }

    /// Called after a poll that found nothing.
    pub(crate) fn pause(&mut self) {
        let steps = PROGRESS.with_borrow(|progress| progress.steps);
        match self.seen {
            Some(seen) if seen == steps => {
                PROGRESS.with_borrow_mut(|progress| progress.asleep.push(thread::current()));
                thread::park();
            }
            Some(_) => {}
            None => thread::yield_now(),
        }
        unexplored(|| ORDER.fetch_add(0, Ordering::Acquire));
        self.seen = Some(PROGRESS.with_borrow(|progress| progress.steps));
    }
}
