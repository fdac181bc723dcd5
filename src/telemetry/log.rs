//! Logs events.

use std::fmt;
use std::time::Duration;

use tracing::{Level, debug};

use super::sentence::Sentence;
use crate::pool::error::{CheckOutError, EstablishError};
use crate::pool::event::{CheckOutFailedReason, ConnectionClosedReason, EventError, PoolEvent};
use crate::pool::options::OptionValue;
use crate::pool::runtime::{Subscriber, TARGET};
use crate::text::logged::is_logged;
use crate::text::printable::PrintableError;

/// Logs every event through [`tracing`], at level `DEBUG` with the `wharf::connection` target.
///
/// The messages and the keys come from the CMAP specification ("Connection Pool Logging"), in structured form:
/// `serverHost`, `serverPort`, `driverConnectionId`, `serviceId`, `reason`, `error`, `durationMS`, and the options that
/// were set. Some values are specific to wharf: the `error` of a cleared pool; the `durationMS` of a check-in, which is
/// how long the connection was used; and the milliseconds of the stages of an establishment (`resolveMS`, `proxyMS`,
/// `connectMS`, `tlsMS`, `helloMS`, `authenticateMS`). [`Log::unstructured`] logs the same information in sentences,
/// without keys. Both forms leave out absent values.
///
/// `error` contains the text of the underlying error and its labels. Control characters in it are escaped, so that each
/// message stays on one line.
///
/// A check-out that its caller dropped is logged with the reason "The caller cancelled the checkout". The specification
/// provides no wording for this case, because nothing timed out.
///
/// If `tracing` has no subscriber, the messages go to the `log` crate, provided that wharf's `log` feature is enabled.
///
/// The pools of a [`Client`](crate::Client) and of a [`single::Client`](crate::single::Client) already log their
/// events. Do not subscribe a `Log` to any of them, or each message appears twice. Give a `Log` to any other pool with
/// [`PoolBuilder::log`](crate::PoolBuilder::log), which does not build events while nothing reads the log. A pool that
/// has a `Log` as a [subscriber](crate::PoolBuilder::subscriber) builds every event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log {
    is_unstructured: bool,
}

impl Log {
    /// Creates a log of messages with keys and values.
    #[must_use]
    pub fn new() -> Self {
        Self { is_unstructured: false }
    }

    /// Creates a log of sentences that include the values, in the specification's unstructured form.
    #[must_use]
    pub fn unstructured() -> Self {
        Self { is_unstructured: true }
    }

    /// Returns the sentence for an event, in the specification's unstructured form, for another logging library.
    pub fn sentence(event: &PoolEvent) -> impl fmt::Display + '_ {
        Sentence(event)
    }
}

impl Subscriber for Log {
    fn on_event(&self, event: &PoolEvent) {
        if !is_logged!(TARGET, Level::DEBUG) {
            return;
        }
        if self.is_unstructured {
            debug!(target: TARGET, "{}", Sentence(event));
        } else {
            log_structured(event);
        }
    }
}

