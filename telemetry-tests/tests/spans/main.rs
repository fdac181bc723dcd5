//! A client's spans, with the OpenTelemetry SDK, on a server that follows a script.
#![cfg(not(any(loom, shuttle)))]

mod environment;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, doc};
use opentelemetry::Context;
use opentelemetry::trace::{FutureExt, SpanId, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use wharf::client::{TracingOptions, TransactionOptions, WriteModel};
use wharf::{Client, Collection, Options, single};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

/// A server, and the spans of its clients.
struct World {
    server: ScriptedServer,
    provider: SdkTracerProvider,
    exporter: InMemorySpanExporter,
}

/// Returns a primary's answer. A `getMore` returns one more document and exhausts the cursor.
fn primary(command: &Document) -> Answer {
    let batch = |id: i64, field: &str| {
        let collection = command.get_str("find").or_else(|_| command.get_str("collection")).unwrap_or_default();
        Answer::Reply(
            doc! { "ok": 1, "cursor": { "id": id, "ns": format!("shop.{collection}"), field: [{ "_id": 1 }] } },
        )
    };
    match name(command).as_str() {
        "hello" | "isMaster" | "ismaster" => Answer::Reply(doc! {
            "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "hosts": ["a:1"], "minWireVersion": 0,
            "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30, "connectionId": 77,
        }),
        "find" if command.contains_key("batchSize") => batch(9, "firstBatch"),
        "find" => batch(0, "firstBatch"),
        "getMore" => batch(0, "nextBatch"),
        _ => Answer::Reply(doc! { "ok": 1, "n": 1, "nModified": 1 }),
    }
}

fn refused(code: i32) -> Answer {
    Answer::Reply(doc! { "ok": 0, "code": code, "codeName": "Odd", "errmsg": "it is\nodd" })
}

impl World {
    async fn new(sampler: Sampler, answer: impl Fn(&Document, usize) -> Answer + Send + Sync + 'static) -> Self {
        let (answer, counts) = (Arc::new(answer), Arc::<Mutex<HashMap<String, usize>>>::default());
        let server = ScriptedServer::start(move || {
            let (answer, counts) = (answer.clone(), counts.clone());
            Box::new(move |command: &Document| {
                let mut counts = counts.lock().unwrap();
                let number = counts.entry(name(command)).or_default();
                *number += 1;
                answer(command, *number)
            })
        });
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exporter.clone()).build();
        Self { server: server.await.unwrap(), provider, exporter }
    }

    /// Starts a primary. `answer` receives each command, with its number among the commands with that name, counted
    /// from 1.
    async fn start(answer: impl Fn(&Document, usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::new(Sampler::AlwaysOn, answer).await
    }

    fn options(&self) -> TracingOptions {
        TracingOptions::new().enabled(true).tracer_provider(self.provider.clone())
    }

    fn uri(&self) -> Options {
        Options::parse(&format!("mongodb://{}/?directConnection=true", self.server.address())).unwrap()
    }

    fn client_with(&self, options: TracingOptions) -> Client {
        Client::builder(self.uri()).tracing(options).build().unwrap()
    }

    fn client(&self) -> Client {
        self.client_with(self.options())
    }

    fn orders(&self) -> Collection<Document> {
        self.client().database("shop").collection("orders")
    }

    /// Returns the spans that have ended, in the order in which they began.
    fn spans(&self) -> Vec<SpanData> {
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.sort_by_key(|span| span.start_time);
        spans
    }

    /// Returns the names of the spans, each indented by two spaces for each enclosing span.
    fn tree(&self) -> Vec<String> {
        let spans = self.spans();
        let mut depths = HashMap::from([(SpanId::INVALID, 0)]);
        let name = |span: &SpanData| {
            let depth = depths[&span.parent_span_id];
            depths.insert(span.span_context.span_id(), depth + 1);
            format!("{}{}", "  ".repeat(depth), span.name)
        };
        spans.iter().map(name).collect()
    }
}

fn attributes(span: &SpanData) -> BTreeMap<&str, String> {
    span.attributes.iter().map(|attribute| (attribute.key.as_str(), attribute.value.to_string())).collect()
}

fn is_error(span: &SpanData) -> bool {
    matches!(span.status, Status::Error { .. })
}

#[tokio::test]
async fn command_is_in_its_operation_with_the_attributes_of_the_specification() {
    let world = World::start(|command, _| primary(command)).await;
    let orders: Collection<Document> =
        world.client_with(world.options().query_text_max_length(30)).database("shop").collection("orders");
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "paid": true } }).await.unwrap();
    assert_eq!(world.tree(), ["update shop.orders", "  update"]);
    let spans = world.spans();
    for span in &spans {
        assert_eq!((&span.span_kind, &span.status), (&SpanKind::Client, &Status::Unset));
        assert_eq!(span.instrumentation_scope.name(), "wharf");
        assert_eq!(span.instrumentation_scope.version(), Some(env!("CARGO_PKG_VERSION")));
    }
    let summary = "update shop.orders".to_owned();
    assert_eq!(
        attributes(&spans[0]),
        BTreeMap::from([
            ("db.system.name", "mongodb".to_owned()),
            ("db.namespace", "shop".to_owned()),
            ("db.collection.name", "orders".to_owned()),
            ("db.operation.name", "update".to_owned()),
            ("db.operation.summary", summary.clone()),
        ])
    );
    let mut of_command = attributes(&spans[1]);
    let id = of_command.remove("db.mongodb.lsid").unwrap();
    assert_eq!(bson::Uuid::parse_str(&id).unwrap().to_string(), id);
    let address = world.server.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    assert_eq!(
        of_command,
        BTreeMap::from([
            ("db.system.name", "mongodb".to_owned()),
            ("db.namespace", "shop".to_owned()),
            ("db.collection.name", "orders".to_owned()),
            ("db.command.name", "update".to_owned()),
            ("db.query.summary", summary),
            ("db.query.text", r#"{"update":"orders","ordered":t..."#.to_owned()),
            ("server.address", host.to_owned()),
            ("server.port", port.to_owned()),
            ("network.transport", "tcp".to_owned()),
            ("db.mongodb.server_connection_id", "77".to_owned()),
            ("db.mongodb.driver_connection_id", "1".to_owned()),
            ("db.mongodb.txn_number", "1".to_owned()),
        ])
    );
}

