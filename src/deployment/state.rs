//! The deployment's state, and how transitions are applied to it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use bson::oid::ObjectId;
use event_listener::Event;
use tokio::runtime::Handle;

use super::monitor;
use super::selecting::ServerSelectionError;
use super::server::{Member, Server};
use super::snapshot::Snapshot;
use crate::endpoint::{Endpoint, Endpoints, OperationError};
use crate::error::{Cause, Stage};
use crate::options::{InvalidOption, Options, ServerAddress};
use crate::pool::Clear;
use crate::runtime::{FailedConnection, PoolChange, Subscriber};
use crate::topology::{
    ApplicationError, Effect, ErrorKind, Progress, ServerDescription, TopologyDescription, TopologyType,
    TopologyVersion, Transition,
};

/// The servers of a client, with their pools and monitors.
pub(crate) struct Deployment {
    options: Arc<Options>,
    /// Makes the endpoints of pools.
    endpoints: Endpoints,
    /// Makes the endpoints of monitors: without a credential, because monitors do not authenticate.
    probes: Endpoints,
    subscribers: Vec<Arc<dyn Subscriber>>,
    snapshot: ArcSwap<Snapshot>,
    /// Which start of the monitors is in force, 0 if they do not run. Each operation reads it.
    running: AtomicU64,
    state: Mutex<State>,
    /// Notified after each transition.
    changed: Event,
}

/// What changes under the lock, besides the snapshot.
#[derive(Default)]
struct State {
    /// The runtime of the monitors. `None` before the first operation.
    residence: Option<Handle>,
    /// How often the monitors were started.
    starts: u64,
    is_closed: bool,
}

/// Why a transition clears a pool.
struct Reason {
    cause: Cause,
    /// The generation of the connection that failed. `None`: any.
    generation: Option<u64>,
    service_id: Option<ObjectId>,
    interrupts: bool,
}

/// What a monitor's task holds. If the task is dropped although the server belongs to the deployment, the runtime has
/// ended.
pub(super) struct Resident {
    pub(super) deployment: Arc<Deployment>,
    pub(super) server: Arc<Server>,
    /// The start of the monitors that this task belongs to.
    start: u64,
}

/// What is left to do of a transition outside of the lock, because it may call foreign code.
#[derive(Default)]
struct Afterwards {
    created: Vec<Arc<Server>>,
    changes: Vec<(Arc<Server>, PoolChange<Endpoint>)>,
    to_monitor: Vec<Resident>,
    removed: Vec<Arc<Member>>,
    runtime: Option<Handle>,
}

impl Afterwards {
    fn conclude(self, deployment: &Deployment) {
        self.created.iter().for_each(|server| server.pool.deliver());
        for (server, change) in self.changes {
            server.pool.conclude(change);
        }
        for resident in self.to_monitor {
            // Load balancers have no probe.
            match (&self.runtime, &resident.server.probe) {
                (Some(runtime), Some(_)) => drop(runtime.spawn(monitor::run(resident))),
                _ => resident.forget(),
            }
        }
        for member in self.removed {
            member.server.control.end();
            member.server.pool.close();
        }
        deployment.changed.notify(usize::MAX);
    }
}

impl Resident {
    /// Drops this value without a conclusion about the runtime.
    fn forget(mut self) {
        self.start = NEVER;
    }
}

/// A start that never happens.
const NEVER: u64 = u64::MAX;

impl Drop for Resident {
    fn drop(&mut self) {
        if self.server.control.has_ended() {
            return;
        }
        // ORD: Relaxed; nothing is published. If the monitors were started again meanwhile, the exchange fails.
        let ended = self.deployment.running.compare_exchange(self.start, 0, Ordering::Relaxed, Ordering::Relaxed);
        if ended.is_ok() {
            // Operations that wait start the monitors again, on their own runtimes.
            self.deployment.changed.notify(usize::MAX);
        }
    }
}

