//! The stage durations of one establishment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::pool::by_stage::ByStage;
use crate::pool::error::Stage;

/// How long each completed stage of one connection's establishment took.
#[derive(Debug, Default)]
pub(crate) struct StageTimes(ByStage<Time>);

/// A duration in nanoseconds, plus one. Zero means that the stage has not reported a duration.
#[derive(Debug, Default)]
struct Time(AtomicU64);

impl StageTimes {
    pub(crate) fn set(&self, stage: Stage, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
        // Relaxed: the duration is read after the establishment has finished, and the establisher's future orders this
        // store before the load.
        self.0.of(stage).0.store(nanos, Ordering::Relaxed);
    }

    /// Returns the duration of each completed stage, in nanoseconds.
    pub(crate) fn get(&self) -> ByStage<Option<u64>> {
        // Relaxed: see `set`.
        self.0.map(|time| time.0.load(Ordering::Relaxed).checked_sub(1))
    }
}
