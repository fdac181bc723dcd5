//! Tests the client against scripted servers, in virtual time. The servers run on the client's own runtime, which runs
//! only inside calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::driver::Driver;
use super::{Client, Runner, Shared};
use crate::client::deployment::Checks;
use crate::client::{self, ClientError, Operation, ServerSelectionError};
use crate::endpoint::options::{Options, ReadPreference, ReadPreferenceMode};

impl Client {
    /// Runs a future as a call would, but leaves the kept work for the next call.
    pub(super) fn run_on_driver<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
        match &self.shared.runner {
            Runner::Driver(driver) => driver.run(future),
            Runner::Background(_) => unreachable!("the client of these tests has no pools"),
        }
    }
}

/// A standalone server's reply to a hello.
fn standalone() -> Document {
    doc! { "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21 }
}

/// A replica set member's reply to a hello.
pub(super) fn member(field: &str, hosts: &[String]) -> Document {
    doc! {
        "ok": 1, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21, "setName": "rs", field: true,
        "hosts": hosts, "setVersion": 1,
    }
}

pub(super) fn is_hello(command: &Document) -> bool {
    matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster")
}

/// A runtime with servers, before a client exists.
pub(super) struct World {
    driver: Driver,
    begun: Instant,
}

type Arrivals = Arc<Mutex<Vec<(Duration, Document)>>>;

/// A server, and the virtual times at which it received commands.
pub(super) struct Server {
    pub(super) server: ScriptedServer,
    arrivals: Arrivals,
}

impl World {
    pub(super) fn new() -> Self {
        let driver = Driver::of_virtual_time();
        let begun = driver.run(async { Instant::now() }).unwrap();
        Self { driver, begun }
    }

    /// Starts a server. `answer` receives each command, and its index among the commands with the same name. All forms
    /// of hello count as one name.
    pub(super) fn server(&self, answer: impl Fn(&Document, usize) -> Answer + Clone + Send + 'static) -> Server {
        let arrivals = Arrivals::default();
        let (begun, noted) = (self.begun, arrivals.clone());
        let start = ScriptedServer::start(move || {
            let (noted, answer) = (noted.clone(), answer.clone());
            Box::new(move |command: &Document| {
                let number = {
                    let mut noted = noted.lock().unwrap();
                    noted.push((begun.elapsed(), command.clone()));
                    let kind = |command: &Document| if is_hello(command) { "hello".to_owned() } else { name(command) };
                    noted.iter().filter(|(_, other)| kind(other) == kind(command)).count() - 1
                };
                answer(command, number)
            })
        });
        Server { server: self.driver.run(start).unwrap().unwrap(), arrivals }
    }

    /// Runs a future that starts a server of another kind.
    #[cfg(feature = "srv")]
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.run(future).unwrap()
    }

    pub(super) fn client(self, uri: &str) -> Client {
        self.client_of(client::Client::builder(Options::parse(uri).unwrap().without_monitors()))
    }

    pub(super) fn client_of(self, builder: client::ClientBuilder) -> Client {
        let client = builder.build_with(Checks::ByOperations).unwrap();
        Client { shared: Arc::new(Shared { client, runner: Runner::Driver(self.driver) }) }
    }
}

impl Server {
    /// Returns the times at which the matching commands arrived, in milliseconds.
    pub(super) fn times(&self, is_it: impl Fn(&Document) -> bool) -> Vec<u128> {
        let arrivals = self.arrivals.lock().unwrap();
        arrivals.iter().filter(|(_, command)| is_it(command)).map(|(time, _)| time.as_millis()).collect()
    }

    /// Returns how many connections were opened.
    fn connections(&self) -> usize {
        self.times(|command| command.contains_key("client")).len()
    }
}

pub(super) fn close(times: &[u128], expected: &[u128]) -> bool {
    times.len() == expected.len() && times.iter().zip(expected).all(|(time, expected)| time.abs_diff(*expected) < 50)
}

/// The kinds of the replica set's members.
pub(super) const PRIMARY_AND_SECONDARY: [&str; 2] = ["isWritablePrimary", "secondary"];

