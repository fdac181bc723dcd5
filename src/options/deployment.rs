//! Everything that a connection string says.

use std::time::Duration;

use super::{Compressor, Credential, DriverInfo, InvalidAddress, PoolOptions, ProxyOptions, ServerAddress, ServerApi};
use super::{InvalidOption, TlsOptions};

/// The longest `appName` in bytes.
const MAX_APP_NAME: usize = 128;

/// A deployment of MongoDB, and how to connect to it.
///
/// ```
/// use std::time::Duration;
/// use wharf::Options;
///
/// let options = Options::new(["localhost"])?.app_name("shop").connect_timeout(Duration::from_secs(2));
/// assert!(options.validate().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Options {
    pub(crate) hosts: Vec<ServerAddress>,
    pub(crate) app_name: Option<String>,
    pub(crate) driver_info: Option<DriverInfo>,
    pub(crate) credential: Option<Credential>,
    /// The connection string's database.
    pub(crate) default_database: Option<String>,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) proxy: Option<ProxyOptions>,
    pub(crate) compressors: Vec<Compressor>,
    pub(crate) server_api: Option<ServerApi>,
    pub(crate) connect_timeout: Duration,
    pub(crate) socket_timeout: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
    pub(crate) drain_limit: u64,
    pub(crate) pool: PoolOptions,
}

impl Options {
    /// The deployment at these addresses, with every option at its default.
    ///
    /// # Errors
    ///
    /// [`InvalidAddress`] says what an address must be.
    pub fn new<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidAddress> {
        Ok(Self {
            hosts: hosts.into_iter().map(ServerAddress::parse).collect::<Result<_, _>>()?,
            app_name: None,
            driver_info: None,
            credential: None,
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
        })
    }

    /// `appName`: the application's name, for the server's logs and profiles, of at most 128 bytes. By default there is
    /// none.
    pub fn app_name(mut self, name: impl Into<String>) -> Self {
        self.app_name = Some(name.into());
        self
    }

    /// A library that wraps wharf, for the server's logs.
    pub fn driver_info(mut self, info: DriverInfo) -> Self {
        self.driver_info = Some(info);
        self
    }

    /// Who to authenticate as. By default nobody.
    pub fn credential(mut self, credential: Credential) -> Self {
        self.credential = Some(credential);
        self
    }

    /// The database that a user is defined in if the credential names none. By default there is none, and then it is
    /// `admin` (`$external` for `PLAIN`). By itself it makes nobody authenticate.
    pub fn default_database(mut self, name: impl Into<String>) -> Self {
        self.default_database = Some(name.into());
        self
    }

    /// `tls`: secures all connections. By default they are not.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// The proxy that all TCP connections go through. By default there is none.
    pub fn proxy(mut self, proxy: ProxyOptions) -> Self {
        self.proxy = Some(proxy);
        self
    }

    /// `compressors`, the preferred first. The first that the server has too is used. By default there are none.
    pub fn compressors(mut self, compressors: impl IntoIterator<Item = Compressor>) -> Self {
        self.compressors = compressors.into_iter().collect();
        self
    }

    /// The API version to declare with every command. By default none.
    pub fn server_api(mut self, api: ServerApi) -> Self {
        self.server_api = Some(api);
        self
    }

    /// `connectTimeoutMS`: how long the whole establishment of a connection may take, from resolving the server's name
    /// to the end of authentication. Default 10 seconds; zero means no limit.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// `socketTimeoutMS`: how long a read or a write on a connection may take. Deprecated in favour of
    /// [`timeout`](Self::timeout), which replaces it. Default zero, which means no limit.
    pub fn socket_timeout(mut self, limit: Duration) -> Self {
        self.socket_timeout = limit;
        self
    }

    /// `timeoutMS`: how long an operation may take altogether. Zero means no limit. By default it is not set, and then
    /// the older limits apply.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long a connection whose command was cancelled or timed out may take to end it in the background, before it is
    /// closed instead. It counts as in use meanwhile. Default 3 seconds; zero means that such a connection is closed at
    /// once. Not part of connection strings.
    pub fn drain_timeout(mut self, limit: Duration) -> Self {
        self.drain_timeout = limit;
        self
    }

    /// How many bytes a reply may have that is read in the background because its command was cancelled or timed out, and
    /// how many may be left of a request that is written then. Connections with more are closed instead. Default 4 MiB:
    /// about as much work as a new connection. Not part of connection strings.
    pub fn drain_limit(mut self, bytes: u64) -> Self {
        self.drain_limit = bytes;
        self
    }

    /// The options of each server's pool.
    pub fn pool(mut self, options: PoolOptions) -> Self {
        self.pool = options;
        self
    }

    /// Refuses options that cannot work, alone or together.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first offending option, its value and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        if let Some(name) = self.app_name.as_ref().filter(|name| name.len() > MAX_APP_NAME) {
            return Err(InvalidOption {
                option: "appName",
                value: format!("{name:?} ({} bytes)", name.len()),
                allowed: format!("at most {MAX_APP_NAME} bytes"),
            });
        }
        if let Some(credential) = &self.credential {
            credential.validate()?;
        }
        self.pool.validate()
    }
}
