//! What the Server Discovery and Monitoring specification requires of checks, errors and waiting operations, in virtual
//! time.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bson::{doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::client::{ServerType, TopologyEvent};
use wharf::{Client, Options, PoolEvent};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::{Cluster, ok};
use super::events::Events;
use super::scripted::{Server, close, is_awaitable, is_handshake, is_hello, member, standalone};

#[tokio::test(start_paused = true)]
async fn operation_that_waits_for_a_primary_does_not_wait_for_the_other_servers() {
    let addresses = Arc::new(OnceLock::<[String; 2]>::new());
    let of_script = addresses.clone();
    let silent = Server::start(|_, _| Answer::Hang).await;
    let primary = Server::start(move |command, _| {
        let mut reply = member("isWritablePrimary", 1);
        reply.insert("hosts", of_script.get().unwrap().to_vec());
        // Long enough for the other server's check to begin. That check never completes.
        match is_awaitable(command) {
            true => Answer::Hang,
            false => Answer::After(Duration::from_millis(300), Box::new(Answer::Reply(reply))),
        }
    })
    .await;
    addresses.set([silent.server.address(), primary.server.address()]).unwrap();
    let uri = format!("mongodb://{},{}/?replicaSet=rs", silent.server.address(), primary.server.address());
    let client = Client::from_uri(&uri).unwrap();
    let begun = Instant::now();
    client.connect().await.unwrap();
    assert!(begun.elapsed().as_millis().abs_diff(300) < 20, "{:?}", begun.elapsed());
    assert_eq!(silent.times(is_hello).len(), 1, "its check is in progress");
    let status = client.status();
    let found = status.servers.iter().find(|server| *server.address.to_string() == silent.server.address()).unwrap();
    assert_eq!((found.server_type, &found.error), ("Unknown", &None));
}

