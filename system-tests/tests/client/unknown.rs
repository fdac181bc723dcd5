//! Servers that become unknown, and how their monitors continue, in virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use bson::{doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::client::{ServerType, TopologyEvent, TopologySubscriber};
use wharf::{Client, Options};
use wharf_testbed::scripted::{Answer, name};

use super::events::Events;
use super::scripted::{Server, close, is_awaitable, is_handshake, is_hello, member, standalone};

fn after(milliseconds: u64, answer: Answer) -> Answer {
    Answer::After(Duration::from_millis(milliseconds), Box::new(answer))
}

/// Returns the server's new type, if the event says that it changed.
fn becomes(server_type: ServerType) -> impl Fn(&TopologyEvent) -> bool {
    move |event| matches!(event, TopologyEvent::ServerDescriptionChanged { new, .. } if new.server_type() == server_type)
}

#[tokio::test(start_paused = true)]
async fn average_round_trip_time_begins_anew_after_an_operation_made_the_server_unknown() {
    let is_fast = Arc::new(AtomicBool::new(false));
    let of_script = is_fast.clone();
    let server = Server::start(move |command, _| match (is_hello(command), of_script.load(Ordering::Relaxed)) {
        (true, true) => Answer::Reply(standalone()),
        (true, false) => after(300, Answer::Reply(standalone())),
        (false, true) => Answer::Reply(doc! { "ok": 1 }),
        (false, false) => {
            of_script.store(true, Ordering::Relaxed);
            Answer::Close
        }
    })
    .await;
    let (client, _) = server.client("serverMonitoringMode=poll");
    let average = || client.status().servers[0].average_round_trip_time;
    client.connect().await.unwrap();
    assert!(average().unwrap() >= Duration::from_millis(300));
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert_eq!(average(), None);
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    // This is the first sample since the server became unknown. A fifth of it plus four fifths of the old average would
    // be at least 240 ms.
    assert!(average().unwrap() < Duration::from_millis(100), "{:?}", average());
}

