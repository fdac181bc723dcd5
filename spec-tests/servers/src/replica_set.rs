//! A replica set of several `mongod` processes, started for a test and stopped after it.
//!
//! [`ReplicaSet::start`] starts the members in parallel, initiates the set and waits until a primary accepts writes
//! that all members replicate. [`shared`] lends one set to all tests in a test binary. Members can be killed, paused
//! and restarted while clients use the set: no method needs `&mut`. Like the servers of [`crate::mongod`], the members
//! leave no process and no folder behind.
//!
//! A member is identified by its position in [`ReplicaSet::addresses`], from zero.
//!
//! # Time
//!
//! A start takes about three seconds, and a step-down takes less than one second. After a primary is killed, the other
//! members elect a new primary after about [`ReplicaSetOptions::election_timeout`]. All methods block the calling
//! thread, and run asynchronous work on a separate thread: on a tokio runtime, call them in `spawn_blocking` or
//! `block_in_place`.

mod admin;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use wharf::{CommandError, EstablishError};

use crate::mongod::{Mongod, MongodOptions, POLL, StartError};
use admin::{Admin, Role};

/// How long it may take until a set has a primary and all other members are secondaries.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// How long a primary that is stepping down waits for a secondary to catch up.
const CATCH_UP: Duration = Duration::from_secs(20);
/// How long a member that stepped down cannot stand for election. The server requires more than [`CATCH_UP`].
const STEPPED_DOWN: Duration = Duration::from_secs(30);

/// Lets a secondary leave a hanging sync source after four seconds, when the next primary has been elected. By default it
/// takes about 15 s, and writes with the write concern majority may have to wait for it.
const LEAVES_A_HANGING_SOURCE: [&str; 4] = [
    "--setParameter",
    "oplogNetworkTimeoutBufferSeconds=3",
    "--setParameter",
    "oplogFetcherSteadyStateMaxFetcherRestarts=0",
];

/// How to start a replica set.
#[derive(Clone, Debug)]
pub struct ReplicaSetOptions {
    /// The number of members. Default: 3.
    pub members: usize,
    /// The name of the set. Default: `rs`.
    pub name: String,
    /// `electionTimeoutMillis`: how long the members wait without hearing from the primary before they elect a new
    /// primary. Default: 2 s instead of the server's 10 s. A shorter time leads to elections when the machine is busy.
    pub election_timeout: Duration,
    /// `heartbeatIntervalMillis`: how often the members check each other's state. Default: 500 ms instead of the
    /// server's 2 s.
    pub heartbeat_interval: Duration,
    /// Additional arguments for each member; see [`MongodOptions::extra_args`]. Default: none.
    pub extra_args: Vec<OsString>,
    /// Additional fields of the members' configurations, by position: `priority`, `tags`, `hidden` and others. Default:
    /// none.
    pub member_fields: Vec<Document>,
}

impl Default for ReplicaSetOptions {
    fn default() -> Self {
        Self {
            members: 3,
            name: "rs".to_owned(),
            election_timeout: Duration::from_secs(2),
            heartbeat_interval: Duration::from_millis(500),
            extra_args: Vec::new(),
            member_fields: Vec::new(),
        }
    }
}

/// A running replica set. Dropping it kills its members and removes their folders.
#[derive(Debug)]
pub struct ReplicaSet {
    name: String,
    /// In the order of the members, and never changed.
    addresses: Vec<SocketAddr>,
    /// Each is locked while its process is being started or stopped. No admin command runs under these locks.
    members: Vec<Mutex<Mongod>>,
}

impl ReplicaSet {
    /// Starts a set, and waits until its primary accepts writes and all other members are secondaries.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplicaSetError`]. In that case no process is left running.
    pub fn start(options: ReplicaSetOptions) -> Result<Self, ReplicaSetError> {
        let members = start_members(&options)?;
        let set = Self {
            name: options.name.clone(),
            addresses: members.iter().map(Mongod::address).collect(),
            members: members.into_iter().map(Mutex::new).collect(),
        };
        let deadline = Instant::now() + START_DEADLINE;
        set.run(0, "admin", doc! { "replSetInitiate": set.configuration(&options) })?;
        let primary = set.elect_at_once(deadline)?;
        // Each member must hold the write, so that no member has to catch up afterwards.
        set.replicate(primary, options.members)?;
        set.wait_for("secondaries", deadline, |roles| {
            roles.iter().all(|role| matches!(role, Role::Primary(_) | Role::Secondary)).then_some(())
        })?;
        Ok(set)
    }

    /// Returns the connection string: all members, and the name of the set.
    pub fn uri(&self) -> String {
        let hosts: Vec<_> = self.addresses.iter().map(SocketAddr::to_string).collect();
        format!("mongodb://{}/?replicaSet={}", hosts.join(","), self.name)
    }

    /// Returns the name of the set.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the members' addresses. They never change.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the identifier of a member's process. It changes with each [`restart`](Self::restart).
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn pid(&self, member: usize) -> u32 {
        self.member(member).pid()
    }