#[tokio::test(start_paused = true)]
async fn error_of_a_connection_older_than_the_last_clear_changes_nothing() {
    let server = Server::start(|command, number| match name(command).as_str() {
        // Both connections are in use at the same time, and are lost one after the other.
        "ping" if number < 2 => Answer::After(Duration::from_secs(1 + 2 * number as u64), Box::new(Answer::Close)),
        _ => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll&heartbeatFrequencyMS=60000");
    client.connect().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let later = async {
        sleep(Duration::from_secs(2)).await;
        client.run_command("admin", &ping).await.unwrap();
        let status = client.status();
        assert_eq!(
            (status.servers[0].server_type, status.servers[0].pool.as_ref().unwrap().generation),
            ("Standalone", 1)
        );
        events.mark()
    };
    let (first, second, mark) =
        tokio::join!(client.run_command("admin", &ping), client.run_command("admin", &ping), later);
    first.unwrap_err();
    second.unwrap_err();
    // The pool and the description already reflect the check that followed the first error.
    let status = client.status();
    assert_eq!((status.servers[0].server_type, status.servers[0].pool.as_ref().unwrap().generation), ("Standalone", 1));
    assert_eq!(events.mark(), mark, "{:#?}", &events.all()[mark..]);
}

/// "connectTimeoutMS=0": the timeout for a streamed reply "MUST remain unlimited".
#[tokio::test(start_paused = true)]
async fn awaited_check_has_no_time_limit_if_connections_have_none() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = Server::start(|command, number| match is_awaitable(command) {
        true if number == 0 => Answer::After(HOUR, Box::new(Answer::More(member("isWritablePrimary", 2)))),
        true => Answer::Hang,
        false => Answer::Reply(member("isWritablePrimary", 1)),
    })
    .await;
    let (client, events) = server.client("directConnection=true&serverMonitoringMode=stream&connectTimeoutMS=0");
    client.connect().await.unwrap();
    events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
    sleep(HOUR - Duration::from_secs(10)).await;
    assert_eq!((events.count("ServerHeartbeatStarted"), events.count("ServerHeartbeatSucceeded")), (2, 1));
    let mark = events.mark();
    let is_awaited =
        |event: &TopologyEvent| matches!(event, TopologyEvent::ServerHeartbeatSucceeded { awaited: true, .. });
    events.after(mark, is_awaited).await;
    assert_eq!(events.count("ServerHeartbeatFailed"), 0);
    // There is only one awaited request, on the first connection. The second connection measures round trips.
    assert_eq!(server.server.commands().iter().filter(|command| is_awaitable(command)).count(), 1);
    assert_eq!(server.times(is_handshake).len(), 2);
}

/// "Errors encountered when running a hello or legacy hello command MUST NOT update the topology" ("Measuring RTT").
#[tokio::test(start_paused = true)]
async fn failed_measurement_of_a_round_trip_changes_nothing_and_is_repeated() {
    let server = Server::start(|command, number| match (is_awaitable(command), number) {
        (true, _) => Answer::Hang,
        // The monitor's handshake comes first. A handshake for round trips follows, and then one hello after another.
        (false, 1 | 3) => Answer::Close,
        (false, _) => Answer::Reply(member("isWritablePrimary", 1)),
    })
    .await;
    let (client, events) = server.client("directConnection=true&serverMonitoringMode=stream&connectTimeoutMS=100000");
    client.connect().await.unwrap();
    events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
    let mark = events.mark();
    sleep(Duration::from_secs(35)).await;
    assert_eq!(events.mark(), mark, "{:#?}", &events.all()[mark..]);
    let status = client.status();
    assert_eq!((status.servers[0].server_type, status.servers[0].pool.as_ref().unwrap().generation), ("RSPrimary", 0));
    let times = server.times(|command| is_hello(command) && !is_awaitable(command));
    assert!(close(&times, &[0, 0, 10_000, 20_000, 30_000]), "{times:?}");
    let times = server.times(is_handshake);
    assert!(close(&times, &[0, 0, 10_000, 30_000]), "{times:?}");
}

/// The test plan, "Connection Pool Backpressure": the server accepts the pool's first 20 connections, and closes the
/// others during the handshake, as a real server's rate limiter does.
#[tokio::test(start_paused = true)]
async fn server_that_accepts_few_connections_at_a_time_does_not_clear_the_pool() {
    const AT_ONCE: usize = 20;
    let of_pool = Arc::new(Mutex::new(0));
    let accepted = of_pool.clone();
    let server = Server::start(move |command, _| {
        // These are the pool's attempts, not the monitor's.
        if is_handshake(command) && command.contains_key("backpressure") {
            let mut accepted = accepted.lock().unwrap();
            *accepted += 1;
            if *accepted > AT_ONCE {
                return Answer::Close;
            }
        }
        match name(command).as_str() {
            // "function() { sleep(2000); return true; }"
            "find" => Answer::After(Duration::from_secs(2), Box::new(Answer::Reply(standalone()))),
            _ => Answer::Reply(standalone()),
        }
    })
    .await;
    let pool = Arc::<Mutex<Vec<&'static str>>>::default();
    let (events, noted) = (Events::default(), pool.clone());
    let uri =
        format!("mongodb://{}/?maxConnecting=100&retryReads=false&serverMonitoringMode=poll", server.server.address());
    let client = Client::builder(Options::parse(&uri).unwrap())
        .subscriber(move |event: &PoolEvent| noted.lock().unwrap().push(event.name()))
        .topology_subscriber(events.clone())
        .build()
        .unwrap();
    client.connect().await.unwrap();
    let changes = events.count("ServerDescriptionChanged");
    let finds: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.run_command("test", &rawdoc! { "find": "test" }).await.is_ok() })
        })
        .collect();
    let mut found = 0;
    for find in finds {
        found += usize::from(find.await.unwrap());
    }
    let count = |wanted| pool.lock().unwrap().iter().filter(|name| **name == wanted).count();
    assert!(count("ConnectionCheckOutFailed") >= 10, "{}", count("ConnectionCheckOutFailed"));
    assert_eq!(count("PoolCleared"), 0);
    assert_eq!(found + count("ConnectionCheckOutFailed"), 100, "each other one has a connection");
    assert_eq!(events.count("ServerDescriptionChanged"), changes, "the server stays known");
}

/// Makes the assertions from the unified files `logging-sharded` and `sharded-emit-topology-changed-before-close`.
/// Those tests require a real sharded cluster, which the testbed lacks.
#[tokio::test(start_paused = true)]
async fn events_of_a_sharded_topology_are_in_order() {
    let cluster = Cluster::of_mongos(2, |_, _, _| ok()).await;
    let hosts: Vec<_> = cluster.servers.iter().map(|server| server.address()).collect();
    let (client, _, events) =
        super::cluster::client(&format!("mongodb://{}/?serverMonitoringMode=poll", hosts.join(",")));
    client.connect().await.unwrap();
    let are_known = |event: &TopologyEvent| match event {
        TopologyEvent::TopologyDescriptionChanged { new, .. } => {
            new.servers().all(|server| server.server_type().name() == "Mongos")
        }
        _ => false,
    };
    events.after(2, are_known).await;
    assert!(client.shutdown(Duration::from_secs(1)).await);
    let told: Vec<_> = events
        .all()
        .iter()
        .filter_map(|event| match event {
            TopologyEvent::TopologyDescriptionChanged { previous, new, .. } => {
                let types = [previous, new].map(|topology| topology.topology_type().name());
                Some(format!("{} from {} to {}", event.name(), types[0], types[1]))
            }
            TopologyEvent::ServerDescriptionChanged { previous, new, .. } => {
                let types = [previous, new].map(|server| server.server_type().name());
                Some(format!("{} from {} to {}", event.name(), types[0], types[1]))
            }
            event if event.name().starts_with("ServerHeartbeat") => None,
            event => Some(event.name().to_owned()),
        })
        .collect();
    let expected = [
        "TopologyOpening",
        "TopologyDescriptionChanged from Unknown to Unknown",
        "ServerOpening",
        "ServerOpening",
        "ServerDescriptionChanged from Unknown to Mongos",
        "TopologyDescriptionChanged from Unknown to Sharded",
        "ServerDescriptionChanged from Unknown to Mongos",
        "TopologyDescriptionChanged from Sharded to Sharded",
        "ServerClosed",
        "ServerClosed",
        "TopologyDescriptionChanged from Sharded to Unknown",
        "TopologyClosed",
    ];
    assert_eq!(told, expected);
}

