//! Commands, errors and the life cycle of a client, on one server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bson::rawdoc;
use wharf::client::{CommandEvent, ServerSelectionError};
use wharf::endpoint::CommandError;
use wharf::single::Client;
use wharf::{ClientError, Operation, Options, PoolEvent};
use wharf_testbed::mongod::{self, Mongod, MongodOptions};

use super::builder;

/// Returns the shared server, which runs at least until the value is dropped, and its connection string.
fn server() -> (Arc<Mongod>, String) {
    let server = mongod::shared().unwrap();
    let uri = format!("mongodb://{}", server.address());
    (server, uri)
}

#[test]
fn commands_and_their_errors_are_those_of_the_asynchronous_client() {
    let (_server, uri) = server();
    let client = Client::from_uri(&uri).unwrap();
    assert_eq!(client.options().heartbeat_frequency, Some(Duration::from_secs(60)));
    assert_eq!(client.status().topology_type, "Unknown", "nothing is asked before the first use");
    let reply = client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0);
    assert_eq!(client.status().topology_type, "Single");
    let refused = client.run_command("admin", &rawdoc! { "no such command": 1 }).unwrap_err();
    assert!(matches!(refused.command_error(), Some(CommandError::Server { .. })), "{refused}");
    assert_eq!(refused.server_error().unwrap().code_name, "CommandNotFound");
    let written = client.insert("single", "writes", &[rawdoc! { "a": 1 }, rawdoc! { "a": 2 }]).run().unwrap();
    assert_eq!((written.inserted, written.generated_ids.len()), (2, 2));
    let deleted =
        client.write("single", "writes").with(|write| write.delete(rawdoc! { "q": {}, "limit": 0 }).unordered());
    let deleted = deleted.run().unwrap();
    assert!(deleted.deleted >= 2, "{deleted:?}");
    let pong: bson::Document = client.run_typed("admin", bson::doc! { "ping": 1 }).run().unwrap();
    assert_eq!(pong.get_f64("ok").unwrap(), 1.0);
    client.insert("single", "typed", [bson::doc! { "n": 5 }]).run().unwrap();
    let found = client.find("single", "typed", bson::doc! { "n": 5 }).with(|find| find.batch_size(3)).run().unwrap();
    assert!(found.typed::<bson::Document>().next().unwrap().is_ok());
    let unwritable = client.find("single", "typed", 7).run().unwrap_err();
    assert!(matches!(unwritable, ClientError::Argument { .. }), "{unwritable}");
}

#[test]
fn options_of_the_asynchronous_client_get_the_heartbeat_of_this_one() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let of = |options: Options| Client::new(options).unwrap().options().heartbeat_frequency;
    let of_uri = |text: &str| of(Options::parse(text).unwrap());
    assert_eq!(of_uri("mongodb://localhost"), seconds(60));
    assert_eq!(of_uri("mongodb://localhost/?heartbeatFrequencyMS=20000"), seconds(20));
    assert_eq!(of_uri("mongodb://localhost/?heartbeatFrequencyMS=10000"), seconds(10), "it was set");
    let from_code = Options::new(["localhost"]).unwrap();
    let set = from_code.clone().heartbeat_frequency(Duration::from_secs(10));
    assert_ne!(set, from_code, "options that behave differently are not equal");
    let mut assigned = from_code.clone();
    assigned.heartbeat_frequency = seconds(10);
    assert_eq!((of(from_code), of(set), of(assigned)), (seconds(60), seconds(10), seconds(10)));
}

#[test]
fn call_inside_of_a_runtime_fails_and_what_a_cursor_leaves_there_is_done_later() {
    let (_server, uri) = server();
    let (client, sent) = super::Sent::client(&uri);
    let documents: Vec<_> = (0..5).map(|number| rawdoc! { "_id": number }).collect();
    let _ = client.run(Operation::write("single", &rawdoc! { "drop": "inside" }));
    client.insert("single", "inside", &documents).run().unwrap();
    let cursor = client.cursor(Operation::read("single", &rawdoc! { "find": "inside", "batchSize": 2 })).run().unwrap();
    sent.take();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(async {
        drop(cursor);
        client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap_err()
    });
    assert!(matches!(refused, ClientError::OnRuntime), "{refused}");
    assert!(refused.to_string().contains("wharf::Client"), "{refused}");
    assert!(sent.take().is_empty(), "nothing may be sent inside of a runtime");
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    assert_eq!(sent.take(), ["ping", "killCursors"]);
    // The last clone may also be dropped inside a runtime, even with work left to do.
    let cursor = client.cursor(Operation::read("single", &rawdoc! { "find": "inside", "batchSize": 2 })).run().unwrap();
    runtime.block_on(async { drop((cursor, client)) });
}

#[test]
fn subscriber_that_uses_the_client_gets_an_error() {
    let (_server, uri) = server();
    let client: Arc<Mutex<Option<Client>>> = Arc::default();
    let errors = Arc::new(AtomicUsize::new(0));
    let (used, counted) = (client.clone(), errors.clone());
    let subscriber = move |_: &CommandEvent| {
        let client = used.lock().unwrap().clone().unwrap();
        let refused = client.run_command("admin", &rawdoc! { "ping": 1 });
        counted.fetch_add(usize::from(matches!(refused, Err(ClientError::OnRuntime))), Ordering::Relaxed);
    };
    let built = builder(&uri).command_subscriber(subscriber).build().unwrap();
    *client.lock().unwrap() = Some(built.clone());
    built.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    assert_eq!(errors.load(Ordering::Relaxed), 2, "one for each event");
    client.lock().unwrap().take();
}

#[test]
fn several_threads_use_one_connection_one_after_the_other() {
    let (_server, uri) = server();
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = opened.clone();
    let subscriber = move |event: &PoolEvent| {
        counted.fetch_add(usize::from(matches!(event, PoolEvent::ConnectionCreated { .. })), Ordering::Relaxed);
    };
    let client = builder(&uri).subscriber(subscriber).build().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
                }
            });
        }
    });
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

#[test]
fn client_that_is_shut_down_stays_so() {
    let (_server, uri) = server();
    let client = Client::from_uri(&uri).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    assert!(client.shutdown(Duration::from_secs(10)).unwrap());
    let refused = client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap_err();
    assert!(matches!(refused, ClientError::Selection(ServerSelectionError::Closed)), "{refused}");
    assert!(Client::from_uri(&uri).unwrap().shutdown(Duration::from_secs(10)).unwrap(), "never used");
}

#[test]
fn shutdown_closes_a_cursor_that_was_dropped_inside_of_a_runtime() {
    let (_server, uri) = server();
    let (client, sent) = super::Sent::client(&uri);
    client.insert("single", "left", (0..5).map(|number| rawdoc! { "n": number })).run().unwrap();
    let cursor = client.cursor(Operation::read("single", &rawdoc! { "find": "left", "batchSize": 2 })).run().unwrap();
    sent.take();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { drop(cursor) });
    assert!(client.shutdown(Duration::from_secs(10)).unwrap());
    assert_eq!(sent.take(), ["killCursors", "endSessions"]);
}

#[test]
fn restarted_server_costs_no_operation() {
    let mut server = Mongod::start(MongodOptions::default()).unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    server.restart().unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    let list = rawdoc! { "listDatabases": 1 };
    server.restart().unwrap();
    client.run(Operation::read("admin", &list)).unwrap();
}
