//! The monitor of one server (Server Monitoring).
//!
//! A monitor is one task. It *checks* the server: it opens a connection, whose handshake is the first check. Then it
//! either *polls* (it sends hello, and pauses for `heartbeatFrequencyMS`) or *streams* (the server replies to one hello
//! whenever its state changes, and at least every `heartbeatFrequencyMS`). While it streams, a second connection
//! measures round trips, because the time of an awaited reply says nothing about the network.
//!
//! # What interrupts a monitor
//!
//! | notification | while a check is in progress | in a pause | between the two |
//! | --- | --- | --- | --- |
//! | `check` | ignored | ends the pause, but not earlier than 500 ms after the last check | kept |
//! | `cancel` | ends the check, and closes the connection | closes the connection; the pause goes on | kept: ends the next check, unless its connection has failed |
//! | `end` | ends the monitor | ends the monitor | ends the monitor |
//!
//! A request is ignored while a check is in progress: when the check finishes, every task that is waiting for a server
//! is notified, and may request another check. Several notifications of one kind count as one, so together they cause
//! at most one check.

mod round_trips;

use std::time::Duration;

use arc_swap::ArcSwap;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::check::{CheckTimeoutError, Failure, hello};
use super::heartbeat::{CheckConnection, Heartbeat};
use super::state::Monitored;
use crate::client::topology::TopologyVersion;
use crate::endpoint::options::{Options, SHORTEST_HEARTBEAT, ServerMonitoringMode};
use crate::endpoint::{Command, DirectConnection, Endpoint, is_function};
use crate::pool::runtime::{alarm, before_alarm};

/// How many checks may follow one another without a pause. Beyond that, checks are 500 ms apart on average.
///
/// An awaited check finishes as soon as the server's state changes. It also finishes immediately if the server closes
/// its connections or does not delay its replies. The monitor must keep up with an election, which causes a few
/// changes, but not with a server that behaves in this way.
const BURST: u32 = 10;

/// Checks the server until it leaves the deployment.
///
/// # Cancel safety
///
/// Dropping the future closes its connections. It also drops the [`Monitored`], so the next operation restarts the
/// deployment's monitors.
pub(super) async fn run(monitored: Monitored) {
    let server = &*monitored.server;
    let Some(probe) = &server.probe else { return };
    let first = probe.load_full();
    let options = first.options();
    let streams = match options.server_monitoring_mode {
        ServerMonitoringMode::Stream => true,
        ServerMonitoringMode::Poll => false,
        ServerMonitoringMode::Auto => !is_function(),
    };
    let (streaming, is_streaming) = watch::channel(false);
    let mut monitor = Monitor {
        monitored: &monitored,
        probe,
        options,
        streams,
        streaming,
        ended: Instant::now(),
        paced: Instant::now(),
        known: false,
        version: None,
        hello_ok: false,
    };
    tokio::select! {
        biased;
        () = server.control.ended() => {}
        () = monitor.keep_checking() => {}
        () = round_trips::keep_measuring(&monitored, probe, is_streaming) => {}
    }
}

/// A monitor at work.
struct Monitor<'m> {
    monitored: &'m Monitored,
    /// Opens the monitor's connections. May be replaced by an endpoint with different certificates.
    probe: &'m ArcSwap<Endpoint>,
    options: &'m Options,
    /// Whether to stream from servers that support it.
    streams: bool,
    /// Signals whether to measure round trips on a separate connection.
    streaming: watch::Sender<bool>,
    /// When the last check finished, or was cancelled. Pauses are measured from this time.
    ended: Instant,
    /// When the next check would be due if checks were always 500 ms apart. During a burst, checks start earlier.
    paced: Instant,
    /// Whether the last check succeeded.
    known: bool,
    /// The `topologyVersion` from the last reply.
    version: Option<TopologyVersion>,
    /// Whether the server understands `hello`.
    hello_ok: bool,
}

