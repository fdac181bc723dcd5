//! Applies transitions: the outcome of a check, or the failure of an operation or of connection establishment.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bson::RawDocument;
use tokio::runtime::Handle;

use super::monitor;
use super::rescan::{self, servers_after};
use super::server::{Member, Server};
use super::snapshot::Snapshot;
use super::state::{Deployment, Monitored, SrvPolling, State, now};
use crate::client::topology::{
    ApplicationError, Consequence, ErrorKind, Preparation, Progress, ServerDescription, TopologyVersion, Transition,
    events_of_change,
};
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::endpoint::{AuthenticationError, HelloReply, OperationError, ServerError, StateChange, WriteConcernError};
use crate::pool::core::Clear;
use crate::pool::error::{Cause, Stage};
use crate::pool::runtime::{FailedConnection, PoolChange, spawn};
use crate::pool::service_id::ServiceId;

/// Why a transition clears a pool.
struct Reason {
    cause: Cause,
    /// The generation of the connection that failed. `None` means any generation.
    generation: Option<u64>,
    service_id: Option<ServiceId>,
    interrupts: bool,
}

impl Reason {
    fn clear(&self) -> Clear {
        let clear = Clear::new().because(self.cause.clone()).interrupt_in_use_connections(self.interrupts);
        match self.generation {
            Some(generation) => clear.only_at_generation(generation),
            None => clear,
        }
    }
}

/// The rest of a transition, done outside the lock because it may call foreign code.
#[derive(Default)]
pub(super) struct Afterwards {
    pub(super) created: Vec<Arc<Server>>,
    pub(super) changes: Vec<(Arc<Server>, PoolChange)>,
    pub(super) to_monitor: Vec<Monitored>,
    /// The servers that cannot be used with these options, and why.
    pub(super) unusable: Vec<(ServerAddress, InvalidOption)>,
    /// The SRV lookup of the servers.
    pub(super) to_resolve: Option<SrvPolling>,
    removed: Vec<Arc<Member>>,
    /// Set if the last server has left the topology, with the reason if it is known.
    is_emptied: Option<Option<Arc<str>>>,
    /// Dropped here, outside the lock, because it may own the last reference to a foreign error.
    pub(super) before: Option<Arc<Snapshot>>,
    pub(super) runtime: Option<Handle>,
}

impl Afterwards {
    pub(super) fn conclude(self, deployment: &Deployment) {
        deployment.publisher.deliver();
        for (address, error) in &self.unusable {
            tracing::error!(target: "wharf::topology", address = address.as_str(), %error, "Server cannot be used");
        }
        if let Some(reason) = &self.is_emptied {
            // This state is terminal, because only a server in the topology can report other servers ("Other
            // TopologyTypes").
            tracing::warn!(target: "wharf::topology", reason = reason.as_deref(), "The last server has left the topology");
        }
        self.created.iter().for_each(|server| server.pool.deliver());
        for (server, change) in self.changes {
            server.pool.conclude(change);
        }
        for monitored in self.to_monitor {
            // Load balancers are not probed.
            match (&self.runtime, &monitored.server.probe) {
                (Some(runtime), Some(_)) => drop(spawn(runtime, monitor::run(monitored))),
                _ => monitored.forget(),
            }
        }
        if let (Some(runtime), Some(polling)) = (&self.runtime, self.to_resolve) {
            spawn(runtime, rescan::run(polling));
        }
        for member in self.removed {
            member.server.control.end();
            member.server.pool.close();
        }
        deployment.changed().notify(usize::MAX);
    }
}

impl Deployment {
    /// Applies a transition, if there is one, and carries out its effects. Returns whether there was a transition.
    fn apply(
        self: &Arc<Self>,
        reason: Option<&Reason>,
        step: impl FnOnce(&State, &Snapshot) -> Option<Transition>,
    ) -> bool {
        // This may ask the application's log, so it comes before the lock.
        let is_listened_to = self.publisher.is_listened_to();
        let state = self.lock();
        let before = self.snapshot.load_full();
        if state.is_closed {
            return false;
        }
        let Some(transition) = step(&state, &before) else { return false };
        self.carry_out(transition, reason, before, state, is_listened_to);
        true
    }

