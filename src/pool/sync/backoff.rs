//! Waiting for another thread that is in the middle of a few stores.

#[cfg(not(any(loom, shuttle)))]
use std::time::Duration;

/// The back-off of a thread that waits for another thread to finish a few stores. It starts with short pauses. If these
/// are not enough, the other thread must have been preempted, so this thread yields, which leaves the core to other
/// threads. It sleeps only after many yields: if this thread has a higher priority, the system may not run the other
/// thread while this thread is ready.
///
/// It must not sleep early. A thread may be given a lock while it sleeps, and then delays all others until it wakes up.
/// When threads slept after 64 yields, a nearly saturated pool on 64 simulated cores reached a third of its current
/// throughput.
#[derive(Debug)]
pub(crate) struct Backoff {
    #[cfg(not(any(loom, shuttle)))]
    pauses: u32,
}

#[cfg(not(any(loom, shuttle)))]
impl Backoff {
    /// The number of pauses, about 20 ns each, after which the other thread is assumed to have been preempted.
    const SPINS: u32 = 128;
    /// The number of yields before the first sleep. They take about a millisecond if no other thread is ready.
    const YIELDS: u32 = 2_048;
    /// Roughly how long a system with as many threads as cores takes to run a preempted thread again.
    const NAP: Duration = Duration::from_micros(50);

    #[inline]
    pub(crate) fn new() -> Self {
        Self { pauses: 0 }
    }

    #[cold]
    pub(crate) fn pause(&mut self) {
        match self.pauses {
            0..Self::SPINS => super::spin_loop(),
            n if n < Self::SPINS + Self::YIELDS => super::yield_now(),
            _ => super::sleep(Self::NAP),
        }
        self.pauses = self.pauses.saturating_add(1);
    }

    /// Returns whether the other thread seems to have been preempted.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.pauses > Self::SPINS
    }
}

/// In a model, every pause must yield, so that the checker runs the other threads.
#[cfg(any(loom, shuttle))]
impl Backoff {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn pause(&mut self) {
        super::yield_now();
    }

    #[cfg(loom)]
    pub(crate) fn is_long(&self) -> bool {
        false
    }
}
