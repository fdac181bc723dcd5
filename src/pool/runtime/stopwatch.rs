//! The clock that measures a pool's durations.

use quanta::Clock;
use tokio::time::Instant;

/// Measures durations, in nanoseconds since it was started. Clones count from the same instant.
#[derive(Debug, Clone)]
pub(super) enum Stopwatch {
    /// The processor's time stamp counter or, failing that, the system's clock.
    Fast { clock: Clock, start: u64 },
    /// tokio's clock, which tests can pause.
    Tokio { start: Instant },
}

impl Stopwatch {
    /// Starts a stopwatch with the fast clock. The first stopwatch in a process is calibrated against the system's
    /// clock, which usually takes about 1 ms, and at most 200 ms.
    pub(super) fn fast() -> Self {
        let clock = Clock::new();
        Self::Fast { start: clock.raw(), clock }
    }

    pub(super) fn tokio() -> Self {
        Self::Tokio { start: Instant::now() }
    }

    #[inline]
    pub(super) fn read(&self) -> u64 {
        match self {
            Self::Fast { clock, start } => clock.delta_as_nanos(*start, clock.raw()),
            Self::Tokio { start } => start.elapsed().as_nanos() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fast_clock_agrees_with_that_of_the_system() {
        use std::time::Instant;
        let stopwatch = Stopwatch::fast();
        let (outer, begun) = (Instant::now(), stopwatch.read());
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(20) {}
        let least = inner.elapsed();
        let measured = Duration::from_nanos(stopwatch.read() - begun);
        let most = outer.elapsed();
        // The calibration leaves an error of less than a thousandth.
        assert!(least.mul_f64(0.999) <= measured && measured <= most.mul_f64(1.001), "{least:?} {measured:?} {most:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_stands_still_while_it_is_paused() {
        let stopwatch = Stopwatch::tokio();
        assert_eq!(stopwatch.read(), 0);
        tokio::time::advance(Duration::from_millis(7)).await;
        assert_eq!(stopwatch.clone().read(), 7_000_000);
    }
}