    /// Applies a transition from `before`, and carries out its effects.
    fn carry_out(
        self: &Arc<Self>,
        transition: Transition,
        reason: Option<&Reason>,
        before: Arc<Snapshot>,
        state: MutexGuard<'_, State>,
        is_listened_to: bool,
    ) {
        let Transition { topology, preparations, consequences } = transition;
        let mut after = Afterwards::default();
        // Bound here, so that the lock is released before `after` is dropped even if this panics.
        let state = state;
        let mut members = before.by_address();
        for preparation in &preparations {
            match preparation {
                Preparation::Added(address) => {
                    members.extend(self.admit(&state, address, &mut after).map(|member| (address, member)));
                }
                Preparation::Removed(address) => {
                    if let Some(gone) = members.remove(address) {
                        gone.server.heartbeats.end(&self.publisher);
                        after.removed.push(gone);
                    }
                }
                Preparation::MarkReady(address) => {
                    let server = members.get(address).map(|member| &member.server);
                    after.changes.extend(server.map(|server| (server.clone(), server.pool.begin_ready())));
                }
            }
        }
        if is_listened_to {
            self.publisher.emit(|topology_id| events_of_change(topology_id, &before.topology, &topology));
        }
        if topology.servers().next().is_none() && before.topology.servers().next().is_some() {
            after.is_emptied = Some(topology.left_out().cloned());
        }
        for unknown in topology.servers().filter(|server| server.server_type.is_unknown()) {
            members.get(&unknown.address).iter().for_each(|member| member.server.forget_round_trips());
        }
        let in_order = topology.servers().map(|server| members.get(&server.address).cloned()).collect();
        self.snapshot.store(Arc::new(Snapshot::new(topology, in_order)));
        for consequence in &consequences {
            let (Consequence::Clear(address) | Consequence::Check(address) | Consequence::CancelCheck(address)) =
                consequence;
            let Some(server) = members.get(address).map(|member| &member.server) else { continue };
            match consequence {
                Consequence::Clear(_) => {
                    let clear = |reason: &Reason| server.pool.begin_clear(reason.service_id, reason.clear());
                    after.changes.extend(reason.map(|reason| (server.clone(), clear(reason))));
                }
                Consequence::Check(_) => server.control.ask(),
                Consequence::CancelCheck(_) => server.control.cancel.notify_one(),
            }
        }
        drop(members);
        after.runtime.clone_from(&state.home);
        after.before = Some(before);
        drop(state);
        after.conclude(self);
    }

    /// Applies the result of a check. Notifies the waiting tasks even if the result is ignored, because their requests for
    /// a check had no effect while this check was in progress.
    fn apply_check(
        self: &Arc<Self>,
        monitored: &Monitored,
        reason: Option<&Reason>,
        step: impl FnOnce(&Snapshot) -> Option<Transition>,
    ) {
        monitored.server.control.set_checking(false);
        let is_applied = self.apply(reason, |state, before| match monitored.counts(state, before) {
            true => step(before),
            false => None,
        });
        if !is_applied {
            self.changed().notify(usize::MAX);
        }
    }

    /// Records that a check was cancelled.
    pub(super) fn check_cancelled(self: &Arc<Self>, monitored: &Monitored) {
        self.apply_check(monitored, None, |_| None);
    }

    /// Applies a successful check of a server. `round_trip` is the time that the reply took, or `None` if the server
    /// delayed the reply.
    pub(super) fn checked(
        self: &Arc<Self>,
        monitored: &Monitored,
        description: ServerDescription,
        round_trip: Option<Duration>,
    ) {
        let server = &monitored.server;
        self.apply_check(monitored, None, |before| {
            if let Some(took) = round_trip {
                server.add_round_trip(took);
            }
            let description = with_round_trips(server, description);
            if description.average_round_trip_time.is_none() {
                // Without a round trip, the server may be outside the latency window until the next measurement.
                server.control.measure.notify_one();
            }
            before.topology.after_check(description)
        });
    }

