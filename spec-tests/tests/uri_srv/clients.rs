//! The official suite, run by a client against scripted servers.
//!
//! The suite expects servers with special names and ports, and with TLS. Here, a SOCKS5 proxy maps these names and
//! ports to servers in this process.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Document, doc, rawdoc};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::version::TLS13;
use wharf::client::TopologyEvent;
use wharf::{Client, DriverInfo, Options, ProxyOptions, TlsOptions};
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::dns::DnsServer;
use wharf_testbed::scripted::{Answer, ScriptedServer, name};
use wharf_testbed::socks::{SocksOptions, SocksProxy};
use wharf_testbed::tls_front::TlsFront;

use super::suite::{files, read, zone};
use super::{resolve, resolver, start};

/// The time limit after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// The names that all resolve to the address of the suite's machine.
const NAMES: [&str; 6] = [
    "localhost",
    "localhost.test.build.10gen.cc",
    "localhost.sub.test.build.10gen.cc",
    "localhost.build.10gen.cc",
    "test.build.10gen.cc",
    "build.10gen.cc",
];

/// A deployment of the suite, with and without TLS.
struct Deployment {
    with_tls: SocksProxy,
    without_tls: SocksProxy,
    _fronts: Vec<TlsFront>,
    servers: Vec<ScriptedServer>,
}

impl Deployment {
    /// Starts a server for each port, which replies to hello with the given document.
    async fn start(servers: impl IntoIterator<Item = (u16, Document)>) -> Self {
        let certificates = Certificates::create().unwrap();
        let (mut scripted, mut fronts) = (Vec::new(), Vec::new());
        let (mut with_tls, mut without_tls) = (HashMap::new(), HashMap::new());
        for (port, hello) in servers {
            let server = ScriptedServer::start(move || {
                let hello = hello.clone();
                Box::new(move |command: &Document| match &*name(command) {
                    "hello" | "isMaster" => Answer::Reply(hello.clone()),
                    _ => Answer::Reply(doc! { "ok": 1 }),
                })
            });
            let server = server.await.unwrap();
            let address: SocketAddr = server.address().parse().unwrap();
            let front = TlsFront::start(address, &certificates.file(Pem::Server), &TLS13, None).await.unwrap();
            for name in NAMES {
                without_tls.insert(format!("{name}:{port}"), address);
                with_tls.insert(format!("{name}:{port}"), front.address());
            }
            scripted.push(server);
            fronts.push(front);
        }
        let proxy = async |names| SocksProxy::start(SocksOptions { names, ..SocksOptions::default() }).await.unwrap();
        let (with_tls, without_tls) = (proxy(with_tls).await, proxy(without_tls).await);
        Self { with_tls, without_tls, _fronts: fronts, servers: scripted }
    }

    /// Starts the deployment for one of the suite's folders.
    async fn of_folder(folder: &str) -> Self {
        let hello = doc! {
            "ok": 1, "helloOk": true, "isWritablePrimary": true, "minWireVersion": 0, "maxWireVersion": 21,
            "logicalSessionTimeoutMinutes": 30,
        };
        let with = |fields: Document| {
            let mut hello = hello.clone();
            hello.extend(fields);
            hello
        };
        match folder {
            "replica-set" => {
                let ports = [27017, 27018, 27019];
                let hosts = ports.map(|port| format!("localhost:{port}"));
                let member = |port: u16| {
                    let is_primary = port == ports[0];
                    with(doc! {
                        "setName": "repl0", "setVersion": 1, "hosts": hosts.to_vec(), "me": format!("localhost:{port}"),
                        "isWritablePrimary": is_primary, "secondary": !is_primary,
                        "electionId": ObjectId::from_bytes([1; 12]),
                    })
                };
                Self::start(ports.map(|port| (port, member(port)))).await
            }
            "load-balanced" => {
                let service = with(doc! { "msg": "isdbgrid", "serviceId": ObjectId::from_bytes([7; 12]) });
                Self::start([(8000, service)]).await
            }
            "sharded" => {
                let mongos = with(doc! { "msg": "isdbgrid" });
                Self::start([27017, 27018].map(|port| (port, mongos.clone()))).await
            }
            _ => panic!("no deployment for {folder}"),
        }
    }

