//! Tests of the events that cause the client on a single thread to scan, and of the lookup that precedes a scan.

use bson::{doc, rawdoc};
use wharf_testbed::scripted::{Answer, name};

use super::tests::{PRIMARY_AND_SECONDARY, World, answer_of_query, close, is_hello, replica_set};
use crate::client::Operation;
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};

/// "Not writable primary" and "node is shutting down" make the topology stale. "Node is recovering" does not, because
/// that state may last for some time.
#[test]
fn node_that_is_recovering_causes_no_scan() {
    for (code, scans) in [(10_107, true), (11_600, true), (11_602, false), (13_436, false)] {
        let world = World::new();
        let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, move |_, command, _, hello| {
            hello.unwrap_or_else(|| match name(command).as_str() {
                "insert" => Answer::Reply(doc! { "ok": 0, "code": code, "errmsg": "it failed" }),
                _ => answer_of_query(command),
            })
        });
        let client = world.client(&format!("mongodb://{addresses}/?replicaSet=rs&retryWrites=false"));
        let (insert, find) =
            (rawdoc! { "insert": "things", "documents": [{ "_id": 1 }] }, rawdoc! { "find": "things" });
        client.run(Operation::write("test", &insert)).unwrap_err();
        let types = || {
            let mut types: Vec<_> = client.status().servers.iter().map(|server| server.server_type).collect();
            types.sort_unstable();
            types
        };
        assert_eq!(types(), ["RSSecondary", "Unknown"], "{code}");
        // The secondary is known, so a read finds a server without a scan.
        let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
        client.run(Operation::read("test", &find).read_preference(&secondary)).unwrap();
        let expected: &[u128] = if scans { &[0, 500] } else { &[0] };
        for server in &servers {
            assert!(close(&server.times(is_hello), expected), "{code}: {:?}", server.times(is_hello));
        }
    }
}

#[cfg(feature = "srv")]
mod srv {
    use hickory_resolver::TokioResolver;
    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use wharf_testbed::dns::{DnsServer, Zone};

    use super::super::tests::{World, pass, ping};
    use crate::client::Client;
    use crate::endpoint::options::Options;

    const SERVICE: &str = "_mongodb._tcp.db.wharf.test";

    /// Returns a zone whose records expire sooner than the minimum time between two lookups.
    fn zone(ports: &[u16]) -> Zone {
        ports.iter().fold(Zone::default(), |zone, port| zone.srv(SERVICE, *port, "a.wharf.test")).lasting(1)
    }

    /// The servers do not exist, so the topology stays unknown, and each operation scans.
    #[test]
    fn scan_looks_the_name_up_again_if_a_minute_has_passed() {
        let world = World::new();
        let dns = world.run(DnsServer::start(zone(&[17]))).unwrap();
        let mut connection = ConnectionConfig::udp();
        connection.port = dns.address().port();
        let name_server = NameServerConfig::new(dns.address().ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
        let mut resolver = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        resolver.options_mut().cache_size = 0;
        resolver.options_mut().attempts = 0;
        // The proxy does not exist either, so the servers' names are not resolved.
        let uri = "mongodb+srv://db.wharf.test/?tls=false&proxyHost=127.0.0.1&proxyPort=1";
        let builder = Client::builder(Options::parse(uri).unwrap().without_monitors());
        let client = world.client_of(builder.resolver(resolver.build().unwrap()));
        let asked = || dns.questions().iter().filter(|question| question.name.starts_with("_mongodb")).count();
        let servers = || {
            let mut servers: Vec<_> = client.status().servers.iter().map(|one| one.address.to_string()).collect();
            servers.sort();
            servers
        };
        ping(&client).unwrap_err();
        assert_eq!((asked(), servers()), (1, vec!["a.wharf.test:17".to_owned()]));
        dns.replace(zone(&[18, 19]));
        for _ in 0..5 {
            pass(&client, 10_000);
            ping(&client).unwrap_err();
        }
        assert_eq!((asked(), servers()), (1, vec!["a.wharf.test:17".to_owned()]), "50 s have passed");
        // The name is not looked up between calls.
        pass(&client, 20_000);
        assert_eq!(asked(), 1);
        ping(&client).unwrap_err();
        assert_eq!((asked(), servers()), (2, ["a.wharf.test:18", "a.wharf.test:19"].map(str::to_owned).to_vec()));
        pass(&client, 10_000);
        ping(&client).unwrap_err();
        assert_eq!(asked(), 2);
    }
}
