//! The back-off of openings that fail one after another.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use event_listener::Event;

use super::random::random_fraction;
use crate::sync::Watch;

/// The pause after the second failure. Each further one doubles it.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// How many openings have failed one after another. Openings that run at the same time count as one.
#[derive(Default)]
pub(super) struct Failures(AtomicU32);

impl Failures {
    /// Returns the number of failures, for an opening that begins.
    pub fn round(&self) -> u32 {
        // Relaxed: the number publishes nothing.
        self.0.load(Ordering::Relaxed)
    }

    /// Counts the failure of an opening that began in `round`. Returns how long to keep its permit.
    ///
    /// The time is between a half and the whole of the pause, at random, so that several pools do not meet again.
    pub fn add(&self, round: u32) -> Option<Duration> {
        // Relaxed: as in `round`. It fails if another opening of the round has failed before, or one has succeeded since.
        let _ = self.0.compare_exchange(round, round.saturating_add(1), Ordering::Relaxed, Ordering::Relaxed);
        let doublings = self.round().checked_sub(2)?;
        let pause = FIRST.saturating_mul(1 << doublings.min(10)).min(LONGEST);
        Some(pause.mul_f64((1.0 + random_fraction()) / 2.0))
    }

    /// Ends the back-off, and all pauses.
    pub fn end(&self, changed: &Event) {
        if self.round() > 0 {
            self.reset();
            changed.notify(usize::MAX);
        }
    }

    /// Ends the back-off, for a caller that notifies.
    pub fn reset(&self) {
        // Relaxed: as in `round`. The event's lock orders it for the pauses.
        self.0.store(0, Ordering::Relaxed);
    }

    /// Waits for this long, or until the back-off ends.
    pub async fn pause(&self, pause: Duration, changed: &Event) {
        let mut ended = Watch::new(changed);
        tokio::select! {
            () = poll_fn(|context| ended.poll(context, || self.round() == 0)) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
