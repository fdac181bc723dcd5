//! Measures how long the stages of an establishment take, for the pool's metrics and events.

use std::time::Duration;

use crate::pool::error::{EstablishError, Stage};
use crate::pool::runtime::{Boxed, Establishing};

/// Measures the stages of establishing a pool's connection.
#[derive(Clone, Copy)]
pub(super) struct Stages<'e>(Option<&'e Establishing>);

impl<'e> Stages<'e> {
    /// Measures nothing, because the connection belongs to no pool.
    pub(super) const UNMEASURED: Self = Self(None);

    pub(super) fn of(connecting: &'e Establishing) -> Self {
        Self(Some(connecting))
    }

    /// Runs a stage, and reports its time if it succeeds.
    ///
    /// The stage is boxed, because a future that is passed to a function exists twice in memory. Without optimisation,
    /// a thread's stack has no room for several such futures.
    pub(super) async fn timed<T>(
        self,
        stage: Stage,
        run: Boxed<'_, Result<T, EstablishError>>,
    ) -> Result<T, EstablishError> {
        let Some(connecting) = self.0 else { return run.await };
        // This uses the pool's clock, so that the stages are never longer than the whole.
        let begun = connecting.stopwatch();
        let done = run.await?;
        connecting.stage_took(stage, Duration::from_nanos(connecting.stopwatch().saturating_sub(begun)));
        Ok(done)
    }
}
