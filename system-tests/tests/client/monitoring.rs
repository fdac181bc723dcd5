//! Monitoring, mostly on real servers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use wharf::client::{ServerType, TopologyEvent};
use wharf::{Client, Operation, Options, Phase, PoolEvent, ServerMonitoringMode};
use wharf_testbed::mongod::{self, Mongod};
use wharf_testbed::replica_set::{self, ReplicaSet, ReplicaSetOptions};

use super::cluster::{Cluster, failure, ok};
use super::events::Events;

/// Returns a client for this connection string, and its monitoring events.
fn client_of(uri: &str, change: impl FnOnce(Options) -> Options) -> (Client, Events) {
    let events = Events::default();
    let options = change(Options::parse(uri).unwrap());
    (Client::builder(options).topology_subscriber(events.clone()).build().unwrap(), events)
}

fn uri(server: &Mongod) -> String {
    format!("mongodb://{}", server.address())
}

/// Returns the new type of a server, if the event says that it changed.
fn becomes(event: &TopologyEvent, address: &str) -> Option<ServerType> {
    match event {
        TopologyEvent::ServerDescriptionChanged { address: of, new, .. } if **of == *address => Some(new.server_type()),
        _ => None,
    }
}

/// Runs a blocking function.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Counts the connections of clients with this application name on a server, as reported by `$currentOp`.
fn connections_of(set: &ReplicaSet, member: usize, app_name: &str) -> usize {
    let command = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            { "$currentOp": { "allUsers": true, "idleConnections": true } },
            { "$match": { "appName": app_name } },
        ],
        "cursor": {},
        "$readPreference": { "mode": "secondaryPreferred" },
    };
    let reply = set.command(member, "admin", &command).unwrap();
    reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_a_standalone_from_the_first_use_to_the_end() {
    let server = mongod::shared().unwrap();
    let (client, events) = client_of(&uri(&server), |options| options);
    assert!(events.all().is_empty(), "nothing is monitored before the first use");
    client.connect().await.unwrap();
    // The check that found the server, and the next check, which is waiting.
    events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
    assert!(client.shutdown(Duration::from_secs(5)).await);
    // The pools are closed, and the monitor shuts down in a separate task.
    events.after(0, |event| matches!(event, TopologyEvent::TopologyClosed { .. })).await;
    let names: Vec<_> = events.all().iter().map(TopologyEvent::name).collect();
    assert_eq!(
        names,
        [
            "TopologyOpening",
            "TopologyDescriptionChanged",
            "ServerOpening",
            "ServerHeartbeatStarted",
            "ServerHeartbeatSucceeded",
            "ServerDescriptionChanged",
            "TopologyDescriptionChanged",
            "ServerHeartbeatStarted",
            "ServerHeartbeatFailed",
            "ServerClosed",
            "TopologyDescriptionChanged",
            "TopologyClosed",
        ]
    );
    let all = events.all();
    let TopologyEvent::ServerHeartbeatSucceeded { awaited, connection, reply, .. } = &all[4] else { panic!() };
    assert!(!awaited && connection.connection_id == 1 && connection.server_connection_id.is_some());
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0);
    let TopologyEvent::TopologyDescriptionChanged { previous, new, .. } = &all[6] else { panic!() };
    assert_eq!((previous.topology_type().name(), new.topology_type().name()), ("Unknown", "Single"));
    assert!(new.has_writable_server() && !previous.has_writable_server() && new.is_compatible());
    let TopologyEvent::ServerHeartbeatFailed { failure, awaited: true, .. } = &all[8] else { panic!() };
    assert_eq!(failure.to_string(), "the check of the server was cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_down_is_known_as_soon_as_it_happens_while_streaming() {
    // The test has its own set, because a step-down would interrupt other tests' operations.
    let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
    // The monitors pause for so long between checks that polling would not notice the step-down.
    let (client, events) = client_of(&set.uri(), |options| options.heartbeat_frequency(Duration::from_secs(300)));
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let all_known = |event: &TopologyEvent| match event {
        TopologyEvent::TopologyDescriptionChanged { new, .. } => {
            new.servers().all(|server| server.server_type().is_data_bearing())
        }
        _ => false,
    };
    events.after(0, all_known).await;
    let mark = events.mark();
    let of_step_down = set.clone();
    let next = blocking(move || of_step_down.step_down().unwrap()).await;
    let next = set.addresses()[next].to_string();
    events.after(mark, |event| becomes(event, &next) == Some(ServerType::RsPrimary)).await;
    client.run(Operation::write("test", &rawdoc! { "insert": "things", "documents": [{ "a": 1 }] })).await.unwrap();
    // The monitors' connections survived, so no heartbeat failed.
    assert_eq!(events.count("ServerHeartbeatFailed"), 0);
    assert!(client.shutdown(Duration::from_secs(5)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_connections_monitor_each_server_while_streaming_and_one_while_polling() {
    let set = replica_set::shared().unwrap();
    for (mode, each) in [(ServerMonitoringMode::Stream, 2), (ServerMonitoringMode::Poll, 1)] {
        let name = format!("sockets {}", mode.name());
        let (client, events) = client_of(&set.uri(), |options| {
            options.server_monitoring_mode(mode).app_name(&name).heartbeat_frequency(Duration::from_millis(500))
        });
        client.connect().await.unwrap();
        // Each server is checked five times, so all connections exist afterwards.
        let checks = |address: &str| {
            let is_it = |event: &&TopologyEvent| matches!(event, TopologyEvent::ServerHeartbeatSucceeded { connection, .. } if *connection.address == *address);
            events.all().iter().filter(is_it).count()
        };
        let addresses: Vec<_> = set.addresses().iter().map(ToString::to_string).collect();
        while addresses.iter().any(|address| checks(address) < 5) {
            events.after(events.mark(), |event| event.name() == "ServerHeartbeatSucceeded").await;
        }
        let counted = set.clone();
        let counts = blocking(move || (0..3).map(|member| connections_of(&counted, member, &name)).collect::<Vec<_>>());
        // The counting commands use separate connections, without the application name.
        assert_eq!(counts.await, [each; 3], "{mode:?}");
        assert!(client.shutdown(Duration::from_secs(5)).await);
    }
}

#[tokio::test]
async fn metrics_say_whose_server_accepts_writes() {
    let set = Cluster::replica_set(2, |_, _, number| if number == 0 { ok() } else { failure(10_107, &[]) }).await;
    let (client, _told) = set.client("").await;
    let ping = rawdoc! { "ping": 1 };
    client.run_command("admin", &ping).await.unwrap();
    let accept_writes = || -> Vec<String> {
        let pools = client.metrics().into_iter().filter(|pool| pool.accepts_writes);
        pools.map(|pool| pool.address.to_string()).collect()
    };
    assert_eq!(accept_writes(), [set.servers[0].address()]);
    assert_eq!(client.metrics().iter().filter(|pool| pool.status.phase == Phase::Ready).count(), 2);

    // The server is no longer primary, and is not checked again immediately.
    client.run_command("admin", &ping).await.unwrap_err();
    assert_eq!(accept_writes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_is_replaced_by_the_next() {
    let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
    let (client, events) = client_of(&set.uri(), |options| options);
    let write = rawdoc! { "insert": "things", "documents": [{ "a": 1 }] };
    client.run(Operation::write("test", &write)).await.unwrap();
    let primary = set.primary().unwrap().unwrap();
    let address = set.addresses()[primary].to_string();
    let mark = events.mark();
    set.kill(primary).unwrap();
    events.after(mark, |event| becomes(event, &address) == Some(ServerType::Unknown)).await;
    client.run(Operation::write("test", &write)).await.unwrap();
    let status = client.status();
    let of_killed = status.servers.iter().find(|server| *server.address == *address).unwrap();
    assert_eq!((of_killed.server_type, status.topology_type), ("Unknown", "ReplicaSetWithPrimary"));
    assert!(of_killed.error.is_some() && of_killed.average_round_trip_time.is_none());
    // The killed server's pool keeps its counts.
    let metrics = client.metrics();
    let addresses = |names: Vec<String>| names.into_iter().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        addresses(metrics.iter().map(|pool| pool.address.to_string()).collect()),
        addresses(set.addresses().iter().map(ToString::to_string).collect())
    );
    let of_killed = metrics.iter().find(|pool| *pool.address == *address).unwrap();
    assert!(of_killed.check_outs.wait_time().count() > 0 && of_killed.clears > 0, "{of_killed:?}");

    // A hanging server is detected by the time limit of its check, and the operations on it are interrupted.
    let survivor = set.primary().unwrap().unwrap();
    let (client, events) = client_of(&set.uri(), |options| {
        options.connect_timeout(Duration::from_millis(1000)).heartbeat_frequency(Duration::from_millis(500))
    });
    client.run(Operation::write("test", &write)).await.unwrap();
    let mark = events.mark();
    set.stop_process(survivor).unwrap();
    let begun = Instant::now();
    // A command may still succeed before the signal arrives.
    let failed = loop {
        if let Err(failed) = client.run_command("admin", &rawdoc! { "ping": 1 }).await {
            break failed;
        }
    };
    assert!(begun.elapsed() < Duration::from_secs(20), "{failed}");
    assert!(failed.to_string().contains("interrupt"), "{failed}");
    let failure =
        events.after(mark, |event| matches!(event, TopologyEvent::ServerHeartbeatFailed { awaited: true, .. })).await;
    let TopologyEvent::ServerHeartbeatFailed { failure, .. } = failure else { panic!() };
    assert_eq!(failure.to_string(), "the server did not answer a check within 1500 ms");
    set.continue_process(survivor).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_leave_and_join_are_followed() {
    let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
    let (events, closed_pools) = (Events::default(), Arc::<Mutex<Vec<String>>>::default());
    let noted = closed_pools.clone();
    let client = Client::builder(Options::parse(&set.uri()).unwrap())
        .topology_subscriber(events.clone())
        .subscriber(move |event: &PoolEvent| {
            if let PoolEvent::PoolClosed { address, .. } = event {
                noted.lock().unwrap().push(address.to_string());
            }
        })
        .build()
        .unwrap();
    let primary = set.primary().unwrap().unwrap();
    let address = set.addresses()[(primary + 1) % 3].to_string();
    client.connect().await.unwrap();
    events.after(0, |event| becomes(event, &address) == Some(ServerType::RsSecondary)).await;
    // Changes the members, and returns the previous members.
    let reconfigure = async |change: Box<dyn Fn(Vec<Bson>) -> Vec<Bson> + Send>| {
        let set = set.clone();
        blocking(move || {
            let reply = set.command(primary, "admin", &rawdoc! { "replSetGetConfig": 1 }).unwrap();
            let mut config: Document = reply.get_document("config").unwrap().try_into().unwrap();
            let version = config.get_i32("version").unwrap();
            let members = config.get_array("members").unwrap().clone();
            config.insert("version", version + 1);
            config.insert("members", change(members.clone()));
            let command = RawDocumentBuf::try_from(doc! { "replSetReconfig": config }).unwrap();
            set.command(primary, "admin", &command).unwrap();
            members
        })
        .await
    };
    let (mark, gone) = (events.mark(), address.clone());
    let is_kept = move |member: &Bson| member.as_document().unwrap().get_str("host").unwrap() != gone;
    let all =
        reconfigure(Box::new(move |members| members.into_iter().filter(|member| is_kept(member)).collect())).await;
    events.after(mark, |event| event.name() == "ServerClosed" && event.address() == Some(&address)).await;
    let has_it = || client.status().servers.iter().any(|server| *server.address == *address);
    assert!(!has_it(), "{client:?}");
    let mark = events.mark();
    reconfigure(Box::new(move |_| all.clone())).await;
    events.after(mark, |event| event.name() == "ServerOpening" && event.address() == Some(&address)).await;
    events.after(mark, |event| becomes(event, &address) == Some(ServerType::RsSecondary)).await;
    assert!(has_it(), "{client:?}");
    assert_eq!(*closed_pools.lock().unwrap(), [address]);
}
