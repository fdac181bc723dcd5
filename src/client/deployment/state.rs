//! The deployment's state: its servers, where their monitors run, and whether it is closed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use event_listener::Event;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::applying::Afterwards;
use super::heartbeat::{CheckConnection, Heartbeat};
use super::publisher::Publisher;
use super::scanning::Scanning;
use super::selecting::ServerSelectionError;
use super::server::{Control, Server};
use super::settled::{Replaced, Settled};
use super::snapshot::Snapshot;
use crate::client::topology::{TopologyDescription, TopologyEvent, TopologyType, events_of_change, events_of_opening};
use crate::endpoint::options::{InvalidOption, Options};
use crate::endpoint::{Handshake, ResolveError, Resolver};
use crate::pool::core::Budget;
use crate::pool::runtime::{Subscriber, watch_interest};
use crate::text::printable::PrintableError;

/// The servers of a client, with their pools and monitors.
pub(crate) struct Deployment {
    /// The options as the application gave them. They contain no servers if the application gave an SRV name that was
    /// not resolved.
    given: Arc<Options>,
    /// The handshake of all connections, which is known before the servers are.
    handshake: Arc<Handshake>,
    /// Set when the servers are known.
    pub(super) settled: OnceLock<Arc<Settled>>,
    /// The latest credential, TLS options and compressors, if the application has replaced them (`replacing.rs`).
    pub(super) replaced: ArcSwapOption<Replaced>,
    /// Held while options are replaced, and while the servers become known.
    pub(super) replacing: Mutex<()>,
    /// Replaces the system's resolver for the SRV name.
    pub(super) resolver: Option<Resolver>,
    /// The state of scans, for a deployment without monitors. `None` if monitors check the servers.
    scanning: Option<Box<Scanning>>,
    /// Stops the SRV lookups.
    pub(super) srv_control: Control,
    pub(super) subscribers: Vec<Arc<dyn Subscriber>>,
    /// The budget of the servers' pools.
    pub(super) budget: Option<Budget>,
    pub(super) publisher: Publisher,
    pub(super) snapshot: ArcSwap<Snapshot>,
    /// The sequence number of the monitors' current run, or 0 if they are not running. Each operation reads this value.
    running: AtomicU64,
    /// Whether the deployment is closed. A forked child reads this copy, because it must not take the lock.
    was_closed: AtomicBool,
    /// Whether the pools account for the holders of their connections. Written under the lock.
    pub(super) accounts_for_holders: AtomicBool,
    state: Mutex<State>,
    /// Notified after each transition.
    changed: Event,
}

/// The initial values of a deployment.
struct Parts {
    given: Arc<Options>,
    handshake: Arc<Handshake>,
    settled: OnceLock<Arc<Settled>>,
    replaced: Option<Arc<Replaced>>,
    resolver: Option<Resolver>,
    subscribers: Vec<Arc<dyn Subscriber>>,
    publisher: Publisher,
    budget: Option<Budget>,
    topology: TopologyDescription,
    is_closed: bool,
    accounts_for_holders: bool,
    checks: Checks,
}

/// How a deployment learns the state of its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checks {
    /// Each server has a monitor.
    ByMonitors,
    /// Operations scan the servers, and nothing is spawned (`scanning.rs`).
    ByOperations,
}

/// The state that changes under the lock, besides the snapshot.
#[derive(Default)]
pub(super) struct State {
    /// The monitors' runtime. `None` before the first operation.
    pub(super) home: Option<Handle>,
    /// The number of times that the monitors were started.
    starts: u64,
    pub(super) is_closed: bool,
    /// Each piece of spawned background work holds a receiver.
    pub(super) spawned: watch::Sender<()>,
    /// Why the last attempt to resolve the SRV name failed.
    unresolved: Option<ResolveError>,
    /// The servers that the deployment had when it was closed.
    closed: Vec<Arc<Server>>,
}