#[allow(non_snake_case)] // The specification's keys.
fn log_structured(event: &PoolEvent) {
    let (serverHost, serverPort) = host_and_port(event.address());
    match event {
        PoolEvent::PoolCreated { options, .. } => {
            let specified = options.specified();
            let option = |name| {
                specified.iter().find_map(|(set, value)| match value {
                    OptionValue::Number(number) if *set == name => Some(*number),
                    _ => None,
                })
            };
            debug!(
                target: TARGET,
                serverHost,
                serverPort,
                maxIdleTimeMS = option("maxIdleTimeMS"),
                minPoolSize = option("minPoolSize"),
                maxPoolSize = option("maxPoolSize"),
                maxConnecting = option("maxConnecting"),
                waitQueueTimeoutMS = option("waitQueueTimeoutMS"),
                "Connection pool created"
            );
        }
        PoolEvent::PoolReady { .. } => debug!(target: TARGET, serverHost, serverPort, "Connection pool ready"),
        PoolEvent::PoolCleared { service_id, error, .. } => {
            let (serviceId, error) =
                (service_id.map(|service_id| service_id.to_string()), error.as_ref().map(described));
            debug!(target: TARGET, serverHost, serverPort, serviceId, error, "Connection pool cleared");
        }
        PoolEvent::PoolClosed { .. } => debug!(target: TARGET, serverHost, serverPort, "Connection pool closed"),
        PoolEvent::ConnectionCreated { connection_id: driverConnectionId, .. } => {
            debug!(target: TARGET, serverHost, serverPort, driverConnectionId, "Connection created");
        }
        PoolEvent::ConnectionReady { connection_id: driverConnectionId, duration, stages, .. } => {
            debug!(
                target: TARGET,
                serverHost,
                serverPort,
                driverConnectionId,
                durationMS = milliseconds(*duration),
                resolveMS = stages.resolve.map(milliseconds),
                proxyMS = stages.proxy.map(milliseconds),
                connectMS = stages.connect.map(milliseconds),
                tlsMS = stages.tls.map(milliseconds),
                helloMS = stages.hello.map(milliseconds),
                authenticateMS = stages.authenticate.map(milliseconds),
                "Connection ready"
            );
        }
        PoolEvent::ConnectionClosed { connection_id: driverConnectionId, reason, error, .. } => {
            let (reason, error) = (why_closed(*reason), error.as_ref().map(described));
            debug!(target: TARGET, serverHost, serverPort, driverConnectionId, reason, error, "Connection closed");
        }
        PoolEvent::ConnectionCheckOutStarted { .. } => {
            debug!(target: TARGET, serverHost, serverPort, "Connection checkout started");
        }
        PoolEvent::ConnectionCheckOutFailed { reason, duration, .. } => {
            let (error, reason) = (check_out_error(event).map(described), why_failed(*reason));
            let durationMS = milliseconds(*duration);
            debug!(target: TARGET, serverHost, serverPort, reason, error, durationMS, "Connection checkout failed");
        }
        PoolEvent::ConnectionCheckedOut { connection_id: driverConnectionId, duration, .. } => {
            let durationMS = milliseconds(*duration);
            debug!(target: TARGET, serverHost, serverPort, driverConnectionId, durationMS, "Connection checked out");
        }
        PoolEvent::ConnectionCheckedIn { connection_id: driverConnectionId, duration, .. } => {
            let durationMS = milliseconds(*duration);
            debug!(target: TARGET, serverHost, serverPort, driverConnectionId, durationMS, "Connection checked in");
        }
    }
}

/// Returns the error for a failed check-out if the specification requires logging it. Other errors only repeat the
/// reason.
pub(super) fn check_out_error(event: &PoolEvent) -> Option<&EventError> {
    match event {
        PoolEvent::ConnectionCheckOutFailed { reason: CheckOutFailedReason::ConnectionError, error, .. } => {
            error.as_ref()
        }
        _ => None,
    }
}

/// Returns an error's text and labels, on one line.
pub(super) fn described(error: &EventError) -> String {
    let labels = match error.downcast_ref() {
        Some(CheckOutError::Establish(error)) => error.labels(),
        _ => error.downcast_ref().map(EstablishError::labels).unwrap_or_default(),
    };
    let mut text = PrintableError(error).to_string();
    let labels: Vec<_> = labels.names().collect();
    if !labels.is_empty() {
        text = format!("{text} (labels: {})", labels.join(", "));
    }
    text
}

/// Returns the specification's text for a reason.
pub(super) fn why_closed(reason: ConnectionClosedReason) -> &'static str {
    match reason {
        ConnectionClosedReason::Stale => "Connection became stale because the pool was cleared",
        ConnectionClosedReason::Idle => {
            "Connection has been available but unused for longer than the configured max idle time"
        }
        ConnectionClosedReason::Error => "An error occurred while using the connection",
        ConnectionClosedReason::PoolClosed => "Connection pool was closed",
    }
}

/// Returns the specification's text for a reason. `Cancelled` is specific to wharf.
pub(super) fn why_failed(reason: CheckOutFailedReason) -> &'static str {
    match reason {
        CheckOutFailedReason::Timeout => "Wait queue timeout elapsed without a connection becoming available",
        CheckOutFailedReason::ConnectionError => "An error occurred while trying to establish a new connection",
        CheckOutFailedReason::PoolClosed => "Connection pool was closed",
        CheckOutFailedReason::Cancelled => "The caller cancelled the checkout",
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    // An `f64` holds up to 104 days of nanoseconds exactly, so the value is rounded only once.
    duration.as_nanos() as f64 / 1e6
}

