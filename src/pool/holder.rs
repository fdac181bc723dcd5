//! Information about a connection in use.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::pool::service_id::ServiceId;

/// The purpose for which a connection is in use (load balancer specification, "Connection Tracking").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// One operation.
    #[default]
    Operation,
    /// A cursor that is pinned to the connection.
    Cursor,
    /// A transaction that is pinned to the connection.
    Transaction,
}

impl Purpose {
    /// Returns the purpose in one word: `operation`, `cursor` or `transaction`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Cursor => "cursor",
            Self::Transaction => "transaction",
        }
    }
}

/// A connection in use: where, when and for what purpose it was checked out. Returned by `Pool::holders`, and included
/// in the error of a check-out that timed out.
///
/// It prints as a phrase: `connection 3 for 5.2s, checked out at src/orders.rs:17:33 (task 12)`.
///
/// ```
/// use wharf::{Endpoint, Pool};
///
/// /// Prints the ten connections that have been in use the longest.
/// fn print_holders(pool: &Pool<Endpoint>) {
///     for holder in pool.holders().iter().take(10) {
///         println!("{holder}");
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The connection's number.
    pub connection_id: u64,
    /// How long the connection has been in use. If [`call_site`](Self::call_site) is `None`, this is only the time
    /// since the pool began to account for holders, which is shorter.
    pub held_for: Duration,
    /// The line that called `check_out`, `check_out_until`, `run` or `run_command`. `None` if the connection was
    /// checked out before the pool began to account for holders.
    pub call_site: Option<&'static Location<'static>>,
    /// The number of the tokio task that checked the connection out, as tokio's `Id` prints it. `None` outside a task,
    /// as in `block_on`, and without a [`call_site`](Self::call_site).
    pub task_id: Option<u64>,
    /// The purpose of the use, as set by `Connection::pin_to`. `None` without a [`call_site`](Self::call_site).
    pub purpose: Option<Purpose>,
    /// The generation in which the connection was created: its service's generation in load-balanced mode, otherwise
    /// the pool's. Without a [`call_site`](Self::call_site), always the pool's generation.
    pub generation: u64,
    /// The service that the connection belongs to, in load-balanced mode. `None` without a
    /// [`call_site`](Self::call_site).
    pub service_id: Option<ServiceId>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connection_id, held_for, call_site, task_id, purpose, service_id, .. } = self;
        let Some(site) = call_site else {
            return write!(
                f,
                "connection {connection_id} for more than {held_for:.1?}, checked out before holders were accounted for"
            );
        };
        write!(f, "connection {connection_id} for {held_for:.1?}, checked out at {site}")?;
        if let Some(task_id) = task_id {
            write!(f, " (task {task_id})")?;
        }
        match purpose {
            Some(Purpose::Cursor) => f.write_str(", pinned to a cursor")?,
            Some(Purpose::Transaction) => f.write_str(", pinned to a transaction")?,
            Some(Purpose::Operation) | None => {}
        }
        match service_id {
            Some(service_id) => write!(f, ", of service {service_id}"),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Purpose {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Serializes the call site as a string, `file:line:column`, and the time in use as `held_ms`, in milliseconds.
#[cfg(feature = "serde")]
impl serde::Serialize for Holder {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let Self { connection_id, held_for, call_site, task_id, purpose, generation, service_id } = self;
        let mut fields = serializer.serialize_struct("Holder", 7)?;
        fields.serialize_field("connection_id", connection_id)?;
        fields.serialize_field("held_ms", &u64::try_from(held_for.as_millis()).unwrap_or(u64::MAX))?;
        fields.serialize_field("call_site", &call_site.map(ToString::to_string))?;
        fields.serialize_field("task_id", task_id)?;
        fields.serialize_field("purpose", purpose)?;
        fields.serialize_field("generation", generation)?;
        fields.serialize_field("service_id", &service_id.map(|service_id| service_id.to_string()))?;
        fields.end()
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn holder_is_written_with_readable_values() {
        let site = Location::caller();
        let holder = Holder {
            connection_id: 3,
            held_for: Duration::from_micros(5_200_900),
            call_site: Some(site),
            task_id: Some(12),
            purpose: Some(Purpose::Cursor),
            generation: 1,
            service_id: Some(ServiceId::from_bytes([1; 12])),
        };
        let expected = serde_json::json!({
            "connection_id": 3, "held_ms": 5_200, "call_site": site.to_string(), "task_id": 12, "purpose": "cursor",
            "generation": 1, "service_id": "010101010101010101010101"
        });
        assert_eq!(serde_json::to_value(holder).unwrap(), expected);
    }
}
