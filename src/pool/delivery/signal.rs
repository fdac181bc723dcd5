//! The signal that tells a waiting caller how to proceed.

use crate::pool::sync::atomic::{AtomicU32, Ordering};
use crate::pool::sync::{Backoff, Condvar, Mutex, unless_mutant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The caller may leave: its events are close enough to the front of the queue.
    Leave,
    Deliver,
}

/// A verdict that one thread waits for and another thread gives. It is given only once.
///
/// The waiter checks many times before it sleeps, because a deliverer with a quick subscriber finishes within a
/// microsecond.
#[derive(Debug)]
pub(super) struct Signal {
    /// The verdict, or 0 until it is given.
    verdict: AtomicU32,
    sleeps: Mutex<bool>,
    given: Condvar,
}

impl Signal {
    /// How many times the waiter checks before it sleeps. The checks take a few microseconds.
    const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 160 };

    pub(super) fn new() -> Self {
        Self { verdict: AtomicU32::new(0), sleeps: Mutex::new(false), given: Condvar::new() }
    }

    fn look(&self) -> Option<Verdict> {
        // ORD: Acquire; pairs with the Release in `give`; a caller that leaves sees everything that happened in the
        // deliveries that it waited for.
        match self.verdict.load(unless_mutant("verdict_acquires_nothing", Ordering::Acquire)) {
            0 => None,
            1 => Some(Verdict::Leave),
            _ => Some(Verdict::Deliver),
        }
    }

    pub(super) fn wait(&self) -> Verdict {
        let mut backoff = Backoff::new();
        for _ in 0..Self::LOOKS {
            if let Some(verdict) = self.look() {
                return verdict;
            }
            backoff.pause();
        }
        let mut sleeps = self.sleeps.lock();
        loop {
            if let Some(verdict) = self.look() {
                return verdict;
            }
            *sleeps = true;
            sleeps = self.given.wait(sleeps);
        }
    }

    /// Gives the verdict.
    ///
    /// | waiter | giver |
    /// | --- | --- |
    /// | 1. locks `sleeps` | a. stores the verdict |
    /// | 2. checks, and finds no verdict | b. locks `sleeps` |
    /// | 3. sets `sleeps`, and goes to sleep, which unlocks `sleeps` | c. wakes the waiter if `sleeps` is set |
    ///
    /// If step 2 does not find a verdict, step b comes after step 3, and step c wakes the waiter. If step b comes
    /// before step 1, step 2 finds the verdict.
    pub(super) fn give(&self, verdict: Verdict) {
        let word = match verdict {
            Verdict::Leave => 1,
            Verdict::Deliver => 2,
        };
        // ORD: Release; pairs with the Acquire in `look`; publishes the end of the deliveries so far.
        self.verdict.store(word, unless_mutant("verdict_publishes_nothing", Ordering::Release));
        let sleeps = *self.sleeps.lock();
        if sleeps {
            self.given.notify_one();
        }
    }
}
