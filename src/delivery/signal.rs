//! How a caller that waits learns what becomes of it.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Backoff, Condvar, Mutex};

/// What a waiting caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its events are near enough to the front of the queue: it goes on.
    Leave,
    /// It is the deliverer from now on.
    Deliver,
}

/// A verdict that one thread waits for and another one gives, once.
///
/// The waiter first looks a few times, because the deliverer of a quick subscriber is done within a microsecond, and
/// then sleeps.
#[derive(Debug)]
pub(super) struct Signal {
    /// 0 until the verdict is given.
    verdict: AtomicU32,
    sleeps: Mutex<bool>,
    given: Condvar,
}

impl Signal {
    /// How often the waiter looks before it sleeps: some microseconds.
    const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 160 };

    pub(super) fn new() -> Self {
        Self { verdict: AtomicU32::new(0), sleeps: Mutex::new(false), given: Condvar::new() }
    }

    fn look(&self) -> Option<Verdict> {
        // ORD: Acquire; pairs with the Release in `give`. What the giver did under the delivery's lock comes with that
        // lock, so this only keeps the waiter from going on before the giver has finished with the signal's value.
        match self.verdict.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Verdict::Leave),
            _ => Some(Verdict::Deliver),
        }
    }

    /// Waits for the verdict.
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
    /// | the waiter | the giver |
    /// | --- | --- |
    /// | 1. locks `sleeps` | a. stores the verdict |
    /// | 2. looks, and finds none | b. locks `sleeps` |
    /// | 3. sets it, and sleeps, which unlocks it | c. if it is set, wakes |
    ///
    /// If 2 finds none, a comes after it or is not visible yet, so b comes after 3, and c wakes the waiter. If b comes
    /// before 1, 2 finds the verdict.
    pub(super) fn give(&self, verdict: Verdict) {
        let word = match verdict {
            Verdict::Leave => 1,
            Verdict::Deliver => 2,
        };
        // ORD: Release; pairs with the Acquire in `look`.
        self.verdict.store(word, Ordering::Release);
        let sleeps = *self.sleeps.lock();
        if sleeps {
            self.given.notify_one();
        }
    }
}