impl Monitor<'_> {
    /// Checks the server until the monitors are restarted.
    async fn keep_checking(&mut self) {
        while self.monitored.is_current() {
            let Err(failure) = self.check_on_one_connection().await;
            if !self.monitored.is_current() {
                break;
            }
            self.streaming.send_replace(false);
            let was_known = std::mem::replace(&mut self.known, false);
            match failure {
                Failure::Cancelled => self.monitored.deployment.check_cancelled(self.monitored),
                Failure::Check { cause, is_network_error, is_timeout } => {
                    self.monitored.deployment.check_failed(self.monitored, cause, is_timeout);
                    // The server may still be reachable: a restart of the server, or a device on the path, may have
                    // closed only the connection.
                    if is_network_error && was_known {
                        // An operation may have failed at the same time, and requested the cancellation of the check.
                        self.monitored.server.control.forget_cancellation();
                        continue;
                    }
                }
            }
            // A cancellation closes the connection. No connection is open now, so a cancellation does not end the
            // pause.
            self.pause(OnCancel::Continue).await;
        }
    }

    /// Opens a connection, and checks the server on it until a check fails or is cancelled.
    async fn check_on_one_connection(&mut self) -> Result<std::convert::Infallible, Failure> {
        self.keep_pace().await;
        let monitored = self.monitored;
        let heartbeat = monitored.heartbeat(&CheckConnection::New(&monitored.server.address.text), false);
        let probe = self.probe.load_full();
        let opened = self.unless_cancelled(async { Ok(probe.probe().await?) }).await;
        // With a server API, the handshake already uses `hello`.
        self.hello_ok = self.options.server_api.is_some();
        let mut connection = match opened {
            Ok((connection, took)) => {
                let hello = connection.hello();
                self.checked(heartbeat, &hello.document, hello.server_connection_id, Some(took))?;
                connection
            }
            Err(failure) => return Err(failure.reported(heartbeat)),
        };
        loop {
            match self.version.filter(|_| self.streams) {
                Some(version) => self.stream(&mut connection, version).await?,
                None => self.poll(&mut connection).await?,
            }
        }
    }

    /// Pauses, and checks the server once.
    async fn poll(&mut self, connection: &mut DirectConnection) -> Result<(), Failure> {
        self.streaming.send_replace(false);
        if self.pause(OnCancel::Return).await {
            return Err(Failure::Cancelled);
        }
        let hello = hello(self.hello_ok);
        let limit = self.options.connect_timeout;
        let number = connection.hello().server_connection_id;
        let monitored = self.monitored;
        let heartbeat = monitored.heartbeat(&CheckConnection::Latest(&monitored.server.address.text, number), false);
        let start = Instant::now();
        match self.unless_cancelled(run_hello(connection, &hello, limit)).await {
            Ok(reply) => self.checked(heartbeat, &reply, number, Some(start.elapsed())),
            Err(failure) => Err(failure.reported(heartbeat)),
        }
    }

    /// Checks the server through the replies to one awaitable hello, which arrive when the server's state changes.
    async fn stream(&mut self, connection: &mut DirectConnection, version: TopologyVersion) -> Result<(), Failure> {
        let options = self.options;
        let limit = match options.connect_timeout {
            // No limit.
            Duration::ZERO => Duration::MAX,
            limit => limit.saturating_add(options.heartbeat_interval()),
        };
        let mut hello = hello(self.hello_ok);
        let version = rawdoc! { "processId": version.process_id, "counter": version.counter };
        hello.append(bson::raw::cstr!("topologyVersion"), version);
        let most = i64::try_from(options.heartbeat_interval().as_millis()).unwrap_or(i64::MAX);
        hello.append(bson::raw::cstr!("maxAwaitTimeMS"), most);
        // `before_alarm` sets the limit. A limit on the command would keep a timer in the runtime for the whole wait.
        let command = Command::new("admin", &hello).timeout(Duration::ZERO);
        let number = connection.hello().server_connection_id;
        let monitored = self.monitored;
        let over = CheckConnection::Latest(&monitored.server.address.text, number);
        self.keep_pace().await;
        let mut heartbeat = monitored.heartbeat(&over, true);
        // The connection may have been lost since the last reply.
        let mut replies = match connection.exhaust(command) {
            Ok(replies) => replies,
            Err(error) => return Err(Failure::from(error).reported(heartbeat)),
        };
        self.streaming.send_replace(true);
        loop {
            let next = async {
                match before_alarm(limit, replies.next()).await {
                    Some(Ok(reply)) => Ok(reply.map(RawDocument::to_owned)),
                    Some(Err(error)) => Err(CheckTimeoutError::instead_of(error, limit)),
                    None => Err(CheckTimeoutError::after(limit)),
                }
            };
            match self.unless_cancelled(next).await {
                Ok(Some(reply)) => self.checked(heartbeat, &reply, number, None)?,
                // The replies cannot end before `is_over` returns true.
                Ok(None) => return Ok(()),
                Err(failure) => return Err(failure.reported(heartbeat)),
            }
            if replies.is_over() {
                return Ok(());
            }
            self.keep_pace().await;
            heartbeat = monitored.heartbeat(&over, true);
        }
    }

    /// Waits if too many checks have followed one another without a pause.
    async fn keep_pace(&mut self) {
        let now = Instant::now();
        self.paced = self.paced.max(now) + SHORTEST_HEARTBEAT;
        let ahead = self.paced.duration_since(now);
        if let Some(excess) = ahead.checked_sub(SHORTEST_HEARTBEAT * BURST).filter(|excess| !excess.is_zero()) {
            sleep(excess).await;
        }
    }

    /// Runs a check unless it is cancelled.
    async fn unless_cancelled<T>(&mut self, check: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let control = &self.monitored.server.control;
        control.set_checking(true);
        let outcome = tokio::select! {
            biased;
            () = control.cancel.notified() => Err(Failure::Cancelled),
            outcome = check => outcome,
        };
        self.ended = Instant::now();
        outcome
    }

    /// Records a reply to a check. `number` is the server's number for the connection. `round_trip` is the time that
    /// the reply took, or `None` if the server delayed the reply.
    fn checked(
        &mut self,
        heartbeat: Heartbeat<'_>,
        reply: &RawDocument,
        number: Option<i64>,
        round_trip: Option<Duration>,
    ) -> Result<(), Failure> {
        let description = self.monitored.understood(heartbeat, reply, number, round_trip)?;
        self.known = true;
        self.version = description.topology_version;
        self.hello_ok |= description.hello_ok;
        self.monitored.deployment.checked(self.monitored, description, round_trip);
        match self.monitored.is_current() {
            true => Ok(()),
            // Another monitor is now checking the server.
            false => Err(Failure::Cancelled),
        }
    }

    /// Waits until `heartbeatFrequencyMS` after the end of the last check, or until a check is requested, but always
    /// for at least 500 ms after the end of the last check. Returns whether a cancellation cut the pause short.
    async fn pause(&self, on_cancel: OnCancel) -> bool {
        let floor = self.ended + SHORTEST_HEARTBEAT;
        let rest = self.options.heartbeat_interval().saturating_sub(self.ended.elapsed());
        let control = &self.monitored.server.control;
        let mut is_requested = false;
        let wait = async {
            tokio::select! {
                () = alarm(rest) => {}
                () = control.check.notified() => is_requested = true,
            }
            sleep_until(floor).await;
        };
        let is_cancelled = {
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    // The cancellation is polled first, so that it does not cancel the check that follows the pause.
                    biased;
                    () = control.cancel.notified() => {
                        if on_cancel == OnCancel::Return {
                            break true;
                        }
                    }
                    () = &mut wait => break false,
                }
            }
        };
        if is_cancelled && is_requested {
            // The request is kept for the next pause.
            control.check.notify_one();
        }
        is_cancelled
    }
}

/// The effect of a cancellation on a pause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnCancel {
    Return,
    Continue,
}

/// Sends a hello that the server answers immediately.
async fn run_hello(
    connection: &mut DirectConnection,
    hello: &RawDocument,
    limit: Duration,
) -> Result<RawDocumentBuf, Failure> {
    let command = Command::new("admin", hello).timeout(limit).without_max_time();
    connection.run(command).await.map_err(|error| CheckTimeoutError::instead_of(error, limit))
}
