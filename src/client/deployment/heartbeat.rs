//! The events about checks. The event for the start of a check is always followed by an event for its end, whatever
//! happens to the monitor.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::RawDocument;
use thiserror::Error;
use tokio::time::Instant;

use super::publisher::Publisher;
use crate::client::topology::{HeartbeatConnection, TopologyEvent};
use crate::pool::error::Cause;

/// The events of a server's checks: the check in progress, and the counts of checks and connections.
///
/// The lock of this value is taken after the deployment's lock. Events are queued while it is held, so that they stay
/// in order.
#[derive(Default)]
pub(super) struct Heartbeats(Mutex<State>);

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// The number of checks so far.
    checks: u64,
    /// The number of connections that the monitor has opened.
    connections: u64,
    /// Whether the server has left the topology. No event follows its `ServerClosed`.
    is_over: bool,
}

struct Current {
    check: u64,
    start: Instant,
    awaited: bool,
    connection: HeartbeatConnection,
}

impl Current {
    fn failed(self, failure: Cause) -> impl FnOnce(bson::oid::ObjectId) -> Option<TopologyEvent> {
        let Self { start, awaited, connection, .. } = self;
        let duration = start.elapsed();
        move |topology_id| {
            Some(TopologyEvent::ServerHeartbeatFailed { topology_id, connection, awaited, duration, failure })
        }
    }
}

/// The connection used by a check.
pub(super) enum CheckConnection<'l> {
    /// A new connection to this address.
    New(&'l Arc<str>),
    /// The latest connection, to which the server gave this number.
    Latest(&'l Arc<str>, Option<i64>),
}

/// The check was cancelled: an operation found that the server cannot be reached, or the monitor has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the check of the server was cancelled")]
struct Cancelled;

impl Heartbeats {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements that change it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a check, and delivers its events.
    pub(super) fn start<'h>(
        &'h self,
        publisher: &'h Publisher,
        over: &CheckConnection<'_>,
        awaited: bool,
    ) -> Heartbeat<'h> {
        let mut check = 0;
        if publisher.is_listened_to() {
            let mut state = self.lock();
            if let Some(abandoned) = state.current.take() {
                publisher.emit(abandoned.failed(Arc::new(Cancelled)));
            }
            if !state.is_over {
                state.checks += 1;
                check = state.checks;
                let (address, server_connection_id) = match *over {
                    CheckConnection::New(address) => {
                        state.connections += 1;
                        (address, None)
                    }
                    CheckConnection::Latest(address, number) => (address, number),
                };
                let connection = HeartbeatConnection {
                    address: address.clone(),
                    connection_id: state.connections,
                    server_connection_id,
                };
                let of_event = connection.clone();
                publisher.emit(|topology_id| {
                    Some(TopologyEvent::ServerHeartbeatStarted { topology_id, connection: of_event, awaited })
                });
                state.current = Some(Current { check, start: Instant::now(), awaited, connection });
            }
            drop(state);
            publisher.deliver();
        }
        Heartbeat { heartbeats: self, publisher, check }
    }

    /// Ends the check in progress, and prevents further checks. The caller delivers the events.
    pub(super) fn end(&self, publisher: &Publisher) {
        let mut state = self.lock();
        state.is_over = true;
        if let Some(current) = state.current.take() {
            publisher.emit(current.failed(Arc::new(Cancelled)));
        }
    }
}

/// A check in progress. Dropping this value means that the check was cancelled.
pub(super) struct Heartbeat<'h> {
    heartbeats: &'h Heartbeats,
    publisher: &'h Publisher,
    /// 0 if the check has no events.
    check: u64,
}

impl Heartbeat<'_> {
    /// Ends the check with a reply. `round_trip` is the time that the reply took, or `None` if the server delayed the
    /// reply.
    pub(super) fn succeed(self, reply: &RawDocument, number: Option<i64>, round_trip: Option<Duration>) {
        self.finish(|current| {
            let Current { start, awaited, mut connection, .. } = current;
            connection.server_connection_id = connection.server_connection_id.or(number);
            let duration = round_trip.unwrap_or_else(|| start.elapsed());
            let reply = Arc::new(reply.to_owned());
            move |topology_id| {
                Some(TopologyEvent::ServerHeartbeatSucceeded { topology_id, connection, awaited, duration, reply })
            }
        });
    }

    /// Ends the check with an error.
    pub(super) fn fail(self, failure: Cause) {
        self.finish(|current| current.failed(failure));
    }

    fn finish<F: FnOnce(bson::oid::ObjectId) -> Option<TopologyEvent>>(&self, event: impl FnOnce(Current) -> F) {
        if self.check == 0 {
            return;
        }
        {
            let mut state = self.heartbeats.lock();
            if let Some(current) = state.current.take_if(|current| current.check == self.check) {
                self.publisher.emit(event(current));
            }
        }
        self.publisher.deliver();
    }
}

impl Drop for Heartbeat<'_> {
    fn drop(&mut self) {
        self.finish(|current| current.failed(Arc::new(Cancelled)));
    }
}