#[tokio::test]
async fn span_that_is_current_at_the_call_is_the_parent() {
    let world = World::start(|command, _| primary(command)).await;
    let orders = world.orders();
    let of_application = world.provider.tracer("shop").start("request");
    let context = Context::current_with_span(of_application);
    let find = async { orders.find_one(doc! {}).await };
    find.with_context(context.clone()).await.unwrap();
    orders.count_documents(doc! {}).await.unwrap_err();
    context.span().end();
    assert_eq!(world.tree(), ["request", "  find shop.orders", "    find", "aggregate shop.orders", "  aggregate"]);
}

#[tokio::test]
async fn retries_are_commands_of_one_operation() {
    let world = World::start(|command, number| match (name(command).as_str(), number) {
        ("find", 1) => Answer::Close,
        _ => primary(command),
    });
    let world = world.await;
    world.orders().find_one(doc! {}).await.unwrap();
    assert_eq!(world.tree(), ["find shop.orders", "  find", "  find"]);
    let spans = world.spans();
    assert_eq!(spans.iter().map(is_error).collect::<Vec<_>>(), [false, true, false]);
    let failed = attributes(&spans[1]);
    assert_eq!(failed["exception.type"], "wharf::CommandError");
    assert!(!failed.contains_key("db.response.status_code"));
    let called = format!("\n    at {}", file!());
    assert!(failed["exception.stacktrace"].contains(&called), "{failed:?}");
    assert!(!attributes(&spans[0]).contains_key("exception.type"));
}

