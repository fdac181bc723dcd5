//! All components together: a name in DNS, a SOCKS5 proxy with a login, TLS, SCRAM and zstd, in a pool that is built
//! from one connection string. The tests also cover the errors that occur when any link in this chain is broken.

use wharf::ResolveError;
use wharf::endpoint::hickory_resolver::TokioResolver;
use wharf::endpoint::hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use wharf::endpoint::hickory_resolver::net::runtime::TokioRuntimeProvider;
use wharf_testbed::dns::{DnsServer, Zone};

use super::*;

const NAME: &str = "cluster.wharf.example";
const SERVICE: &str = "_mongodb._tcp.cluster.wharf.example";

pub struct Chain {
    pub(super) secured: Arc<Secured>,
    pub(super) proxy: SocksProxy,
    dns: DnsServer,
}

impl Chain {
    /// Creates a chain whose proxy connects to `server` and fails with `fault`.
    pub(super) async fn new(secured: Arc<Secured>, server: SocketAddr, fault: Option<SocksFault>) -> Self {
        let login = Some(("porter".to_owned(), "knock".to_owned()));
        let names = HashMap::from([(SERVER_NAME.to_owned(), server)]);
        let proxy = SocksProxy::start(SocksOptions { login, names, fault, ..SocksOptions::default() }).await.unwrap();
        let zone = Zone::default().srv(SERVICE, 4711, SERVER_NAME).txt(NAME, &["authSource=admin"]);
        Self { secured, proxy, dns: DnsServer::start(zone).await.unwrap() }
    }

    async fn whole() -> Self {
        let secured = Secured::shared().await;
        let address = secured.mongod.address();
        Self::new(secured, address, None).await
    }

    /// Parses and resolves the connection string, with one part of it replaced.
    pub async fn options(&self, part: &str, replacement: &str) -> Result<Options, ResolveError> {
        let authority = self.secured.certificates.file(Pem::Authority).display().to_string().replace('/', "%2F");
        let uri = format!(
            "mongodb+srv://app:secret@{NAME}/shop?tlsCAFile={authority}&proxyHost=127.0.0.1&proxyPort={}&\
             proxyUsername=porter&proxyPassword=knock&compressors=zstd,snappy&maxPoolSize=3&connectTimeoutMS=60000",
            self.proxy.port()
        );
        assert!(uri.contains(part), "the connection string does not contain {part:?}");
        let options = Options::parse(&uri.replacen(part, replacement, 1))?;
        assert_eq!(options.warnings(), []);
        options.resolve_with(&resolver(&self.dns)).await
    }
}

fn resolver(server: &DnsServer) -> TokioResolver {
    let address = server.address();
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    let name_server = NameServerConfig::new(address.ip(), true, connections.into());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().timeout = AGES;
    builder.options_mut().attempts = 0;
    builder.build().unwrap()
}

#[tokio::test]
async fn pool_works_through_the_whole_chain() {
    let chain = Chain::whole().await;
    let options = chain.options("", "").await.unwrap();
    assert_eq!(use_pool(options.clone()).await.as_deref(), Some("app"));
    let requests = chain.proxy.requests();
    // The proxy got one request for each of the pool's connections, and no others.
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|asked| (&*asked.host, asked.port, asked.by_name) == (SERVER_NAME, 4711, true)));

    let pool = pool_of(options);
    let connection = pool.check_out().await.unwrap();
    assert_eq!(connection.hello().compressors, ["zstd", "snappy"]);
    assert_eq!(connection.peer_address().unwrap().port(), chain.proxy.port());
}

#[tokio::test]
async fn each_broken_link_is_reported_as_itself() {
    let chain = Chain::whole().await;
    let (certificates, none) = (&chain.secured.certificates, Labels::NONE);
    let other_authority =
        format!("tlsCAFile={}", certificates.file(Pem::OtherAuthority).display().to_string().replace('/', "%2F"));
    let authority =
        format!("tlsCAFile={}", certificates.file(Pem::Authority).display().to_string().replace('/', "%2F"));
    for (part, replacement, stage) in [
        ("knock", "push", Stage::Proxy),
        (&*authority, &*other_authority, Stage::Tls),
        ("app:secret", "app:wrong", Stage::Authenticate),
        ("app:secret", "nobody:secret", Stage::Authenticate),
        ("/shop?", "/shop?authSource=shop&", Stage::Authenticate),
    ] {
        let error = assert_refused(chain.options(part, replacement).await.unwrap(), stage, none).await;
        match stage {
            Stage::Proxy => drop(cause::<ProxyError>(&error)),
            Stage::Authenticate => assert!(cause::<AuthenticationError>(&error).server_error().is_some(), "{error}"),
            _ => drop(cause::<TlsError>(&error)),
        }
        for secret in ["push", "wrong", "knock"] {
            assert!(!format!("{error:?} {error}").contains(secret), "{error:?}");
        }
    }
    // The certificate must carry the server's name, not the name of the SRV record or of the proxy.
    let mut options = chain.options("", "").await.unwrap();
    options.hosts = localhost(4711).hosts;
    assert_refused(options.clone(), Stage::Proxy, none).await;

    // If the proxy reports an error about the server, the error does not come from the server itself.
    for code in [1, 3, 4, 5] {
        let address = chain.secured.mongod.address();
        let chain = Chain::new(Arc::clone(&chain.secured), address, Some(SocksFault::Refuse(code))).await;
        assert_refused(chain.options("", "").await.unwrap(), Stage::Proxy, none).await;
    }
    // Nothing is listening behind the proxy.
    let refusing = wharf_testbed::refusing::Refusing::new().unwrap();
    let gone = refusing.address();
    let chain = Chain::new(Arc::clone(&chain.secured), gone, None).await;
    assert_refused(chain.options("", "").await.unwrap(), Stage::Proxy, none).await;
}