/// The handle that a monitor's task, or a scan, holds to the server that it checks. If the handle is dropped while the
/// server still belongs to the deployment, the runtime has shut down.
pub(super) struct Monitored {
    pub(super) deployment: Arc<Deployment>,
    pub(super) server: Arc<Server>,
    /// Identifies the run of the monitors that this task belongs to.
    start: u64,
}

impl Monitored {
    /// Drops this value without recording that the runtime has shut down.
    pub(super) fn forget(mut self) {
        self.start = NEVER;
    }

    /// Returns whether this task belongs to the monitors' current run.
    pub(super) fn is_current(&self) -> bool {
        // ORD: Relaxed; nothing is published. A late result is refused under the lock.
        self.deployment.running.load(Ordering::Relaxed) == self.start
    }

    /// Starts the events of a check.
    pub(super) fn heartbeat(&self, over: &CheckConnection<'_>, awaited: bool) -> Heartbeat<'_> {
        self.server.heartbeats.start(&self.deployment.publisher, over, awaited)
    }

    /// Returns whether to accept a result from the monitor, which requires that the monitors have not been restarted
    /// since and that the server still belongs to the deployment.
    pub(super) fn counts(&self, state: &State, snapshot: &Snapshot) -> bool {
        self.start == state.starts && snapshot.has(&self.server)
    }
}

/// The number of a run that never happens.
const NEVER: u64 = u64::MAX;

impl Drop for Monitored {
    fn drop(&mut self) {
        if !self.server.control.has_ended() {
            self.deployment.has_stopped(self.start);
        }
    }
}

/// The handle to the deployment, held by the task that looks up an SRV name's servers. As with [`Monitored`], an early
/// drop means that the runtime has shut down.
pub(super) struct SrvPolling {
    pub(super) deployment: Arc<Deployment>,
    start: u64,
}

impl SrvPolling {
    /// Drops this value without recording that the runtime has shut down.
    pub(super) fn forget(mut self) {
        self.start = NEVER;
    }
}

impl Drop for SrvPolling {
    fn drop(&mut self) {
        if !self.deployment.srv_control.has_ended() {
            self.deployment.has_stopped(self.start);
        }
    }
}

impl Deployment {
    /// Records that the runtime of this run's monitors has shut down.
    fn has_stopped(&self, start: u64) {
        // ORD: Relaxed; nothing is published. If the monitors have been restarted since, the exchange fails.
        if self.running.compare_exchange(start, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Waiting operations restart the monitors, on their own runtimes.
            self.changed.notify(usize::MAX);
        }
    }

    /// Creates the deployment that the options describe. Does not connect or look anything up.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] as for [`Options::endpoints`], or if options that concern the deployment's type conflict. For
    /// an SRV name that is not resolved, only the known parts are checked.
    pub(crate) fn new(
        options: Options,
        subscribers: Vec<Arc<dyn Subscriber>>,
        publisher: Publisher,
        resolver: Option<Resolver>,
        budget: Option<Budget>,
        checks: Checks,
    ) -> Result<Arc<Self>, InvalidOption> {
        options.validate()?;
        let handshake = Arc::new(Handshake::new(&options)?);
        let (given, settled) = (Arc::new(options.clone()), OnceLock::new());
        let topology = match &options.srv {
            Some(_) if options.hosts.is_empty() => {
                if !cfg!(feature = "srv") {
                    options.check_resolved()?;
                }
                TopologyDescription::without_servers()
            }
            _ => {
                let (present, topology) = Settled::new(options, &handshake)?;
                settled.get_or_init(|| Arc::new(present));
                topology
            }
        };
        let parts = Parts {
            given,
            handshake,
            settled,
            replaced: None,
            resolver,
            subscribers,
            publisher,
            budget,
            topology,
            is_closed: false,
            accounts_for_holders: false,
            checks,
        };
        Ok(Self::of(parts))
    }

