//! The options of a deployment. Some can be set in connection strings and in code, others only in code.

use std::str::FromStr;
use std::time::Duration;

use super::{
    Compressor, Credential, DriverInfo, InvalidOption, PoolOptions, ProxyOptions, ReadPreference, ServerAddress,
    ServerApi, ServerMonitoringMode, SrvName, TlsOptions, UriWarning, WriteConcern,
};

/// A MongoDB deployment, and how to connect to it.
///
/// Options come from a connection string ([`Options::parse`]), from code ([`Options::new`] and the methods), or from
/// both. The last value that is set applies. Nothing is checked until [`Options::validate`], which
/// [`Options::endpoint`] calls.
///
/// Some options matter only to a [`Client`](crate::Client), and not to a pool that is used on its own. Their
/// documentation says so.
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
#[doc(alias = "ClientOptions")]
pub struct Options {
    /// The servers, without duplicates. Empty until the [`srv`](Self#structfield.srv) name, if there is one, is
    /// resolved.
    pub hosts: Vec<ServerAddress>,
    /// `mongodb+srv://`: the DNS name that lists the servers. It remains set after resolution.
    pub srv: Option<SrvName>,
    /// `appName`: the application's name, for the server's logs and profiles. At most 128 bytes. Default none.
    pub app_name: Option<String>,
    /// A library that wraps wharf, for the server's logs. Default none. [`Client::append_metadata`] appends more
    /// libraries later.
    ///
    /// [`Client::append_metadata`]: crate::Client::append_metadata
    pub driver_info: Option<DriverInfo>,
    /// The user to authenticate: `user:password@`, `authMechanism` and `authMechanismProperties` in connection strings.
    /// Default none: connections are not authenticated.
    pub credential: Option<Credential>,
    /// `authSource`, if it was given: the database for a credential without a source, unless its mechanism requires
    /// `$external`. On its own, it does not cause authentication.
    pub auth_source: Option<String>,
    /// The connection string's database: the database for a credential without `authSource`. On its own, it does not
    /// cause authentication. Default none, which means `admin` (`$external` for `PLAIN`).
    pub default_database: Option<String>,
    /// `tls` (or `ssl`): whether and how connections use TLS. Default none: connections do not use TLS.
    ///
    /// A connection string turns TLS on if it contains `tls=true` or any other option that begins with `tls`, or if it
    /// begins with `mongodb+srv://`. With `tls=false`, connections never use TLS. A value of `tls` that is neither true
    /// nor false is refused. An invalid value of `tlsInsecure`, `tlsAllowInvalidCertificates` or
    /// `tlsAllowInvalidHostnames` is ignored with a [warning](Self::warnings). Connections then use TLS, and everything
    /// is checked.
    pub tls: Option<TlsOptions>,
    /// `proxyHost`, `proxyPort`, `proxyUsername`, `proxyPassword`: the proxy for all TCP connections to servers.
    /// Default none.
    pub proxy: Option<ProxyOptions>,
    /// `compressors`, in order of preference, with `zlibCompressionLevel`. A connection uses the first compressor that
    /// the server also supports. Default none.
    pub compressors: Vec<Compressor>,
    /// The API version to declare with every command. Default none.
    pub server_api: Option<ServerApi>,
    /// `connectTimeoutMS`: how long opening a connection may take, from resolving the server's name to the end of
    /// authentication, and how long [`resolve`](Self::resolve) may take. Default 10 seconds; zero means no limit.
    ///
    /// For a connection that is opened to reach `minPoolSize`, each handshake and authentication command also has a
    /// limit: [`timeout`](Self#structfield.timeout) or, if that is not set,
    /// [`socket_timeout`](Self#structfield.socket_timeout) (CSOT, "Background Connection Pooling"). Neither limits the
    /// opening of a connection for a check-out, which departs from CSOT, "Server Selection": the connection serves the
    /// pool rather than one operation, so it is opened even if the operation runs out of time. There is one exception:
    /// if `connect_timeout` is zero and `timeout` is not set, `socket_timeout` also limits each command when a
    /// connection is opened for a check-out. The [guide](crate::guide::time_limits) has a table of all limits.
    pub connect_timeout: Duration,
    /// `socketTimeoutMS`: how long each read and each write of a command may take. Deprecated in favour of
    /// [`timeout`](Self#structfield.timeout), which replaces it. Default zero, which means no limit.
    pub socket_timeout: Duration,
    /// `timeoutMS`: how long an operation may take in total. Zero means no limit. Default not set.
    ///
    /// If it is not set, the older limits apply: [`socket_timeout`](Self#structfield.socket_timeout), and
    /// `waitQueueTimeoutMS` in [`pool`](Self#structfield.pool). Both default to no limit. Without any of the three, a
    /// command waits for an unresponsive server for as long as the network keeps the connection open.
    ///
    /// For [`Pool::run`](crate::Pool::run) and [`Pool::run_command`](crate::Pool::run_command) the operation includes
    /// the check-out. On a checked-out connection, the operation is only the command.
    /// [`Pool::check_out`](crate::Pool::check_out) has a separate limit of the same length.
    /// [`Command::timeout`](crate::Command::timeout) sets the limit of one command.
    pub timeout: Option<Duration>,
    /// How long a connection is drained in the background after its command was cancelled or timed out, before it is
    /// closed. Default 3 seconds; zero closes it immediately. Not available in connection strings.
    ///
    /// During the drain, the connection counts as in use, but no check-out waits for it: the pool closes the connection
    /// if a check-out needs its permit. If the command turns out to have opened a cursor, the cursor is closed on the
    /// server. If the command belongs to a [`Session`](crate::client::Session), the client stays alive until the drain
    /// finishes.
    pub drain_timeout: Duration,
    /// How many bytes of a reply, or of the rest of a request, a connection may transfer while it is drained. A
    /// connection with more bytes left is closed instead. Default 4 MiB, about as much work as a new connection. Not
    /// available in connection strings.
    ///
    /// Draining a reply of more than 64 KiB takes 64 KiB of memory, or up to 1 MiB if the reply may name a cursor that
    /// must be closed.
    pub drain_limit: u64,
    /// The longest time that a command keeps its thread awake while it waits for its reply. At most 10 milliseconds.
    /// Default zero, which means not at all. Not available in connection strings.
    ///
    /// Busy polling suits threads that have little else to do, and servers that answer within a few tens of
    /// microseconds. Falling asleep and waking up costs a thread 10 to 20 µs, which delays the reply. 50 µs is a good
    /// limit. Other tasks run during the wait. If its replies take longer than the limit, a connection stops polling,
    /// except for one command in 256. All futures that contain the command are polled repeatedly during the wait.
    ///
    /// In a runtime with several idle threads, another thread may notice the reply first, so there is less to gain.
    pub busy_poll: Duration,
    /// The options of each server's pool, such as `maxPoolSize`. Each server has its own pool with these options.
    pub pool: PoolOptions,
    /// `loadBalanced`, if it was given: whether the one host is a load balancer. Default `false`.
    ///
    /// [`PoolOptions::load_balanced`] in [`pool`](Self#structfield.pool) has the same effect.
    /// [`is_load_balanced`](Self::is_load_balanced) considers both options. `Some(false)` is refused if the pool's
    /// options say that the pool is load-balanced.
    pub load_balanced: Option<bool>,
    /// `replicaSet`: the name of the replica set that the hosts are members of. Only a [`Client`](crate::Client) uses
    /// it. Default none.
    pub replica_set: Option<String>,
    /// `directConnection`: whether the one host is the whole deployment. Only a [`Client`](crate::Client) uses it.
    /// Default not set.
    pub direct_connection: Option<bool>,
    /// `readPreference`, `readPreferenceTags`, `maxStalenessSeconds`. Only a [`Client`](crate::Client) uses them.
    pub read_preference: ReadPreference,
    /// `readConcernLevel`: which writes a read sees. Any name is allowed, because newer servers may support more
    /// levels. Only a [`Client`](crate::Client) uses it. By default, the server chooses.
    pub read_concern: Option<String>,
    /// `w`, `journal`, `wTimeoutMS`. Only a [`Client`](crate::Client) uses them.
    pub write_concern: WriteConcern,
    /// `retryReads`: whether the client retries a read after a network error. Only a [`Client`](crate::Client) uses it.
    /// Default `true`.
    pub retry_reads: bool,
    /// `retryWrites`: whether the client retries a write after a network error. Only a [`Client`](crate::Client) uses
    /// it. Default `true`.
    pub retry_writes: bool,
    /// `maxAdaptiveRetries`: how many times the client retries an operation that an overloaded server refused (client
    /// backpressure specification). Only a [`Client`](crate::Client) uses it. Default 2.
    pub max_adaptive_retries: u32,
    /// `enableOverloadRetargeting`: whether a retry after an overload prefers another server. Only a
    /// [`Client`](crate::Client) uses it. Default `false`.
    pub enable_overload_retargeting: bool,
    /// `heartbeatFrequencyMS`: the time between two checks of a server by its monitor, at least 500 milliseconds. Only
    /// a [`Client`](crate::Client) uses it. Default not set, which means 10 seconds. For a
    /// [`single::Client`](crate::single::Client), it is the time between two scans of all servers, and the default is
    /// 60 seconds.
    pub heartbeat_frequency: Option<Duration>,
    /// `localThresholdMS`: how much slower than the nearest server another server may be and still be selected. Only a
    /// [`Client`](crate::Client) uses it. Default 15 milliseconds.
    pub local_threshold: Duration,
    /// `serverSelectionTimeoutMS`: how long to wait for a suitable server, never zero. Only a [`Client`](crate::Client)
    /// uses it. Default 30 seconds.
    pub server_selection_timeout: Duration,
    /// `serverSelectionTryOnce`: whether a single-threaded client looks for a suitable server only once. Only a
    /// [`single::Client`](crate::single::Client) uses it. Default `true`.
    pub server_selection_try_once: bool,
    /// `serverMonitoringMode`: how a monitor learns of changes. Only a [`Client`](crate::Client) uses it. Default
    /// `auto`.
    pub server_monitoring_mode: ServerMonitoringMode,
    pub(super) warnings: Vec<UriWarning>,
    /// Whether warnings about a TXT record, which is read later, are errors.
    pub(crate) is_strict: bool,
}

