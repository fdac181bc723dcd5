//! Looks up a deployment's servers in DNS (Initial DNS Seedlist Discovery specification).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use thiserror::Error;

use crate::endpoint::options::{InvalidOption, Options};
use crate::pool::error::Cause;
use crate::text::printable::PrintableError;

#[cfg(feature = "srv")]
#[doc(no_inline)]
pub use hickory_resolver;

/// Why the servers of a deployment could not be resolved.
///
/// ```
/// use wharf::ResolveError;
///
/// fn may_succeed_later(error: &ResolveError) -> bool {
///     matches!(error, ResolveError::Lookup { .. } | ResolveError::Timeout { .. })
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The connection string is invalid, or conflicts with the DNS records.
    #[error(transparent)]
    InvalidOption(#[from] InvalidOption),
    /// wharf was built without its `srv` feature.
    #[error("{name:?} needs an SRV look-up, but wharf was built without its feature `srv`")]
    #[non_exhaustive]
    FeatureMissing {
        /// The name to resolve.
        name: String,
    },
    /// The system's DNS configuration could not be read.
    #[error("{name:?} cannot be resolved, because the system's DNS configuration cannot be read: {source}")]
    #[non_exhaustive]
    Configuration {
        /// The name to resolve.
        name: String,
        /// What is wrong with the configuration.
        source: Cause,
    },
    /// The future was not polled on a tokio runtime, which the lookup needs.
    #[error("{name:?} can only be resolved on a tokio runtime")]
    #[non_exhaustive]
    NoRuntime {
        /// The name to resolve.
        name: String,
    },
    /// The lookup failed, or there are no records. A retry may succeed.
    #[error("the {record} records of {name:?} could not be found: {}", PrintableError(source))]
    #[non_exhaustive]
    Lookup {
        /// The name that was looked up.
        name: String,
        /// `SRV` or `TXT`.
        record: &'static str,
        /// The resolver's error.
        source: Cause,
    },
    /// DNS did not answer within `connectTimeoutMS`. A retry may succeed.
    #[error("{name:?} was not resolved within {limit:?} (connectTimeoutMS)")]
    #[non_exhaustive]
    Timeout {
        /// The name to resolve.
        name: String,
        /// The time allowed.
        limit: Duration,
    },
    /// An SRV record names a server outside the name's domain.
    #[error("the SRV records of {name:?} name the server {server:?}, but it must be below {domain:?}")]
    #[non_exhaustive]
    ForeignServer {
        /// The name that was resolved.
        name: String,
        /// The server.
        server: String,
        /// The domain that the server must be in.
        domain: String,
    },
    /// An SRV record has an invalid server name, or port 0.
    #[error(
        "an SRV record of {name:?} names {server:?} and port {port}, but must have a valid name and a port other than 0"
    )]
    #[non_exhaustive]
    InvalidServer {
        /// The name that was resolved.
        name: String,
        /// The server.
        server: String,
        /// The port.
        port: u16,
    },
    /// The SRV records name more than 1,000 servers, the most that a client connects to.
    #[error("the SRV records of {name:?} name {servers} servers, but must name at most {most}, or set srvMaxHosts")]
    #[non_exhaustive]
    TooManyServers {
        /// The name that was resolved.
        name: String,
        /// The number of servers.
        servers: usize,
        /// The maximum number of servers.
        most: usize,
    },
    /// There is more than one TXT record.
    #[error("{name:?} has {records} TXT records, but must have at most one")]
    #[non_exhaustive]
    SeveralTxtRecords {
        /// The name that was resolved.
        name: String,
        /// The number of records.
        records: usize,
    },
    /// The TXT record is malformed.
    #[error("the TXT record of {name:?} is invalid: {}", PrintableError(source))]
    #[non_exhaustive]
    TxtRecord {
        /// The name that was resolved.
        name: String,
        /// What is wrong with the record.
        source: InvalidOption,
    },
}

crate::pool::error::debug_as_sentence!(enum ResolveError {
    InvalidOption(_); FeatureMissing, Configuration, NoRuntime, Lookup, Timeout, ForeignServer, InvalidServer,
    TooManyServers, SeveralTxtRecords, TxtRecord
});

