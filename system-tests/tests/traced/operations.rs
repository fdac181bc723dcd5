//! The spans of operations, commands and transactions that `tracing` receives. `telemetry-tests/tests/spans` tests the
//! contents of the spans with OpenTelemetry's SDK.

use std::time::Duration;

use bson::{Document, doc};
use tracing::{Level, info_span};
use wharf::client::{TracingOptions, TransactionOptions};
use wharf::{Client, Collection, Options, single};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::collector::Collector;

/// Starts a primary that refuses every `find`, and every commit with a time limit.
async fn primary() -> ScriptedServer {
    let server = ScriptedServer::start(|| {
        Box::new(|command: &Document| {
            Answer::Reply(match name(command).as_str() {
                "hello" | "isMaster" | "ismaster" => doc! {
                    "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "hosts": ["a:1"],
                    "minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
                },
                "commitTransaction" if command.contains_key("maxTimeMS") => {
                    doc! { "ok": 0, "code": 17, "errmsg": "it is odd" }
                }
                "find" => doc! { "ok": 0, "code": 17, "errmsg": "it is odd" },
                _ => doc! { "ok": 1, "n": 1 },
            })
        })
    });
    server.await.unwrap()
}

fn options(server: &ScriptedServer) -> Options {
    Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap()
}

fn client(server: &ScriptedServer) -> Client {
    let tracing = TracingOptions::new().query_text_max_length(1_000);
    Client::builder(options(server)).tracing(tracing).build().unwrap()
}

fn orders(client: &Client) -> Collection<Document> {
    client.database("shop").collection("orders")
}

#[tokio::test]
async fn operation_has_a_span_with_its_commands_and_its_waiting_check_out() {
    let server = primary().await;
    let client = client(&server);
    client.connect().await.unwrap();
    let collector = Collector::of_operations(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let request = info_span!("request").entered();
    orders(&client).find_one(doc! { "_id": 1 }).await.unwrap_err();
    drop(request);
    assert_eq!(collector.tree(), ["request", "  find shop.orders", "    check_out", "    find"]);
    let operation = collector.fields("operation");
    assert_eq!((&*operation["otel.kind"], &*operation["otel.status_code"]), ("client", "ERROR"));
    assert_eq!(operation["db.operation.summary"], "find shop.orders");
    assert!(!operation.contains_key("exception.type"));
    let command = collector.fields("command");
    for (field, value) in [
        ("db.namespace", "shop"),
        ("db.collection.name", "orders"),
        ("db.command.name", "find"),
        ("db.response.status_code", "17"),
        ("db.mongodb.driver_connection_id", "1"),
        ("exception.type", "wharf::ServerError"),
        ("network.transport", "tcp"),
        ("otel.status_code", "ERROR"),
    ] {
        assert_eq!(command[field], value, "{field}");
    }
    assert!(command["db.query.text"].starts_with(r#"{"find":"orders","filter":{"_id":1}"#), "{command:?}");
    for field in ["db.mongodb.lsid", "db.query.summary", "server.address", "server.port", "exception.stacktrace"] {
        assert!(command.contains_key(field), "{field}");
    }
}

#[tokio::test]
async fn transaction_has_a_span_with_its_operations() {
    let server = primary().await;
    let client = client(&server);
    drop(client.check_out(&Default::default()).await.unwrap());
    let collector = Collector::of_operations(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    orders(&client).insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(
        collector.tree(),
        ["transaction", "  insert shop.orders", "    insert", "  commitTransaction admin", "    commitTransaction"]
    );
}

#[tokio::test]
async fn nothing_is_built_for_a_subscriber_of_higher_levels() {
    let server = primary().await;
    let client = client(&server);
    let collector = Collector::of_operations(Level::INFO);
    let _guard = tracing::subscriber::set_default(collector.clone());
    orders(&client).insert_one(doc! { "_id": 1 }).await.unwrap();
    assert_eq!(collector.tree(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn single_client_has_the_same_spans() {
    let server = primary().await;
    let options = options(&server);
    let calls = std::thread::spawn(move || {
        let collector = Collector::of_operations(Level::DEBUG);
        let client = single::Client::new(options).unwrap();
        client.warm_up().unwrap();
        tracing::subscriber::with_default(collector.clone(), || {
            let orders = client.database("shop").collection::<Document>("orders");
            orders.insert_one(doc! { "_id": 1 }).run().unwrap();
        });
        let mut session = client.start_session().run().unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        let orders = client.database("shop").collection::<Document>("orders");
        orders.insert_one(doc! { "_id": 2 }).session(&mut session).run().unwrap();
        let of_commit = Collector::of_operations(Level::DEBUG);
        tracing::subscriber::with_default(of_commit.clone(), || {
            session.commit_transaction_within(Duration::from_secs(60)).unwrap_err();
        });
        (collector.tree(), of_commit.fields("command"))
    });
    let (tree, commit) = tokio::task::spawn_blocking(|| calls.join().unwrap()).await.unwrap();
    assert_eq!(tree, ["insert shop.orders", "  insert"]);
    assert!(commit["exception.stacktrace"].contains(file!()), "not the line of the call: {commit:?}");
}