/// The default `heartbeatFrequencyMS` with monitors.
const HEARTBEAT_OF_MONITORS: Duration = Duration::from_secs(10);

/// The default `heartbeatFrequencyMS` without monitors, where operations scan the servers.
const HEARTBEAT_OF_SCANS: Duration = Duration::from_secs(60);

impl Options {
    /// Creates options for the deployment at these addresses, with defaults for everything else.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if an address is malformed. The error states which forms are allowed.
    pub fn new<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidOption> {
        let mut options = Self::nowhere();
        for host in hosts {
            options.add_host(ServerAddress::parse(host)?);
        }
        Ok(options)
    }

    /// Creates options for the deployment whose servers are listed in DNS under this name, as in `mongodb+srv://`.
    ///
    /// TLS is on, and all other options have their defaults. [Resolve](Self::resolve) the options before use.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if `name` is not a DNS name.
    pub fn srv(name: &str) -> Result<Self, InvalidOption> {
        Ok(Self { srv: Some(SrvName::parse(name)?), tls: Some(TlsOptions::default()), ..Self::nowhere() })
    }

    /// Returns the options for a client without monitors. If the heartbeat frequency is not set, it is set to the
    /// default for scans (Server Monitoring, "heartbeatFrequencyMS").
    pub(crate) fn without_monitors(mut self) -> Self {
        self.heartbeat_frequency.get_or_insert(HEARTBEAT_OF_SCANS);
        self
    }