    /// Adds a round trip that was measured separately from the checks. The round trip is ignored while the server is
    /// unknown.
    pub(super) fn measured(self: &Arc<Self>, monitored: &Monitored, round_trip: Duration) {
        let server = &monitored.server;
        self.apply(None, |state, before| {
            let present = before.topology.server(&server.address).filter(|_| monitored.counts(state, before))?;
            if present.server_type.is_unknown() {
                return None;
            }
            server.add_round_trip(round_trip);
            // The first round trip is published here. The next check publishes later averages.
            let is_first = present.average_round_trip_time.is_none();
            is_first.then(|| before.topology.after_check(with_round_trips(server, present.clone())))?
        });
    }

    /// Applies a check that failed: the server becomes unknown, and its pool is cleared in the same step.
    pub(super) fn check_failed(self: &Arc<Self>, monitored: &Monitored, cause: Cause, interrupts: bool) {
        let reason = Reason { cause: cause.clone(), generation: None, service_id: None, interrupts };
        let address = monitored.server.address.clone();
        self.apply_check(monitored, Some(&reason), |before| {
            let mut transition = before.topology.after_check(ServerDescription::failed(address.clone(), cause))?;
            transition.consequences.push(Consequence::Clear(address));
            Some(transition)
        });
    }

    /// Applies a check that an overloaded server refused: the server becomes unknown, but its connections stay open.
    pub(super) fn check_refused(self: &Arc<Self>, monitored: &Monitored, cause: Cause) {
        let failed = ServerDescription::failed(monitored.server.address.clone(), cause);
        self.apply_check(monitored, None, |before| before.topology.after_check(failed));
    }

    /// Applies the reply to the hello on a new connection of the server's pool, if the reply contains anything new
    /// ("Clients update the topology from each handshake"). `generation` is the generation of the connection. Ignores
    /// the reply if a check opens the connection, because the check applies the reply itself. Also ignores the reply of
    /// a load balancer, which describes only one of its servers.
    ///
    /// If the server is unknown, the reply is ignored: making a server known is left to the monitor, which also
    /// supplies the round-trip time. An invalid reply changes nothing, because the monitor's own check fails on it.
    pub(super) fn greeted(self: &Arc<Self>, server: &Server, hello: &HelloReply, took: Duration, generation: u64) {
        if server.uses.greeted(hello, took) || self.options().is_load_balanced() {
            return;
        }
        let reply = &hello.document;
        let version = TopologyVersion::of_reply(reply);
        let is_news = |snapshot: &Snapshot| {
            let present = snapshot.topology.server(&server.address).filter(|_| snapshot.has(server));
            present.is_some_and(|present| {
                !present.server_type.is_unknown() && TopologyVersion::is_newer(version, present.topology_version)
            })
        };
        if !is_news(&self.snapshot()) {
            return;
        }
        let description = ServerDescription::of_reply(server.address.clone(), reply, now());
        if description.error.is_some() {
            return;
        }
        self.apply(None, |_, before| {
            // If the pool has been cleared since, the reply may come from a server process that has exited.
            let is_late = generation < server.pool.state().generation || !is_news(before);
            if is_late { None } else { before.topology.after_check(with_round_trips(server, description)) }
        });
    }

    /// Applies the servers found in the records of an SRV name. At most `most` of them are used; 0 means all.
    pub(super) fn rescanned(self: &Arc<Self>, found: &[ServerAddress], most: u32) {
        self.apply(None, |_, before| before.topology.after_rescan(&servers_after(&before.topology, found, most)));
    }

    /// Applies the failure of an operation on a connection of the server's pool ("Error handling pseudocode").
    pub(crate) fn operation_failed(self: &Arc<Self>, server: &Server, error: &OperationError) {
        let OperationError::Command(failure) = error else { return };
        if !failure.marks_server_unknown() {
            return;
        }
        let kind = failure.state_change().map_or(ErrorKind::Network, ErrorKind::StateChange);
        let origin = failure.origin();
        let reason = Reason {
            cause: Arc::new(failure.clone()),
            generation: origin.generation,
            service_id: origin.service_id,
            interrupts: false,
        };
        self.apply_error(server, &reason, kind, Progress::Established, failure.topology_version(), |label| {
            failure.has_label(label)
        });
    }

