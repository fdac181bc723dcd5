//! Operations whose connection cannot be authenticated.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc, rawdoc};
use wharf_testbed::scripted::{Answer, name};

use super::tests::{PRIMARY_AND_SECONDARY, World, answer_of_query, close, is_hello, pass, replica_set};
use crate::client::{self, ClientError, Operation, TopologyEvent};
use crate::endpoint::OperationError;
use crate::endpoint::options::{Options, ReadPreference, ReadPreferenceMode};
use crate::pool::error::{CheckOutError, Stage};
use crate::pool::event::PoolEvent;

fn accepted() -> Answer {
    let payload = Binary { subtype: BinarySubtype::Generic, bytes: Vec::new() };
    Answer::Reply(doc! { "ok": 1, "conversationId": 1, "done": true, "payload": payload })
}

fn refused() -> Answer {
    Answer::Reply(doc! { "ok": 0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "Authentication failed." })
}

/// Answers all commands. The first `first` authentications receive the answer `other`.
fn after(first: usize, other: Answer) -> impl Fn(&Document, usize) -> Answer + Clone + Send + 'static {
    move |command, number| match name(command).as_str() {
        "saslStart" if number < first => other.clone(),
        "saslStart" => accepted(),
        "insert" => Answer::Reply(doc! { "ok": 1, "n": 1 }),
        _ => answer_of_query(command),
    }
}

fn is_authentication(command: &Document) -> bool {
    name(command) == "saslStart"
}

/// Answers inserts, and refuses the first insert because the server is no longer primary.
fn answer_of_insert(number: usize) -> Answer {
    match number {
        0 => Answer::Reply(doc! { "ok": 0, "code": 10_107, "errmsg": "it is not primary" }),
        _ => Answer::Reply(doc! { "ok": 1, "n": 1 }),
    }
}

/// Returns whether an operation failed because its connection could not be authenticated. The error is the same as with
/// a pool.
fn is_unauthenticated(error: &ClientError) -> bool {
    matches!(error.operation_error(), Some(OperationError::CheckOut(CheckOutError::Establish(error)))
        if error.stage() == Stage::Authenticate)
}

/// The failure counts as a failure of the connection's handshake, as with a pool (Retryable Reads, "Retryable Error").
/// It does not count as a failed check, which would make scans skip the server for 5 s.
#[test]
fn read_is_retried_if_the_authentication_loses_its_connection() {
    let world = World::new();
    let server = world.server(after(1, Answer::Close));
    let client = world.client(&format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address()));
    client.run(Operation::read("test", &rawdoc! { "find": "things" })).unwrap();
    assert!(close(&server.times(is_authentication), &[0, 500]), "{:?}", server.times(is_authentication));
}

#[test]
fn insert_is_retried_unless_the_options_say_otherwise() {
    for (retries, failures, expected) in [("true", 1, &[0, 500][..]), ("true", 9, &[0, 500]), ("false", 1, &[0])] {
        let world = World::new();
        let server = world.server(after(failures, Answer::Close));
        let address = server.server.address();
        let client = world.client(&format!("mongodb://u:p@{address}/?authMechanism=PLAIN&retryWrites={retries}"));
        match client.insert("test", "things", [doc! { "_id": 1 }]).run() {
            Ok(written) => assert_eq!((retries, failures, written.inserted), ("true", 1, 1)),
            Err(error) => {
                assert!((retries, failures) != ("true", 1) && is_unauthenticated(&error), "{error:?}");
                assert_eq!(error.has_label("RetryableWriteError"), retries == "true");
            }
        }
        assert!(close(&server.times(is_authentication), expected), "{:?}", server.times(is_authentication));
    }
}

#[test]
fn command_fails_if_the_authentication_loses_its_connection_and_the_next_one_does_not() {
    let world = World::new();
    let server = world.server(after(1, Answer::Close));
    let client = world.client(&format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address()));
    let ping = rawdoc! { "ping": 1 };
    let error = client.run_command("admin", &ping).unwrap_err();
    assert!(is_unauthenticated(&error), "{error:?}");
    assert_eq!(server.times(is_authentication).len(), 1, "a generic command is not retryable");
    client.run_command("admin", &ping).unwrap();
    assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
}

