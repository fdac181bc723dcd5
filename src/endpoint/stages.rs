//! The times of the stages of an establishment, for the pool's metrics and events.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::pool::error::{EstablishError, Stage};
use crate::pool::runtime::Establishing;

/// Measures stages.
#[derive(Clone, Copy)]
pub(super) struct Stages<'e>(Measured<'e>);

/// The kind of measurement.
#[derive(Clone, Copy)]
enum Measured<'e> {
    Nothing,
    /// All stages, for a pool.
    All(&'e Establishing),
    /// The hello, for a monitor.
    Hello(&'e OnceLock<Duration>),
}

impl<'e> Stages<'e> {
    /// Measures nothing. For a connection without a pool.
    pub(super) const UNMEASURED: Self = Self(Measured::Nothing);

    pub(super) fn of(connecting: &'e Establishing) -> Self {
        Self(Measured::All(connecting))
    }

    /// For a monitor's connection: writes the time of the hello.
    pub(super) fn hello(took: &'e OnceLock<Duration>) -> Self {
        Self(Measured::Hello(took))
    }

    /// Runs a stage, and reports its time if it succeeds.
    ///
    /// The stage is boxed: a future that passes through a function exists twice in memory, and without optimisation a
    /// thread's stack cannot hold several of these.
    pub(super) async fn timed<T>(
        self,
        stage: Stage,
        run: Pin<Box<dyn Future<Output = Result<T, EstablishError>> + Send + '_>>,
    ) -> Result<T, EstablishError> {
        let connecting = match self.0 {
            Measured::All(connecting) => connecting,
            Measured::Hello(took) if stage == Stage::Hello => {
                let begun = Instant::now();
                let done = run.await?;
                // Set once, because a connection sends one hello.
                let _ = took.set(begun.elapsed());
                return Ok(done);
            }
            Measured::Hello(_) | Measured::Nothing => return run.await,
        };
        // Uses the pool's clock, so that the stages are never longer than the whole.
        let begun = connecting.stopwatch();
        let done = run.await?;
        connecting.stage_took(stage, Duration::from_nanos(connecting.stopwatch().saturating_sub(begun)));
        Ok(done)
    }
}
