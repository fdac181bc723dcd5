//! Everything that a connection string says, and the few options that are set in code only.

use std::str::FromStr;
use std::time::Duration;

use super::{
    Compressor, Credential, DriverInfo, InvalidAddress, InvalidOption, PoolOptions, ProxyOptions, ReadPreference,
    ServerAddress, ServerApi, ServerMonitoringMode, SrvName, TlsOptions, UriWarning, WriteConcern,
};

/// A deployment of MongoDB, and how to connect to it.
///
/// Options come from a connection string ([`Options::parse`]), from code ([`Options::new`] and the methods), or from
/// both; what is set last counts. Nothing is checked until [`Options::validate`], which whatever uses the options
/// calls.
///
/// Some options are only carried for a client that is built on wharf; they say so.
///
/// ```
/// use std::time::Duration;
/// use wharf::Options;
///
/// let options = Options::new(["localhost"])?.app_name("shop").connect_timeout(Duration::from_secs(2));
/// assert!(options.validate().is_ok());
///
/// let options = Options::parse("mongodb://ada:secret@db1.example.com,db2.example.com/?replicaSet=rs0&tls=true")?;
/// assert_eq!(options.hosts.len(), 2);
/// assert_eq!(options.replica_set.as_deref(), Some("rs0"));
/// assert!(options.warnings().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Options {
    /// The servers, each once. Empty while an [`srv`](Self#structfield.srv) name is not resolved.
    pub hosts: Vec<ServerAddress>,
    /// The name in the DNS that lists the servers, where `mongodb+srv://` gave one. It stays when it is resolved.
    pub srv: Option<SrvName>,
    /// `appName`: the application's name, for the server's logs and profiles, of at most 128 bytes. By default there is
    /// none.
    pub app_name: Option<String>,
    /// A library that wraps wharf, for the server's logs. By default there is none.
    pub driver_info: Option<DriverInfo>,
    /// Who to authenticate as: in connection strings `user:password@`, `authMechanism` and `authMechanismProperties`.
    /// By default nobody.
    pub credential: Option<Credential>,
    /// `authSource`, where it was given: the database of a credential that names none. By itself it makes nobody
    /// authenticate.
    pub auth_source: Option<String>,
    /// The connection string's database: the database of a credential where no `authSource` was given. By itself it
    /// makes nobody authenticate. By default there is none, and then it is `admin` (`$external` for `PLAIN`).
    pub default_database: Option<String>,
    /// `tls` (or `ssl`): how connections are secured. By default they are not.
    ///
    /// A connection string secures them if it says `tls=true`, or begins with `mongodb+srv://`, or gives any option
    /// that begins with `tls`; and never if it says `tls=false`. A value of `tls` that is neither true nor false is
    /// refused. An invalid value of `tlsInsecure`, `tlsAllowInvalidCertificates` or `tlsAllowInvalidHostnames` is ignored
    /// with a [warning](Self::warnings), and then the connection is in TLS and everything is checked.
    pub tls: Option<TlsOptions>,
    /// `proxyHost`, `proxyPort`, `proxyUsername`, `proxyPassword`: the proxy that all TCP connections to servers go
    /// through. By default there is none.
    pub proxy: Option<ProxyOptions>,
    /// `compressors`, the preferred first, with `zlibCompressionLevel`. The first that the server has too is used. By
    /// default there are none.
    pub compressors: Vec<Compressor>,
    /// The API version to declare with every command. By default none.
    pub server_api: Option<ServerApi>,
    /// `connectTimeoutMS`: how long the whole establishment of a connection may take, from resolving the server's name
    /// to the end of authentication, and how long [`resolve`](Self::resolve) may take. Default 10 seconds; zero means
    /// no limit.
    ///
    /// The commands of the handshake and of authentication have limits of their own besides (CSOT, "Background Connection
    /// Pooling"): each may take [`timeout`](Self#structfield.timeout) where the connection is opened towards `minPoolSize`,
    /// or, where that is not set, [`socket_timeout`](Self#structfield.socket_timeout). One that is opened for a check-out
    /// has no limit by `timeout`: it is opened for the pool and not for one operation, so an operation whose time is up
    /// leaves, and the connection is established all the same. The [guide](crate::guide#time-limits) has a table of all
    /// limits.
    pub connect_timeout: Duration,
    /// `socketTimeoutMS`: how long each read and each write of a command may take. Deprecated in favour of
    /// [`timeout`](Self#structfield.timeout), which replaces it. Default zero, which means no limit.
    pub socket_timeout: Duration,
    /// `timeoutMS`: how long an operation may take altogether. Zero means no limit. By default it is not set, and then
    /// the older limits apply: [`socket_timeout`](Self#structfield.socket_timeout), and `waitQueueTimeoutMS` of
    /// [`pool`](Self#structfield.pool). Both are no limit by default, so that without any of them a command waits for a
    /// server that hangs for as long as the network holds.
    ///
    /// For [`Pool::run`](crate::Pool::run) and [`Pool::run_command`](crate::Pool::run_command) the operation includes
    /// the check-out; on a connection that is checked out it is the command alone, and
    /// [`Pool::check_out`](crate::Pool::check_out) by itself has as much time as well.
    /// [`Command::timeout`](crate::Command::timeout) is the same for one command.
    pub timeout: Option<Duration>,
    /// How long a connection whose command was cancelled or timed out may take to end it in the background, before it
    /// is closed instead. It counts as in use meanwhile, but keeps no check-out waiting: one that would need its place
    /// closes it at once. Default 3 seconds; zero means that such a connection is closed at once. Not part of connection
    /// strings.
    pub drain_timeout: Duration,
    /// How many bytes a reply may have that is read in the background because its command was cancelled or timed out,
    /// and how many may be left of a request that is written then. Connections with more are closed instead. Default 4
    /// MiB: about as much work as a new connection. Not part of connection strings.
    pub drain_limit: u64,
    /// The options of each server's pool, such as `maxPoolSize`. They hold for each server by itself, not for all of
    /// them together.
    pub pool: PoolOptions,
    /// `loadBalanced`, where it was given: whether the one host is a load balancer. Default `false`.
    pub load_balanced: Option<bool>,
    /// `replicaSet`: the name of the replica set that the hosts are members of. Carried for a client that discovers
    /// servers. By default there is none.
    pub replica_set: Option<String>,
    /// `directConnection`: whether the one host is the whole deployment. Carried for a client that discovers servers.
    /// By default it is not set.
    pub direct_connection: Option<bool>,
    /// `readPreference`, `readPreferenceTags`, `maxStalenessSeconds`. Carried for a client that selects servers.
    pub read_preference: ReadPreference,
    /// `readConcernLevel`: which writes a read sees. Any name is allowed, because newer servers may know more. Carried
    /// for a client that builds commands. By default it is the server's choice.
    pub read_concern: Option<String>,
    /// `w`, `journal`, `wTimeoutMS`. Carried for a client that builds commands.
    pub write_concern: WriteConcern,
    /// `retryReads`: whether a read is tried again after a network error. Carried for a client that retries. Default
    /// `true`.
    pub retry_reads: bool,
    /// `retryWrites`: whether a write is tried again after a network error. Carried for a client that retries. Default
    /// `true`.
    pub retry_writes: bool,
    /// `maxAdaptiveRetries`: how often an operation that an overloaded server refused is tried again (client
    /// backpressure specification). Carried for a client that retries. Default 2.
    pub max_adaptive_retries: u32,
    /// `enableOverloadRetargeting`: whether such a retry prefers another server. Carried for a client that retries.
    /// Default `false`.
    pub enable_overload_retargeting: bool,
    /// `heartbeatFrequencyMS`: how long a monitor rests between two checks of a server, at least 500 milliseconds.
    /// Carried for a client that monitors servers. Default 10 seconds.
    pub heartbeat_frequency: Duration,
    /// `localThresholdMS`: how much slower than the nearest server one may answer and still be selected. Carried for a
    /// client that selects servers. Default 15 milliseconds.
    pub local_threshold: Duration,
    /// `serverSelectionTimeoutMS`: how long to wait for a suitable server, never zero. Carried for a client that
    /// selects servers. Default 30 seconds.
    pub server_selection_timeout: Duration,
    /// `serverSelectionTryOnce`: whether a client on a single thread looks for a suitable server only once. Carried for
    /// such a client. Default `true`.
    pub server_selection_try_once: bool,
    /// `serverMonitoringMode`: how a monitor learns of changes. Carried for a client that monitors servers. Default
    /// `auto`.
    pub server_monitoring_mode: ServerMonitoringMode,
    pub(super) warnings: Vec<UriWarning>,
    /// Whether warnings that come later, from a TXT record, are errors.
    pub(crate) is_strict: bool,
}