    fn of(parts: Parts) -> Arc<Self> {
        // Done here, because pools are created under the lock, and `tracing` subscribers must not be called there.
        watch_interest();
        let members = parts.topology.servers().map(|_| None).collect();
        Arc::new(Self {
            given: parts.given,
            handshake: parts.handshake,
            settled: parts.settled,
            replaced: ArcSwapOption::new(parts.replaced),
            replacing: Mutex::new(()),
            resolver: parts.resolver,
            scanning: (parts.checks == Checks::ByOperations).then(Box::default),
            srv_control: Control::default(),
            subscribers: parts.subscribers,
            budget: parts.budget,
            publisher: parts.publisher,
            snapshot: ArcSwap::from_pointee(Snapshot::new(parts.topology, members)),
            running: AtomicU64::new(0),
            was_closed: AtomicBool::new(parts.is_closed),
            accounts_for_holders: AtomicBool::new(parts.accounts_for_holders),
            state: Mutex::new(State { is_closed: parts.is_closed, ..State::default() }),
            changed: Event::new(),
        })
    }

    /// Returns the deployment for a forked child. Takes no lock, because a thread that does not exist in the child may
    /// have held it when the process forked.
    pub(super) fn successor(&self) -> Arc<Self> {
        let settled = self.settled.get().cloned();
        let topology = settled.as_ref().and_then(|settled| TopologyDescription::of_options(&settled.options).ok());
        // ORD: Relaxed; the child has a single thread here.
        let (is_closed, accounts_for_holders) =
            (self.was_closed.load(Ordering::Relaxed), self.accounts_for_holders.load(Ordering::Relaxed));
        Self::of(Parts {
            given: self.given.clone(),
            handshake: self.handshake.clone(),
            settled: settled.map_or_else(OnceLock::new, OnceLock::from),
            replaced: self.replaced.load_full(),
            resolver: self.resolver.clone(),
            subscribers: self.subscribers.clone(),
            budget: self.budget.clone(),
            publisher: self.publisher.successor(),
            topology: topology.filter(|_| !is_closed).unwrap_or_else(TopologyDescription::without_servers),
            is_closed,
            accounts_for_holders,
            checks: if self.scans() { Checks::ByOperations } else { Checks::ByMonitors },
        })
    }

    /// Returns the scanning state, if operations scan the servers.
    pub(super) fn scanning(&self) -> Option<&Scanning> {
        self.scanning.as_deref()
    }

    /// Returns the options as the application gave them. For an SRV name, they contain no servers.
    pub(super) fn given(&self) -> &Options {
        &self.given
    }

    /// Returns the options. Until an SRV name is resolved, these are the options as the application gave them.
    pub(crate) fn options(&self) -> &Arc<Options> {
        self.settled.get().map_or(&self.given, |settled| &settled.options)
    }

    /// Returns the handshake of all connections.
    pub(crate) fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Returns whether the servers are known.
    pub(super) fn is_resolved(&self) -> bool {
        self.settled.get().is_some()
    }

    /// Records that the SRV name could not be resolved.
    pub(super) fn unresolved(&self, error: ResolveError) {
        let text = PrintableError(&error).to_string();
        tracing::warn!(target: "wharf::topology", error = text, "SRV records could not be read");
        self.lock().unresolved = Some(error);
        self.changed.notify(usize::MAX);
    }

    /// Returns the reason if the SRV name could not be resolved.
    pub(super) fn resolve_error(&self) -> Option<ResolveError> {
        match self.is_resolved() {
            true => None,
            false => self.lock().unresolved.clone(),
        }
    }

