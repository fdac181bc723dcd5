//! A real `mongod`, started for a test and stopped after it.
//!
//! [`Mongod::start`] runs the executable from [`provision::mongod`] on 127.0.0.1, with its own port and data directory.
//! Test commands are enabled, so the `failCommand` fail point works. [`shared`] lends one server to all tests in a test
//! binary. All functions block the calling thread; a start takes a few tenths of a second.
//!
//! # No process is left behind
//!
//! [`Mongod::stop`] and `Drop` terminate the process and remove its folder. If this process dies first, the kernel
//! kills `mongod` on Linux (`PR_SET_PDEATHSIG`). That signal is tied to the *thread* that forked, and the test harness
//! runs each test on a thread that exits when the test finishes. Therefore a single thread, which lives as long as this
//! process, starts all servers. The next start by the same user on the same machine removes the folder of a killed
//! process. The owner of a folder keeps a lock file in it locked, so a lock that can be taken means that the owner is
//! dead.

mod launcher;
mod process;
mod scratch;

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::provision::{self, ProvisionError};
use process::{Process, Signal};
use scratch::Scratch;

/// How long a server may take before it accepts connections.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// The pause between two checks of a server that is starting or stopping.
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// How many ports to try for one start. Each failure means that another process took the port after it was found free.
const PORTS_TRIED: usize = 5;
/// The maximum number of random ports to try until one is free.
const PORTS_DRAWN: usize = 1_000;
/// The ports that servers listen on: below the range that systems assign to outgoing connections, which starts at 32768
/// on Linux and at 49152 elsewhere.
///
/// If servers listened in that range, an outgoing connection could take the port of a server that is being restarted.
/// Even a connection to that very port could take it: if the system assigns the same port as the source port, the
/// connection connects to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// The text in the log of a server that lost its port.
const ADDRESS_IN_USE: &str = "Address already in use";
/// How much of the log an error includes, in bytes.
const LOG_TAIL: usize = 4_000;
/// The contents of every key file. All servers use the same key, so several of them can form one replica set.
const KEY: &str = "d2hhcmYgdGVzdGJlZCBrZXk=";

/// How to start a server. The default is a standalone server without authentication.
#[derive(Clone, Debug, Default)]
pub struct MongodOptions {
    /// Whether clients must authenticate (`--auth`). The server starts without users: create the first user through the
    /// localhost exception. Default: false.
    pub auth: bool,
    /// The name of the replica set that the server joins (`--replSet`). The set is not initiated: send
    /// `replSetInitiate`. With `auth`, all servers from this module share a key file. Default: none.
    pub repl_set: Option<String>,
    /// The server's TLS configuration. If set, the server accepts only TLS connections (`--tlsMode requireTLS`).
    /// Default: none.
    pub tls: Option<MongodTls>,
    /// The folder of the Unix domain socket that the server also listens on; see [`Mongod::socket`]. The path must be
    /// shorter than 80 bytes. Default: none.
    pub socket_folder: Option<PathBuf>,
    /// Additional arguments, placed after this module's own. An option that this module sets cannot be repeated, except
    /// `--setParameter`. Default: none.
    pub extra_args: Vec<OsString>,
}

/// The TLS configuration of a server.
#[derive(Clone, Debug)]
pub struct MongodTls {
    /// The server's certificate and private key, in one PEM file.
    pub certificate_key_file: PathBuf,
    /// The authorities that the server trusts to sign clients' certificates.
    pub ca_file: PathBuf,
    /// Whether clients must present a certificate (the server's default). Otherwise the server only checks certificates
    /// that are presented (`--tlsAllowConnectionsWithoutCertificates`).
    pub require_client_certificate: bool,
}

/// A running server. Dropping it terminates the process and removes its folder, which blocks for up to ten seconds.
#[derive(Debug)]
pub struct Mongod {
    binary: provision::MongodBinary,
    options: MongodOptions,
    port: u16,
    process: Process,
    // This is declared after `process`: fields are dropped in order, and the folder must outlive the process that
    // writes to it.
    scratch: Scratch,
}

impl Mongod {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// Returns a [`StartError`]. A process that was started but did not become ready is terminated before this returns.
    pub fn start(options: MongodOptions) -> Result<Mongod, StartError> {
        let binary = provision::mongod()?;
        let mut tried = 1;
        loop {
            match Mongod::start_once(&binary, &options, free_port()?) {
                Err(StartError::Ended { lost_port: true, .. }) if tried < PORTS_TRIED => tried += 1,
                outcome => return outcome,
            }
        }
    }