/// "Authentication errors are still returned to the application immediately" (Server Discovery and Monitoring, "Why
/// mark a server Unknown after an auth error?").
#[test]
fn refused_password_is_not_retried() {
    for tries_once in [true, false] {
        let world = World::new();
        let server = world.server(after(1, refused()));
        let uri = format!(
            "mongodb://u:p@{}/?authMechanism=PLAIN&serverSelectionTryOnce={tries_once}",
            server.server.address()
        );
        let client = world.client(&uri);
        let find = rawdoc! { "find": "things" };
        let error = client.run(Operation::read("test", &find)).unwrap_err();
        assert!(is_unauthenticated(&error) && error.to_string().contains("Authentication failed."), "{error:?}");
        assert_eq!(server.times(is_authentication).len(), 1);
        // By now, an administrator has fixed the password.
        client.run(Operation::read("test", &find)).unwrap();
        assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
    }
}

/// The check succeeds. The failed authentication then makes the server unknown once.
#[test]
fn check_succeeds_before_the_authentication_fails() {
    let world = World::new();
    // The reply to a hello includes part of the authentication, which subscribers must not see.
    let payload = Binary { subtype: BinarySubtype::Generic, bytes: b"r=wrong".to_vec() };
    let speculation = doc! { "conversationId": 1, "done": false, "payload": payload };
    let server = world.server(move |command, number| match after(0, Answer::Close)(command, number) {
        Answer::Reply(mut hello) if is_hello(command) => {
            hello.extend(doc! { "connectionId": 7, "speculativeAuthenticate": speculation.clone() });
            Answer::Reply(hello)
        }
        other => other,
    });
    let uri = format!("mongodb://u:p@{}/?authMechanism=SCRAM-SHA-256", server.server.address());
    let events = Arc::<Mutex<Vec<String>>>::default();
    let noted = events.clone();
    let note = move |event: &TopologyEvent| {
        let noted_as = match event {
            TopologyEvent::ServerDescriptionChanged { new, .. } => format!("{:?}", new.server_type()),
            TopologyEvent::ServerHeartbeatSucceeded { reply, connection, .. } => {
                assert_eq!(connection.server_connection_id, Some(7));
                assert!(matches!(reply.get("speculativeAuthenticate"), Ok(None)), "{reply:?}");
                event.name().to_owned()
            }
            TopologyEvent::ServerHeartbeatFailed { .. } => event.name().to_owned(),
            _ => return,
        };
        noted.lock().unwrap().push(noted_as);
    };
    let options = Options::parse(&uri).unwrap().without_monitors();
    let client = world.client_of(client::Client::builder(options).topology_subscriber(note));
    let error = client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap_err();
    assert!(is_unauthenticated(&error), "{error:?}");
    assert_eq!(*events.lock().unwrap(), ["ServerHeartbeatSucceeded", "Standalone", "Unknown"]);
}

/// The check's connection is closed without clearing the pool, because its hello was answered. When the operation
/// selects the server, its check-out clears the pool, and only then closes its own connection.
#[test]
fn pool_is_cleared_before_the_connection_of_an_operation_is_closed() {
    let world = World::new();
    let server = world.server(after(1, refused()));
    let uri = format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address());
    let events = Arc::<Mutex<Vec<&str>>>::default();
    let noted = events.clone();
    let builder = client::Client::builder(Options::parse(&uri).unwrap().without_monitors());
    let note = move |event: &PoolEvent| noted.lock().unwrap().push(event.name());
    let client = world.client_of(builder.subscriber(note));
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap_err();
    let of_check_out = ["ConnectionCheckOutStarted", "ConnectionCreated"];
    let expected = [
        &["PoolCreated", "PoolReady"][..],
        &of_check_out,
        &["ConnectionClosed", "ConnectionCheckOutFailed"],
        &of_check_out,
        &["PoolCleared", "ConnectionClosed", "ConnectionCheckOutFailed"],
    ];
    assert_eq!(*events.lock().unwrap(), expected.concat());
}

/// A server's failed authentication affects only the operations that select this server.
#[test]
fn server_that_refuses_the_password_stops_no_operation_on_another_one() {
    let world = World::new();
    let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, |place, command, number, hello| {
        hello.unwrap_or_else(|| after(if place == 1 { usize::MAX } else { 0 }, refused())(command, number))
    });
    let client = world.client(&format!("mongodb://u:p@{addresses}/?replicaSet=rs&authMechanism=PLAIN"));
    let find = rawdoc! { "find": "things" };
    client.run(Operation::read("test", &find)).unwrap();
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let error = client.run(Operation::read("test", &find).read_preference(&secondary)).unwrap_err();
    assert!(is_unauthenticated(&error), "{error:?}");
    client.run(Operation::read("test", &find)).unwrap();
    assert_eq!(servers[0].times(is_hello).len(), 1, "no operation on the primary causes a scan");
}