impl Options {
    /// Parses a connection string and, if it begins with `mongodb+srv://`, looks up its servers in DNS. Shorthand for
    /// [`Options::parse`] and [`Options::resolve`].
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if the string is invalid or the lookup fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the lookup, and nothing else is lost.
    pub async fn from_uri(uri: &str) -> Result<Self, ResolveError> {
        Self::parse(uri)?.resolve().await
    }

    /// Like [`from_uri`](Self::from_uri), but fails where that function only warns. Shorthand for
    /// [`Options::parse_strict`] and [`Options::resolve`].
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if the string is invalid or the lookup fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the lookup, and nothing else is lost.
    pub async fn from_uri_strict(uri: &str) -> Result<Self, ResolveError> {
        Self::parse_strict(uri)?.resolve().await
    }

    /// Looks up the servers in DNS, if the options have an [`srv`](Self#structfield.srv) name instead of servers.
    /// Returns other options unchanged.
    ///
    /// The SRV records of `_{srvServiceName}._tcp.{name}` list the servers. If `srvMaxHosts` is set, at most that many
    /// of them are chosen at random. At most 1,000 servers are allowed. The records' priorities and weights are
    /// ignored. The TXT record of the name, if there is one, provides defaults for `authSource`, `replicaSet` and
    /// `loadBalanced`. If the lookup of the TXT record fails, so does this function: without the defaults, the options
    /// might mean a different deployment. Both lookups use the system's configuration and are limited by
    /// `connectTimeoutMS`. Options that are already resolved are resolved again.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if the options are invalid, on their own or together with the records, or if the lookup fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the lookup, and nothing else is lost.
    pub async fn resolve(self) -> Result<Self, ResolveError> {
        #[cfg(feature = "srv")]
        return look_up::resolve(self, None).await;
        #[cfg(not(feature = "srv"))]
        match self.srv {
            None => Ok(self),
            Some(name) => Err(ResolveError::FeatureMissing { name: name.host }),
        }
    }

    /// Like [`resolve`](Self::resolve), but uses your own resolver instead of the system's configuration.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if the options are invalid, on their own or together with the records, or if the lookup fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the lookup, and nothing else is lost.
    #[cfg(feature = "srv")]
    pub async fn resolve_with(self, resolver: &hickory_resolver::TokioResolver) -> Result<Self, ResolveError> {
        look_up::resolve(self, Some(resolver)).await
    }
}

/// The resolver to use instead of the system's configuration.
#[cfg(feature = "srv")]
pub(crate) type Resolver = hickory_resolver::TokioResolver;
/// Without the `srv` feature, an application cannot supply a resolver.
#[cfg(not(feature = "srv"))]
#[derive(Debug, Clone)]
pub(crate) enum Resolver {}

/// The shortest time between two lookups (Polling SRV Records, "rescanSRVIntervalMS").
pub(crate) const SHORTEST_RESCAN: Duration = Duration::from_secs(60);

/// Like [`Options::resolve`], but also returns how long the SRV records are valid.
///
/// # Errors
///
/// The same as for [`Options::resolve`].
pub(crate) async fn resolve_first(
    options: Options,
    resolver: Option<&Resolver>,
) -> Result<(Options, Duration), ResolveError> {
    #[cfg(feature = "srv")]
    return look_up::first(options, resolver).await;
    #[cfg(not(feature = "srv"))]
    return match resolver {
        Some(resolver) => match *resolver {},
        None => Ok((options.resolve().await?, SHORTEST_RESCAN)),
    };
}

/// Looks the servers up again. Returns all servers within the name's domain, and how long the records are valid.
/// Servers outside the domain are logged and left out.
///
/// # Errors
///
/// The same as for [`Options::resolve`], except that an invalid server is an error only if no valid server is left.
pub(crate) async fn resolve_again(
    options: &Options,
    resolver: Option<&Resolver>,
) -> Result<(Vec<crate::endpoint::options::ServerAddress>, Duration), ResolveError> {
    #[cfg(feature = "srv")]
    return look_up::again(options, resolver).await;
    #[cfg(not(feature = "srv"))]
    return match resolver {
        Some(resolver) => match *resolver {},
        None => Ok((options.clone().resolve().await?.hosts, SHORTEST_RESCAN)),
    };
}