    /// Returns [`heartbeat_frequency`](Self#structfield.heartbeat_frequency), or the default for a client with
    /// monitors.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_frequency.unwrap_or(HEARTBEAT_OF_MONITORS)
    }

    /// Returns the default options, without servers.
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
            busy_poll: Duration::ZERO,
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
            heartbeat_frequency: None,
            local_threshold: Duration::from_millis(15),
            server_selection_timeout: Duration::from_secs(30),
            server_selection_try_once: true,
            server_monitoring_mode: ServerMonitoringMode::Auto,
            warnings: Vec::new(),
            is_strict: false,
        }
    }

    /// Adds a server, and returns whether it is new.
    pub(crate) fn add_host(&mut self, address: ServerAddress) -> bool {
        let is_new = !self.hosts.contains(&address);
        if is_new {
            self.hosts.push(address);
        }
        is_new
    }

    /// Returns the warnings about the connection string and the TXT record.
    ///
    /// The warnings were also logged, with the `wharf::options` target.
    #[must_use]
    pub fn warnings(&self) -> &[UriWarning] {
        &self.warnings
    }

    /// Returns whether the one host is a load balancer, according to [`load_balanced`](Self#structfield.load_balanced)
    /// or [`pool`](Self#structfield.pool).
    #[must_use]
    pub fn is_load_balanced(&self) -> bool {
        self.load_balanced == Some(true) || self.pool.load_balanced
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

    /// Sets [`credential`](Self#structfield.credential). A credential without a source gets
    /// [`auth_source`](Self#structfield.auth_source), unless its mechanism requires `$external`.
    pub fn credential(mut self, mut credential: Credential) -> Self {
        credential.inherit_source(self.auth_source.as_ref());
        self.credential = Some(credential);
        self
    }

    /// Sets [`auth_source`](Self#structfield.auth_source). A credential without a source gets this source, unless its
    /// mechanism requires `$external`.
    pub fn auth_source(mut self, database: impl Into<String>) -> Self {
        let database = database.into();
        if let Some(credential) = &mut self.credential {
            credential.inherit_source(Some(&database));
        }
        self.auth_source = Some(database);
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
    #[doc(alias = "socks5_proxy")]
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

    /// Sets [`busy_poll`](Self#structfield.busy_poll).
    pub fn busy_poll(mut self, limit: Duration) -> Self {
        self.busy_poll = limit;
        self
    }

    /// Sets [`pool`](Self#structfield.pool). This replaces all pool options of a connection string except
    /// `loadBalanced=true`.
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
    #[doc(alias = "repl_set_name")]
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
    #[doc(alias = "selection_criteria")]
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
    #[doc(alias = "heartbeat_freq")]
    pub fn heartbeat_frequency(mut self, limit: Duration) -> Self {
        self.heartbeat_frequency = Some(limit);
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