/// Starts replica set members of these kinds, and returns them with their addresses. `script` receives the member's
/// number, the command, the command's index among the commands with the same name, and the reply if the command is a
/// hello.
pub(super) fn replica_set<const MEMBERS: usize>(
    world: &World,
    kinds: [&'static str; MEMBERS],
    script: impl Fn(usize, &Document, usize, Option<Answer>) -> Answer + Clone + Send + 'static,
) -> ([Server; MEMBERS], String) {
    let hosts: Arc<Mutex<Vec<String>>> = Arc::default();
    let servers = std::array::from_fn(|place| {
        let (hosts, script) = (hosts.clone(), script.clone());
        world.server(move |command, number| {
            let hello = is_hello(command).then(|| Answer::Reply(member(kinds[place], &hosts.lock().unwrap())));
            script(place, command, number, hello)
        })
    });
    hosts.lock().unwrap().extend(servers.iter().map(|server: &Server| server.server.address()));
    let addresses = hosts.lock().unwrap().join(",");
    (servers, addresses)
}

pub(super) fn ping(client: &Client) -> Result<(), ClientError> {
    client.run_command("admin", &rawdoc! { "ping": 1 }).map(drop)
}

pub(super) fn pass(client: &Client, milliseconds: u64) {
    client.drive(async { sleep(Duration::from_millis(milliseconds)).await }).unwrap();
}

/// Answers any command as a standalone server does.
pub(super) fn answer(command: &Document) -> Answer {
    Answer::Reply(if is_hello(command) {
        standalone()
    } else {
        doc! { "ok": 1 }
    })
}

#[test]
fn client_connects_on_first_use_and_scans_when_the_heartbeat_has_passed() {
    let world = World::new();
    let server = world.server(|command, _| answer(command));
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    pass(&client, 1_000);
    assert_eq!(server.connections(), 0, "nothing was asked");
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[1_000]), "{:?}", server.times(is_hello));
    // Each use is less than 5 s after the previous use, so only the heartbeat causes a hello.
    for _ in 0..14 {
        pass(&client, 4_000);
        ping(&client).unwrap();
    }
    assert_eq!(server.times(is_hello).len(), 1, "56 s have passed");
    pass(&client, 4_500);
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[1_000, 61_500]), "{:?}", server.times(is_hello));
    assert_eq!(server.connections(), 1, "one connection serves checks and commands");
}

#[test]
fn heartbeat_of_the_options_counts() {
    let world = World::new();
    let server = world.server(|command, _| answer(command));
    let client = world.client(&format!("mongodb://{}/?heartbeatFrequencyMS=1000", server.server.address()));
    for _ in 0..6 {
        ping(&client).unwrap();
        pass(&client, 600);
    }
    assert!(close(&server.times(is_hello), &[0, 1_200, 2_400]), "{:?}", server.times(is_hello));
}

#[test]
fn connection_that_was_idle_for_five_seconds_is_checked_before_its_use() {
    let world = World::new();
    let server = world.server(|command, _| answer(command));
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    ping(&client).unwrap();
    pass(&client, 4_500);
    ping(&client).unwrap();
    assert_eq!(server.times(is_hello).len(), 1, "it was used 4.5 s before");
    pass(&client, 5_100);
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[0, 9_600]), "{:?}", server.times(is_hello));
    assert_eq!(server.connections(), 1);
}

#[test]
fn connection_that_fails_its_check_is_replaced_at_once() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) && number == 1 {
        true => Answer::Close,
        false => answer(command),
    });
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    ping(&client).unwrap();
    pass(&client, 6_000);
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[0, 6_000, 6_000]), "{:?}", server.times(is_hello));
    assert_eq!(server.connections(), 2);
}

#[test]
fn server_is_left_alone_for_five_seconds_after_a_failed_check() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) && number < 2 {
        true => Answer::Close,
        false => answer(command),
    });
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    let mut failures = 0;
    while let Err(error) = ping(&client) {
        assert!(matches!(error, ClientError::Selection(ServerSelectionError::TriedOnce { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("serverSelectionTryOnce") && text.contains("closed the connection"), "{text}");
        assert!(failures < 100, "{text}");
        failures += 1;
    }
    // Each failed operation waits until half a second has passed since the last scan.
    let times = server.times(is_hello);
    assert!(close(&times, &[0, 5_000, 10_000]), "{times:?}");
    assert!((20..=22).contains(&failures), "{failures}");
}

#[test]
fn selection_that_may_try_again_scans_until_a_server_is_there() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) {
        true if number < 3 => Answer::Reply(doc! { "ok": 1, "isreplicaset": true, "maxWireVersion": 21 }),
        _ => answer(command),
    });
    let uri = format!("mongodb://{}/?serverSelectionTryOnce=false", server.server.address());
    let client = world.client(&uri);
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[0, 500, 1_000, 1_500]), "{:?}", server.times(is_hello));
}

