//! A client whose servers are looked up in DNS, in virtual time. The servers do not exist. Neither does the proxy in
//! front of them, which is configured so that the client does not resolve their names.
#![cfg(feature = "srv")]

use std::time::Duration;

use tokio::time::Instant;
use wharf::client::{ServerSelectionError, TopologyEvent};
use wharf::endpoint::hickory_resolver::TokioResolver;
use wharf::endpoint::hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use wharf::endpoint::hickory_resolver::net::runtime::TokioRuntimeProvider;
use wharf::{Client, Options};
use wharf_testbed::dns::{DnsServer, Zone};

use super::events::Events;

const SERVICE: &str = "_mongodb._tcp.db.wharf.test";

/// Returns a resolver that queries only this server, and caches nothing.
fn resolver(server: &DnsServer) -> TokioResolver {
    let mut connection = ConnectionConfig::udp();
    connection.port = server.address().port();
    let name_server = NameServerConfig::new(server.address().ip(), true, vec![connection]);
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().cache_size = 0;
    builder.options_mut().attempts = 0;
    builder.build().expect("a resolver")
}

fn zone(ports: &[u16]) -> Zone {
    let records = ports.iter().fold(Zone::default(), |zone, port| zone.srv(SERVICE, *port, "a.wharf.test"));
    // The records expire sooner than the minimum time between two lookups.
    records.lasting(1)
}

async fn client_of(dns: &DnsServer, parameters: &str) -> (Client, Events) {
    let events = Events::default();
    let options =
        Options::parse(&format!("mongodb+srv://db.wharf.test/?tls=false&proxyHost=127.0.0.1&proxyPort=1&{parameters}"))
            .unwrap();
    let builder = Client::builder(options).resolver(resolver(dns)).topology_subscriber(events.clone());
    (builder.build().unwrap(), events)
}

fn servers(client: &Client) -> Vec<String> {
    let mut servers: Vec<_> = client.status().servers.iter().map(|server| server.address.to_string()).collect();
    servers.sort();
    servers
}

fn at(ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| format!("a.wharf.test:{port}")).collect()
}

/// Waits until a server has joined or left the topology.
async fn members_change(events: &Events, mark: usize) {
    let is_member = |event: &TopologyEvent| matches!(event.name(), "ServerOpening" | "ServerClosed");
    events.after(mark, is_member).await;
    // All events for one change are delivered together, after the description has changed.
    events.after(mark, |event| event.name() == "TopologyDescriptionChanged").await;
}

#[tokio::test(start_paused = true)]
async fn servers_are_looked_up_by_the_first_use_and_then_again() {
    let dns = DnsServer::start(zone(&[17, 18])).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=1").await;
    assert!(dns.questions().is_empty() && servers(&client).is_empty());
    client.connect().await.unwrap_err();
    members_change(&events, 0).await;
    assert_eq!(servers(&client), at(&[17, 18]));
    for (records, expected) in [
        (&[17, 18, 19][..], &[17, 18, 19][..]),
        (&[17, 18], &[17, 18]),
        (&[17, 19], &[17, 19]),
        (&[20], &[20]),
        (&[21, 22], &[21, 22]),
    ] {
        let mark = events.mark();
        dns.replace(zone(records));
        members_change(&events, mark).await;
        assert_eq!(servers(&client), at(expected));
    }
    assert!(client.shutdown(Duration::from_secs(1)).await);
    assert_eq!(events.all().last().unwrap().name(), "TopologyClosed");
}

#[tokio::test(start_paused = true)]
async fn look_up_that_fails_changes_nothing_and_is_repeated_sooner() {
    let dns = DnsServer::start(zone(&[17])).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=1&heartbeatFrequencyMS=5000").await;
    client.connect().await.unwrap_err();
    members_change(&events, 0).await;
    let asked = || dns.questions().iter().filter(|question| question.name.starts_with("_mongodb")).count();
    for broken in [
        Zone::default().failing(SERVICE),
        Zone::default().silent(SERVICE),
        Zone::default(),
        zone(&[]).srv(SERVICE, 17, "a.elsewhere.test"),
    ] {
        dns.replace(broken);
        let before = asked();
        while asked() < before + 2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(servers(&client), at(&[17]));
    }
    // The last lookup failed, so the next one follows in less than a minute.
    let (mark, start) = (events.mark(), Instant::now());
    dns.replace(zone(&[18]));
    members_change(&events, mark).await;
    assert!(start.elapsed() <= Duration::from_millis(5100), "{:?}", start.elapsed());
    assert_eq!(servers(&client), at(&[18]));
}

#[tokio::test(start_paused = true)]
async fn first_look_up_that_fails_is_in_the_error_and_repeated() {
    let dns = DnsServer::start(Zone::default()).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=1000").await;
    let refused = client.connect().await.unwrap_err();
    assert!(matches!(refused, ServerSelectionError::Timeout { .. }));
    let text = refused.to_string();
    assert!(text.contains("the servers are not known: the SRV records of \"_mongodb._tcp.db.wharf.test.\""), "{text}");
    dns.replace(zone(&[17]));
    members_change(&events, 0).await;
    assert_eq!(servers(&client), at(&[17]));
    let refused = client.connect().await.unwrap_err();
    assert!(refused.to_string().contains("a.wharf.test:17 (Unknown"), "{refused}");
    let ServerSelectionError::Timeout { topology, .. } = refused else { panic!("{refused}") };
    let servers = topology.servers().map(|(address, server_type, _)| (address, server_type)).collect::<Vec<_>>();
    assert_eq!((topology.topology_type(), &servers[..]), ("Unknown", &[("a.wharf.test:17", "Unknown")][..]));
}

