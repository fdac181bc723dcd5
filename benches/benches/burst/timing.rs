//! Measures the longest of many steps.

use std::time::{Duration, Instant};

/// The longest step by the thread's CPU time, and the longest by the clock. These may be two different steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Longest {
    pub running: Duration,
    pub passed: Duration,
}

impl Longest {
    /// Times each step of an iterator.
    pub fn of(mut steps: impl Iterator<Item = ()>) -> Self {
        let mut longest = Self::default();
        while longest.time(|| steps.next()).is_some() {}
        longest
    }

    /// Times a step.
    pub fn time<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let (began, ran) = (Instant::now(), running());
        let result = step();
        self.include(Self { running: running() - ran, passed: began.elapsed() });
        result
    }

    pub fn include(&mut self, other: Self) {
        *self = Self { running: self.running.max(other.running), passed: self.passed.max(other.passed) };
    }
}

/// Returns the CPU time of this thread.
#[cfg(target_os = "linux")]
fn running() -> Duration {
    nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("every thread has a clock").into()
}

/// Returns the time since the first call, in place of the thread's CPU time, which is read only on Linux.
#[cfg(not(target_os = "linux"))]
fn running() -> Duration {
    static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGAN.elapsed()
}
