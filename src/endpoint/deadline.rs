//! One deadline for all the steps of a connection's establishment.

use std::future::Future;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::milliseconds::Milliseconds;

/// When the establishment of a connection must have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    limit: Duration,
    /// `None` if there is no limit.
    at: Option<Instant>,
    /// Whether it is an operation's own, from which nothing is excepted.
    #[cfg_attr(not(feature = "oidc"), allow(dead_code, reason = "only MONGODB-OIDC excepts anything"))]
    whole: bool,
}

impl Deadline {
    /// The deadline after `limit` from now; none if `limit` is zero, or too long for the clock.
    pub fn after(limit: Duration) -> Self {
        let at = if limit.is_zero() { None } else { Instant::now().checked_add(limit) };
        Self { limit, at, whole: false }
    }

    /// The deadline after what is left of an operation's own time, from which nothing is excepted.
    pub fn of_operation(left: Duration) -> Self {
        Self { whole: true, ..Self::after(left) }
    }

    /// Whether nothing is excepted from it.
    #[cfg(feature = "oidc")]
    pub fn is_whole(self) -> bool {
        self.whole
    }

    /// This deadline, put off by time that does not count.
    #[cfg(feature = "oidc")]
    pub fn later_by(self, uncounted: Duration) -> Self {
        // A deadline that the clock cannot show is none.
        Self { at: self.at.and_then(|at| at.checked_add(uncounted)), ..self }
    }

    /// How much time is left; `None` if there is no limit.
    #[cfg(feature = "oidc")]
    pub fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Runs `step` until the deadline.
    pub async fn bound<T>(self, step: impl Future<Output = T>) -> Result<T, ConnectTimeout> {
        match self.at {
            None => Ok(step.await),
            Some(at) => timeout_at(at, step).await.map_err(|_| ConnectTimeout { limit: self.limit }),
        }
    }
}

/// The establishment of a connection did not end within `connectTimeoutMS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no connection was established within connectTimeoutMS ({})", Milliseconds(*limit))]
pub struct ConnectTimeout {
    /// The limit for the whole establishment.
    pub limit: Duration,
}
