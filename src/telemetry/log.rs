//! Events as log messages.

use std::time::Duration;

use tracing::debug;

use crate::event::{CheckOutFailedReason, ConnectionClosedReason, PoolEvent};
use crate::options::{OptionValue, PoolOptions};
use crate::runtime::Subscriber;

/// The component "connection" of the logging specification.
const TARGET: &str = "wharf::connection";

/// Logs every event through [`tracing`], at level `DEBUG` with the target `wharf::connection`.
///
/// The messages and the keys of the values are those of the CMAP specification ("Connection Pool Logging"), in their
/// structured form: `serverHost`, `serverPort`, `driverConnectionId`, `serviceId`, `reason`, `durationMS`, and the
/// options that differ from the default. The specification's `error` is missing, because events do not carry one:
/// the errors of check-outs are returned to whoever asked.
///
/// A pool with a subscriber builds every event, whether the log is enabled or not; so do not subscribe this where
/// nobody reads the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log(());

impl Log {
    /// A logger.
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

impl Subscriber for Log {
    #[allow(non_snake_case)] // The specification's keys.
    fn on_event(&self, event: &PoolEvent) {
        if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
            return;
        }
        let (serverHost, serverPort) = host_and_port(event.address());
        match event {
            PoolEvent::PoolCreated { options, .. } => {
                let option = |name| number(options, name);
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
            PoolEvent::PoolCleared { service_id, .. } => {
                let serviceId = service_id.map(|service_id| service_id.to_hex());
                debug!(target: TARGET, serverHost, serverPort, serviceId, "Connection pool cleared");
            }
            PoolEvent::PoolClosed { .. } => debug!(target: TARGET, serverHost, serverPort, "Connection pool closed"),
            PoolEvent::ConnectionCreated { connection_id: driverConnectionId, .. } => {
                debug!(target: TARGET, serverHost, serverPort, driverConnectionId, "Connection created");
            }
            PoolEvent::ConnectionReady { connection_id: driverConnectionId, duration, .. } => {
                let durationMS = milliseconds(*duration);
                debug!(target: TARGET, serverHost, serverPort, driverConnectionId, durationMS, "Connection ready");
            }
            PoolEvent::ConnectionClosed { connection_id: driverConnectionId, reason, .. } => {
                let reason = why_closed(*reason);
                debug!(target: TARGET, serverHost, serverPort, driverConnectionId, reason, "Connection closed");
            }
            PoolEvent::ConnectionCheckOutStarted { .. } => {
                debug!(target: TARGET, serverHost, serverPort, "Connection checkout started");
            }
            PoolEvent::ConnectionCheckOutFailed { reason, duration, .. } => {
                let (reason, durationMS) = (why_failed(*reason), milliseconds(*duration));
                debug!(target: TARGET, serverHost, serverPort, reason, durationMS, "Connection checkout failed");
            }
            PoolEvent::ConnectionCheckedOut { connection_id: driverConnectionId, duration, .. } => {
                let durationMS = milliseconds(*duration);
                debug!(target: TARGET, serverHost, serverPort, driverConnectionId, durationMS, "Connection checked out");
            }
            PoolEvent::ConnectionCheckedIn { connection_id: driverConnectionId, .. } => {
                debug!(target: TARGET, serverHost, serverPort, driverConnectionId, "Connection checked in");
            }
        }
    }
}

/// The specification's texts.
fn why_closed(reason: ConnectionClosedReason) -> &'static str {
    match reason {
        ConnectionClosedReason::Stale => "Connection became stale because the pool was cleared",
        ConnectionClosedReason::Idle => {
            "Connection has been available but unused for longer than the configured max idle time"
        }
        ConnectionClosedReason::Error => "An error occurred while using the connection",
        ConnectionClosedReason::PoolClosed => "Connection pool was closed",
    }
}

/// The specification's texts.
fn why_failed(reason: CheckOutFailedReason) -> &'static str {
    match reason {
        CheckOutFailedReason::Timeout => "Wait queue timeout elapsed without a connection becoming available",
        CheckOutFailedReason::ConnectionError => "An error occurred while trying to establish a new connection",
        CheckOutFailedReason::PoolClosed => "Connection pool was closed",
    }
}

/// The value of an option that was set.
fn number(options: &PoolOptions, name: &str) -> Option<u64> {
    options.non_default().into_iter().find_map(|(set, value)| match value {
        OptionValue::Number(value) if set == name => Some(value),
        _ => None,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    // The nanoseconds of 104 days fit a float exactly, so that there is one rounding only.
    duration.as_nanos() as f64 / 1e6
}

/// The parts of `host:port` and `[IPv6]:port`. The path of a socket has no port, nor has an address of another form.
fn host_and_port(address: &str) -> (&str, Option<u16>) {
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
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata};

    use super::*;
    use crate::telemetry::json_lines::tests::one_of_each;

    /// Keeps the fields of all events.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

    impl tracing::Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            assert_eq!((*event.metadata().level(), event.metadata().target()), (Level::DEBUG, "wharf::connection"));
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[derive(Default)]
    struct Fields(BTreeMap<&'static str, String>);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    fn logged(events: &[PoolEvent]) -> Vec<BTreeMap<&'static str, String>> {
        let kept = Kept::default();
        tracing::subscriber::with_default(kept.clone(), || {
            for event in events {
                Log::new().on_event(event);
            }
        });
        std::mem::take(&mut *kept.0.lock().unwrap())
    }

    #[test]
    fn every_event_is_a_message_with_the_specifications_keys() {
        let id = ("driverConnectionId", "42");
        let duration = ("durationMS", "1002.0034");
        let expected: [(&str, &[(&str, &str)]); 11] = [
            ("Connection pool created", &[("maxPoolSize", "7"), ("maxIdleTimeMS", "1500")]),
            ("Connection pool ready", &[]),
            ("Connection pool cleared", &[("serviceId", "7477656c7665206279746573")]),
            ("Connection pool closed", &[]),
            ("Connection created", &[id]),
            ("Connection ready", &[id, duration]),
            ("Connection closed", &[id, ("reason", "Connection pool was closed")]),
            ("Connection checkout started", &[]),
            (
                "Connection checkout failed",
                &[("reason", "Wait queue timeout elapsed without a connection becoming available"), duration],
            ),
            ("Connection checked out", &[id, duration]),
            ("Connection checked in", &[id]),
        ];
        let logged = logged(&one_of_each());
        assert_eq!(logged.len(), expected.len());
        for (logged, (message, fields)) in logged.into_iter().zip(expected) {
            let common = [("message", message), ("serverHost", "db.example.com"), ("serverPort", "27018")];
            let all = common.iter().chain(fields).map(|&(key, value)| (key, value.to_owned())).collect();
            assert_eq!(logged, all);
        }
    }

    #[test]
    fn nothing_is_logged_where_nobody_listens() {
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
            one_of_each().iter().for_each(|event| Log::new().on_event(event));
        });
    }

    #[test]
    fn an_address_has_a_host_and_perhaps_a_port() {
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
