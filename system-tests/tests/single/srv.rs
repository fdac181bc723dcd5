//! A client whose servers are looked up in DNS. A proxy resolves the servers' names.
#![cfg(feature = "srv")]

use std::net::SocketAddr;

use bson::rawdoc;
use tokio::runtime::Runtime;
use wharf::Options;
use wharf::client::ServerSelectionError;
use wharf::endpoint::hickory_resolver::TokioResolver;
use wharf::endpoint::hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use wharf::endpoint::hickory_resolver::net::runtime::TokioRuntimeProvider;
use wharf::single::Client;
use wharf_testbed::dns::{DnsServer, Zone};
use wharf_testbed::refusing::Refusing;
use wharf_testbed::socks::{SocksOptions, SocksProxy};
use wharf_testbed::{mongod, replica_set};

const SERVICE: &str = "_mongodb._tcp.db.wharf.test";
const HOST: &str = "a.wharf.test";

/// A name server and a proxy, in front of the test's server.
struct Network {
    dns: DnsServer,
    proxy: SocksProxy,
    _runtime: Runtime,
}

impl Network {
    fn before(server: SocketAddr, zone: Zone) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let names = [(HOST.to_owned(), server)].into();
        let proxy = runtime.block_on(SocksProxy::start(SocksOptions { names, ..SocksOptions::default() })).unwrap();
        let dns = runtime.block_on(DnsServer::start(zone)).unwrap();
        Self { dns, proxy, _runtime: runtime }
    }

    fn client(&self, parameters: &str) -> Client {
        let mut connection = ConnectionConfig::udp();
        connection.port = self.dns.address().port();
        let name_server = NameServerConfig::new(self.dns.address().ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        builder.options_mut().cache_size = 0;
        builder.options_mut().attempts = 0;
        let resolver = builder.build().unwrap();
        let proxy = format!("proxyHost=127.0.0.1&proxyPort={}", self.proxy.port());
        let uri = format!("mongodb+srv://db.wharf.test/?tls=false&{proxy}{parameters}");
        Client::builder(Options::parse(&uri).unwrap()).resolver(resolver).build().unwrap()
    }
}

fn servers(client: &Client) -> Vec<String> {
    let mut servers: Vec<_> = client.status().servers.iter().map(|server| server.address.to_string()).collect();
    servers.sort();
    servers
}

fn ping(client: &Client) -> Result<(), wharf::ClientError> {
    client.run_command("admin", &rawdoc! { "ping": 1 }).map(drop)
}

#[test]
fn first_operation_looks_the_name_up_and_finds_the_whole_set() {
    let set = replica_set::shared().unwrap();
    let seed = set.addresses()[0];
    let zone = Zone::default().srv(SERVICE, seed.port(), HOST).txt("db.wharf.test", &["replicaSet=rs"]);
    let network = Network::before(seed, zone);
    let client = network.client("");
    assert!(network.dns.questions().is_empty(), "a client that is made looks nothing up");
    client.warm_up().unwrap();
    let questions = network.dns.questions().len();
    let mut members: Vec<_> = set.addresses().iter().map(ToString::to_string).collect();
    members.sort();
    // The seed is one of the members, under a different name.
    assert_eq!(servers(&client), members);
    assert_eq!(client.options().replica_set.as_deref(), Some("rs"), "the TXT record names the set");
    ping(&client).unwrap();
    assert_eq!(network.dns.questions().len(), questions, "a replica set is not looked up again");
    let by_name = network.proxy.requests().iter().filter(|request| request.by_name).count();
    assert_eq!((by_name, network.proxy.requests().len()), (1, 4), "the seed, and then each member");
}

#[test]
fn failed_look_up_is_told_and_repeated_by_the_next_operation() {
    let server = mongod::shared().unwrap();
    let network = Network::before(server.address(), Zone::default().failing(SERVICE));
    let client = network.client("");
    let error = ping(&client).unwrap_err();
    let wharf::ClientError::Selection(selection) = &error else { panic!("{error}") };
    assert!(!matches!(selection, ServerSelectionError::Closed) && selection.to_string().contains("db.wharf.test"));
    assert_eq!(servers(&client), [] as [String; 0]);
    network.dns.replace(Zone::default().srv(SERVICE, 27_017, HOST));
    ping(&client).unwrap();
    assert_eq!(servers(&client), [format!("{HOST}:27017")]);
}

#[test]
fn load_balancer_that_the_dns_names_is_not_scanned() {
    // Nothing is listening behind the proxy.
    let refusing = Refusing::new().unwrap();
    let closed = refusing.address();
    let zone = Zone::default().srv(SERVICE, closed.port(), HOST).txt("db.wharf.test", &["loadBalanced=true"]);
    let network = Network::before(closed, zone);
    let client = network.client("");
    for _ in 0..3 {
        let error = ping(&client).unwrap_err();
        assert!(matches!(error, wharf::ClientError::Operation(_)), "{error}");
        assert_eq!(client.status().servers[0].server_type, "LoadBalancer");
    }
}