/// "When a client successfully calls hello or legacy hello to handshake a new connection for application operations, it
/// SHOULD use the hello or legacy hello reply to update the ServerDescription and TopologyDescription".
#[tokio::test(start_paused = true)]
async fn handshake_of_a_pool_tells_of_a_new_member_before_the_next_check() {
    let hosts = Arc::new(OnceLock::<[String; 2]>::new());
    let of_script = hosts.clone();
    let new = Server::start(move |_, _| {
        let mut reply = member("secondary", 1);
        reply.insert("hosts", of_script.get().unwrap().to_vec());
        Answer::Reply(reply)
    })
    .await;
    let of_script = hosts.clone();
    let primary = Server::start(move |command, number| {
        let (mut before, mut since) = (member("isWritablePrimary", 1), member("isWritablePrimary", 2));
        before.insert("hosts", of_script.get().unwrap()[..1].to_vec());
        since.insert("hosts", of_script.get().unwrap().to_vec());
        Answer::Reply(match is_hello(command) {
            // The only check comes first, and then the pool's handshake.
            true if number == 0 => before,
            true => since,
            false => doc! { "ok": 1 },
        })
    })
    .await;
    hosts.set([primary.server.address(), new.server.address()]).unwrap();
    let (client, events) = primary.client("replicaSet=rs&serverMonitoringMode=poll&heartbeatFrequencyMS=60000");
    let begun = Instant::now();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let is_found = |event: &TopologyEvent| match event {
        TopologyEvent::ServerDescriptionChanged { address, new: found, .. } => {
            **address == *new.server.address() && found.server_type() == ServerType::RsSecondary
        }
        _ => false,
    };
    events.after(0, is_found).await;
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
    assert_eq!(primary.times(is_hello).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn handshake_of_a_pool_changes_nothing_unless_it_is_newer_than_the_last_check() {
    for (counter, expected) in
        [(Some(4), "RSPrimary"), (Some(5), "RSPrimary"), (Some(6), "RSSecondary"), (None, "RSSecondary")]
    {
        let server = Server::start(move |command, number| {
            let mut reply = member("secondary", counter.unwrap_or_default());
            if counter.is_none() {
                reply.remove("topologyVersion");
            }
            Answer::Reply(match is_hello(command) {
                true if number == 0 => member("isWritablePrimary", 5),
                true => reply,
                false => doc! { "ok": 1 },
            })
        })
        .await;
        let (client, _) = server.client("directConnection=true&serverMonitoringMode=poll&heartbeatFrequencyMS=60000");
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        assert_eq!(client.status().servers[0].server_type, expected, "{counter:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handshake_of_a_connection_older_than_the_last_clear_changes_nothing() {
    let mut other = standalone();
    other.extend(doc! { "setName": "rs", "secondary": true, "isWritablePrimary": false });
    let server = Server::start(move |command, number| match (name(command).as_str(), number) {
        ("ping", 0) => Answer::After(Duration::from_secs(1), Box::new(Answer::Close)),
        ("ping", _) => ok(),
        // This handshake follows a check and the handshake of the lost connection.
        (_, 2) => Answer::After(Duration::from_secs(3), Box::new(Answer::Reply(other.clone()))),
        _ => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("directConnection=true&serverMonitoringMode=poll&heartbeatFrequencyMS=60000");
    client.connect().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let later = async {
        sleep(Duration::from_secs(2)).await;
        client.connect().await.unwrap();
        assert_eq!(client.status().servers[0].server_type, "Standalone");
        let mark = events.mark();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(events.mark(), mark, "{:#?}", &events.all()[mark..]);
    };
    let (first, second, ()) =
        tokio::join!(client.run_command("admin", &ping), client.run_command("admin", &ping), later);
    assert!(first.is_err() || second.is_err(), "no connection was lost, so the pool was not cleared");
    // The check, both connections, and the connection that replaces the late one.
    assert_eq!(server.times(is_handshake).len(), 4);
    assert_eq!(client.status().servers[0].server_type, "Standalone");
}