    /// Returns these options with this deployment's proxy.
    fn lead(&self, options: Options) -> Options {
        let (proxy, tls) = match options.tls {
            Some(_) => (&self.with_tls, Some(TlsOptions::default().insecure(true))),
            None => (&self.without_tls, None),
        };
        options.tls(tls).proxy(ProxyOptions::new("127.0.0.1").port(proxy.port()))
    }
}

/// Returns the servers that the client knows.
fn known(client: &Client) -> BTreeSet<String> {
    client.status().servers.iter().map(|server| server.address.to_string()).collect()
}

/// Runs a case that expects no error.
async fn succeed(case: &Value, client: Client, mut events: watch::Receiver<usize>) {
    client.connect().await.unwrap();
    if case["ping"].as_bool() != Some(false) {
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    }
    let is_found = || {
        let known = known(&client);
        let hosts = case["hosts"]
            .as_array()
            .map(|hosts| hosts.iter().map(|host| host.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>());
        hosts.is_none_or(|hosts| hosts == known)
            && case["numHosts"].as_u64().is_none_or(|number| number == known.len() as u64)
    };
    let found = timeout(AGES, events.wait_for(|_| is_found())).await;
    assert!(found.is_ok(), "{:?} instead of {case}", known(&client));
}

/// The outcome of a case.
enum Ran {
    /// The client has found its servers.
    Passed,
    /// No client could be created, as the case requires.
    Refused,
    /// The client must fail with this error.
    Fails(Client, String),
}

/// Runs a case. If the client must fail, the caller checks that it does.
async fn run(case: &Value, deployment: &Deployment, dns: &DnsServer) -> Ran {
    let uri = case["uri"].as_str().unwrap();
    let fails = case["error"].as_bool() == Some(true);
    let options = match Options::parse(uri) {
        Ok(options) => deployment.lead(options),
        Err(error) => {
            assert!(fails, "{case}: {error}");
            return Ran::Refused;
        }
    };
    let options = if fails { options.server_selection_timeout(Duration::from_secs(2)) } else { options };
    let (sender, events) = watch::channel(0);
    let builder = Client::builder(options).resolver(resolver(dns));
    let client =
        builder.topology_subscriber(move |_: &TopologyEvent| sender.send_modify(|events| *events += 1)).build();
    match client {
        Err(error) => {
            assert!(fails, "{case}: {error}");
            Ran::Refused
        }
        Ok(client) if fails => Ran::Fails(client, resolve(dns, uri).await.unwrap_err().to_string()),
        Ok(client) => {
            succeed(case, client, events).await;
            Ran::Passed
        }
    }
}

#[tokio::test]
async fn client_finds_the_hosts_of_every_case_and_pings_them() {
    let dns = start(zone()).await;
    let (mut passed, mut deployments) = (0, HashMap::new());
    // The cases that must fail run concurrently, because each of them waits until its server selection times out.
    let mut failing = JoinSet::new();
    for file in files() {
        let folder = file.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        if !deployments.contains_key(&folder) {
            deployments.insert(folder.clone(), Deployment::of_folder(&folder).await);
        }
        let case = read(&file);
        match run(&case, &deployments[&folder], &dns).await {
            Ran::Passed => passed += 1,
            Ran::Refused => {}
            Ran::Fails(client, why) => drop(failing.spawn(async move {
                let error = client.connect().await.unwrap_err().to_string();
                assert!(error.contains(&why), "{case}: {error} instead of {why}");
            })),
        }
    }
    while let Some(ended) = failing.join_next().await {
        ended.unwrap();
    }
    assert!(passed >= 28, "{passed}");
}

#[tokio::test]
async fn library_that_is_appended_before_the_look_up_is_sent() {
    let dns = start(zone()).await;
    let deployment = Deployment::of_folder("sharded").await;
    let options = deployment.lead(Options::parse("mongodb+srv://test1.test.build.10gen.cc").unwrap());
    let client = Client::builder(options).resolver(resolver(&dns)).build().unwrap();
    client.append_metadata(DriverInfo::new("library")).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let commands: Vec<_> = deployment.servers.iter().flat_map(ScriptedServer::commands).collect();
    let handshakes: Vec<_> = commands.iter().filter_map(|command| command.get_document("client").ok()).collect();
    assert!(handshakes.len() >= 2, "{commands:?}");
    for client in handshakes {
        assert_eq!(client.get_document("driver").unwrap().get_str("name").unwrap(), "wharf|library");
    }
}