    /// Applies the options with the servers found for the SRV name.
    ///
    /// # Errors
    ///
    /// The same as for [`Deployment::new`].
    pub(super) fn settle(self: &Arc<Self>, options: Options) -> Result<(), InvalidOption> {
        let mut after = Afterwards::default();
        let is_listened_to = self.publisher.is_listened_to();
        {
            let _turn = self.replacing();
            let (settled, topology) = self.settled_now(options)?;
            let state = self.lock();
            if state.is_closed || self.settled.set(Arc::new(settled)).is_err() {
                return Ok(());
            }
            let before = self.snapshot.load_full();
            if is_listened_to {
                // The opening event has already been emitted.
                self.publisher.emit(|topology_id| events_of_opening(topology_id, &topology).into_iter().skip(1));
            }
            self.inhabit(&state, topology, &before, &mut after);
            after.runtime.clone_from(&state.home);
            after.before = Some(before);
        }
        after.conclude(self);
        Ok(())
    }

    /// Replaces the snapshot, and creates a member for each server in the topology that has none.
    fn inhabit(
        self: &Arc<Self>,
        state: &State,
        topology: TopologyDescription,
        before: &Snapshot,
        after: &mut Afterwards,
    ) {
        let present = before.by_address();
        let members = topology.servers().map(|server| match present.get(&server.address) {
            Some(member) => {
                after.to_monitor.push(self.monitored(state, &member.server));
                Some(member.clone())
            }
            None => self.admit(state, &server.address, after),
        });
        let members = members.collect();
        let snapshot = Snapshot::new(topology, members);
        if snapshot.topology.topology_type() == TopologyType::LoadBalanced {
            // A load balancer is not monitored, so its pool is always ready (Load Balancers, "Connection Pooling").
            let members = snapshot.members().iter().flatten();
            after.changes.extend(members.map(|member| (member.server.clone(), member.server.pool.begin_ready())));
        }
        self.snapshot.store(Arc::new(snapshot));
    }

    /// Returns the current snapshot. Takes no lock. Do not keep it across an await.
    pub(crate) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Returns the event that is notified after each transition, and when the deployment is closed.
    pub(super) fn changed(&self) -> &Event {
        &self.changed
    }

    /// Returns the monitors' runtime, or `None` before the first operation.
    pub(crate) fn home(&self) -> Option<Handle> {
        self.lock().home.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is valid between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the monitors on the caller's runtime, unless they are already running.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError::NoRuntime`] or [`ServerSelectionError::Closed`].
    #[inline]
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), ServerSelectionError> {
        if self.is_running() { Ok(()) } else { self.start_anew() }
    }

    /// Returns whether the monitors are running.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `start_anew`.
        self.running.load(Ordering::Acquire) != 0
    }

    /// Returns the value that an operation holds while it checks the server.
    pub(super) fn monitored_of(self: &Arc<Self>, server: &Arc<Server>) -> Monitored {
        self.monitored(&self.lock(), server)
    }

    /// Creates the servers' pools, for connections on the caller's runtime, and starts the monitors there. Where
    /// operations scan, no monitor ever runs.
    ///
    /// # Errors
    ///
    /// The same as for [`start`](Self::start).
    #[cold]
    pub(super) fn start_anew(self: &Arc<Self>) -> Result<(), ServerSelectionError> {
        let mut after = Afterwards::default();
        let is_listened_to = self.publisher.is_listened_to();
        {
            let mut state = self.lock();
            if state.is_closed {
                return Err(ServerSelectionError::Closed);
            }
            // ORD: Acquire; pairs with the Release below, by which another operation may have published a start.
            if self.running.load(Ordering::Acquire) != 0 || (self.scans() && state.starts > 0) {
                return Ok(());
            }
            state.home = Some(Handle::try_current().map_err(|_| ServerSelectionError::NoRuntime)?);
            state.starts += 1;
            let before = self.snapshot.load_full();
            if is_listened_to && state.starts == 1 {
                self.publisher.emit(|topology_id| events_of_opening(topology_id, &before.topology));
            }
            self.inhabit(&state, before.topology.clone(), &before, &mut after);
            if !self.scans() {
                if self.given.srv.is_some() {
                    // The task begins with a lookup.
                    self.srv_control.set_checking(true);
                    after.to_resolve = Some(SrvPolling { deployment: self.clone(), start: state.starts });
                }
                // ORD: Release; pairs with the Acquire in `start`, so the caller finds the servers.
                self.running.store(state.starts, Ordering::Release);
            }
            after.runtime.clone_from(&state.home);
            after.before = Some(before);
        }
        after.conclude(self);
        // ORD: Relaxed; nothing is published.
        match self.running.load(Ordering::Relaxed) {
            // The runtime is shutting down, and has dropped the monitors immediately.
            0 if !self.scans() && !self.is_closed() => Err(ServerSelectionError::NoRuntime),
            _ => Ok(()),
        }
    }