#[tokio::test]
async fn error_of_the_server_is_in_the_commands_span() {
    let world = World::start(|command, _| if name(command) == "find" { refused(17) } else { primary(command) }).await;
    world.orders().find_one(doc! {}).await.unwrap_err();
    let spans = world.spans();
    assert_eq!(spans.iter().map(is_error).collect::<Vec<_>>(), [true, true]);
    let failed = attributes(&spans[1]);
    assert_eq!((&*failed["db.response.status_code"], &*failed["exception.type"]), ("17", "wharf::ServerError"));
    assert!(failed["exception.message"].contains(r"it is\nodd"), "{failed:?}");
    assert!(!attributes(&spans[0]).contains_key("exception.message"));
}

#[tokio::test]
async fn error_of_the_client_is_in_the_operations_span() {
    let world = World::start(|command, _| primary(command)).await;
    let client = world.client();
    client.shutdown(Duration::from_secs(10)).await;
    let orders: Collection<Document> = client.database("shop").collection("orders");
    orders.find_one(doc! {}).await.unwrap_err();
    assert_eq!(world.tree(), ["find shop.orders"]);
    let spans = world.spans();
    assert!(is_error(&spans[0]));
    assert_eq!(attributes(&spans[0])["exception.type"], "wharf::ClientError::Selection");
    assert!(attributes(&spans[0]).contains_key("exception.stacktrace"));
}

#[tokio::test]
async fn refused_statement_is_an_exception_of_the_operation() {
    let errors = doc! { "ok": 1, "n": 0, "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "duplicate" }] };
    let world = World::start(move |command, _| match name(command).as_str() {
        "insert" => Answer::Reply(errors.clone()),
        _ => primary(command),
    });
    let world = world.await;
    world.orders().insert_one(doc! { "_id": 1 }).await.unwrap_err();
    let spans = world.spans();
    assert_eq!(spans.iter().map(is_error).collect::<Vec<_>>(), [true, false]);
    assert_eq!(attributes(&spans[0])["exception.type"], "wharf::ClientError::Write");
}

#[tokio::test]
async fn operations_of_a_transaction_are_in_its_span_until_it_ends() {
    let world = World::start(|command, _| primary(command)).await;
    let client = world.client();
    let orders: Collection<Document> = client.database("shop").collection("orders");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    orders.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    orders.insert_many([doc! {}, doc! {}]).session(&mut session).await.unwrap();
    orders.find_one(doc! {}).await.unwrap();
    session.commit_transaction().await.unwrap();
    orders.find_one(doc! {}).session(&mut session).await.unwrap();
    let insert = ["  insert shop.orders", "    insert"];
    let find = ["find shop.orders", "  find"];
    let commit = ["  commitTransaction admin", "    commitTransaction"];
    assert_eq!(world.tree(), [&["transaction"][..], &insert, &insert, &find, &commit, &find].concat());
    let spans = world.spans();
    assert_eq!(attributes(&spans[0]), BTreeMap::from([("db.system.name", "mongodb".to_owned())]));
    let ended = |name: &str| spans.iter().find(|span| span.name == name).unwrap().end_time;
    assert!(ended("transaction") >= ended("commitTransaction admin"));
}

#[tokio::test]
async fn dropped_transaction_is_aborted_in_its_span() {
    let world = World::start(|command, _| primary(command)).await;
    let client = world.client();
    let orders: Collection<Document> = client.database("shop").collection("orders");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    orders.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    drop(session);
    while !world.server.command_names().contains(&"abortTransaction".to_owned()) || world.spans().len() < 5 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        world.tree(),
        ["transaction", "  insert shop.orders", "    insert", "  abortTransaction admin", "    abortTransaction"]
    );
}

#[tokio::test]
async fn repeated_commit_is_in_the_same_transaction() {
    let world = World::start(|command, number| match (name(command).as_str(), number) {
        ("commitTransaction", 1 | 2) => Answer::Close,
        _ => primary(command),
    });
    let world = world.await;
    let client = world.client();
    let orders: Collection<Document> = client.database("shop").collection("orders");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    orders.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap_err();
    session.commit_transaction().await.unwrap();
    let commit = ["  commitTransaction admin", "    commitTransaction"];
    let expected = [&["transaction", "  insert shop.orders", "    insert"][..], &commit, &commit[1..], &commit];
    assert_eq!(world.tree(), expected.concat());
}