/// Keeps `most` of the servers, chosen by a partial Fisher-Yates shuffle, or all if `most` is 0.
pub(crate) fn choose(servers: &mut Vec<crate::endpoint::options::ServerAddress>, most: u32) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if most == 0 || most >= servers.len() {
        return;
    }
    for place in 0..most {
        let rest = servers.len() - place;
        servers.swap(place, place + below(rest));
    }
    servers.truncate(most);
}

/// Returns a random number below `end`, from the keys with which the standard library seeds its hash maps. For any
/// number of servers, the bias that the remainder introduces is below one in 2^40.
fn below(end: usize) -> usize {
    let random = RandomState::new().hash_one(end) % end as u64;
    usize::try_from(random).expect("BUG: a number below a usize does not fit into one")
}

#[cfg(feature = "srv")]
mod look_up {
    use std::borrow::Cow;
    use std::sync::Arc;
    use std::time::Duration;

    #[cfg(all(unix, not(any(target_os = "android", target_vendor = "apple"))))]
    use hickory_resolver::config::{ResolverConfig, ResolverOpts};
    use hickory_resolver::lookup::Lookup;
    use hickory_resolver::net::NetError;
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use hickory_resolver::proto::rr::{Name, RData, RecordType};
    #[cfg(all(unix, not(any(target_os = "android", target_vendor = "apple"))))]
    use hickory_resolver::system_conf::parse_resolv_conf;
    use hickory_resolver::{ResolverBuilder, TokioResolver};

    use super::{Options, ResolveError, SHORTEST_RESCAN, choose};
    use crate::endpoint::options::{ServerAddress, SrvName};
    use crate::pool::runtime::Boxed;

    /// The maximum number of servers that the SRV records of a name may list, or that `srvMaxHosts` may choose.
    const MOST_SERVERS: usize = 1_000;