    fn start_once(binary: &provision::MongodBinary, options: &MongodOptions, port: u16) -> Result<Mongod, StartError> {
        let scratch = Scratch::create().map_err(StartError::Folder)?;
        let process = spawn(binary, options, port, &scratch)?;
        let mut mongod = Mongod { binary: binary.clone(), options: options.clone(), port, process, scratch };
        mongod.wait_until_ready()?;
        Ok(mongod)
    }

    /// Waits for the line that the server logs once it is listening. A successful connection would not show whether it
    /// reached this server or another process that took the port first.
    fn wait_until_ready(&mut self) -> Result<(), StartError> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            // Check the process before the log: a dead server writes nothing more, so the log that is read next is
            // complete.
            let ended = self.process.0.try_wait().map_err(StartError::Wait)?;
            let log = self.scratch.read_log().map_err(StartError::Folder)?;
            match ended {
                Some(status) => return Err(StartError::ended(status, &log)),
                None if log.contains("\"Waiting for connections\"") => return Ok(()),
                None if Instant::now() >= deadline => {
                    return Err(StartError::Deadline { waited: START_DEADLINE, log: tail(&log).to_owned() });
                }
                None => thread::sleep(POLL),
            }
        }
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of the server's Unix domain socket; `folder` is the `socket_folder` in its options.
    pub fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("mongodb-{}.sock", self.port))
    }

    /// Returns the identifier of the server's process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns the path of the server's log: one JSON document per line. Stopping the server removes it.
    pub fn log_path(&self) -> PathBuf {
        self.scratch.log()
    }

    /// Kills the process (`SIGKILL`), even if it is paused. Keeps its data and its port for [`restart`](Self::restart).
    /// Has no effect on a process that has exited.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error from signalling or waiting.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill().map(drop)
    }

    /// Stops all threads of the process where they are (`SIGSTOP`): it keeps its sockets but does not answer. Has no
    /// effect on a process that has exited.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error; systems other than Unix do not have this signal.
    pub fn pause(&mut self) -> io::Result<()> {
        self.process.signal(Signal::Pause)
    }

    /// Resumes a paused process (`SIGCONT`).
    ///
    /// # Errors
    ///
    /// Returns the operating system's error.
    pub fn resume(&mut self) -> io::Result<()> {
        self.process.signal(Signal::Continue)
    }

    /// Starts the server again on the same port with the same data, and waits until it accepts connections. A process
    /// that is still running is stopped first, as [`stop`](Self::stop) does. The log starts over.
    ///
    /// # Errors
    ///
    /// Returns a [`StartError`]. In that case no process is running, and a later call may succeed.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.process.end().map_err(StartError::Wait)?;
        self.process = spawn(&self.binary, &self.options, self.port, &self.scratch)?;
        self.wait_until_ready().inspect_err(|_| {
            // The caller receives the error from starting the process, not an error from terminating it.
            let _ = self.process.end();
        })
    }

    /// Stops the server: sends `SIGTERM`, and `SIGKILL` after ten seconds, waits for the process, and removes its
    /// folder. Returns the exit status, which is success unless the server was killed or had already exited.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error from signalling, waiting or removing.
    pub fn stop(mut self) -> io::Result<ExitStatus> {
        let status = self.process.end()?;
        self.scratch.remove()?;
        Ok(status)
    }
}