#[tokio::test]
async fn batches_of_a_cursor_are_operations_with_its_number() {
    let world = World::start(|command, _| primary(command)).await;
    let found = world.orders().find(doc! {}).batch_size(1).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(world.tree(), ["find shop.orders", "  find", "getMore shop.orders", "  getMore"]);
    let spans = world.spans();
    for command in [&spans[1], &spans[3]] {
        assert_eq!(attributes(command)["db.mongodb.cursor_id"], "9");
    }
    drop(world.orders().find(doc! {}).batch_size(1).await.unwrap());
    while world.spans().len() < 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.tree()[6..], ["killCursors shop.orders", "  killCursors"]);
}

#[tokio::test]
async fn writes_in_several_commands_are_one_operation() {
    let world = World::start(|command, _| primary(command)).await;
    let models = [WriteModel::insert_one(doc! { "_id": 1 }), WriteModel::delete_one(doc! { "_id": 2 })];
    world.orders().bulk_write(models).await.unwrap();
    assert_eq!(world.tree(), ["bulkWrite shop.orders", "  insert", "  delete"]);
}

#[tokio::test]
async fn command_of_the_application_is_named_so_and_a_sensitive_one_has_no_span() {
    let world =
        World::start(|command, _| if name(command) == "createUser" { refused(13) } else { primary(command) }).await;
    let shop = world.client().database("shop");
    shop.run_command(doc! { "collStats": "orders" }).await.unwrap();
    shop.run_command(doc! { "createUser": "eve", "pwd": "secret" }).await.unwrap_err();
    assert_eq!(world.tree(), ["runCommand shop", "  collStats", "runCommand shop"]);
    let spans = world.spans();
    assert_eq!(attributes(&spans[1])["db.collection.name"], "orders");
    assert!(is_error(&spans[2]) && !attributes(&spans[2]).contains_key("exception.message"));
}

#[tokio::test]
async fn cancelled_operation_ends_its_spans() {
    let world = World::start(|command, _| if name(command) == "find" { Answer::Hang } else { primary(command) }).await;
    let orders = world.orders();
    tokio::select! {
        _ = orders.find_one(doc! {}) => unreachable!("the server does not answer"),
        () = async { while !world.server.command_names().contains(&"find".to_owned()) { tokio::task::yield_now().await } } => {}
    }
    assert_eq!(world.tree(), ["find shop.orders", "  find"]);
    assert_eq!(attributes(&world.spans()[1])["exception.message"], "the operation was cancelled");
}

#[tokio::test]
async fn nothing_is_traced_unless_it_is_switched_on_or_the_sampler_leaves_it_out() {
    let world = World::start(|command, _| primary(command)).await;
    for options in [TracingOptions::new(), TracingOptions::new().enabled(false)] {
        let options = options.tracer_provider(world.provider.clone()).query_text_max_length(100);
        let orders: Collection<Document> = world.client_with(options).database("shop").collection("orders");
        orders.find_one(doc! {}).await.unwrap();
    }
    assert_eq!(world.tree(), [""; 0]);
    let world = World::new(Sampler::AlwaysOff, |command, _| primary(command)).await;
    world.orders().find_one(doc! {}).await.unwrap();
    assert_eq!(world.tree(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn single_client_has_the_same_spans() {
    let world = World::start(|command, _| primary(command)).await;
    let (uri, tracing) = (world.uri(), world.options());
    let calls = std::thread::spawn(move || {
        let client = single::Client::builder(uri).tracing(tracing).build().unwrap();
        let orders = client.database("shop").collection::<Document>("orders");
        orders.insert_one(doc! { "_id": 1 }).run().unwrap();
        orders.find(doc! {}).batch_size(1).run().unwrap().map(Result::unwrap).count()
    });
    let counted = tokio::task::spawn_blocking(|| calls.join().unwrap()).await.unwrap();
    assert_eq!(counted, 2);
    assert_eq!(
        world.tree(),
        ["insert shop.orders", "  insert", "find shop.orders", "  find", "getMore shop.orders", "  getMore"]
    );
}