    /// Applies the state change that a successful reply to a write reports in its `writeConcernError`.
    pub(crate) fn state_changed(
        self: &Arc<Self>,
        server: &Server,
        change: StateChange,
        reply: &RawDocument,
        generation: u64,
        service_id: Option<ServiceId>,
    ) {
        let cause: Cause = Arc::new(WriteConcernStateChange(WriteConcernError::of(reply.to_owned())));
        let reason = Reason { cause, generation: Some(generation), service_id, interrupts: false };
        let version = reply.get_document("topologyVersion").ok();
        self.apply_error(server, &reason, ErrorKind::StateChange(change), Progress::Established, version, |_| false);
    }

    /// Applies the failure of a server's pool to open a connection. Ignores a failed authentication during a check: the
    /// operation's check-out will fail with the same error, which is then applied.
    pub(super) fn establishment_failed(self: &Arc<Self>, server: &Server, failed: &FailedConnection<'_>) {
        let error = failed.error();
        if error.stage() == Stage::Authenticate && server.uses.is_opening() {
            return;
        }
        let refusal = refusal(error.cause());
        let kind = refusal.and_then(ServerError::state_change).map_or(ErrorKind::Command, ErrorKind::StateChange);
        if !failed.clears_pool() && kind == ErrorKind::Command {
            // A failure that must not clear the pool changes nothing else either, and requests no check ("Network error
            // when reading or writing"). These are failures with an overloaded server's label, and failures before the
            // service behind a load balancer is known.
            return;
        }
        let progress = match error.stage() {
            Stage::Authenticate => Progress::Authenticating,
            _ => Progress::Connecting,
        };
        let reason = Reason {
            cause: error.cause().clone(),
            generation: failed.generation(),
            service_id: failed.service_id(),
            interrupts: false,
        };
        let version = refusal.and_then(|refusal| refusal.reply.get_document("topologyVersion").ok());
        self.apply_error(server, &reason, kind, progress, version, |_| false);
    }

    fn apply_error(
        self: &Arc<Self>,
        server: &Server,
        reason: &Reason,
        kind: ErrorKind,
        progress: Progress,
        version: Option<&RawDocument>,
        has_label: impl Fn(&str) -> bool,
    ) {
        let topology_version = version.and_then(TopologyVersion::of_document);
        let is_overload = has_label("SystemOverloadedError");
        let is_applied = self.apply(Some(reason), |_, before| {
            if !before.has(server) {
                return None;
            }
            before.topology.after_error(&ApplicationError {
                address: server.address.clone(),
                progress,
                kind,
                is_of_older_generation: is_older(server, reason),
                is_overload,
                topology_version,
                cause: reason.cause.clone(),
            })
        });
        if let (true, Some(scanning)) = (is_applied, self.scanning())
            && matches!(kind, ErrorKind::StateChange(StateChange::NotWritablePrimary | StateChange::ShuttingDown))
        {
            // The next selection's scan replaces the check that a monitor would make immediately. A recovering server
            // needs no check, because it keeps recovering for a while ("not writable primary and node is recovering").
            scanning.mark_stale();
        }
    }
}

/// The `writeConcernError` in the reply to a write reports that the server is not primary, is recovering or is shutting
/// down.
#[derive(Debug, thiserror::Error)]
#[error("a writeConcernError of the server says that its state has changed: {0}")]
struct WriteConcernStateChange(#[source] WriteConcernError);

/// Returns the description with the server's round-trip times.
fn with_round_trips(server: &Server, description: ServerDescription) -> ServerDescription {
    let (average_round_trip_time, minimum_round_trip_time) = server.round_trips();
    ServerDescription { average_round_trip_time, minimum_round_trip_time, ..description }
}

/// Returns whether an error comes from a connection whose generation is older than the current generation of the pool
/// or the service.
fn is_older(server: &Server, reason: &Reason) -> bool {
    let Some(generation) = reason.generation else { return false };
    let present = match reason.service_id {
        Some(service_id) => server.pool.service(service_id).map_or(generation, |service| service.generation),
        None => server.pool.state().generation,
    };
    generation < present
}

/// Returns the server's error, if the server refused a connection.
fn refusal(cause: &Cause) -> Option<&ServerError> {
    cause.downcast_ref().or_else(|| cause.downcast_ref::<AuthenticationError>()?.server_error())
}