#[test]
fn selection_that_may_try_again_ends_when_its_time_is_up() {
    for (parameters, option, expected) in [
        (
            "serverSelectionTryOnce=false&serverSelectionTimeoutMS=1200",
            "serverSelectionTimeoutMS",
            &[0, 500, 1_000][..],
        ),
        ("serverSelectionTryOnce=false&timeoutMS=700", "timeoutMS", &[0, 500]),
    ] {
        let world = World::new();
        let ghost = doc! { "ok": 1, "isreplicaset": true, "maxWireVersion": 21 };
        let server = world.server(move |_, _| Answer::Reply(ghost.clone()));
        let client = world.client(&format!("mongodb://{}/?{parameters}", server.server.address()));
        let error = ping(&client).unwrap_err();
        assert!(error.is_timeout() && error.to_string().contains(option), "{error}");
        assert!(close(&server.times(is_hello), expected), "{:?}", server.times(is_hello));
    }
}

#[test]
fn selection_that_tries_once_scans_once() {
    let world = World::new();
    let ghost = doc! { "ok": 1, "isreplicaset": true, "maxWireVersion": 21 };
    let server = world.server(move |_, _| Answer::Reply(ghost.clone()));
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    for _ in 0..3 {
        let error = ping(&client).unwrap_err();
        assert!(!error.is_timeout() && error.to_string().contains("RSGhost"), "{error}");
    }
    assert!(close(&server.times(is_hello), &[0, 500, 1_000]), "{:?}", server.times(is_hello));
}

#[test]
fn all_servers_are_asked_at_once_and_those_that_they_name() {
    let world = World::new();
    let members: Arc<Mutex<Vec<String>>> = Arc::default();
    // The first two servers reply once both have been asked. Their replies reveal the third server.
    let asked = Arc::new(tokio::sync::Semaphore::new(0));
    let server = |field: &'static str, waits: bool| {
        let (members, asked) = (members.clone(), asked.clone());
        world.server(move |command, number| {
            if !is_hello(command) {
                return Answer::Reply(doc! { "ok": 1 });
            }
            if number == 0 {
                asked.add_permits(1);
            }
            let reply = Answer::Reply(member(field, &members.lock().unwrap()));
            match waits && asked.available_permits() < 2 {
                true => Answer::After(Duration::from_millis(800), Box::new(reply)),
                false => reply,
            }
        })
    };
    let (first, second, third) =
        (server("secondary", true), server("isWritablePrimary", true), server("secondary", false));
    let addresses = [&first, &second, &third].map(|server| server.server.address());
    members.lock().unwrap().extend(addresses.clone());
    let client = world.client(&format!("mongodb://{},{}/?replicaSet=rs", addresses[0], addresses[1]));
    ping(&client).unwrap();
    let arrived = [&first, &second, &third].map(|server| server.times(is_hello));
    assert!(close(&arrived[0], &[0]) && close(&arrived[1], &[0]), "the first two are asked at once: {arrived:?}");
    assert_eq!(arrived[2].len(), 1, "the scan includes the discovered one: {arrived:?}");
    assert!(arrived[2][0] < 700, "it is asked when the first reply names it: {arrived:?}");
    assert_eq!(client.status().topology_type, "ReplicaSetWithPrimary");
    assert_eq!([first, second, third].map(|server| server.connections()), [1, 1, 1]);
}

#[test]
fn scan_ends_when_the_slowest_server_has_timed_out() {
    let world = World::new();
    let (_dark, server, addresses) = dark_member_and_primary(&world);
    let client = world.client(&format!("mongodb://{addresses}/?replicaSet=rs&connectTimeoutMS=2000"));
    ping(&client).unwrap();
    let times = server.times(|command| name(command) == "ping");
    assert!(close(&times, &[2_000]), "{times:?}");
    let status = client.status();
    let error = status.servers.iter().find_map(|server| server.error.clone()).unwrap();
    assert!(error.contains("connectTimeoutMS"), "{error}");
}

