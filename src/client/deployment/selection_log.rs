//! Logs server selection (Server Selection, "Logging").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::RawDocument;
use tokio::time::Instant;
use tracing::{Level, debug, info};

use super::selecting::{Demand, ServerSelectionError, wanted};
use super::server::Selected;
use crate::client::selection::Access;
use crate::client::session::name;
use crate::client::topology::{TopologyDescription, TopologyView};
use crate::telemetry::host_and_port;
use crate::text::logged::is_logged;
use crate::text::printable::PrintableError;

/// The target of the messages: the `serverSelection` component from the logging specification.
const TARGET: &str = "wharf::serverSelection";

/// The operation that a server is selected for, as the log describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoggedOperation<'a> {
    /// A command, with the number of its operation.
    Command(&'a RawDocument, Option<i64>),
    /// A command or a method of the client, by name, with the number of the operation.
    Named(&'static str, Option<i64>),
}

/// Whether the operation's wait has already been logged. The message appears at most once per operation, however many
/// selections the operation needs.
#[derive(Debug)]
pub(crate) struct WaitLogged(AtomicBool);

impl WaitLogged {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Returns whether to log the message now, and records that it was logged.
    pub(super) fn is_due(&self) -> bool {
        // Relaxed: the selections of one operation follow one another.
        logs_waiting() && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// Returns whether `DEBUG` messages, which report the beginning and the end of each selection, are enabled.
#[inline]
pub(crate) fn is_enabled() -> bool {
    is_logged!(TARGET, Level::DEBUG)
}

/// Returns whether `INFO` messages, which report that an operation has to wait, are enabled.
fn logs_waiting() -> bool {
    is_logged!(TARGET, Level::INFO)
}

/// The messages about one selection, with the specification's wording and keys.
pub(super) struct SelectionLog<'a> {
    selector: String,
    operation: &'a str,
    operation_id: Option<i64>,
    demand: Demand<'a>,
}

#[allow(non_snake_case)] // The specification's keys.
impl<'a> SelectionLog<'a> {
    pub(super) fn new(demand: Demand<'a>) -> Self {
        let (operation, operation_id) = match demand.operation {
            LoggedOperation::Command(command, id) => (name(command).unwrap_or_default(), id),
            LoggedOperation::Named(name, id) => (name, id),
        };
        Self { selector: selector(demand), operation, operation_id, demand }
    }

    pub(super) fn started(&self, topology: &TopologyDescription) {
        let Self { selector, operation, operation_id: operationId, .. } = self;
        let topologyDescription = described(topology);
        debug!(target: TARGET, selector, operationId, operation, topologyDescription, "Server selection started");
    }

    /// Logs that no server is currently suitable. The selection times out at `until`.
    pub(super) fn waiting(&self, topology: &TopologyDescription, until: Option<Instant>) {
        let Self { selector, operation, operation_id: operationId, .. } = self;
        let topologyDescription = described(topology);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let remainingTimeMS = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        info!(
            target: TARGET,
            selector,
            operationId,
            operation,
            topologyDescription,
            remainingTimeMS,
            "Waiting for suitable server to become available"
        );
    }

    pub(super) fn ended(&self, topology: &TopologyDescription, outcome: &Result<Selected, ServerSelectionError>) {
        let Self { selector, operation, operation_id: operationId, demand } = self;
        let topologyDescription = described(topology);
        match outcome {
            Ok(server) => {
                let (serverHost, serverPort) = host_and_port(&server.address.text);
                debug!(
                    target: TARGET,
                    selector,
                    operationId,
                    operation,
                    topologyDescription,
                    serverHost,
                    serverPort,
                    "Server selection succeeded"
                );
            }
            Err(error) => {
                let failure = failure(demand.access, error);
                debug!(
                    target: TARGET,
                    selector,
                    operationId,
                    operation,
                    topologyDescription,
                    failure,
                    "Server selection failed"
                );
            }
        }
    }
}

fn described(topology: &TopologyDescription) -> String {
    TopologyView(Arc::new(topology.clone())).to_string()
}

/// Describes the requirements: the read preference with all its parts.
fn selector(Demand { access, only, .. }: Demand<'_>) -> String {
    match (only, access) {
        (Some(only), _) => format!("the server {only}, which the transaction is pinned to"),
        (None, access) => format!("a server for {}", wanted(access)),
    }
}

/// Describes the error without the topology, which has a separate key.
fn failure(access: Access<'_>, error: &ServerSelectionError) -> String {
    match error {
        ServerSelectionError::Timeout { limit_name, .. } => {
            format!("no server for {} was found within {limit_name}", wanted(access))
        }
        ServerSelectionError::TriedOnce { .. } => {
            format!("no server for {} was found in one scan (serverSelectionTryOnce)", wanted(access))
        }
        other => PrintableError(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};

    fn demand(access: Access<'_>) -> Demand<'_> {
        static WAIT_LOGGED: WaitLogged = WaitLogged::new();
        let operation = LoggedOperation::Named("ping", None);
        Demand { access, deprioritized: &[], only: None, operation, wait_logged: &WAIT_LOGGED }
    }

    #[test]
    fn selector_has_all_parts_of_the_read_preference() {
        let tags =
            std::collections::BTreeMap::from([("dc", "east")].map(|(name, value)| (name.to_owned(), value.to_owned())));
        let preference =
            ReadPreference::new(ReadPreferenceMode::Nearest).tag_set(tags).max_staleness(Duration::from_secs(90));
        let text = selector(demand(Access::Read(&preference)));
        assert_eq!(text, r#"a server for readPreference nearest and tags [{"dc": "east"}] and maxStalenessSeconds 90"#);
        assert_eq!(selector(demand(Access::Write)), "a server for writes");
    }

    #[test]
    fn failure_does_not_repeat_the_topology() {
        let client = crate::Client::from_uri("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(client.connect()).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        let failure = super::failure(Access::Write, &error);
        assert_eq!(failure, "no server for writes was found within serverSelectionTimeoutMS");
        let topology = match error {
            ServerSelectionError::Timeout { topology, .. } => topology,
            error => panic!("{error}"),
        };
        let error = ServerSelectionError::TriedOnce { wanted: "writes".to_owned(), topology };
        let failure = super::failure(Access::Write, &error);
        assert_eq!(failure, "no server for writes was found in one scan (serverSelectionTryOnce)");
    }
}