impl Deployment {
    /// Describes the deployment of the options. Connects to nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] as for [`Options::endpoints`], and if options about the kind of deployment contradict each
    /// other.
    pub(crate) fn new(options: Options, subscribers: Vec<Arc<dyn Subscriber>>) -> Result<Arc<Self>, InvalidOption> {
        options.validate()?;
        options.check_resolved()?;
        let topology = TopologyDescription::of_options(&options)
            .map_err(|error| InvalidOption::because("hosts", error.to_string()))?;
        let options = Arc::new(options);
        let mut of_monitors = Options::clone(&options);
        of_monitors.credential = None;
        of_monitors.timeout = None;
        let probes = Endpoints::new(Arc::new(of_monitors))?;
        let endpoints = Endpoints::new(options.clone())?;
        for server in topology.servers() {
            // A seed that cannot be used is refused now, and not by the first operation.
            let _ = endpoints.at(&server.address)?;
        }
        let members = topology.servers().map(|_| None).collect();
        Ok(Arc::new(Self {
            options,
            endpoints,
            probes,
            subscribers,
            snapshot: ArcSwap::from_pointee(Snapshot::new(topology, members)),
            running: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Event::new(),
        }))
    }

    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    /// Returns what is known at present. Takes no lock. Do not keep it across an await.
    pub(crate) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Returns the event that is notified after each transition, and when the deployment is closed.
    pub(super) fn changed(&self) -> &Event {
        &self.changed
    }

    /// Returns the runtime of the monitors, once there is one.
    pub(crate) fn residence(&self) -> Option<Handle> {
        self.lock().residence.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is valid between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the monitors on the caller's runtime, unless they run.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError::NoRuntime`] or [`ServerSelectionError::Closed`].
    #[inline]
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), ServerSelectionError> {
        // ORD: Acquire; pairs with the Release in `start_anew`.
        if self.running.load(Ordering::Acquire) != 0 { Ok(()) } else { self.start_anew() }
    }

    #[cold]
    fn start_anew(self: &Arc<Self>) -> Result<(), ServerSelectionError> {
        let mut after = Afterwards::default();
        {
            let mut state = self.lock();
            // ORD: Acquire; pairs with the Release below, by which another operation may have started the monitors.
            if self.running.load(Ordering::Acquire) != 0 {
                return Ok(());
            }
            if state.is_closed {
                return Err(ServerSelectionError::Closed);
            }
            state.residence = Some(Handle::try_current().map_err(|_| ServerSelectionError::NoRuntime)?);
            state.starts += 1;
            let before = self.snapshot.load_full();
            let members = before.topology.servers().zip(before.members()).map(|(server, member)| match member {
                Some(member) => {
                    after.to_monitor.push(self.resident(&state, &member.server));
                    Some(member.clone())
                }
                None => self.admit(&state, &server.address, &mut after),
            });
            let snapshot = Snapshot::new(before.topology.clone(), members.collect());
            if snapshot.topology.topology_type() == TopologyType::LoadBalanced {
                // Not monitored, so always ready (Load Balancers, "Connection Pooling").
                let members = snapshot.members().iter().flatten();
                after.changes.extend(members.map(|member| (member.server.clone(), member.server.pool.begin_ready())));
            }
            self.snapshot.store(Arc::new(snapshot));
            // ORD: Release; pairs with the Acquire in `start`, so that the caller finds the servers.
            self.running.store(state.starts, Ordering::Release);
            after.runtime.clone_from(&state.residence);
        }
        after.conclude(self);
        Ok(())
    }

