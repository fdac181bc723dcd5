//! Monitors against servers that follow scripts, in virtual time.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Document, doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::client::{CommandEvent, ServerType, TopologyEvent};
use wharf::{Client, ClientError, Operation, Options, ReadPreference, ReadPreferenceMode};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::events::Events;

/// Returns the `hello` reply of a standalone server.
pub(super) fn standalone() -> Document {
    doc! { "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21 }
}

/// Returns the `hello` reply of a replica set member in this state.
pub(super) fn member(field: &str, counter: i64) -> Document {
    doc! {
        "ok": 1, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21, "setName": "rs", field: true,
        "topologyVersion": { "processId": ObjectId::from_bytes([7; 12]), "counter": counter },
    }
}

pub(super) fn is_hello(command: &Document) -> bool {
    matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster")
}

pub(super) fn is_handshake(command: &Document) -> bool {
    is_hello(command) && command.contains_key("client")
}

/// Returns whether this is a hello that the server may answer with a delay.
pub(super) fn is_awaitable(command: &Document) -> bool {
    command.contains_key("maxAwaitTimeMS")
}

/// A server, and the virtual times at which it received commands.
pub(super) struct Server {
    pub(super) server: ScriptedServer,
    arrivals: Arc<Mutex<Vec<(Duration, Document)>>>,
}

impl Server {
    /// Starts a server. `answer` receives each command, and the command's number among the commands of its kind on all
    /// connections, counted from 0. A hello that may be answered with a delay is a separate kind.
    pub(super) async fn start(answer: impl Fn(&Document, usize) -> Answer + Clone + Send + 'static) -> Self {
        let arrivals = Arc::<Mutex<Vec<(Duration, Document)>>>::default();
        let (start, noted) = (Instant::now(), arrivals.clone());
        let server = ScriptedServer::start(move || {
            let (noted, answer) = (noted.clone(), answer.clone());
            Box::new(move |command: &Document| {
                let mut noted = noted.lock().unwrap();
                let kind = |command: &Document| match is_hello(command) {
                    true => ("hello".to_owned(), is_awaitable(command)),
                    false => (name(command), false),
                };
                let is_same_kind = |(_, other): &&(Duration, Document)| kind(other) == kind(command);
                let number = noted.iter().filter(is_same_kind).count();
                noted.push((start.elapsed(), command.clone()));
                drop(noted);
                answer(command, number)
            })
        });
        Self { server: server.await.unwrap(), arrivals }
    }

    /// Returns when the matching commands arrived, in milliseconds.
    pub(super) fn times(&self, is_it: impl Fn(&Document) -> bool) -> Vec<u128> {
        let arrivals = self.arrivals.lock().unwrap();
        arrivals.iter().filter(|(_, command)| is_it(command)).map(|(time, _)| time.as_millis()).collect()
    }

    pub(super) fn client(&self, parameters: &str) -> (Client, Events) {
        let events = Events::default();
        let options = Options::parse(&format!("mongodb://{}/?{parameters}", self.server.address())).unwrap();
        (Client::builder(options).topology_subscriber(events.clone()).build().unwrap(), events)
    }
}

pub(super) fn write() -> bson::RawDocumentBuf {
    rawdoc! { "insert": "things", "documents": [{ "a": 1 }] }
}

pub(super) fn close(times: &[u128], expected: &[u128]) -> bool {
    times.len() == expected.len() && times.iter().zip(expected).all(|(time, expected)| time.abs_diff(*expected) < 20)
}

#[tokio::test(start_paused = true)]
async fn requested_checks_keep_half_a_second_apart_and_end_with_the_request() {
    let server = Server::start(|_, _| Answer::Reply(member("secondary", 1))).await;
    let parameters =
        "replicaSet=rs&serverMonitoringMode=poll&heartbeatFrequencyMS=100000&serverSelectionTimeoutMS=1800";
    let (client, _) = server.client(parameters);
    let refused = client.run(Operation::write("test", &write())).await.unwrap_err();
    assert!(matches!(refused, ClientError::Selection(_)), "{refused}");
    sleep(Duration::from_secs(50)).await;
    // The last check was requested just before the time ran out.
    let times = server.times(is_hello);
    assert!(close(&times, &[0, 500, 1000, 1500, 2000]), "{times:?}");
    // All checks use the first check's connection.
    assert_eq!(server.times(is_handshake).len(), 1);
    sleep(Duration::from_secs(55)).await;
    let times = server.times(is_hello);
    assert!(close(&times[5..], &[102_000]), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn error_names_the_server_that_is_none_of_the_deployment() {
    let of_set = || Server::start(|_, _| Answer::Reply(member("isWritablePrimary", 1)));
    let alone = || Server::start(|_, _| Answer::Reply(standalone()));
    let parameters = "replicaSet=other&serverSelectionTimeoutMS=100";
    for (server, reason) in [
        (of_set().await, r#"it belongs to the replica set "rs", but replicaSet is "other""#),
        (alone().await, r#"it belongs to no replica set, but replicaSet is "other""#),
    ] {
        let (client, _) = server.client(parameters);
        let error = client.connect().await.unwrap_err().to_string();
        let left_out = format!("without servers; {} is left out: {reason}", server.server.address());
        assert!(error.ends_with(&left_out), "{error}");
    }
    let (first, second) = (alone().await, alone().await);
    let uri = format!("mongodb://{},{}/?serverSelectionTimeoutMS=100", first.server.address(), second.server.address());
    let error = Client::from_uri(&uri).unwrap().connect().await.unwrap_err().to_string();
    assert!(error.ends_with("it is a standalone server, and there are several hosts"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn request_during_a_check_is_met_by_its_end() {
    let server = Server::start(|_, number| {
        let reply = Answer::Reply(member("secondary", 1));
        if number == 1 { Answer::After(Duration::from_secs(2), Box::new(reply)) } else { reply }
    })
    .await;
    let parameters = "replicaSet=rs&serverMonitoringMode=poll&heartbeatFrequencyMS=30000&serverSelectionTimeoutMS=1000";
    let (client, _) = server.client(parameters);
    client.run(Operation::read("test", &rawdoc! { "ping": 1 })).await.unwrap_err();
    // The operation requested a check while another check was in progress, and finished before that check completed.
    sleep(Duration::from_secs(20)).await;
    let times = server.times(is_hello);
    assert!(close(&times, &[0, 500]), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_check_of_a_known_server_is_repeated_once_without_a_pause() {
    let server = Server::start(|_, number| match number {
        // The second check of the first connection, and the handshake of the second connection.
        1 | 2 => Answer::Close,
        _ => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll");
    client.connect().await.unwrap();
    sleep(Duration::from_secs(25)).await;
    let times = server.times(is_hello);
    assert!(close(&times, &[0, 10_000, 10_000, 20_000]), "{times:?}");
    assert_eq!((events.count("ServerHeartbeatFailed"), events.count("ServerHeartbeatStarted")), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn refused_check_clears_the_pool_and_pauses() {
    let server = Server::start(|command, number| match is_hello(command) && !is_handshake(command) && number > 0 {
        true => Answer::Reply(doc! { "ok": 0, "code": 1, "errmsg": "not now" }),
        false => Answer::Reply(standalone()),
    })
    .await;
    let (client, events) = server.client("serverMonitoringMode=poll");
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert_eq!(client.status().servers[0].pool.as_ref().unwrap().generation, 0);
    let failed = events.after(0, |event| event.name() == "ServerHeartbeatFailed").await;
    assert!(matches!(failed, TopologyEvent::ServerHeartbeatFailed { awaited: false, .. }));
    sleep(Duration::from_secs(1)).await;
    let status = client.status();
    assert_eq!((status.servers[0].server_type, status.servers[0].pool.as_ref().unwrap().generation), ("Unknown", 1));
    assert!(status.servers[0].error.as_ref().unwrap().contains("not now"));
    sleep(Duration::from_secs(12)).await;
    let times = server.times(|command| is_hello(command) && !command.contains_key("backpressure"));
    assert!(close(&times, &[10_000]), "{times:?}");
    // The next check opens a connection: the earlier connections belonged to the monitor and the pool.
    let times = server.times(is_handshake);
    assert!(close(&times, &[0, 0, 20_000]), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn streamed_replies_change_the_description_at_once_and_are_no_round_trips() {
    let server = Server::start(|command, number| match is_awaitable(command) {
        // The server becomes the primary after three seconds, and a secondary after three more.
        true if number < 2 => {
            let role = ["isWritablePrimary", "secondary"][number];
            let reply = Answer::More(member(role, number as i64 + 2));
            Answer::After(Duration::from_secs(3), Box::new(reply))
        }
        true => Answer::Hang,
        false => Answer::Reply(member("secondary", 1)),
    })
    .await;
    let address = server.server.address();
    let (client, events) = server.client("directConnection=true&replicaSet=rs&serverMonitoringMode=stream");
    client.connect().await.unwrap();
    let start = Instant::now();
    let becomes = |role| move |event: &TopologyEvent| matches!(event, TopologyEvent::ServerDescriptionChanged { new, .. } if new.server_type() == role);
    events.after(0, becomes(ServerType::RsPrimary)).await;
    assert!(start.elapsed().as_millis().abs_diff(3000) < 20, "{:?}", start.elapsed());
    let mark = events.mark();
    events.after(mark, becomes(ServerType::RsSecondary)).await;
    assert!(start.elapsed().as_millis().abs_diff(6000) < 20, "{:?}", start.elapsed());
    assert!(client.status().servers[0].average_round_trip_time.unwrap() < Duration::from_millis(100));
    sleep(Duration::from_secs(15)).await;
    // One request receives all replies, and is passed to the script once for each reply. Round trips are measured every
    // ten seconds on a second connection.
    assert_eq!(server.times(|command| is_awaitable(command) && command.contains_key("topologyVersion")).len(), 3);
    assert_eq!(server.times(is_handshake).len(), 2, "{address}");
    let pings = server.times(|command| is_hello(command) && !is_handshake(command) && !is_awaitable(command));
    assert!(close(&pings, &[10_000, 20_000]), "{pings:?}");
}

#[tokio::test(start_paused = true)]
async fn lost_connection_of_an_operation_cancels_the_check() {
    let server = Server::start(|command, number| match name(command).as_str() {
        "ping" if number == 0 => Answer::Close,
        _ if is_awaitable(command) => Answer::Hang,
        _ => Answer::Reply(member("isWritablePrimary", 1)),
    })
    .await;
    let (client, events) = server.client("directConnection=true&serverMonitoringMode=stream");
    client.connect().await.unwrap();
    events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
    let mark = events.mark();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    let failed = events.after(mark, |event| event.name() == "ServerHeartbeatFailed").await;
    let TopologyEvent::ServerHeartbeatFailed { awaited: true, failure, .. } = failed else { panic!("{failed:?}") };
    assert_eq!(failure.to_string(), "the check of the server was cancelled");
    assert_eq!(client.status().servers[0].server_type, "Unknown");
    // Nothing requests a check until the next operation, so the server is not checked before then.
    let before = server.times(is_handshake).len();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.times(is_handshake).len(), before);
    let start = Instant::now();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(20), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn operation_that_waits_for_the_pool_of_a_removed_server_goes_to_another() {
    let addresses = Arc::new(OnceLock::<[String; 2]>::new());
    let of_script = addresses.clone();
    let answer = move |command: &Document, number: usize, index: usize| {
        let [secondary, primary] = of_script.get().unwrap();
        let mut reply = member(["secondary", "isWritablePrimary"][index], 1);
        reply.insert("hosts", vec![secondary.clone(), primary.clone()]);
        match (is_awaitable(command), index) {
            // The primary removes the secondary after five seconds.
            (true, 1) if number == 0 => {
                let mut reply = member("isWritablePrimary", 2);
                reply.insert("hosts", vec![primary.clone()]);
                Answer::After(Duration::from_secs(5), Box::new(Answer::More(reply)))
            }
            (true, _) => Answer::Hang,
            (false, 0) if name(command) == "find" => Answer::Hang,
            _ => Answer::Reply(reply),
        }
    };
    let (of_secondary, of_primary) = (answer.clone(), answer);
    let secondary = Server::start(move |command, number| of_secondary(command, number, 0)).await;
    let primary = Server::start(move |command, number| of_primary(command, number, 1)).await;
    addresses.set([secondary.server.address(), primary.server.address()]).unwrap();
    let uri = format!("mongodb://{}/?replicaSet=rs&maxPoolSize=1", primary.server.address());
    let client = Client::from_uri(&uri).unwrap();
    let find = rawdoc! { "find": "things" };
    let [preference, either] =
        [ReadPreferenceMode::Secondary, ReadPreferenceMode::SecondaryPreferred].map(ReadPreference::new);
    client.run(Operation::new("admin", &rawdoc! { "ping": 1 }).read_preference(&preference)).await.unwrap();
    let first = client.run(Operation::read("test", &find).read_preference(&preference));
    let second = client.run(Operation::read("test", &find).read_preference(&either));
    let first = tokio::time::timeout(Duration::from_secs(9), first);
    let (first, second, third) = tokio::join!(first, second, client.check_out(&either));
    second.unwrap();
    assert_eq!(third.unwrap().address(), primary.server.address());
    assert!(first.is_err(), "a command in progress goes on when its pool is closed");
    let finds = primary.times(|command| name(command) == "find");
    let waited = secondary.times(|command| name(command) == "find");
    assert!(finds.len() == 1 && finds[0] >= 5000 && waited.len() == 1, "{finds:?} {waited:?}");
    assert_eq!(client.status().servers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropped_client_leaves_no_task_and_no_connection() {
    let metrics = tokio::runtime::Handle::current().metrics();
    for parameters in ["serverMonitoringMode=stream", "serverMonitoringMode=poll", "loadBalanced=true"] {
        let server = Server::start(|command, _| match is_awaitable(command) {
            true => Answer::Hang,
            false => {
                let mut reply = member("isWritablePrimary", 1);
                if command.contains_key("loadBalanced") {
                    reply.insert("serviceId", ObjectId::from_bytes([1; 12]));
                }
                Answer::Reply(reply)
            }
        })
        .await;
        tokio::task::yield_now().await;
        let before = metrics.num_alive_tasks();
        let direct = if parameters == "loadBalanced=true" { "" } else { "&directConnection=true" };
        let (client, events) = server.client(&format!("{parameters}{direct}"));
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(metrics.num_alive_tasks() > before);
        let start = Instant::now();
        drop(client);
        // The tasks serving a connection finish when it is closed.
        while metrics.num_alive_tasks() > before {
            tokio::task::yield_now().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{parameters}: no pause delays the end");
        let (started, failed) = (events.count("ServerHeartbeatStarted"), events.count("ServerHeartbeatFailed"));
        assert_eq!(started, failed + events.count("ServerHeartbeatSucceeded"));
        assert_eq!(events.all().last().unwrap().name(), "TopologyClosed");
    }
}

#[tokio::test(start_paused = true)]
async fn load_balancer_is_not_monitored() {
    let server = Server::start(|command, _| {
        let mut reply = standalone();
        if command.contains_key("loadBalanced") {
            reply.insert("serviceId", ObjectId::from_bytes([1; 12]));
        }
        Answer::Reply(reply)
    })
    .await;
    let (client, events) = server.client("loadBalanced=true");
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(server.server.command_names(), ["hello", "ping"]);
    assert_eq!(events.count("ServerHeartbeatStarted"), 0);
}

/// At each await point of the monitor in turn, the runtime shuts down while the monitor is waiting, and another runtime
/// takes over.
#[test]
fn runtime_may_end_at_any_point_of_a_check() {
    let of_server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for mode in ["stream", "poll"] {
        for hanging in 0..5 {
            let hangs = Arc::new(Mutex::new(true));
            let of_script = hangs.clone();
            let server = of_server.block_on(Server::start(move |command, _| {
                let is_hanging = *of_script.lock().unwrap();
                match (is_hanging, is_awaitable(command)) {
                    (true, _) if hanging == 0 => Answer::Hang,
                    (true, true) if hanging == 1 => Answer::Hang,
                    (true, false) if hanging == 2 && !is_handshake(command) => Answer::Hang,
                    (_, true) => Answer::After(
                        Duration::from_millis(if hanging == 3 { 1 } else { 50 }),
                        Box::new(Answer::More(member("isWritablePrimary", 1))),
                    ),
                    (_, false) => Answer::Reply(member("isWritablePrimary", 1)),
                }
            }));
            let parameters = format!("directConnection=true&serverMonitoringMode={mode}&heartbeatFrequencyMS=500");
            let (client, events) = server.client(&parameters);
            // In a case that hangs, the client gets only as far as the check that hangs.
            let enough = |events: &Events| match hanging {
                0 => events.count("ServerHeartbeatStarted") > 0,
                1 | 2 => events.count("ServerHeartbeatSucceeded") > 0,
                _ => events.count("ServerHeartbeatSucceeded") > 1,
            };
            let first = tokio::runtime::Runtime::new().unwrap();
            first.block_on(async {
                let starting = client.clone();
                tokio::spawn(async move { starting.connect().await });
                while !enough(&events) {
                    events.after(events.mark(), |event| event.name().starts_with("ServerHeartbeat")).await;
                }
            });
            drop(first);
            *hangs.lock().unwrap() = false;
            let second = tokio::runtime::Runtime::new().unwrap();
            second.block_on(async {
                client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
                let mark = events.mark();
                events.after(mark, |event| event.name() == "ServerHeartbeatSucceeded").await;
                assert!(client.shutdown(Duration::from_secs(5)).await);
            });
            let (started, failed) = (events.count("ServerHeartbeatStarted"), events.count("ServerHeartbeatFailed"));
            assert_eq!(started, failed + events.count("ServerHeartbeatSucceeded"), "{mode}, {hanging}");
            assert_eq!(events.count("TopologyOpening"), 1, "a deployment opens once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn command_before_a_reauthentication_has_its_own_events() {
    let payload = || bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: Vec::new() };
    let server = Server::start(move |command, number| {
        Answer::Reply(match name(command).as_str() {
            _ if is_hello(command) => standalone(),
            "saslStart" => doc! { "ok": 1, "conversationId": 1, "done": true, "payload": payload() },
            "find" if number == 0 => {
                doc! { "ok": 0, "code": 391, "codeName": "ReauthenticationRequired", "errmsg": "again" }
            }
            _ => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "a.b", "firstBatch": [] } },
        })
    })
    .await;
    let uri = format!("mongodb://u:p@{}/?authMechanism=PLAIN&serverMonitoringMode=poll", server.server.address());
    let told = Arc::<Mutex<Vec<(&str, i64)>>>::default();
    let of_subscriber = told.clone();
    let client = Client::builder(Options::parse(&uri).unwrap())
        .command_subscriber(move |event: &CommandEvent| {
            let what = match event {
                CommandEvent::Started(_) => "started",
                CommandEvent::Succeeded(_) => "succeeded",
                _ => "failed",
            };
            of_subscriber.lock().unwrap().push((what, event.source().request_id));
        })
        .build()
        .unwrap();
    client.run(Operation::read("a", &rawdoc! { "find": "b" })).await.unwrap();
    let told = told.lock().unwrap();
    assert_eq!(told.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["started", "failed", "started", "succeeded"]);
    assert!(told[0].1 == told[1].1 && told[1].1 != told[2].1 && told[2].1 == told[3].1, "{told:?}");
    assert_eq!(server.times(|command| name(command) == "saslStart").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn check_that_times_out_interrupts_the_operations_in_progress() {
    for (is_silent, interrupts) in [(true, true), (false, false)] {
        let server = Server::start(move |command, number| match () {
            () if !is_hello(command) => Answer::Hang,
            // The second check.
            () if !is_handshake(command) || number >= 2 => {
                if is_silent {
                    Answer::Hang
                } else {
                    Answer::Close
                }
            }
            () => Answer::Reply(standalone()),
        })
        .await;
        let (client, _) = server.client("serverMonitoringMode=poll&heartbeatFrequencyMS=1000&connectTimeoutMS=500");
        let command = rawdoc! { "ping": 1 };
        let running = client.run(Operation::new("admin", &command));
        let outcome = tokio::time::timeout(Duration::from_secs(5), running).await;
        match outcome {
            Ok(outcome) => {
                let error = outcome.unwrap_err().to_string();
                assert!(interrupts && error.contains("interrupt"), "silent {is_silent}: {error}");
            }
            Err(_) => assert!(!interrupts, "silent {is_silent}"),
        }
    }
}
