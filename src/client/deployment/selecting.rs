//! Selects a server for an operation, and waits until a suitable server is available (Server Selection, "Multi-threaded
//! server selection algorithm").

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use super::selection_log::{self, LoggedOperation, SelectionLog, WaitLogged};
use super::server::{Member, Selected};
use super::snapshot::Snapshot;
use super::state::Deployment;
use crate::client::selection::Access;
use crate::client::topology::ServerDescription;
use crate::endpoint::options::{InvalidOption, ReadPreferenceMode, ServerAddress};
use crate::pool::error::Cause;
use crate::pool::runtime::boxed;
use crate::pool::runtime::within;
use crate::text::milliseconds::Milliseconds;

/// An operation's requirements for its server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand<'a> {
    pub(crate) access: Access<'a>,
    /// Servers to use only if no other server is suitable.
    pub(crate) deprioritized: &'a [ServerAddress],
    /// The server of a sharded cluster that the operation is pinned to.
    pub(crate) only: Option<&'a ServerAddress>,
    /// For log messages.
    pub(crate) operation: LoggedOperation<'a>,
    /// Shared by all selections of the operation.
    pub(crate) wait_logged: &'a WaitLogged,
}

/// When a selection must end, and the option that sets this limit.
#[derive(Clone, Copy)]
pub(super) struct SelectionLimit {
    pub(super) at: Instant,
    pub(super) limit: Duration,
    pub(super) name: &'static str,
}

/// Why no server could be selected for an operation.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum ServerSelectionError {
    /// No suitable server was found in time.
    #[error("no server for {wanted} was found within {limit_name} ({}): {topology}", Milliseconds(*limit))]
    #[non_exhaustive]
    Timeout {
        /// The requirement, such as a read preference.
        wanted: String,
        /// The option that set the limit: `serverSelectionTimeoutMS` or `timeoutMS`.
        limit_name: &'static str,
        /// The time allowed.
        limit: Duration,
        /// The servers' states at the end.
        topology: Arc<TopologySummary>,
    },
    /// The scan found no suitable server, and `serverSelectionTryOnce` prevents a single-threaded client from scanning
    /// again.
    #[error("no server for {wanted} was found in one scan (serverSelectionTryOnce): {topology}")]
    #[non_exhaustive]
    TriedOnce {
        /// The requirement, such as a read preference.
        wanted: String,
        /// The servers' states at the end.
        topology: Arc<TopologySummary>,
    },
    /// A server supports only wire versions that wharf does not support.
    #[error("{0}")]
    Incompatible(#[source] Cause),
    /// The operation's read preference cannot be used with this deployment.
    #[error(transparent)]
    ReadPreference(#[from] InvalidOption),
    /// The client was shut down.
    #[error("the client is shut down")]
    Closed,
    /// The client was called outside a tokio runtime, and its monitors are not running: the client was never used on a
    /// runtime, or that runtime has shut down.
    #[error("a client needs a tokio runtime: use it on one first")]
    NoRuntime,
}

crate::pool::error::debug_as_sentence!(enum ServerSelectionError {
    ReadPreference(_); Timeout, TriedOnce, Incompatible, Closed, NoRuntime
});

impl ServerSelectionError {
    /// Returns whether a later selection might find a server.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::TriedOnce { .. } => true,
            Self::Incompatible(_) | Self::ReadPreference(_) | Self::Closed | Self::NoRuntime => false,
        }
    }
}

/// A summary of a deployment: its type, and each server's type and last error.
#[derive(Clone, PartialEq, Eq)]
pub struct TopologySummary {
    /// Why the SRV name could not be resolved.
    unresolved: Option<String>,
    topology_type: &'static str,
    /// Each server's address, its type, and either the error from its last check or how long it has been silent.
    servers: Vec<(Arc<str>, &'static str, Option<String>)>,
    /// The last server that left the deployment, and the reason.
    left_out: Option<Arc<str>>,
}

impl TopologySummary {
    /// Returns the type of the deployment, such as `ReplicaSetNoPrimary`.
    #[must_use]
    pub fn topology_type(&self) -> &str {
        self.topology_type
    }