    /// Returns the primary, if there is one. A member that does not answer within a second is ignored.
    ///
    /// If several members call themselves primary, the member that was elected last is returned.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Thread`].
    pub fn primary(&self) -> Result<Option<usize>, ReplicaSetError> {
        Ok(admin::primary(&self.roles()?))
    }

    /// Returns the secondaries. A member that does not answer within a second is ignored.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Thread`].
    pub fn secondaries(&self) -> Result<Vec<usize>, ReplicaSetError> {
        let roles = self.roles()?;
        Ok((0..roles.len()).filter(|&member| matches!(roles[member], Role::Secondary)).collect())
    }

    /// Waits until a member is primary and accepts writes, and returns it.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Deadline`].
    pub fn wait_for_primary(&self, deadline: Instant) -> Result<usize, ReplicaSetError> {
        self.wait_for("a primary", deadline, admin::primary)
    }

    /// Waits until a member is a secondary, for example after its [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Deadline`].
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn wait_for_secondary(&self, member: usize, deadline: Instant) -> Result<(), ReplicaSetError> {
        self.wait_for("the secondary", deadline, |roles| matches!(roles[member], Role::Secondary).then_some(()))
    }

    /// Makes the primary step down, and returns the next primary, which is a different member unless the set has only
    /// one.
    ///
    /// The primary hands over to a secondary that has caught up. It keeps its clients' connections open.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplicaSetError`], for example if there is no primary, or if no secondary can become one.
    pub fn step_down(&self) -> Result<usize, ReplicaSetError> {
        let deadline = Instant::now() + START_DEADLINE;
        let primary = self.wait_for_primary(deadline)?;
        let alone = self.addresses.len() == 1;
        // The only member of a set must be forced to step down, and becomes primary again as soon as it may stand for
        // election.
        let (stepped_down, catch_up) = if alone { (1, 0) } else { (STEPPED_DOWN.as_secs(), CATCH_UP.as_secs()) };
        let step_down = doc! {
            "replSetStepDown": i64::try_from(stepped_down).expect("a minute at most"),
            "secondaryCatchUpPeriodSecs": i64::try_from(catch_up).expect("a minute at most"),
            "force": alone,
        };
        self.run(primary, "admin", step_down)?;
        self.wait_for_primary(deadline)
    }

    /// Kills a member's process (`SIGKILL`), even if it is paused. Its data and its port remain for
    /// [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Process`].
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn kill(&self, member: usize) -> Result<(), ReplicaSetError> {
        self.member(member).kill().map_err(ReplicaSetError::Process)
    }

    /// Stops all threads of a member's process where they are (`SIGSTOP`). Clients stay connected but get no answers.
    ///
    /// If it is the primary, the secondaries read its oplog first: one that is still choosing its sync source would ask a
    /// paused primary for half a minute.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Process`], and any error of a [`command`](Self::command).
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn stop_process(&self, member: usize) -> Result<(), ReplicaSetError> {
        let roles = self.roles()?;
        if matches!(roles[member], Role::Primary(_)) {
            let secondaries = roles.iter().filter(|role| matches!(role, Role::Secondary)).count();
            self.replicate(member, 1 + secondaries)?;
        }
        self.member(member).pause().map_err(ReplicaSetError::Process)
    }