impl Options {
    /// The deployment at these addresses, with every option at its default.
    ///
    /// # Errors
    ///
    /// [`InvalidAddress`] says what an address must be.
    pub fn new<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidAddress> {
        let mut options = Self::nowhere();
        for host in hosts {
            options.add_host(ServerAddress::parse(host)?);
        }
        Ok(options)
    }

    /// The deployment whose servers the DNS lists under this name, as after `mongodb+srv://`: with TLS, every other
    /// option at its default, and to be [resolved](Self::resolve) before it is used.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if this is no name of the DNS.
    pub fn srv(name: &str) -> Result<Self, InvalidOption> {
        Ok(Self { srv: Some(SrvName::parse(name)?), tls: Some(TlsOptions::default()), ..Self::nowhere() })
    }

    /// Every option at its default, and no servers yet.
    pub(super) fn nowhere() -> Self {
        Self {
            hosts: Vec::new(),
            srv: None,
            app_name: None,
            driver_info: None,
            credential: None,
            auth_source: None,
            default_database: None,
            tls: None,
            proxy: None,
            compressors: Vec::new(),
            server_api: None,
            connect_timeout: Duration::from_secs(10),
            socket_timeout: Duration::ZERO,
            timeout: None,
            drain_timeout: Duration::from_secs(3),
            drain_limit: 4 * 1024 * 1024,
            pool: PoolOptions::default(),
            load_balanced: None,
            replica_set: None,
            direct_connection: None,
            read_preference: ReadPreference::default(),
            read_concern: None,
            write_concern: WriteConcern::default(),
            retry_reads: true,
            retry_writes: true,
            max_adaptive_retries: 2,
            enable_overload_retargeting: false,
            heartbeat_frequency: Duration::from_secs(10),
            local_threshold: Duration::from_millis(15),
            server_selection_timeout: Duration::from_secs(30),
            server_selection_try_once: true,
            server_monitoring_mode: ServerMonitoringMode::Auto,
            warnings: Vec::new(),
            is_strict: false,
        }
    }