#[test]
fn server_that_is_not_primary_any_more_causes_a_scan() {
    let world = World::new();
    let ([server], address) = replica_set(&world, ["isWritablePrimary"], |_, _, number, hello| match hello {
        Some(Answer::Reply(mut hello)) => {
            hello.insert("logicalSessionTimeoutMinutes", 30);
            Answer::Reply(hello)
        }
        _ if number == 1 => Answer::Reply(doc! {
            "ok": 0, "code": 10107, "errmsg": "not primary", "errorLabels": ["RetryableWriteError"],
        }),
        _ => Answer::Reply(doc! { "ok": 1, "n": 1 }),
    });
    let client = world.client(&format!("mongodb://{address}/?replicaSet=rs"));
    let insert = rawdoc! { "insert": "things", "documents": [{ "_id": 1 }] };
    for _ in 0..2 {
        client.run(Operation::write("test", &insert)).unwrap();
    }
    // The retry of the second insert follows a scan, half a second after the first scan.
    assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
    assert_eq!(server.times(|command| name(command) == "insert").len(), 3);
    assert_eq!(server.connections(), 1, "the connection stays");
}

#[test]
fn command_whose_connection_is_lost_is_retried_on_a_new_one() {
    let world = World::new();
    let server = world.server(move |command, number| match name(command).as_str() {
        "find" if number == 0 => Answer::Close,
        "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "a.b", "firstBatch": [] } }),
        _ => answer(command),
    });
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    client.run(Operation::read("test", &rawdoc! { "find": "things" })).unwrap();
    assert_eq!(server.connections(), 2);
    assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
}

#[test]
fn client_session_and_cursor_may_move_between_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_send_and_sync::<Client>();
    is_send_and_sync::<super::Session>();
    is_send::<super::Cursor>();
}

#[test]
fn time_limit_of_an_operation_cuts_a_scan_off() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) && number == 0 {
        true => Answer::Hang,
        false => answer(command),
    });
    let client = world.client(&format!("mongodb://{}/?timeoutMS=1000", server.server.address()));
    let error = ping(&client).unwrap_err();
    let text = error.to_string();
    assert!(error.is_timeout() && text.contains("timeoutMS") && text.contains("did not answer a check"), "{text}");
    // There is no other server, so this server is checked again half a second after the scan.
    ping(&client).unwrap();
    assert!(close(&server.times(is_hello), &[0, 1_500]), "{:?}", server.times(is_hello));
}

/// Starts a replica set with a primary and a member that does not answer. Returns both servers, and their addresses.
fn dark_member_and_primary(world: &World) -> (Server, Server, String) {
    let kinds = ["secondary", "isWritablePrimary"];
    let ([dark, primary], addresses) = replica_set(world, kinds, |place, command, _, hello| match place {
        0 => Answer::Hang,
        _ => hello.unwrap_or_else(|| answer(command)),
    });
    (dark, primary, addresses)
}

#[test]
fn dark_member_does_not_stop_operations_with_a_short_time_limit() {
    let world = World::new();
    let (dark, primary, addresses) = dark_member_and_primary(&world);
    let parameters = "replicaSet=rs&timeoutMS=1000&heartbeatFrequencyMS=1000";
    let client = world.client(&format!("mongodb://{addresses}/?{parameters}"));
    ping(&client).unwrap();
    ping(&client).unwrap();
    // The next scan does not wait for the dark member again. A scan 5 s later does.
    pass(&client, 2_000);
    ping(&client).unwrap();
    pass(&client, 3_500);
    ping(&client).unwrap();
    let pings = primary.times(|command| name(command) == "ping");
    assert!(close(&pings, &[500, 500, 2_500, 6_500]), "{pings:?}");
    assert!(close(&dark.times(is_hello), &[0, 6_000]), "{:?}", dark.times(is_hello));
    let error = client.status().servers.iter().find_map(|server| server.error.clone()).unwrap();
    assert!(error.contains("did not answer a check for 500 ms"), "{error}");
}

