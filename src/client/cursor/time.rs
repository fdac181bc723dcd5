//! Time limits of cursors (Client Side Operations Timeout, "Cursors").

use std::time::Duration;

use super::kinds::{CursorType, TimeoutMode};
use crate::endpoint::Limit;
use crate::endpoint::options::InvalidOption;

/// The time limits of a cursor.
#[derive(Clone, Copy)]
pub(super) struct CursorTime {
    /// The query's `timeoutMS`.
    pub(super) timeout: Limit,
    pub(super) mode: TimeoutMode,
    /// The running limit, for the cursor's whole life or for the iteration in progress.
    pub(super) running: Option<Limit>,
}

impl CursorTime {
    /// Returns the limits of a cursor of this type, unless the options conflict.
    pub(super) fn new(
        timeout: Limit,
        mode: Option<TimeoutMode>,
        cursor_type: CursorType,
        max_await_time: Option<Duration>,
        writes_its_result: bool,
    ) -> Result<Self, InvalidOption> {
        if mode.is_some() && !timeout.is_set() {
            return Err(InvalidOption::missing("timeoutMS", "by timeoutMode"));
        }
        let mode = match (mode, cursor_type) {
            (Some(TimeoutMode::CursorLifetime), CursorType::Tailable | CursorType::TailableAwait) => {
                return Err(InvalidOption::new("timeoutMode", "iteration for a tailable cursor", "cursorLifetime"));
            }
            (Some(TimeoutMode::Iteration), _) if writes_its_result => {
                let problem = "must not be iteration for an aggregate that writes its results ($out, $merge)";
                return Err(InvalidOption::because("timeoutMode", problem));
            }
            (Some(mode), _) => mode,
            (None, CursorType::NonTailable) => TimeoutMode::CursorLifetime,
            (None, CursorType::Tailable | CursorType::TailableAwait) => TimeoutMode::Iteration,
        };
        if let (Some(longest), Limit::For(limit) | Limit::Until { limit, .. }) = (max_await_time, timeout)
            && longest >= limit
        {
            let must = format!("less than timeoutMS, which is {} ms", limit.as_millis());
            return Err(InvalidOption::new("maxAwaitTimeMS", must, format!("{} ms", longest.as_millis())));
        }
        Ok(Self { timeout, mode, running: None })
    }

    /// Keeps the query's limit running, if it limits the cursor's whole life.
    pub(super) fn begin(&mut self, limit: Limit) {
        if self.mode == TimeoutMode::CursorLifetime {
            self.running = Some(limit);
        }
    }

    /// Returns the limit of the iteration in progress. If no iteration is in progress, begins one.
    pub(super) fn of_iteration(&mut self) -> Limit {
        *self.running.get_or_insert_with(|| self.timeout.start())
    }

    pub(super) fn end_iteration(&mut self) {
        if self.mode == TimeoutMode::Iteration {
            self.running = None;
        }
    }
}