#[tokio::test(start_paused = true)]
async fn round_trip_of_a_streaming_server_is_measured_at_once_when_it_is_known_again() {
    let server = Server::start(|command, number| match name(command).as_str() {
        "ping" => Answer::Reply(doc! { "ok": 0, "code": 10107, "errmsg": "not primary" }),
        // The server reports its new role a second later.
        _ if is_awaitable(command) && number == 0 => after(1_000, Answer::More(member("secondary", 2))),
        _ if is_awaitable(command) => Answer::Hang,
        // The handshakes of the monitor, the pool and the round-trip measurements.
        _ if number < 3 => after(300, Answer::Reply(member("isWritablePrimary", 1))),
        _ => Answer::Reply(member("isWritablePrimary", 1)),
    })
    .await;
    let (client, events) = server.client("directConnection=true&serverMonitoringMode=stream&retryReads=false");
    client.connect().await.unwrap();
    let mark = events.mark();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    events.after(mark, becomes(ServerType::Unknown)).await;
    let known = events.after(mark, becomes(ServerType::RsSecondary)).await;
    let TopologyEvent::ServerDescriptionChanged { new, .. } = known else { panic!() };
    assert_eq!(new.average_round_trip_time(), None, "a streamed reply is no round trip");
    let begun = Instant::now();
    let arrived = server.server.commands().len();
    server.server.until(arrived + 1).await;
    let average = loop {
        match client.status().servers[0].average_round_trip_time {
            Some(average) => break average,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(average < Duration::from_millis(100) && begun.elapsed() < Duration::from_secs(1), "{average:?}");
}

/// Returns a client that polls every ten seconds. Six seconds after the first check, an operation lost its connection.
async fn lost_in_a_pause() -> (Server, Client, Events) {
    let server = Server::start(|command, number| match name(command).as_str() {
        "ping" if number == 0 => Answer::Close,
        _ => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll&heartbeatFrequencyMS=10000");
    client.connect().await.unwrap();
    sleep(Duration::from_secs(6)).await;
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    (server, client, events)
}

#[tokio::test(start_paused = true)]
async fn lost_connection_does_not_put_off_the_next_periodic_check() {
    let (server, client, _) = lost_in_a_pause().await;
    sleep(Duration::from_secs(9)).await;
    let times = server.times(is_hello);
    // The monitor's hello, the pool's hello, and the monitor's hello on a new connection.
    assert!(close(&times, &[0, 6_000, 10_000]), "{times:?}");
    assert_eq!(client.status().servers[0].server_type, "Standalone");
}

#[tokio::test(start_paused = true)]
async fn lost_connection_does_not_put_off_a_requested_check() {
    let (server, client, events) = lost_in_a_pause().await;
    let begun = Instant::now();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    // The last check finished six seconds earlier.
    assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
    assert_eq!((server.times(is_handshake).len(), events.count("ServerHeartbeatFailed")), (4, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_that_fails_together_with_a_check_does_not_cancel_the_next_one() {
    let (close_ping, ping_may_close) = mpsc::channel();
    let (arrive, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let ping_may_close = Arc::new(Mutex::new(ping_may_close));
    let server = Server::start(move |command, number| match name(command).as_str() {
        "ping" => {
            arrive.send(()).unwrap();
            tokio::task::block_in_place(|| ping_may_close.lock().unwrap().recv().unwrap());
            Answer::Close
        }
        // The check after the handshakes of the monitor and the pool.
        _ if number == 2 => Answer::Close,
        _ => Answer::Reply(standalone()),
    })
    .await;
    let options = format!("mongodb://{}/?serverMonitoringMode=poll&heartbeatFrequencyMS=500", server.server.address());
    let (events, present) = (Events::default(), Arc::new(OnceLock::<Client>::new()));
    let (noted, of_subscriber) = (events.clone(), present.clone());
    let client =
        Client::builder(Options::parse(&options).unwrap()).topology_subscriber(move |event: &TopologyEvent| {
            noted.on_event(event);
            if event.name() != "ServerHeartbeatFailed" || noted.count("ServerHeartbeatFailed") > 1 {
                return;
            }
            // The check has failed, but its failure has not been applied yet.
            close_ping.send(()).unwrap();
            let client = of_subscriber.get().unwrap();
            tokio::task::block_in_place(|| {
                while client.status().servers[0].server_type != "Unknown" {
                    std::thread::yield_now();
                }
            });
        });
    let client = present.get_or_init(|| client.build().unwrap());
    let ping = tokio::spawn({
        let client = client.clone();
        async move { client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err() }
    });
    arrived.recv().await.unwrap();
    events.after(0, |event| event.name() == "ServerHeartbeatFailed").await;
    ping.await.unwrap();
    let is_over = |event: &TopologyEvent| event.name() == "ServerHeartbeatSucceeded";
    let failed = events.all().iter().position(|event| event.name() == "ServerHeartbeatFailed").unwrap();
    events.after(failed, is_over).await;
    assert_eq!(events.count("ServerHeartbeatFailed"), 1, "{:#?}", events.all());
    client.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn connection_that_an_overloaded_server_refuses_asks_for_no_check() {
    let server = Server::start(|command, number| match is_hello(command) && number > 0 {
        true => Answer::Close,
        false => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll&heartbeatFrequencyMS=60000");
    client.connect().await.unwrap();
    let refused = client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(refused.has_label("SystemOverloadedError"), "{refused}");
    sleep(Duration::from_secs(50)).await;
    assert_eq!(events.count("ServerHeartbeatStarted"), 1);
    assert_eq!(client.status().servers[0].server_type, "Standalone");
}

#[tokio::test(start_paused = true)]
async fn state_change_during_a_check_is_met_by_its_end() {
    let server = Server::start(|command, number| match (is_hello(command), number) {
        (true, 1) => after(2_000, Answer::Reply(standalone())),
        (true, _) => Answer::Reply(standalone()),
        (false, _) => Answer::Reply(doc! { "ok": 0, "code": 10107, "errmsg": "not primary" }),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll&heartbeatFrequencyMS=10000");
    client.connect().await.unwrap();
    sleep(Duration::from_secs(11)).await;
    let mark = events.mark();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    events.after(mark, becomes(ServerType::Unknown)).await;
    events.after(mark, becomes(ServerType::Standalone)).await;
    sleep(Duration::from_secs(9)).await;
    // The monitor's two checks, and the pool's handshake during the second.
    let times = server.times(is_hello);
    assert!(close(&times, &[0, 10_000, 11_000]), "{times:?}");
}

/// Returns the number of heartbeats, and how many times the server became unknown without a failed heartbeat.
fn heartbeats(events: &Events) -> (usize, usize) {
    let (mut is_reported, mut unreported) = (false, 0);
    for event in events.all() {
        match &event {
            TopologyEvent::ServerHeartbeatFailed { .. } => is_reported = true,
            TopologyEvent::ServerHeartbeatStarted { .. } => is_reported = false,
            _ if becomes(ServerType::Unknown)(&event) && !is_reported => unreported += 1,
            _ => {}
        }
    }
    (events.count("ServerHeartbeatStarted"), unreported)
}

#[tokio::test(start_paused = true)]
async fn server_that_ends_each_awaited_check_at_once_is_checked_twice_a_second() {
    for (what, awaited) in [
        ("closes", (|| Answer::Close) as fn() -> Answer),
        ("does not wait", || Answer::Reply(member("isWritablePrimary", 1))),
        ("pushes", || after(50, Answer::More(member("isWritablePrimary", 1)))),
    ] {
        let server = Server::start(move |command, _| match is_awaitable(command) {
            true => awaited(),
            false => Answer::Reply(member("isWritablePrimary", 1)),
        })
        .await;
        let (client, events) = server.client("directConnection=true");
        client.connect().await.unwrap();
        sleep(Duration::from_secs(20)).await;
        let (started, unreported) = heartbeats(&events);
        // Two heartbeats per second, and ten at the start.
        assert!((40..=52).contains(&started), "{what}: {started} heartbeats");
        assert_eq!(unreported, 0, "{what}: {:#?}", events.all());
        client.shutdown(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn few_changes_in_a_row_are_followed_at_once() {
    let server = Server::start(|command, number| match is_awaitable(command) {
        true if number == 0 => Answer::More(member("secondary", 2)),
        true if number < 6 => {
            Answer::More(member(if number % 2 == 0 { "secondary" } else { "isWritablePrimary" }, 2 + number as i64))
        }
        true => Answer::Hang,
        false => Answer::Reply(member("isWritablePrimary", 1)),
    })
    .await;
    let begun = Instant::now();
    let (client, events) = server.client("directConnection=true");
    client.connect().await.unwrap();
    let is_last = |event: &TopologyEvent| {
        matches!(event, TopologyEvent::ServerHeartbeatSucceeded { reply, .. }
            if reply.get_document("topologyVersion").is_ok_and(|version| version.get_i64("counter").is_ok_and(|counter| counter == 7)))
    };
    events.after(0, is_last).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}