#[tokio::test(start_paused = true)]
async fn no_more_servers_are_used_than_srv_max_hosts() {
    let dns = DnsServer::start(zone(&[17, 18])).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=1&srvMaxHosts=2").await;
    client.connect().await.unwrap_err();
    members_change(&events, 0).await;
    let mark = events.mark();
    dns.replace(zone(&[17, 19, 20]));
    members_change(&events, mark).await;
    let servers = servers(&client);
    assert!(servers.len() == 2 && servers[0] == "a.wharf.test:17", "{servers:?}");
}

/// Prose tests 10 and 11 of Polling SRV Records.
#[tokio::test(start_paused = true)]
async fn all_servers_are_used_if_srv_max_hosts_allows_as_many() {
    for most in [0, 2, 3] {
        let dns = DnsServer::start(zone(&[17, 18])).await.unwrap();
        let (client, events) = client_of(&dns, &format!("serverSelectionTimeoutMS=1&srvMaxHosts={most}")).await;
        client.connect().await.unwrap_err();
        members_change(&events, 0).await;
        assert_eq!(servers(&client), at(&[17, 18]));
        let mark = events.mark();
        dns.replace(zone(&[17, 19]));
        members_change(&events, mark).await;
        assert_eq!(servers(&client), at(&[17, 19]), "srvMaxHosts={most}");
    }
}

/// Prose test 13 of Polling SRV Records.
#[tokio::test(start_paused = true)]
async fn service_of_another_name_is_looked_up_again() {
    let zone = |ports: &[u16]| {
        let service = "_customname._tcp.db.wharf.test";
        ports.iter().fold(Zone::default(), |zone, port| zone.srv(service, *port, "a.wharf.test")).lasting(1)
    };
    let dns = DnsServer::start(zone(&[17])).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=1&srvServiceName=customname").await;
    client.connect().await.unwrap_err();
    members_change(&events, 0).await;
    assert_eq!(servers(&client), at(&[17]));
    let mark = events.mark();
    dns.replace(zone(&[19, 20]));
    members_change(&events, mark).await;
    assert_eq!(servers(&client), at(&[19, 20]));
}

#[tokio::test(start_paused = true)]
async fn load_balancer_is_looked_up_once() {
    let dns = DnsServer::start(zone(&[17])).await.unwrap();
    let (client, events) = client_of(&dns, "loadBalanced=true").await;
    client.connect().await.unwrap();
    assert_eq!(client.status().topology_type, "LoadBalanced");
    let asked = dns.questions().len();
    dns.replace(zone(&[18]));
    tokio::time::sleep(Duration::from_secs(2 * 86_400)).await;
    assert_eq!((servers(&client), dns.questions().len()), (at(&[17]), asked));
    client.shutdown(Duration::from_secs(1)).await;
    let names: Vec<_> = events.all().iter().map(TopologyEvent::name).collect();
    assert_eq!(
        names,
        [
            "TopologyOpening",
            "TopologyDescriptionChanged",
            "ServerOpening",
            "ServerDescriptionChanged",
            "TopologyDescriptionChanged",
            "ServerClosed",
            "TopologyDescriptionChanged",
            "TopologyClosed",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn failed_first_look_up_is_repeated_soon_while_an_operation_waits() {
    let dns = DnsServer::start(zone(&[17]).failing(SERVICE)).await.unwrap();
    let (client, events) = client_of(&dns, "serverSelectionTimeoutMS=3000").await;
    let begun = Instant::now();
    let error = client.connect().await.unwrap_err().to_string();
    assert!(error.contains("the SRV records of") && error.contains(SERVICE), "{error}");
    let questions = dns.questions().iter().filter(|question| question.name.starts_with(SERVICE)).count();
    assert!((5..=8).contains(&questions), "{questions} in {:?}", begun.elapsed());
    let mark = events.mark();
    let again = Instant::now();
    dns.replace(zone(&[17]));
    // The operation waits for a server that does not exist.
    client.connect().await.unwrap_err();
    events.after(mark, |event| event.name() == "ServerOpening").await;
    assert!(again.elapsed() < Duration::from_secs(4), "{:?}", again.elapsed());
}

#[tokio::test(start_paused = true)]
async fn selection_names_the_dns_that_does_not_answer() {
    let dns = DnsServer::start(zone(&[17]).silent(SERVICE)).await.unwrap();
    let (client, _) = client_of(&dns, "serverSelectionTimeoutMS=1000").await;
    let error = client.connect().await.unwrap_err().to_string();
    assert!(
        error.ends_with("the servers are not known: the DNS has not answered for \"db.wharf.test\" yet"),
        "{error}"
    );
}