#[test]
fn scan_without_a_suitable_server_waits_until_the_time_is_up() {
    let world = World::new();
    let (_dark, primary, addresses) = dark_member_and_primary(&world);
    let client = world.client(&format!("mongodb://{addresses}/?replicaSet=rs&timeoutMS=1000"));
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let find = rawdoc! { "find": "things" };
    let error = client.run(Operation::read("test", &find).read_preference(&secondary)).unwrap_err();
    assert!(error.is_timeout() && error.to_string().contains("did not answer a check for 1000 ms"), "{error}");
    // The client knows the primary, because the primary answered its check.
    ping(&client).unwrap();
    let pings = primary.times(|command| name(command) == "ping");
    assert!(close(&pings, &[1_000]), "{pings:?}");
}

#[test]
fn each_server_that_was_idle_is_checked_before_its_use() {
    let world = World::new();
    let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, |_, command, _, hello| {
        hello.unwrap_or_else(|| answer_of_query(command))
    });
    let client = world.client(&format!("mongodb://{addresses}/?replicaSet=rs&heartbeatFrequencyMS=600000"));
    let (nearest, find) = (ReadPreference::new(ReadPreferenceMode::Nearest), rawdoc! { "find": "things" });
    for _ in 0..30 {
        client.run(Operation::read("test", &find).read_preference(&nearest)).unwrap();
        pass(&client, 6_000);
    }
    for server in &servers {
        let (hellos, finds) = (server.times(is_hello), server.times(|command| name(command) == "find"));
        let is_checked = |find: &u128| hellos.iter().any(|hello| *hello <= *find && find - hello < 5_000);
        assert!(finds.iter().all(is_checked), "{hellos:?} {finds:?}");
    }
}

/// Answers a query with a batch from a cursor that is never exhausted.
pub(super) fn answer_of_query(command: &Document) -> Answer {
    let batch = match name(command).as_str() {
        "find" => "firstBatch",
        "getMore" => "nextBatch",
        _ => return answer(command),
    };
    Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.things", batch: [{ "_id": 1 }] } })
}

#[test]
fn connection_that_was_idle_is_checked_before_a_cursor_uses_it() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) {
        true if number >= 2 => Answer::Hang,
        true => answer(command),
        false => answer_of_query(command),
    });
    let uri = format!("mongodb://{}/?heartbeatFrequencyMS=600000&connectTimeoutMS=1000", server.server.address());
    let client = world.client(&uri);
    let mut cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "things" })).run().unwrap();
    for pause in [0, 4_000, 4_000, 6_000] {
        pass(&client, pause);
        cursor.next().unwrap().unwrap();
    }
    let fetched = server.times(|command| name(command) == "getMore");
    assert!(close(&fetched, &[4_000, 8_000, 14_000]), "{fetched:?}");
    assert!(close(&server.times(is_hello), &[0, 14_000]), "{:?}", server.times(is_hello));
    // If the server no longer answers, the check fails. The `getMore`, which has no time limit, is not sent.
    pass(&client, 6_000);
    cursor.next().unwrap().unwrap_err();
    assert!(close(&server.times(is_hello), &[0, 14_000, 20_000, 21_000]), "{:?}", server.times(is_hello));
    assert_eq!(server.times(|command| name(command) == "getMore").len(), 3);
}

/// Returns a hello reply from a server behind a load balancer.
pub(super) fn balanced() -> Answer {
    let mut reply = standalone();
    reply.insert("msg", "isdbgrid");
    reply.insert("serviceId", bson::oid::ObjectId::from_bytes([5; 12]));
    Answer::Reply(reply)
}

#[test]
fn load_balancer_is_not_scanned_and_an_open_cursor_keeps_its_connection() {
    let world = World::new();
    let server = world.server(|command, _| match name(command).as_str() {
        "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.things", "firstBatch": [] } }),
        "getMore" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.things", "nextBatch": [] } }),
        _ if is_hello(command) => balanced(),
        _ => answer(command),
    });
    let client = world.client(&format!("mongodb://{}/?loadBalanced=true", server.server.address()));
    ping(&client).unwrap();
    pass(&client, 100_000);
    ping(&client).unwrap();
    assert_eq!((server.times(is_hello).len(), server.connections()), (1, 1));
    let mut cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "things" })).run().unwrap();
    ping(&client).unwrap();
    assert_eq!(server.connections(), 2, "the cursor has the first one");
    assert!(cursor.next_document().unwrap().is_none());
    drop(cursor);
    ping(&client).unwrap();
    assert_eq!(server.connections(), 2);
}
