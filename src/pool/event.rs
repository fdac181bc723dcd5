//! The eleven pool and connection events of the CMAP specification ("Connection Pool Monitoring").

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::pool::by_stage::ByStage;
use crate::pool::error::Cause;
use crate::pool::options::PoolOptions;
use crate::pool::service_id::ServiceId;

/// An event of a pool or of one of its connections.
///
/// The specification defines the names and the fields, except for the errors, the time that a connection was in use,
/// and the stage times of its establishment. Durations are measured with a monotonic clock.
/// [`Subscriber`](crate::Subscriber) describes the order of the events.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[doc(alias = "CmapEvent")]
pub enum PoolEvent {
    /// `PoolCreatedEvent`: a pool was built. It is paused.
    #[non_exhaustive]
    PoolCreated {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The pool's options. [`PoolOptions::non_default`] lists the options that differ from their default;
        /// [`PoolOptions::specified`] lists the options that were set.
        options: PoolOptions,
    },
    /// `PoolReadyEvent`: the pool was marked ready, and may now open connections.
    #[non_exhaustive]
    PoolReady {
        /// The address that the pool connects to.
        address: Arc<str>,
    },
    /// `PoolClearedEvent`: all connections became stale, or, in load-balanced mode, all connections to one service.
    #[non_exhaustive]
    PoolCleared {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The service whose connections became stale, in load-balanced mode.
        service_id: Option<ServiceId>,
        /// Whether connections in use and pending connections are interrupted.
        interrupt_in_use_connections: bool,
        /// The error that made the clear necessary ([`Clear::because`](crate::Clear::because)) or, in a forked child,
        /// an error that names the fork. `None` if no error was given for the clear.
        error: Option<EventError>,
    },
    /// `PoolClosedEvent`: the pool was closed for good.
    #[non_exhaustive]
    PoolClosed {
        /// The address that the pool connects to.
        address: Arc<str>,
    },
    /// `ConnectionCreatedEvent`: a connection was created, and is being established.
    #[non_exhaustive]
    ConnectionCreated {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The connection's number: 1, 2, 3 and so on within its pool.
        connection_id: u64,
    },
    /// `ConnectionReadyEvent`: a connection is established.
    #[non_exhaustive]
    ConnectionReady {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The connection's number.
        connection_id: u64,
        /// The time since the connection's `ConnectionCreated` event.
        duration: Duration,
        /// How long each stage of the establishment took. `None` for a stage that the connection does not have, or that
        /// its [`Establish`](crate::Establish) does not report
        /// ([`Establishing::stage_took`](crate::Establishing::stage_took)). The stages of an
        /// [`Endpoint`](crate::Endpoint) take at most `duration` in total.
        stages: Arc<ByStage<Option<Duration>>>,
    },
    /// `ConnectionClosedEvent`: a connection left the pool.
    #[non_exhaustive]
    ConnectionClosed {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The connection's number.
        connection_id: u64,
        /// Why it was closed.
        reason: ConnectionClosedReason,
        /// The error that closed the connection, if the reason is [`Error`](ConnectionClosedReason::Error).
        error: Option<EventError>,
    },
    /// `ConnectionCheckOutStartedEvent`: a check-out began.
    #[non_exhaustive]
    ConnectionCheckOutStarted {
        /// The address that the pool connects to.
        address: Arc<str>,
    },
    /// `ConnectionCheckOutFailedEvent`: a check-out ended without a connection.
    #[non_exhaustive]
    ConnectionCheckOutFailed {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// Why the check-out failed.
        reason: CheckOutFailedReason,
        /// The time since the `ConnectionCheckOutStarted` event.
        duration: Duration,
        /// The [`CheckOutError`](crate::CheckOutError) that the check-out returned. `None` if it was cancelled.
        error: Option<EventError>,
    },
    /// `ConnectionCheckedOutEvent`: a check-out got a connection.
    #[non_exhaustive]
    ConnectionCheckedOut {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The connection's number.
        connection_id: u64,
        /// The time since the `ConnectionCheckOutStarted` event.
        duration: Duration,
    },
    /// `ConnectionCheckedInEvent`: a connection was checked in. After the event, it becomes available or is closed.
    #[non_exhaustive]
    ConnectionCheckedIn {
        /// The address that the pool connects to.
        address: Arc<str>,
        /// The connection's number.
        connection_id: u64,
        /// The time since the `ConnectionCheckedOut` event: how long the connection was used, including its drain. Zero
        /// if no subscriber was listening when the connection was checked out.
        duration: Duration,
    },
}