/// After the scan that detected the failure, scans do not wait for the server if another server is suitable. This holds
/// while the server is known from its hello, and after an operation has selected it and made it unknown.
#[test]
fn server_whose_authentication_hangs_does_not_hold_up_each_scan() {
    for is_selected in [false, true] {
        let world = World::new();
        let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, |place, command, number, hello| {
            hello.unwrap_or_else(|| match (place, name(command).as_str()) {
                (0, "insert") => answer_of_insert(number),
                (0, _) => after(0, Answer::Close)(command, number),
                _ => Answer::Hang,
            })
        });
        let parameters = "replicaSet=rs&authMechanism=PLAIN&retryWrites=false&connectTimeoutMS=2000";
        let client = world.client(&format!("mongodb://u:p@{addresses}/?{parameters}"));
        if is_selected {
            let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
            let ping = rawdoc! { "ping": 1 };
            let error = client.run(Operation::new("admin", &ping).read_preference(&secondary)).unwrap_err();
            assert!(is_unauthenticated(&error) && error.is_timeout(), "{error:?}");
        }
        let insert = || client.insert("test", "things", [doc! { "_id": 1 }]).run();
        insert().unwrap_err();
        insert().unwrap();
        // The first scan ends after 2 s, and the next scan follows 500 ms later.
        assert!(close(&servers[0].times(|command| name(command) == "insert"), &[2_000, 2_500]));
        assert!(close(&servers[1].times(is_authentication), &[0]), "{:?}", servers[1].times(is_authentication));
    }
}

/// The next operation that selects the server opens a new connection.
#[test]
fn authentication_that_failed_a_while_ago_is_repeated() {
    let world = World::new();
    let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, |place, command, number, hello| {
        hello.unwrap_or_else(|| match name(command).as_str() {
            "insert" => answer_of_insert(number),
            _ => after(place, refused())(command, number),
        })
    });
    let parameters = "replicaSet=rs&authMechanism=PLAIN&retryWrites=false";
    let client = world.client(&format!("mongodb://u:p@{addresses}/?{parameters}"));
    let insert = || client.insert("test", "things", [doc! { "_id": 1 }]).run();
    insert().unwrap_err();
    // Causes a scan, which skips the other server.
    insert().unwrap();
    pass(&client, 100);
    let find = rawdoc! { "find": "things" };
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    client.run(Operation::read("test", &find).read_preference(&secondary)).unwrap();
    assert!(close(&servers[1].times(is_authentication), &[0, 600]), "{:?}", servers[1].times(is_authentication));
}

#[test]
fn selection_that_scans_again_and_again_does_not_repeat_a_refused_password_each_time() {
    let world = World::new();
    let refusing = |_, _: &Document, _, hello: Option<Answer>| hello.unwrap_or_else(refused);
    let ([server], address) = replica_set(&world, ["secondary"], refusing);
    let parameters = "authMechanism=PLAIN&replicaSet=rs&serverSelectionTryOnce=false&serverSelectionTimeoutMS=12000";
    let client = world.client(&format!("mongodb://u:p@{address}/?{parameters}"));
    client.insert("test", "things", [doc! { "_id": 1 }]).run().unwrap_err();
    assert!(close(&server.times(is_authentication), &[0, 5_000, 10_000]), "{:?}", server.times(is_authentication));
}

#[test]
fn refused_authentication_is_not_repeated_after_a_scan_that_takes_long() {
    let world = World::new();
    let (servers, addresses) = replica_set(&world, PRIMARY_AND_SECONDARY, |place, _, _, hello| match (place, hello) {
        (1, Some(hello)) => Answer::After(Duration::from_secs(2), Box::new(hello)),
        (_, hello) => hello.unwrap_or_else(refused),
    });
    let client = world.client(&format!("mongodb://u:p@{addresses}/?replicaSet=rs&authMechanism=PLAIN"));
    let error = client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap_err();
    assert!(is_unauthenticated(&error), "{error:?}");
    assert!(close(&servers[0].times(is_authentication), &[0]), "{:?}", servers[0].times(is_authentication));
}
