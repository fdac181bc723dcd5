//! The back-off after consecutive failed openings.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event_listener::Event;

use super::random::random_fraction;
use crate::pool::sync::Watch;

/// The pause after the second failure. Each subsequent failure doubles it.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// The number of consecutive failed openings. Failures of openings that run at the same time count as one.
#[derive(Default)]
pub(super) struct Failures(AtomicU64);

/// A reading of [`Failures`]. The lower half counts the failures, and the upper half counts the back-offs that have
/// ended. So readings from different back-offs differ, and an opening that began during an earlier back-off does not
/// count towards the current one.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Round(u64);

impl Round {
    fn failures(self) -> u32 {
        self.0 as u32
    }

    fn back_off(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    fn of_next_back_off(self) -> Self {
        Self(u64::from(self.back_off().wrapping_add(1)) << u32::BITS)
    }
}

/// How long a failed opening keeps its permit.
pub(super) struct Pause {
    length: Duration,
    back_off: u32,
}

impl Failures {
    /// Returns the current reading, for an opening that is about to begin.
    pub fn round(&self) -> Round {
        // Relaxed: the number publishes nothing.
        Round(self.0.load(Ordering::Relaxed))
    }

    /// Counts the failure of an opening that began in `round`. Returns how long to keep its permit.
    ///
    /// The time is random, between half the pause and the full pause, so that several pools do not retry in lockstep.
    pub fn add(&self, round: Round) -> Option<Pause> {
        if round.failures() < u32::MAX {
            // Relaxed: as in `round`. The swap fails if another opening of the round has already failed, or the
            // back-off has ended.
            let _ = self.0.compare_exchange(round.0, round.0 + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        let present = self.round();
        let doublings = present.failures().checked_sub(2)?;
        let length = FIRST.saturating_mul(1 << doublings.min(10)).min(LONGEST);
        Some(Pause { length: length.mul_f64((1.0 + random_fraction()) / 2.0), back_off: present.back_off() })
    }

    /// Ends the back-off and all its pauses.
    pub fn end(&self, changed: &Event) {
        if self.round().failures() > 0 {
            self.reset();
            changed.notify(usize::MAX);
        }
    }

    /// Ends the back-off without notifying its pauses. The caller must notify them.
    pub fn reset(&self) {
        // Relaxed: as in `round`. The event's lock orders this before the pauses' next reading.
        let next = |word| Some(Round(word).of_next_back_off().0);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Waits until the pause has elapsed or its back-off has ended.
    pub async fn pause(&self, pause: Pause, changed: &Event) {
        let mut ended = Watch::new(changed);
        tokio::select! {
            () = poll_fn(|context| ended.poll(context, || self.round().back_off() != pause.back_off)) => {}
            () = tokio::time::sleep(pause.length) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pause_ends_with_its_back_off_although_an_opening_fails_before_its_task_runs() {
        let (failures, changed) = (Failures::default(), Event::new());
        let slow = failures.round();
        let pauses = (0..10).map(|_| failures.add(failures.round()));
        let last = pauses.last().flatten().expect("there are ten failures one after another");
        let begun = Instant::now();
        let mut pause = pin!(failures.pause(last, &changed));
        assert!(pause.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        failures.end(&changed);
        assert!(failures.add(slow).is_none());
        pause.await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
