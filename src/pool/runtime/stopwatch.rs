//! The clock that measures a pool's durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as SystemInstant};

use quanta::Clock;
use tokio::time::Instant;

/// Nanoseconds per tick of the fast clock's counter, multiplied by 2^32, for the whole process. 0 before the first
/// calibration. Threads do not wait for another thread's calibration, because that thread would not exist in a forked
/// child.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Measures durations, in nanoseconds since it was started. Clones count from the same instant.
#[derive(Debug, Clone)]
pub(crate) enum Stopwatch {
    /// The processor's time stamp counter or, failing that, the system clock.
    Fast { counter: Clock, start: u64, scale: u64 },
    /// tokio's clock, which tests can pause.
    Tokio { start: Instant },
}

impl Stopwatch {
    /// Starts a stopwatch with the fast clock. The first stopwatch in a process is calibrated against the system clock,
    /// which usually takes about 2 ms, and rarely more than 200 ms.
    pub(crate) fn fast() -> Self {
        let counter = Clock::new();
        // ORD: Relaxed; nothing else is published.
        let scale = match SCALE.load(Ordering::Relaxed) {
            0 => {
                let scale = calibrate(&counter);
                SCALE.store(scale, Ordering::Relaxed);
                scale
            }
            known => known,
        };
        Self::Fast { start: counter.raw(), counter, scale }
    }

    pub(super) fn tokio() -> Self {
        Self::Tokio { start: Instant::now() }
    }

    #[inline]
    pub(crate) fn read(&self) -> u64 {
        match self {
            Self::Fast { counter, start, scale } => scaled(counter.raw().saturating_sub(*start), *scale),
            Self::Tokio { start } => start.elapsed().as_nanos() as u64,
        }
    }
}

#[inline]
fn scaled(ticks: u64, scale: u64) -> u64 {
    ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
}

/// Measures the duration of a tick over a millisecond. The error is less than a thousandth. quanta also calibrates the
/// counter, but its error has no bound: it counts an interruption between the readings of the two clocks as a
/// difference between the clocks. One calibration in several hundred was off by more than a thousandth.
fn calibrate(counter: &Clock) -> u64 {
    let (start, first) = read_both(|| counter.raw());
    std::thread::sleep(Duration::from_millis(1));
    let (end, last) = read_both(|| counter.raw());
    let ticks = last.saturating_sub(first).max(1);
    (((end - start).as_nanos() << 32) / u128::from(ticks)) as u64
}

/// Reads the system clock and the counter at nearly the same time. An interruption can separate the two readings, so
/// this tries several times and returns the closest pair.
fn read_both(mut count: impl FnMut() -> u64) -> (SystemInstant, u64) {
    let tries = (0..16).map(|_| {
        let before = SystemInstant::now();
        let ticks = count();
        let took = before.elapsed();
        (took, before + took / 2, ticks)
    });
    let (_, instant, ticks) = tries.min_by_key(|(took, ..)| *took).expect("there were sixteen tries");
    (instant, ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_clock_agrees_with_that_of_the_system() {
        let stopwatch = Stopwatch::fast();
        let (outer, begun) = (SystemInstant::now(), stopwatch.read());
        let inner = SystemInstant::now();
        while inner.elapsed() < Duration::from_millis(20) {}
        let least = inner.elapsed();
        let measured = Duration::from_nanos(stopwatch.read() - begun);
        let most = outer.elapsed();
        // The calibration leaves an error of less than a thousandth.
        assert!(least.mul_f64(0.999) <= measured && measured <= most.mul_f64(1.001), "{least:?} {measured:?} {most:?}");
    }

    #[test]
    fn interruptions_during_the_calibration_do_not_falsify_it() {
        let origin = SystemInstant::now();
        let mut tries = 0;
        let (instant, nanos) = read_both(|| {
            tries += 1;
            let interruption = Duration::from_millis(if tries == 5 { 0 } else { 4 });
            let start = SystemInstant::now();
            while start.elapsed() < interruption {}
            origin.elapsed().as_nanos() as u64
        });
        let difference = (instant - origin).abs_diff(Duration::from_nanos(nanos));
        assert!(difference < Duration::from_millis(1), "{difference:?}");
        assert_eq!(scaled(3, 5 << 31), 7, "a tick of two and a half nanoseconds");
        assert_eq!(scaled(u64::MAX, 1 << 32), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_stands_still_while_it_is_paused() {
        let stopwatch = Stopwatch::tokio();
        assert_eq!(stopwatch.read(), 0);
        tokio::time::advance(Duration::from_millis(7)).await;
        assert_eq!(stopwatch.clone().read(), 7_000_000);
    }
}
