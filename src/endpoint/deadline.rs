//! The deadline for all steps of establishing a connection.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

pub use crate::pool::error::ConnectTimeoutError;

/// The time by which a connection must be established, and the limit for each command along the way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    limit: ConnectTimeoutError,
    /// `None` if there is no limit.
    at: Option<Instant>,
    /// The limit for each command, even if more time is left until the deadline.
    each: Option<ConnectTimeoutError>,
    /// Whether all time counts towards the deadline, as it does for an operation's own deadline.
    #[cfg_attr(not(feature = "oidc"), allow(dead_code, reason = "only MONGODB-OIDC exempts time from the deadline"))]
    whole: bool,
}

impl Deadline {
    /// Returns the deadline that is `limit` (`connectTimeoutMS`) from now. If the limit is zero or beyond the clock's
    /// range, there is no deadline.
    pub fn after(limit: Duration) -> Self {
        Self::of(ConnectTimeoutError { limit, option: "connectTimeoutMS" }, false)
    }

    /// Returns the deadline for an operation that has this much time left. All time counts towards it.
    pub fn of_operation(left: Duration) -> Self {
        Self::of(ConnectTimeoutError { limit: left, option: "timeoutMS" }, true)
    }

    fn of(limit: ConnectTimeoutError, whole: bool) -> Self {
        let at = if limit.limit.is_zero() { None } else { Instant::now().checked_add(limit.limit) };
        Self { limit, at, each: None, whole }
    }

    /// Returns this deadline with an additional limit for each command.
    pub fn with_each(self, each: Option<ConnectTimeoutError>) -> Self {
        Self { each, ..self }
    }

    /// Returns whether all time counts towards the deadline.
    #[cfg(feature = "oidc")]
    pub fn is_whole(self) -> bool {
        self.whole
    }

    /// Returns this deadline, postponed by a time that does not count towards it.
    #[cfg(feature = "oidc")]
    pub fn later_by(self, uncounted: Duration) -> Self {
        // A deadline beyond the clock's range means no limit.
        Self { at: self.at.and_then(|at| at.checked_add(uncounted)), ..self }
    }

    /// Returns the time left, or `None` if there is no limit.
    #[cfg(any(feature = "oidc", feature = "ocsp"))]
    pub fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the time left as a limit, or `None` if there is no limit.
    #[cfg(feature = "oidc")]
    pub fn rest(self) -> Option<ConnectTimeoutError> {
        self.remaining().map(|limit| ConnectTimeoutError { limit, ..self.limit })
    }

    /// Runs `step`, but gives up at the deadline.
    pub async fn bound<T>(self, step: impl Future<Output = T>) -> Result<T, ConnectTimeoutError> {
        match self.at {
            None => Ok(step.await),
            Some(at) => timeout_at(at, step).await.map_err(|_| self.limit),
        }
    }

    /// Runs one command, bounded by both the deadline and the limit for each command.
    pub async fn bound_command<T>(self, command: impl Future<Output = T>) -> Result<T, ConnectTimeoutError> {
        let each = self.each.and_then(|limit| Some((Instant::now().checked_add(limit.limit)?, limit)));
        match each {
            Some((at, limit)) if self.at.is_none_or(|whole| at < whole) => {
                timeout_at(at, command).await.map_err(|_| limit)
            }
            _ => self.bound(command).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn limit_of_each_command_is_refreshed() {
        let each = ConnectTimeoutError { limit: 20 * MS, option: "timeoutMS" };
        let deadline = Deadline::after(1000 * MS).with_each(Some(each));
        for _ in 0..3 {
            assert_eq!(deadline.bound_command(sleep(15 * MS)).await, Ok(()));
        }
        let begun = Instant::now();
        assert_eq!(deadline.bound_command(sleep(25 * MS)).await, Err(each));
        assert_eq!(begun.elapsed(), 20 * MS);
        assert_eq!(deadline.bound(sleep(25 * MS)).await, Ok(()), "a step that is not a command has the whole time");
    }

    #[tokio::test(start_paused = true)]
    async fn whole_deadline_bounds_each_command() {
        let each = ConnectTimeoutError { limit: 200 * MS, option: "timeoutMS" };
        let deadline = Deadline::after(50 * MS).with_each(Some(each));
        let whole = ConnectTimeoutError { limit: 50 * MS, option: "connectTimeoutMS" };
        assert_eq!(deadline.bound_command(sleep(100 * MS)).await, Err(whole));
        let unlimited = Deadline::after(Duration::ZERO).with_each(Some(each));
        assert_eq!(unlimited.bound_command(sleep(300 * MS)).await, Err(each));
        assert_eq!(unlimited.with_each(None).bound_command(sleep(300 * MS)).await, Ok(()));
    }
}