impl PoolEvent {
    /// Returns the event's name in the specification, without the trailing "Event".
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::PoolCreated { .. } => "PoolCreated",
            Self::PoolReady { .. } => "PoolReady",
            Self::PoolCleared { .. } => "PoolCleared",
            Self::PoolClosed { .. } => "PoolClosed",
            Self::ConnectionCreated { .. } => "ConnectionCreated",
            Self::ConnectionReady { .. } => "ConnectionReady",
            Self::ConnectionClosed { .. } => "ConnectionClosed",
            Self::ConnectionCheckOutStarted { .. } => "ConnectionCheckOutStarted",
            Self::ConnectionCheckOutFailed { .. } => "ConnectionCheckOutFailed",
            Self::ConnectionCheckedOut { .. } => "ConnectionCheckedOut",
            Self::ConnectionCheckedIn { .. } => "ConnectionCheckedIn",
        }
    }

    /// Returns the address that the pool connects to.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::PoolCreated { address, .. }
            | Self::PoolReady { address }
            | Self::PoolCleared { address, .. }
            | Self::PoolClosed { address }
            | Self::ConnectionCreated { address, .. }
            | Self::ConnectionReady { address, .. }
            | Self::ConnectionClosed { address, .. }
            | Self::ConnectionCheckOutStarted { address }
            | Self::ConnectionCheckOutFailed { address, .. }
            | Self::ConnectionCheckedOut { address, .. }
            | Self::ConnectionCheckedIn { address, .. } => address,
        }
    }

    /// Returns the number of the event's connection, if the event is about a connection.
    #[must_use]
    pub fn connection_id(&self) -> Option<u64> {
        match self {
            Self::ConnectionCreated { connection_id, .. }
            | Self::ConnectionReady { connection_id, .. }
            | Self::ConnectionClosed { connection_id, .. }
            | Self::ConnectionCheckedOut { connection_id, .. }
            | Self::ConnectionCheckedIn { connection_id, .. } => Some(*connection_id),
            _ => None,
        }
    }

    /// Returns how long the reported activity took, if the event reports a duration.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        match self {
            Self::ConnectionReady { duration, .. }
            | Self::ConnectionCheckOutFailed { duration, .. }
            | Self::ConnectionCheckedOut { duration, .. }
            | Self::ConnectionCheckedIn { duration, .. } => Some(*duration),
            _ => None,
        }
    }

    /// Returns the error behind the event: the error of a failed check-out, or the error that closed a connection or
    /// made a clear necessary.
    #[must_use]
    pub fn error(&self) -> Option<&EventError> {
        match self {
            Self::PoolCleared { error, .. }
            | Self::ConnectionClosed { error, .. }
            | Self::ConnectionCheckOutFailed { error, .. } => error.as_ref(),
            _ => None,
        }
    }

    /// Returns the reason that a connection was closed or a check-out failed, as the specification spells it, if the
    /// event reports one.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::ConnectionClosed { reason, .. } => Some(reason.as_str()),
            Self::ConnectionCheckOutFailed { reason, .. } => Some(reason.as_str()),
            _ => None,
        }
    }
}

/// Why a connection was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionClosedReason {
    /// The pool was cleared after the connection was created, or the pool no longer wants the connection: it was
    /// [detached](crate::Connection::detach), [not retained](crate::Pool::retain), or surplus after a
    /// [resize](crate::Pool::resize).
    Stale,
    /// The connection had been idle for longer than `maxIdleTimeMS`, or had reached the end of its lifetime
    /// ([`PoolOptions::max_lifetime`](crate::PoolOptions::max_lifetime)).
    Idle,
    /// The connection failed while it was pending or in use.
    Error,
    /// The pool was closed.
    PoolClosed,
}

impl ConnectionClosedReason {
    /// Returns the reason as the specification spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Idle => "idle",
            Self::Error => "error",
            Self::PoolClosed => "poolClosed",
        }
    }
}

/// Why a check-out failed.
///
/// The specification defines the first three reasons. It does not provide for cancelled check-outs, but here a
/// check-out is a future, which can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckOutFailedReason {
    /// The pool is closed.
    PoolClosed,
    /// The check-out waited longer than its limit, or the maximum number of check-outs was already waiting.
    Timeout,
    /// The connection could not be established, or the pool is paused because of such an error.
    ConnectionError,
    /// The caller dropped the check-out before it completed, perhaps because the caller has its own time limit.
    Cancelled,
}

impl CheckOutFailedReason {
    /// Returns the reason as the specification spells it, or `cancelled` for [`Cancelled`](Self::Cancelled).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PoolClosed => "poolClosed",
            Self::Timeout => "timeout",
            Self::ConnectionError => "connectionError",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An error that an event reports.
///
/// Cloning is cheap. Two errors are equal if they are the same error or have the same message.
#[derive(Clone)]
pub struct EventError(Cause);

impl EventError {
    /// Creates an event error that reports `error`.
    pub fn new(error: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl From<Cause> for EventError {
    fn from(error: Cause) -> Self {
        Self(error)
    }
}

/// Dereferences to the error, so that `downcast_ref` can recover its type.
impl Deref for EventError {
    type Target = dyn StdError + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for EventError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.to_string() == other.to_string()
    }
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_take_no_more_memory_for_their_rare_values() {
        // Every queued event takes as much memory as the largest variant, which contains the pool's options.
        let largest = size_of::<PoolOptions>() + size_of::<Arc<str>>();
        assert!(size_of::<PoolEvent>() <= largest + size_of::<usize>(), "{} bytes", size_of::<PoolEvent>());
    }
}
