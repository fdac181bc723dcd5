//! Waiting for another thread that is in the middle of a few stores.

#[cfg(not(any(loom, shuttle)))]
use std::time::Duration;

/// How a thread waits for another that is in the middle of a few stores: with short pauses at first, and if that takes
/// too long, so that the other must have been preempted, by letting others run, and at last by sleeping.
///
/// A wait that goes on therefore costs the system a look every 50 to 100 µs, and never a core.
#[derive(Debug)]
pub(crate) struct Backoff {
    #[cfg(not(any(loom, shuttle)))]
    pauses: u32,
}

#[cfg(not(any(loom, shuttle)))]
impl Backoff {
    /// Pauses of about 20 ns before the other is taken for preempted.
    const SPINS: u32 = 128;
    /// How often others are let run before sleeping.
    const YIELDS: u32 = 64;
    /// About as long as a system with as many threads as cores takes to run a preempted one again.
    const NAP: Duration = Duration::from_micros(50);

    #[inline]
    pub(crate) fn new() -> Self {
        Self { pauses: 0 }
    }

    #[cold]
    pub(crate) fn pause(&mut self) {
        match self.pauses {
            0..Self::SPINS => std::hint::spin_loop(),
            n if n < Self::SPINS + Self::YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(Self::NAP),
        }
        self.pauses = self.pauses.saturating_add(1);
    }
}

/// A model checker must see every pause as a chance for the others.
#[cfg(any(loom, shuttle))]
impl Backoff {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn pause(&mut self) {
        super::yield_now();
    }
}