    /// Returns each server's address, its type, and either the error from its last check or how long it has been
    /// silent.
    pub fn servers(&self) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        self.servers.iter().map(|(address, server_type, told)| (&**address, *server_type, told.as_deref()))
    }

    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self { unresolved: None, topology_type: "Unknown", servers: Vec::new(), left_out: None }
    }

    fn of(snapshot: &Snapshot, unresolved: Option<String>) -> Self {
        let topology = &snapshot.topology;
        let server = |(server, member): (&ServerDescription, Option<&Member>)| {
            let told = match (&server.error, member) {
                (Some(error), _) => Some(error.to_string()),
                // The check has neither succeeded nor failed. Perhaps something other than a server accepted the
                // connection.
                (None, Some(member)) if server.server_type.is_unknown() => {
                    Some(format!("connecting, no answer for {}", Milliseconds(member.server.checked_for())))
                }
                (None, _) => None,
            };
            (server.address.text.clone(), server.server_type.name(), told)
        };
        Self {
            unresolved,
            topology_type: topology.topology_type().name(),
            servers: snapshot.servers().map(server).collect(),
            left_out: topology.left_out().cloned(),
        }
    }
}

impl fmt::Display for TopologySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.unresolved {
            return write!(f, "the servers are not known: {error}");
        }
        write!(f, "the topology is {}", self.topology_type)?;
        if self.servers.is_empty() {
            f.write_str(" without servers")?;
        }
        for (index, (address, server_type, told)) in self.servers.iter().enumerate() {
            f.write_str(if index == 0 { ", with " } else { "; " })?;
            write!(f, "{address} ({server_type}")?;
            match told {
                Some(told) => write!(f, ", {told})")?,
                None => f.write_str(")")?,
            }
        }
        match &self.left_out {
            Some(left_out) => write!(f, "; {left_out}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for TopologySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Deployment {
    /// Selects a server, and starts the monitors if this is the first operation.
    ///
    /// Waits for a suitable server until `serverSelectionTimeoutMS` or the operation's deadline, whichever comes first,
    /// and requests checks while it waits.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn select(
        self: &Arc<Self>,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        if selection_log::is_enabled() {
            return Box::pin(self.select_logged(demand, deadline)).await;
        }
        if !self.is_running() {
            return boxed(|| self.start_and_select(demand, deadline)).await;
        }
        match self.try_select(&self.snapshot(), demand)? {
            Some(selected) => Ok(selected),
            None => Box::pin(self.wait_for(demand, deadline)).await,
        }
    }

    /// Selects the server that writes go to, if it is the only candidate and the monitors are running. Does not wait or
    /// log.
    #[inline]
    pub(crate) fn select_at_once(&self, access: Access<'_>) -> Option<Selected> {
        if self.is_running() { self.snapshot().select_writable(access) } else { None }
    }

    /// Selects a server, and logs the beginning and the end of the selection.
    async fn select_logged(
        self: &Arc<Self>,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        let log = SelectionLog::new(demand);
        log.started(&self.snapshot().topology);
        let outcome = self.start_and_select(demand, deadline).await;
        log.ended(&self.snapshot().topology, &outcome);
        outcome
    }

    /// Does the work of [`select`](Self::select) when no monitors are running, either because nothing has started them
    /// or because the operations themselves scan.
    async fn start_and_select(
        self: &Arc<Self>,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        if let Some(scanning) = self.scanning() {
            return self.select_by_scan(scanning, demand, deadline).await;
        }
        self.start()?;
        match self.try_select(&self.snapshot(), demand)? {
            Some(selected) => Ok(selected),
            None => self.wait_for(demand, deadline).await,
        }
    }

    /// Selects a server if one is suitable now. Does not wait.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError`] as for [`select`](Self::select), but never a timeout.
    pub(crate) fn try_select_now(&self, access: Access<'_>) -> Result<Option<Selected>, ServerSelectionError> {
        let operation = LoggedOperation::Named("", None);
        let wait_logged = &WaitLogged::new();
        self.try_select(&self.snapshot(), Demand { access, deprioritized: &[], only: None, operation, wait_logged })
    }

    /// Selects a server from a snapshot, if one is suitable.
    pub(super) fn try_select(
        &self,
        snapshot: &Snapshot,
        demand: Demand<'_>,
    ) -> Result<Option<Selected>, ServerSelectionError> {
        if let Some(incompatibility) = snapshot.topology.incompatibility() {
            return Err(ServerSelectionError::Incompatible(Arc::new(incompatibility.clone())));
        }
        let options = self.options();
        let Demand { access, deprioritized, only, .. } = demand;
        if let Some(only) = only {
            return Ok(snapshot.select_at(only));
        }
        Ok(snapshot.select(access, deprioritized, options.local_threshold, options.heartbeat_interval())?)
    }

    async fn wait_for(
        self: &Arc<Self>,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        let limit = self.selection_limit(deadline);
        loop {
            let changed = self.changed().listen();
            if self.is_closed() {
                return Err(ServerSelectionError::Closed);
            }
            // The monitors' runtime may have shut down since the last iteration.
            self.start()?;
            if let Some(selected) = self.try_select(&self.snapshot(), demand)? {
                return Ok(selected);
            }
            if demand.wait_logged.is_due() {
                SelectionLog::new(demand).waiting(&self.snapshot().topology, limit.map(|limit| limit.at));
            }
            self.request_checks();
            let Some(limit) = limit else {
                changed.await;
                continue;
            };
            if within(limit.at, || self.home(), changed).await.is_err() {
                // A change may have arrived at the last moment.
                return match self.try_select(&self.snapshot(), demand)? {
                    Some(selected) => Ok(selected),
                    None => Err(self.not_found_in_time(demand, limit)),
                };
            }
        }
    }

    /// Returns the limit of a selection that begins now: `serverSelectionTimeoutMS` or the operation's deadline,
    /// whichever comes first. Returns `None` if there is no limit.
    pub(super) fn selection_limit(&self, deadline: Option<(Instant, Duration)>) -> Option<SelectionLimit> {
        let limit = self.options().server_selection_timeout;
        let own = Instant::now().checked_add(limit);
        let own = own.map(|at| SelectionLimit { at, limit, name: "serverSelectionTimeoutMS" });
        let given = deadline.map(|(at, limit)| SelectionLimit { at, limit, name: "timeoutMS" });
        [own, given].into_iter().flatten().min_by_key(|limit| limit.at)
    }

    /// Returns the error for a selection that timed out.
    pub(super) fn not_found_in_time(&self, demand: Demand<'_>, limit: SelectionLimit) -> ServerSelectionError {
        let SelectionLimit { name: limit_name, limit, .. } = limit;
        ServerSelectionError::Timeout { wanted: wanted(demand.access), limit_name, limit, topology: self.summary() }
    }

    /// Returns the error for a selection that found no server in its only scan.
    pub(super) fn not_found_at_once(&self, demand: Demand<'_>) -> ServerSelectionError {
        ServerSelectionError::TriedOnce { wanted: wanted(demand.access), topology: self.summary() }
    }

    fn summary(&self) -> Arc<TopologySummary> {
        let unresolved = match self.resolve_error() {
            Some(error) => Some(error.to_string()),
            None => self
                .options()
                .srv
                .as_ref()
                .filter(|_| !self.is_resolved() && !self.is_closed())
                .map(|name| format!("the DNS has not answered for {:?} yet", name.host)),
        };
        Arc::new(TopologySummary::of(&self.snapshot(), unresolved))
    }
}

/// Describes an operation's requirement, for an error.
pub(super) fn wanted(access: Access<'_>) -> String {
    match access {
        Access::Write => "writes".to_owned(),
        Access::Read(preference) | Access::Output(preference) => {
            let mut wanted = format!("readPreference {}", preference.mode.name());
            if preference.mode != ReadPreferenceMode::Primary && !preference.tag_sets.is_empty() {
                wanted.push_str(&format!(" and tags {:?}", preference.tag_sets));
            }
            if let (true, Some(limit)) = (preference.mode != ReadPreferenceMode::Primary, preference.max_staleness) {
                wanted.push_str(&format!(" and maxStalenessSeconds {}", limit.as_secs()));
            }
            wanted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::options::ReadPreference;

    #[test]
    fn error_names_all_parts_of_the_read_preference() {
        let preference = ReadPreference::new(ReadPreferenceMode::Nearest)
            .tag_set([("dc", "east")])
            .max_staleness(Duration::from_secs(90));
        let text = wanted(Access::Read(&preference));
        assert!(text.starts_with("readPreference nearest and tags "), "{text}");
        assert!(text.contains("east") && text.ends_with(" and maxStalenessSeconds 90"), "{text}");
    }
}