/// Returns the server that the tests in this process share, starting it if no test holds it.
///
/// The server stops when the last clone is dropped. The static holds only a weak reference, because statics are not
/// dropped when a process exits. The next call starts a new server, so tests that do not overlap get different servers.
/// If a test changes global state, such as a fail point, concurrent tests see the change. Concurrent callers wait for a
/// single start.
///
/// # Errors
///
/// Returns the same errors as [`Mongod::start`]. The next call retries.
pub fn shared() -> Result<Arc<Mongod>, StartError> {
    static SHARED: Mutex<Weak<Mongod>> = Mutex::new(Weak::new());
    // The value of a poisoned lock is still valid, because it is replaced only after a successful start.
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = shared.upgrade() {
        return Ok(running);
    }
    let started = Arc::new(Mongod::start(MongodOptions::default())?);
    *shared = Arc::downgrade(&started);
    Ok(started)
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The executable could not be provided.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// No port on 127.0.0.1 could be bound.
    #[error("no free port on 127.0.0.1: {0}")]
    Port(#[source] io::Error),
    /// The temporary folder, or a file in it, could not be created or read.
    #[error("the server's temporary folder: {0}")]
    Folder(#[source] io::Error),
    /// The executable could not be started.
    #[error("could not start {}: {source}", path.display())]
    Spawn {
        /// The executable.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The state of the process could not be queried.
    #[error("could not wait for mongod: {0}")]
    Wait(#[source] io::Error),
    /// The server exited before it accepted connections, for example because it rejected its arguments, was missing a
    /// library, or found its port taken five times in a row.
    #[error("mongod ended with {status} before it accepted connections; the end of its log:\n{log}")]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
        /// Whether another process took the port after it was found free.
        lost_port: bool,
    },
    /// The server did not accept connections in time, and was stopped.
    #[error("mongod did not accept connections within {waited:?}; the end of its log:\n{log}")]
    Deadline {
        /// How long the caller waited for the server.
        waited: Duration,
        /// The end of its log.
        log: String,
    },
}

impl StartError {
    /// Returns the error for a server that exited with this log.
    fn ended(status: ExitStatus, log: &str) -> Self {
        // Two servers can bind the same port at the same time. The second to listen then aborts, and its stack trace
        // follows [`ADDRESS_IN_USE`], so the end of the log may not contain that text.
        Self::Ended { status, log: tail(log).to_owned(), lost_port: log.contains(ADDRESS_IN_USE) }
    }
}

fn arguments(command: &mut Command, options: &MongodOptions, port: u16, scratch: &Scratch) -> io::Result<()> {
    command.arg("--dbpath").arg(scratch.data());
    command.args(["--bind_ip", "127.0.0.1", "--port"]).arg(port.to_string());
    command.args(["--quiet", "--setParameter", "enableTestCommands=1"]);
    match &options.socket_folder {
        None => command.arg("--nounixsocket"),
        Some(folder) => command.arg("--unixSocketPrefix").arg(folder),
    };
    if let Some(tls) = &options.tls {
        command.args(["--tlsMode", "requireTLS", "--tlsCertificateKeyFile"]).arg(&tls.certificate_key_file);
        command.arg("--tlsCAFile").arg(&tls.ca_file);
        if !tls.require_client_certificate {
            command.arg("--tlsAllowConnectionsWithoutCertificates");
        }
    }
    // By default, the server samples its own state each second, which costs processor time that the tests need.
    command.args(["--setParameter", "diagnosticDataCollectionEnabled=false"]);
    // By default, the journal takes 300 MB of disk space from the start.
    command.args(["--wiredTigerCacheSizeGB", "0.25"]);
    command.args(["--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=8MB)"]);
    if let Some(name) = &options.repl_set {
        command.arg("--replSet").arg(name);
        // By default, a member that is told to shut down keeps answering for another 15 s, so that clients notice.
        command.args(["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"]);
    }
    if options.auth {
        command.arg("--auth");
        if options.repl_set.is_some() {
            command.arg("--keyFile").arg(scratch.write_key(KEY)?);
        }
    }
    command.args(&options.extra_args);
    Ok(())
}

/// Starts a process that writes to a new log.
fn spawn(
    binary: &provision::MongodBinary,
    options: &MongodOptions,
    port: u16,
    scratch: &Scratch,
) -> Result<Process, StartError> {
    let mut command = binary.command();
    arguments(&mut command, options, port, scratch).map_err(StartError::Folder)?;
    let log = File::create(scratch.log()).map_err(StartError::Folder)?;
    command.stdin(Stdio::null()).stderr(log.try_clone().map_err(StartError::Folder)?).stdout(log);
    launcher::spawn(command)
        .map(Process)
        .map_err(|source| StartError::Spawn { path: binary.path().to_path_buf(), source })
}

/// Returns a port that was free a moment ago, and that the system does not assign to outgoing connections. Only binding
/// a port shows whether it is free, and the server's process cannot take over the bound socket. The port is drawn at
/// random, because servers that start at the same time would otherwise all find the same port free.
///
/// # Errors
///
/// [`StartError::Port`].
pub fn free_port() -> Result<u16, StartError> {
    let range = u64::try_from(PORTS.len()).expect("the range has fewer than 65536 ports");
    let mut drawn = 1;
    loop {
        let offset = u16::try_from(RandomState::new().hash_one(drawn) % range).expect("less than the range");
        match TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS.start + offset)) {
            Err(_) if drawn < PORTS_DRAWN => drawn += 1,
            bound => return Ok(bound.map_err(StartError::Port)?.local_addr().map_err(StartError::Port)?.port()),
        }
    }
}

/// Returns the last lines of a log, up to [`LOG_TAIL`] bytes.
fn tail(log: &str) -> &str {
    let mut start = log.len().saturating_sub(LOG_TAIL);
    while !log.is_char_boundary(start) {
        start += 1;
    }
    &log[start..]
}

#[cfg(test)]
pub(crate) mod tests;
