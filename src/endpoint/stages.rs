//! The times of the stages of an establishment, for the pool's metrics.

use std::future::Future;
use std::time::Instant;

use crate::error::{EstablishError, Stage};
use crate::runtime::Establishing;

/// Measures stages, for a connection of a pool.
#[derive(Clone, Copy)]
pub(super) struct Stages<'e>(Option<&'e Establishing>);

impl<'e> Stages<'e> {
    /// Of a connection that belongs to no pool.
    pub(super) const UNMEASURED: Self = Self(None);

    pub(super) fn of(connecting: &'e Establishing) -> Self {
        Self(Some(connecting))
    }

    /// Runs a stage, and reports its time if it succeeds.
    pub(super) async fn timed<T>(
        self,
        stage: Stage,
        run: impl Future<Output = Result<T, EstablishError>>,
    ) -> Result<T, EstablishError> {
        let begun = Instant::now();
        let done = run.await?;
        if let Some(connecting) = self.0 {
            connecting.stage_took(stage, begun.elapsed());
        }
        Ok(done)
    }
}