/// Splits `host:port` or `[IPv6]:port`. A socket's path, or an address in any other form, has no port.
pub(crate) fn host_and_port(address: &str) -> (&str, Option<u16>) {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains('/') => match port.parse() {
            Ok(port) => (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), Some(port)),
            Err(_) => (address, None),
        },
        _ => (address, None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use wharf_testbed::log::{Fields, kept};

    use super::*;
    use crate::pool::options::PoolOptions;
    use crate::telemetry::json_lines::tests::one_of_each;

    fn logged(log: Log, events: &[PoolEvent]) -> Vec<Fields> {
        kept("wharf::connection", Level::DEBUG, || events.iter().for_each(|event| log.on_event(event)))
    }

    #[test]
    fn every_event_is_a_message_with_the_specifications_keys() {
        let id = ("driverConnectionId", "42");
        let duration = ("durationMS", "1002.0034");
        let expected: [(&str, &[(&str, &str)]); 11] = [
            ("Connection pool created", &[("maxPoolSize", "7"), ("maxIdleTimeMS", "1500")]),
            ("Connection pool ready", &[]),
            (
                "Connection pool cleared",
                &[("serviceId", "7477656c7665206279746573"), ("error", r"the monitor\nhears nothing")],
            ),
            ("Connection pool closed", &[]),
            ("Connection created", &[id]),
            ("Connection ready", &[id, duration, ("connectMS", "2.5"), ("helloMS", "1000.0")]),
            (
                "Connection closed",
                &[id, ("reason", "An error occurred while using the connection"), ("error", r"the cable\nis cut")],
            ),
            ("Connection checkout started", &[]),
            (
                "Connection checkout failed",
                &[
                    ("reason", "An error occurred while trying to establish a new connection"),
                    (
                        "error",
                        "connection 42 to db.example.com:27018 could not be established: connecting: refused (labels: SystemOverloadedError, RetryableError)",
                    ),
                    duration,
                ],
            ),
            ("Connection checked out", &[id, duration]),
            ("Connection checked in", &[id, duration]),
        ];
        let logged = logged(Log::new(), &one_of_each());
        assert_eq!(logged.len(), expected.len());
        for (logged, (message, fields)) in logged.into_iter().zip(expected) {
            let common = [("message", message), ("serverHost", "db.example.com"), ("serverPort", "27018")];
            let all = common.iter().chain(fields).map(|&(key, value)| (key, value.to_owned())).collect();
            assert_eq!(logged, all);
        }
    }

    #[test]
    fn every_event_is_a_sentence_in_the_unstructured_form() {
        let sentences: Vec<_> = one_of_each().iter().map(|event| Log::sentence(event).to_string()).collect();
        assert_eq!(
            sentences,
            [
                "Connection pool created for db.example.com:27018 using options maxIdleTimeMS=1500, maxPoolSize=7",
                "Connection pool ready for db.example.com:27018",
                "Connection pool for db.example.com:27018 cleared for serviceId 7477656c7665206279746573. \
                 Error: the monitor\\nhears nothing",
                "Connection pool closed for db.example.com:27018",
                "Connection created: address=db.example.com:27018, driver-generated ID=42",
                "Connection ready: address=db.example.com:27018, driver-generated ID=42, established in=1002.0034 ms \
                 (connect=2.5 ms, hello=1000 ms)",
                "Connection closed: address=db.example.com:27018, driver-generated ID=42. Reason: An error occurred \
                 while using the connection. Error: the cable\\nis cut",
                "Checkout started for connection to db.example.com:27018",
                "Checkout failed for connection to db.example.com:27018. Reason: An error occurred while trying to \
                 establish a new connection. Error: connection 42 to db.example.com:27018 could not be established: \
                 connecting: refused (labels: SystemOverloadedError, RetryableError). Duration: 1002.0034 ms",
                "Connection checked out: address=db.example.com:27018, driver-generated ID=42, duration=1002.0034 ms",
                "Connection checked in: address=db.example.com:27018, driver-generated ID=42, used for=1002.0034 ms",
            ]
        );
        let messages = logged(Log::unstructured(), &one_of_each());
        let only = |sentence: &String| BTreeMap::from([("message", sentence.clone())]);
        assert_eq!(messages, sentences.iter().map(only).collect::<Vec<_>>());
    }

    #[test]
    fn absent_values_are_left_out() {
        let address: Arc<str> = "/tmp/mongodb-27017.sock".into();
        let events = [
            PoolEvent::PoolCreated { address: address.clone(), options: PoolOptions::default() },
            PoolEvent::PoolCleared {
                address: address.clone(),
                service_id: None,
                interrupt_in_use_connections: false,
                error: None,
            },
        ];
        let host = ("serverHost", "/tmp/mongodb-27017.sock".to_owned());
        assert_eq!(
            logged(Log::new(), &events),
            [
                BTreeMap::from([host.clone(), ("message", "Connection pool created".to_owned())]),
                BTreeMap::from([host, ("message", "Connection pool cleared".to_owned())]),
            ]
        );
        assert_eq!(Log::sentence(&events[0]).to_string(), "Connection pool created for /tmp/mongodb-27017.sock");
        assert_eq!(Log::sentence(&events[1]).to_string(), "Connection pool for /tmp/mongodb-27017.sock cleared");
    }

    #[test]
    fn every_option_in_the_table_is_logged() {
        let mut options = PoolOptions::default();
        for option in PoolOptions::TABLE {
            (option.set)(&mut options, 1);
        }
        let logged = logged(Log::new(), &[PoolEvent::PoolCreated { address: "here".into(), options }]);
        for option in PoolOptions::TABLE {
            assert_eq!(logged[0].get(option.name).map(String::as_str), Some("1"), "{}", option.name);
        }
    }

    #[test]
    fn option_that_is_set_to_its_default_is_logged() {
        let defaults = PoolOptions::default();
        let options = PoolOptions::default()
            .max_connecting(defaults.max_connecting)
            .min_pool_size(defaults.min_pool_size)
            .wait_queue_timeout(defaults.wait_queue_timeout);
        let event = PoolEvent::PoolCreated { address: "here".into(), options };
        assert_eq!(
            Log::sentence(&event).to_string(),
            "Connection pool created for here using options minPoolSize=0, maxConnecting=2, waitQueueTimeoutMS=0"
        );
        assert_eq!(logged(Log::new(), &[event])[0]["maxConnecting"], "2");
    }

    #[test]
    fn each_reason_has_the_specifications_text() {
        let address: Arc<str> = "here:1".into();
        let reason_of = |event: PoolEvent| logged(Log::new(), &[event]).remove(0).remove("reason").unwrap();
        for (reason, text) in [
            (ConnectionClosedReason::Stale, "Connection became stale because the pool was cleared"),
            (
                ConnectionClosedReason::Idle,
                "Connection has been available but unused for longer than the configured max idle time",
            ),
            (ConnectionClosedReason::Error, "An error occurred while using the connection"),
            (ConnectionClosedReason::PoolClosed, "Connection pool was closed"),
        ] {
            let address = address.clone();
            let event = PoolEvent::ConnectionClosed { address, connection_id: 1, reason, error: None };
            assert_eq!(reason_of(event), text);
        }
        for (reason, text) in [
            (CheckOutFailedReason::Timeout, "Wait queue timeout elapsed without a connection becoming available"),
            (CheckOutFailedReason::ConnectionError, "An error occurred while trying to establish a new connection"),
            (CheckOutFailedReason::PoolClosed, "Connection pool was closed"),
            (CheckOutFailedReason::Cancelled, "The caller cancelled the checkout"),
        ] {
            let (address, error) = (address.clone(), Some(EventError::new(std::io::Error::other("any"))));
            let event = PoolEvent::ConnectionCheckOutFailed { address, reason, duration: Duration::ZERO, error };
            let has_error = reason == CheckOutFailedReason::ConnectionError;
            assert_eq!(
                logged(Log::new(), std::slice::from_ref(&event))[0].contains_key("error"),
                has_error,
                "{reason:?}"
            );
            assert_eq!(reason_of(event), text);
        }
    }

    #[test]
    fn nothing_is_logged_without_a_subscriber() {
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
            one_of_each().iter().for_each(|event| Log::new().on_event(event));
        });
    }

    #[test]
    fn address_has_a_host_and_an_optional_port() {
        for (address, host, port) in [
            ("localhost:27017", "localhost", Some(27017)),
            ("[fe80::1]:1", "fe80::1", Some(1)),
            ("/tmp/mongodb-27017.sock", "/tmp/mongodb-27017.sock", None),
            ("/tmp/odd:1", "/tmp/odd:1", None),
            ("numbers", "numbers", None),
            ("host:", "host:", None),
        ] {
            assert_eq!(host_and_port(address), (host, port));
        }
    }
}