    /// Adds a server, and says whether it is a new one.
    pub(crate) fn add_host(&mut self, address: ServerAddress) -> bool {
        let is_new = !self.hosts.contains(&address);
        if is_new {
            self.hosts.push(address);
        }
        is_new
    }

    /// What the connection string, or the TXT record, says in vain. It was logged, too, as warnings with the target
    /// `wharf::options`.
    #[must_use]
    pub fn warnings(&self) -> &[UriWarning] {
        &self.warnings
    }

    /// Whether the one host is a load balancer.
    #[must_use]
    pub fn is_load_balanced(&self) -> bool {
        self.pool.load_balanced
    }

    /// Sets [`app_name`](Self#structfield.app_name).
    pub fn app_name(mut self, value: impl Into<String>) -> Self {
        self.app_name = Some(value.into());
        self
    }

    /// Sets [`driver_info`](Self#structfield.driver_info).
    pub fn driver_info(mut self, value: DriverInfo) -> Self {
        self.driver_info = Some(value);
        self
    }

    /// Sets [`credential`](Self#structfield.credential). One that names no source is given
    /// [`auth_source`](Self#structfield.auth_source).
    pub fn credential(mut self, mut credential: Credential) -> Self {
        if credential.source.is_none() {
            credential.source.clone_from(&self.auth_source);
        }
        self.credential = Some(credential);
        self
    }

    /// Sets [`default_database`](Self#structfield.default_database).
    pub fn default_database(mut self, value: impl Into<String>) -> Self {
        self.default_database = Some(value.into());
        self
    }

    /// Sets [`tls`](Self#structfield.tls).
    pub fn tls(mut self, options: impl Into<Option<TlsOptions>>) -> Self {
        self.tls = options.into();
        self
    }

    /// Sets [`proxy`](Self#structfield.proxy).
    pub fn proxy(mut self, value: ProxyOptions) -> Self {
        self.proxy = Some(value);
        self
    }

    /// Sets [`compressors`](Self#structfield.compressors).
    pub fn compressors(mut self, compressors: impl IntoIterator<Item = Compressor>) -> Self {
        self.compressors = compressors.into_iter().collect();
        self
    }

    /// Sets [`server_api`](Self#structfield.server_api).
    pub fn server_api(mut self, value: ServerApi) -> Self {
        self.server_api = Some(value);
        self
    }