    pub(super) fn resolve(
        options: Options,
        resolver: Option<&TokioResolver>,
    ) -> Boxed<'_, Result<Options, ResolveError>> {
        Box::pin(async move { Ok(first(options, resolver).await?.0) })
    }

    pub(super) async fn first(
        mut options: Options,
        resolver: Option<&TokioResolver>,
    ) -> Result<(Options, Duration), ResolveError> {
        let Some(name) = options.srv.clone() else { return Ok((options, SHORTEST_RESCAN)) };
        check_runtime(&name)?;
        // Options that are invalid regardless of the records need no lookup.
        options.validate()?;
        let resolver = resolver_or_system(resolver, &name)?;
        let both = async { tokio::try_join!(servers(&resolver, &name), defaults(&resolver, &name)) };
        let (found, record) = in_time(&options, &name, both).await?;
        let servers: Vec<_> = found.servers.into_iter().collect::<Result<_, _>>()?;
        options.hosts.clear();
        for server in servers {
            options.add_host(server);
        }
        if let Some(record) = record {
            let refused = |source| ResolveError::TxtRecord { name: name.host.clone(), source };
            options.apply_txt(&record).map_err(refused)?;
            if options.is_strict {
                options.refuse_warnings().map_err(refused)?;
            }
        }
        choose(&mut options.hosts, name.max_hosts);
        check_number(&name, options.hosts.len())?;
        options.validate()?;
        Ok((options, found.valid_for))
    }

    pub(super) async fn again(
        options: &Options,
        resolver: Option<&TokioResolver>,
    ) -> Result<(Vec<ServerAddress>, Duration), ResolveError> {
        let Some(name) = &options.srv else { return Ok((options.hosts.clone(), SHORTEST_RESCAN)) };
        check_runtime(name)?;
        let resolver = resolver_or_system(resolver, name)?;
        let found = in_time(options, name, servers(&resolver, name)).await?;
        let (mut verified, mut refused) = (Vec::new(), None);
        for server in found.servers {
            match server {
                Ok(server) if verified.contains(&server) => {}
                Ok(server) => verified.push(server),
                Err(error) => {
                    tracing::warn!(target: "wharf::topology", %error, "SRV record is ignored");
                    refused = Some(error);
                }
            }
        }
        if name.max_hosts == 0 {
            check_number(name, verified.len())?;
        }
        match refused {
            Some(error) if verified.is_empty() => Err(error),
            _ => Ok((verified, found.valid_for)),
        }
    }

    /// Checks the number of servers. A list from the network must be limited, because each server has a monitor and a
    /// pool.
    fn check_number(name: &SrvName, servers: usize) -> Result<(), ResolveError> {
        match servers {
            0..=MOST_SERVERS => Ok(()),
            servers => Err(ResolveError::TooManyServers { name: name.host.clone(), servers, most: MOST_SERVERS }),
        }
    }

    fn resolver_or_system<'r>(
        given: Option<&'r TokioResolver>,
        name: &SrvName,
    ) -> Result<Cow<'r, TokioResolver>, ResolveError> {
        if let Some(resolver) = given {
            return Ok(Cow::Borrowed(resolver));
        }
        let unreadable =
            |error: NetError| ResolveError::Configuration { name: name.host.clone(), source: Arc::new(error) };
        let resolver = builder_of_system().and_then(ResolverBuilder::build).map_err(unreadable)?;
        Ok(Cow::Owned(resolver))
    }

    /// Reads the system's configuration. Accepts everything that libc accepts.
    fn builder_of_system() -> Result<ResolverBuilder<TokioRuntimeProvider>, NetError> {
        #[cfg(all(unix, not(any(target_os = "android", target_vendor = "apple"))))]
        return match std::fs::read("/etc/resolv.conf") {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            text => {
                let (config, options) = settings_of(&text.unwrap_or_default())?;
                let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
                *builder.options_mut() = options;
                Ok(builder)
            }
        };
        #[cfg(not(all(unix, not(any(target_os = "android", target_vendor = "apple")))))]
        TokioResolver::builder_tokio()
    }

    /// Reads a `resolv.conf` as libc does. If the file lists no name server, the local one is used. Search domains are
    /// not checked, and a time limit of 0 s means 1 s. All names here end with a dot, so search domains do not apply.
    #[cfg(all(unix, not(any(target_os = "android", target_vendor = "apple"))))]
    fn settings_of(text: &[u8]) -> Result<(ResolverConfig, ResolverOpts), NetError> {
        let is_used = |line: &&[u8]| !line.starts_with(b"search") && !line.starts_with(b"domain");
        let mut lines: Vec<_> = text.split(|byte| *byte == b'\n').filter(is_used).collect();
        let (config, mut options) = parse_resolv_conf(lines.join(&b'\n')).or_else(|_| {
            lines.push(b"nameserver 127.0.0.1");
            parse_resolv_conf(lines.join(&b'\n'))
        })?;
        options.timeout = options.timeout.max(Duration::from_secs(1));
        Ok((config, options))
    }

    async fn in_time<T>(
        options: &Options,
        name: &SrvName,
        look_up: impl Future<Output = Result<T, ResolveError>>,
    ) -> Result<T, ResolveError> {
        let limit = options.connect_timeout;
        match limit.is_zero() {
            true => look_up.await,
            false => match tokio::time::timeout(limit, look_up).await {
                Ok(found) => found,
                Err(_) => Err(ResolveError::Timeout { name: name.host.clone(), limit }),
            },
        }
    }

    /// The SRV records of a name.
    struct Found {
        /// For each record, the server, or the reason for refusing the record.
        servers: Vec<Result<ServerAddress, ResolveError>>,
        /// The lowest time to live of the records.
        valid_for: Duration,
    }

    fn check_runtime(name: &SrvName) -> Result<(), ResolveError> {
        let absent = |_| ResolveError::NoRuntime { name: name.host.clone() };
        tokio::runtime::Handle::try_current().map(drop).map_err(absent)
    }

    /// Looks up a name. ASCII names are used unchanged, because the rules for internationalized names would refuse
    /// underscores.
    async fn look_up(resolver: &TokioResolver, name: &str, record: RecordType) -> Result<Lookup, NetError> {
        let name = if name.is_ascii() { Name::from_ascii(name) } else { Name::from_utf8(name) };
        resolver.lookup(name.map_err(NetError::from)?, record).await
    }

    async fn servers(resolver: &TokioResolver, name: &SrvName) -> Result<Found, ResolveError> {
        // The trailing dot keeps the resolver from trying the name in its search domains.
        let query = format!("_{}._tcp.{}.", name.service_name, name.host);
        let found = look_up(resolver, &query, RecordType::SRV).await;
        let failed = |error| ResolveError::Lookup { name: query.clone(), record: "SRV", source: Arc::new(error) };
        let found = found.map_err(failed)?;
        let records = found.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(service) => Some((service, record.ttl)),
            _ => None,
        });
        let lowest = records.clone().map(|(_, seconds)| seconds).min();
        let servers = records.map(|(record, _)| {
            // A name that is not ASCII is in Punycode, like the domain that it is compared with.
            let target = record.target.to_ascii().to_ascii_lowercase();
            let server = target.strip_suffix('.').unwrap_or(&target);
            // A label in a DNS record may contain any bytes, but a label of a host name may not.
            if !SrvName::is_name(server) || record.port == 0 {
                let server = server.to_owned();
                return Err(ResolveError::InvalidServer { name: name.host.clone(), server, port: record.port });
            }
            match name.accepts(server) {
                true => Ok(ServerAddress::tcp(server.to_owned(), record.port)),
                false => Err(ResolveError::ForeignServer {
                    name: name.host.clone(),
                    server: server.to_owned(),
                    domain: name.domain().to_owned(),
                }),
            }
        });
        match lowest {
            None => Err(failed(NetError::from("the answer has no such record"))),
            Some(seconds) => Ok(Found { servers: servers.collect(), valid_for: Duration::from_secs(seconds.into()) }),
        }
    }

    /// Returns the text of the TXT record, if there is one.
    async fn defaults(resolver: &TokioResolver, name: &SrvName) -> Result<Option<String>, ResolveError> {
        let found = match look_up(resolver, &format!("{}.", name.host), RecordType::TXT).await {
            Err(error) if error.is_no_records_found() => return Ok(None),
            found => found.map_err(|error| ResolveError::Lookup {
                name: name.host.clone(),
                record: "TXT",
                source: Arc::new(error),
            })?,
        };
        let mut records = found.answers().iter().filter_map(|record| match &record.data {
            RData::TXT(text) => Some(text.txt_data.concat()),
            _ => None,
        });
        match (records.next(), records.count()) {
            (Some(text), 0) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            (None, _) => Ok(None),
            (Some(_), more) => Err(ResolveError::SeveralTxtRecords { name: name.host.clone(), records: more + 1 }),
        }
    }

    #[cfg(all(test, unix, not(any(target_os = "android", target_vendor = "apple"))))]
    mod tests {
        use super::*;

        #[test]
        fn resolv_conf_is_read_as_libc_reads_it() {
            let label = "a".repeat(64);
            for (text, server) in [
                ("", "127.0.0.1"),
                ("options edns0\n", "127.0.0.1"),
                ("nameserver not.an.address\n", "127.0.0.1"),
                ("nameserver 127.0.0.53\noptions timeout:0\n", "127.0.0.53"),
                ("nameserver 127.0.0.53\nsearch a..b corp\n", "127.0.0.53"),
                (&*format!("search {label}.lan\r\nnameserver 127.0.0.53\r\n"), "127.0.0.53"),
            ] {
                let (config, options) =
                    settings_of(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"));
                assert!(options.timeout >= Duration::from_secs(1), "{text:?}");
                let asked: Vec<_> = config.name_servers().iter().map(|server| server.ip.to_string()).collect();
                assert_eq!(asked, [server], "{text:?}");
            }
        }

        #[test]
        fn number_of_servers_is_bounded() {
            let name = Options::srv("db.example.com").unwrap().srv.unwrap();
            assert!(check_number(&name, 1_000).is_ok());
            let text = "the SRV records of \"db.example.com\" name 1001 servers, but must name at most 1000, or set srvMaxHosts";
            assert_eq!(check_number(&name, 1_001).unwrap_err().to_string(), text);
        }
    }
}

#[cfg(all(test, not(feature = "srv")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn name_without_the_feature_is_refused_and_hosts_are_not() {
        let refused = Options::from_uri("mongodb+srv://cluster.example.com").await.unwrap_err();
        let message = "\"cluster.example.com\" needs an SRV look-up, but wharf was built without its feature `srv`";
        assert_eq!(refused.to_string(), message);
        assert!(Options::from_uri("mongodb://example.com").await.is_ok());
    }
}