    /// Makes the pool of a server that belongs to the deployment from now on.
    fn admit(self: &Arc<Self>, state: &State, address: &ServerAddress, after: &mut Afterwards) -> Option<Arc<Member>> {
        let runtime = state.residence.clone()?;
        let make = || -> Result<Server, Cause> {
            let endpoint = self.endpoints.at(address).map_err(|error| Arc::new(error) as Cause)?;
            let (weak, of) = (Arc::downgrade(self), address.clone());
            let mut builder = endpoint
                .pool()
                .runtime(runtime)
                .on_failure(move |failed: &FailedConnection<'_>| Self::establishment_failed(&weak, &of, failed));
            for subscriber in &self.subscribers {
                let subscriber = subscriber.clone();
                builder = builder.subscriber(move |event: &crate::PoolEvent| subscriber.on_event(event));
            }
            let pool = builder.begin().map_err(|error| Arc::new(error) as Cause)?;
            let probe = match self.options.is_load_balanced() {
                true => None,
                false => Some(self.probes.at(address).map_err(|error| Arc::new(error) as Cause)?),
            };
            Ok(Server::new(address.clone(), pool, probe))
        };
        match make() {
            Ok(server) => {
                let server = Arc::new(server);
                after.created.push(server.clone());
                after.to_monitor.push(self.resident(state, &server));
                Some(Arc::new(Member::new(server)))
            }
            Err(error) => {
                tracing::error!(target: "wharf::topology", address = address.as_str(), %error, "Server cannot be used");
                None
            }
        }
    }

    /// Returns what the server's monitor holds.
    fn resident(self: &Arc<Self>, state: &State, server: &Arc<Server>) -> Resident {
        Resident { deployment: self.clone(), server: server.clone(), start: state.starts }
    }

    /// Applies a transition, and what it asks for. Returns whether there was one.
    fn apply(self: &Arc<Self>, reason: Option<&Reason>, step: impl FnOnce(&Snapshot) -> Option<Transition>) -> bool {
        let mut after = Afterwards::default();
        {
            let state = self.lock();
            let before = self.snapshot.load_full();
            if state.is_closed {
                return false;
            }
            let Some(Transition { topology, effects }) = step(&before) else { return false };
            let mut members: Vec<_> = before.members().iter().flatten().cloned().collect();
            for effect in &effects {
                match effect {
                    Effect::Added(address) => members.extend(self.admit(&state, address, &mut after)),
                    Effect::Removed(address) => {
                        let (gone, left) = members.into_iter().partition(|member| member.server.address == *address);
                        members = left;
                        after.removed.extend::<Vec<Arc<Member>>>(gone);
                    }
                    Effect::MarkReady(_) | Effect::Clear(_) | Effect::Check(_) | Effect::CancelCheck(_) => {}
                }
            }
            let find = |address: &ServerAddress| members.iter().find(|member| member.server.address == *address);
            for effect in &effects {
                if let Effect::MarkReady(address) = effect
                    && let Some(Member { server, .. }) = find(address).map(Arc::as_ref)
                {
                    after.changes.push((server.clone(), server.pool.begin_ready()));
                }
            }
            let in_order = topology.servers().map(|server| find(&server.address).cloned()).collect();
            self.snapshot.store(Arc::new(Snapshot::new(topology, in_order)));
            for effect in &effects {
                let of = |address| find(address).map(|member| member.server.clone());
                match effect {
                    Effect::Clear(address) => {
                        if let (Some(server), Some(reason)) = (of(address), reason) {
                            let mut clear = Clear::new()
                                .because(reason.cause.clone())
                                .interrupt_in_use_connections(reason.interrupts);
                            if let Some(generation) = reason.generation {
                                clear = clear.only_at_generation(generation);
                            }
                            let change = server.pool.begin_clear(reason.service_id, clear);
                            after.changes.push((server, change));
                        }
                    }
                    Effect::Check(address) => of(address).iter().for_each(|server| server.control.check.notify_one()),
                    Effect::CancelCheck(address) => {
                        of(address).iter().for_each(|server| server.control.cancel.notify_one());
                    }
                    Effect::Added(_) | Effect::Removed(_) | Effect::MarkReady(_) => {}
                }
            }
            after.runtime.clone_from(&state.residence);
        }
        after.conclude(self);
        true
    }

    /// Applies a successful check of a server, or one that the server answered with an error.
    pub(super) fn checked(self: &Arc<Self>, description: ServerDescription) {
        self.apply(None, |before| before.topology.after_check(description));
    }

    /// Applies a check that failed: the server becomes unknown, and its pool is cleared in the same step.
    pub(super) fn check_failed(self: &Arc<Self>, server: &Server, cause: Cause, interrupts: bool) {
        server.forget_round_trips();
        let reason = Reason { cause: cause.clone(), generation: None, service_id: None, interrupts };
        let address = server.address.clone();
        self.apply(Some(&reason), |before| {
            let mut transition = before.topology.after_check(ServerDescription::failed(address.clone(), cause))?;
            transition.effects.push(Effect::Clear(address));
            Some(transition)
        });
    }

    /// Applies the failure of an operation on a connection of the server's pool ("Error handling pseudocode").
    pub(crate) fn operation_failed(self: &Arc<Self>, server: &Server, error: &OperationError) {
        let OperationError::Command(failure) = error else { return };
        let kind = match failure.state_change() {
            Some(change) => ErrorKind::StateChange(change),
            None if failure.is_network_error() => ErrorKind::Network,
            None => return,
        };
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

    /// Applies what a successful reply to a write says about the server's state, in its `writeConcernError`.
    pub(crate) fn state_changed(
        self: &Arc<Self>,
        server: &Server,
        change: crate::wire::reply::StateChange,
        reply: &bson::RawDocument,
        generation: u64,
        service_id: Option<ObjectId>,
    ) {
        let cause: Cause = Arc::new(WriteConcernStateChange);
        let reason = Reason { cause, generation: Some(generation), service_id, interrupts: false };
        let version = reply.get_document("topologyVersion").ok();
        self.apply_error(server, &reason, ErrorKind::StateChange(change), Progress::Established, version, |_| false);
    }

    /// Applies the failure of a pool to open a connection.
    fn establishment_failed(this: &Weak<Self>, address: &ServerAddress, failed: &FailedConnection<'_>) {
        let Some(this) = this.upgrade() else { return };
        let snapshot = this.snapshot.load_full();
        let Some(member) = snapshot.member(address) else { return };
        let error = failed.error();
        if !failed.clears_pool() {
            // What the pool may not be cleared for changes nothing else either: the label of an overloaded server, and a
            // failure before the service of a load balancer is known. The monitor can tell whether the server is there.
            member.server.control.check.notify_one();
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
        this.apply(Some(&reason), |before| {
            let transition = before.topology.after_error(&ApplicationError {
                address: address.clone(),
                progress,
                kind: ErrorKind::Command,
                is_of_older_generation: is_older(&member.server, &reason),
                is_overload: false,
                topology_version: None,
                cause: reason.cause.clone(),
            })?;
            Some(transition)
        });
    }

    fn apply_error(
        self: &Arc<Self>,
        server: &Server,
        reason: &Reason,
        kind: ErrorKind,
        progress: Progress,
        version: Option<&bson::RawDocument>,
        has_label: impl Fn(&str) -> bool,
    ) {
        let topology_version = version.and_then(TopologyVersion::of_document);
        let is_overload = has_label("SystemOverloadedError");
        self.apply(Some(reason), |before| {
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
    }

    /// Asks all monitors for a check at once.
    pub(crate) fn request_checks(&self) {
        for member in self.snapshot.load().members().iter().flatten() {
            member.server.control.check.notify_one();
        }
    }

    /// Ends the monitors and closes the pools, for good.
    pub(crate) fn close(&self) {
        let snapshot = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.is_closed, true) {
                return;
            }
            // ORD: Release; pairs with the Acquire in `start`, so that later operations find the deployment closed.
            self.running.store(0, Ordering::Release);
            self.snapshot.load_full()
        };
        for member in snapshot.members().iter().flatten() {
            member.server.control.end();
            member.server.pool.close();
        }
        self.changed.notify(usize::MAX);
    }

    /// Returns the servers that have a pool.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        self.snapshot.load().members().iter().flatten().map(|member| member.server.clone()).collect()
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment").field("snapshot", &*self.snapshot.load()).finish_non_exhaustive()
    }
}

/// A reply to a write says in its `writeConcernError` that the server is not primary, is recovering or shuts down.
#[derive(Debug, thiserror::Error)]
#[error("a writeConcernError of the server says that its state has changed")]
struct WriteConcernStateChange;

/// Returns whether an error belongs to a connection of an older generation than the server's pool, or the service, has.
fn is_older(server: &Server, reason: &Reason) -> bool {
    let Some(generation) = reason.generation else { return false };
    let present = match reason.service_id {
        Some(service_id) => server.pool.service(service_id).map_or(generation, |service| service.generation),
        None => server.pool.state().generation,
    };
    generation < present
}

/// The time of a check, for descriptions.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