    /// Sets [`connect_timeout`](Self#structfield.connect_timeout).
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets [`socket_timeout`](Self#structfield.socket_timeout).
    pub fn socket_timeout(mut self, limit: Duration) -> Self {
        self.socket_timeout = limit;
        self
    }

    /// Sets [`timeout`](Self#structfield.timeout).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets [`drain_timeout`](Self#structfield.drain_timeout).
    pub fn drain_timeout(mut self, limit: Duration) -> Self {
        self.drain_timeout = limit;
        self
    }

    /// Sets [`drain_limit`](Self#structfield.drain_limit).
    pub fn drain_limit(mut self, bytes: u64) -> Self {
        self.drain_limit = bytes;
        self
    }

    /// Sets [`pool`](Self#structfield.pool), and with it all that a connection string said of pools, but for
    /// `loadBalanced=true`, which stays.
    pub fn pool(mut self, options: PoolOptions) -> Self {
        let load_balanced = self.load_balanced == Some(true);
        self.pool = options;
        match self.pool.load_balanced || load_balanced {
            true => self.load_balanced(true),
            false => self,
        }
    }

    /// Sets [`load_balanced`](Self#structfield.load_balanced).
    pub fn load_balanced(mut self, load_balanced: bool) -> Self {
        self.load_balanced = Some(load_balanced);
        self.pool.load_balanced = load_balanced;
        self
    }

    /// Sets [`replica_set`](Self#structfield.replica_set).
    pub fn replica_set(mut self, value: impl Into<String>) -> Self {
        self.replica_set = Some(value.into());
        self
    }

    /// Sets [`direct_connection`](Self#structfield.direct_connection).
    pub fn direct_connection(mut self, value: bool) -> Self {
        self.direct_connection = Some(value);
        self
    }

    /// Sets [`read_preference`](Self#structfield.read_preference).
    pub fn read_preference(mut self, value: ReadPreference) -> Self {
        self.read_preference = value;
        self
    }

    /// Sets [`read_concern`](Self#structfield.read_concern).
    pub fn read_concern(mut self, value: impl Into<String>) -> Self {
        self.read_concern = Some(value.into());
        self
    }

    /// Sets [`write_concern`](Self#structfield.write_concern).
    pub fn write_concern(mut self, value: WriteConcern) -> Self {
        self.write_concern = value;
        self
    }

    /// Sets [`retry_reads`](Self#structfield.retry_reads).
    pub fn retry_reads(mut self, value: bool) -> Self {
        self.retry_reads = value;
        self
    }

    /// Sets [`retry_writes`](Self#structfield.retry_writes).
    pub fn retry_writes(mut self, value: bool) -> Self {
        self.retry_writes = value;
        self
    }

    /// Sets [`max_adaptive_retries`](Self#structfield.max_adaptive_retries).
    pub fn max_adaptive_retries(mut self, value: u32) -> Self {
        self.max_adaptive_retries = value;
        self
    }

    /// Sets [`enable_overload_retargeting`](Self#structfield.enable_overload_retargeting).
    pub fn enable_overload_retargeting(mut self, value: bool) -> Self {
        self.enable_overload_retargeting = value;
        self
    }

    /// Sets [`heartbeat_frequency`](Self#structfield.heartbeat_frequency).
    pub fn heartbeat_frequency(mut self, limit: Duration) -> Self {
        self.heartbeat_frequency = limit;
        self
    }

    /// Sets [`local_threshold`](Self#structfield.local_threshold).
    pub fn local_threshold(mut self, limit: Duration) -> Self {
        self.local_threshold = limit;
        self
    }

    /// Sets [`server_selection_timeout`](Self#structfield.server_selection_timeout).
    pub fn server_selection_timeout(mut self, limit: Duration) -> Self {
        self.server_selection_timeout = limit;
        self
    }

    /// Sets [`server_selection_try_once`](Self#structfield.server_selection_try_once).
    pub fn server_selection_try_once(mut self, value: bool) -> Self {
        self.server_selection_try_once = value;
        self
    }

    /// Sets [`server_monitoring_mode`](Self#structfield.server_monitoring_mode).
    pub fn server_monitoring_mode(mut self, value: ServerMonitoringMode) -> Self {
        self.server_monitoring_mode = value;
        self
    }
}

impl FromStr for Options {
    type Err = InvalidOption;

    /// The same as [`Options::parse`].
    fn from_str(uri: &str) -> Result<Self, InvalidOption> {
        Self::parse(uri)
    }
}