    /// Resumes a member's process after [`stop_process`](Self::stop_process).
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Process`].
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn continue_process(&self, member: usize) -> Result<(), ReplicaSetError> {
        self.member(member).resume().map_err(ReplicaSetError::Process)
    }

    /// Starts a member again with the same port and data, and waits until it accepts connections. It becomes a
    /// secondary only later: see [`wait_for_secondary`](Self::wait_for_secondary). A running process is stopped first.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Start`].
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn restart(&self, member: usize) -> Result<(), ReplicaSetError> {
        Ok(self.member(member).restart()?)
    }

    /// Runs a command on a member over a separate connection and returns the reply. Tests use it to set a fail point or
    /// to count documents, for example.
    ///
    /// # Errors
    ///
    /// [`ReplicaSetError::Connect`] and [`ReplicaSetError::Command`].
    ///
    /// # Panics
    ///
    /// Panics if the set has no member with this number.
    pub fn command(
        &self,
        member: usize,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, ReplicaSetError> {
        admin::block_on(admin::run(self.addresses[member], database, command))?
    }

    fn run(&self, member: usize, database: &str, command: Document) -> Result<RawDocumentBuf, ReplicaSetError> {
        let command = RawDocumentBuf::try_from(command).expect("no key has a null character");
        self.command(member, database, &command)
    }

    /// Writes to the primary, and waits until this many members hold the write.
    fn replicate(&self, primary: usize, members: usize) -> Result<(), ReplicaSetError> {
        let note = doc! {
            "appendOplogNote": 1,
            "data": { "of": self.name.as_str() },
            "writeConcern": { "w": count(members), "wtimeout": millis(START_DEADLINE) },
        };
        self.run(primary, "admin", note).map(drop)
    }

    fn roles(&self) -> Result<Vec<Role>, ReplicaSetError> {
        admin::block_on(async { Admin::new(&self.addresses).roles().await })
    }

    /// Waits for the first primary. Keeps asking the first member to stand for election, so that the set does not wait
    /// for the election timeout. That member refuses, or loses the election, until it is a secondary and the other
    /// members have received the configuration.
    fn elect_at_once(&self, deadline: Instant) -> Result<usize, ReplicaSetError> {
        loop {
            // An error does not matter: if that member cannot be elected, another member will be.
            let _ = self.run(0, "admin", doc! { "replSetStepUp": 1 });
            match self.wait_for_primary(Instant::now()) {
                Err(ReplicaSetError::Deadline { .. }) if Instant::now() < deadline => thread::sleep(POLL),
                outcome => return outcome,
            }
        }
    }

    /// Polls the roles of all members until `reached` returns a value.
    fn wait_for<T: Send>(
        &self,
        what: &'static str,
        deadline: Instant,
        reached: impl Fn(&[Role]) -> Option<T> + Sync,
    ) -> Result<T, ReplicaSetError> {
        admin::block_on(async {
            let mut admin = Admin::new(&self.addresses);
            loop {
                let roles = admin.roles().await;
                if let Some(found) = reached(&roles) {
                    return Ok(found);
                }
                if Instant::now() >= deadline {
                    return Err(ReplicaSetError::Deadline { what, roles: format!("{roles:?}") });
                }
                tokio::time::sleep(POLL).await;
            }
        })?
    }

    fn member(&self, member: usize) -> MutexGuard<'_, Mongod> {
        // The value of a poisoned lock is still valid: after a panic, the process that was being started has exited or
        // is running.
        self.members[member].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn configuration(&self, options: &ReplicaSetOptions) -> Document {
        let members = self.addresses.iter().enumerate().map(|(member, address)| {
            let mut fields = doc! { "_id": count(member), "host": address.to_string() };
            fields.extend(options.member_fields.get(member).cloned().unwrap_or_default());
            fields
        });
        doc! {
            "_id": options.name.as_str(),
            "members": members.collect::<Vec<_>>(),
            "settings": {
                // During an election, a secondary could otherwise try to read from the next primary too early, and then
                // ignores it for a minute. Writes with the write concern majority would wait for that minute.
                "chainingAllowed": false,
                "electionTimeoutMillis": millis(options.election_timeout),
                "heartbeatIntervalMillis": millis(options.heartbeat_interval),
            },
        }
    }
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        // Kill the members: their data is no longer needed, and a graceful shutdown would make them wait for each
        // other.
        for member in 0..self.members.len() {
            let _ = self.kill(member);
        }
    }
}

/// Returns the set of three members that the tests in this process share, starting it if no test holds it.
///
/// The remarks about concurrent tests in [`mongod::shared`](crate::mongod::shared) also apply here. A test that kills
/// or pauses a member must start a separate set.
///
/// # Errors
///
/// Returns the same errors as [`ReplicaSet::start`]. The next call retries.
pub fn shared() -> Result<Arc<ReplicaSet>, ReplicaSetError> {
    static SHARED: Mutex<Weak<ReplicaSet>> = Mutex::new(Weak::new());
    // The value of a poisoned lock is still valid, because it is replaced only after a successful start.
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = shared.upgrade() {
        return Ok(running);
    }
    let started = Arc::new(ReplicaSet::start(ReplicaSetOptions::default())?);
    *shared = Arc::downgrade(&started);
    Ok(started)
}

/// Why a replica set could not be started or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaSetError {
    /// A member could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Connecting to a member failed.
    #[error(transparent)]
    Connect(#[from] EstablishError),
    /// A member refused a command, or did not answer it.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A member's process could not be signalled or waited for.
    #[error("a member's process: {0}")]
    Process(#[source] io::Error),
    /// The thread that talks to the members could not be started.
    #[error("no thread to talk to the members: {0}")]
    Thread(#[source] io::Error),
    /// The members did not reach the awaited state in time.
    #[error("the replica set did not have {what} in time; its members: {roles}")]
    Deadline {
        /// The awaited state.
        what: &'static str,
        /// The members' last states.
        roles: String,
    },
}

/// Starts all members in parallel. If one fails to start, the members that did start are stopped.
fn start_members(options: &ReplicaSetOptions) -> Result<Vec<Mongod>, StartError> {
    let start = || {
        Mongod::start(MongodOptions {
            repl_set: Some(options.name.clone()),
            extra_args: LEAVES_A_HANGING_SOURCE.iter().map(OsString::from).chain(options.extra_args.clone()).collect(),
            ..MongodOptions::default()
        })
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (0..options.members).map(|_| scope.spawn(start)).collect();
        let started: Vec<_> =
            starting.into_iter().map(|thread| thread.join().expect("a start does not panic")).collect();
        started.into_iter().collect()
    })
}

fn count(members: usize) -> i32 {
    i32::try_from(members).expect("a replica set has at most 50 members")
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).expect("the time is less than 24 days")
}

#[cfg(test)]
mod tests;