    /// Returns the value that the server's monitor holds.
    pub(super) fn monitored(self: &Arc<Self>, state: &State, server: &Arc<Server>) -> Monitored {
        // A monitor begins with a check.
        server.begin_checks();
        Monitored { deployment: self.clone(), server: server.clone(), start: state.starts }
    }

    /// Returns whether the server has left the deployment, and the deployment is still open.
    pub(crate) fn has_lost(&self, server: &Server) -> bool {
        !self.is_closed() && !self.snapshot.load().has(server)
    }

    /// Requests an immediate check from every monitor, and another lookup if the SRV name is not resolved. The calling
    /// task must already be listening to [`changed`](Self::changed).
    pub(crate) fn request_checks(&self) {
        if !self.is_resolved() {
            self.srv_control.ask();
        }
        for member in self.snapshot.load().members().iter().flatten() {
            member.server.control.ask();
        }
    }

    /// Stops the monitors and closes the pools for good.
    pub(crate) fn close(&self) {
        let is_listened_to = self.publisher.is_listened_to();
        let (before, servers) = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.is_closed, true) {
                return;
            }
            // ORD: Release; pairs with the Acquire in `start`, so that later operations find the deployment closed.
            self.running.store(0, Ordering::Release);
            // ORD: Relaxed; a forked child reads it, on its only thread.
            self.was_closed.store(true, Ordering::Relaxed);
            let before = self.snapshot.load_full();
            // SDAM, "Client closing".
            let closed_topology = TopologyDescription::without_servers();
            state.closed = before.members().iter().flatten().map(|member| member.server.clone()).collect();
            state.closed.iter().for_each(|server| server.heartbeats.end(&self.publisher));
            if is_listened_to && state.starts > 0 {
                self.publisher.emit(|topology_id| {
                    let closed = TopologyEvent::TopologyClosed { topology_id };
                    let mut events = events_of_change(topology_id, &before.topology, &closed_topology);
                    events.push(closed);
                    events
                });
            }
            self.snapshot.store(Arc::new(Snapshot::new(closed_topology, Vec::new())));
            (before, state.closed.clone())
        };
        drop(before);
        self.publisher.deliver();
        self.srv_control.end();
        for server in servers {
            server.control.end();
            server.pool.close();
        }
        self.changed.notify(usize::MAX);
    }

    /// Sets whether the pools account for the holders of their connections, including the pools of servers that are
    /// added later.
    pub(crate) fn account_for_holders(&self, on: bool) {
        let present = {
            let _state = self.lock();
            // ORD: Relaxed; the lock publishes it to `admit`.
            self.accounts_for_holders.store(on, Ordering::Relaxed);
            self.snapshot.load_full()
        };
        present.members().iter().flatten().for_each(|member| member.server.pool.account_for_holders(on));
    }

    /// Returns the servers that have a pool, or that had a pool when the deployment was closed.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        let state = self.lock();
        match state.is_closed {
            true => state.closed.clone(),
            false => self.snapshot.load().members().iter().flatten().map(|member| member.server.clone()).collect(),
        }
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment").field("snapshot", &*self.snapshot.load()).finish_non_exhaustive()
    }
}

/// Returns the current time, in the form in which descriptions record the time of a check.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
