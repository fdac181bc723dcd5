//! What `tracing` receives about operations: spans of operations, commands and transactions. telemetry-tests/tests/spans
//! has the tests of what the spans say, with the SDK of OpenTelemetry.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bson::{Document, doc};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, info_span};
use tracing_core::span::Current;
use wharf::client::{TracingOptions, TransactionOptions};
use wharf::{Client, Collection, Options, single};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

type Fields = BTreeMap<&'static str, String>;

struct Span {
    metadata: &'static Metadata<'static>,
    parent: Option<u64>,
    fields: Fields,
    handles: u32,
}

#[derive(Default)]
struct State {
    /// Span `n` is entry `n - 1`.
    spans: Vec<Span>,
    /// The spans that the test's one thread is in.
    entered: Vec<u64>,
}

/// Collects the spans up to a level.
#[derive(Clone)]
struct Collector {
    most: Level,
    state: Arc<Mutex<State>>,
}

struct Noting<'f>(&'f mut Fields);

impl Visit for Noting<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Collector {
    fn up_to(most: Level) -> Self {
        Self { most, state: Arc::default() }
    }

    fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Span) -> T) -> T {
        change(&mut self.state.lock().unwrap().spans[id.into_u64() as usize - 1])
    }

    /// Returns the names of the spans, each after two spaces for each span that it is in, and asserts that all have ended.
    fn tree(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let mut told = Vec::new();
        for span in &state.spans {
            assert_eq!(span.handles, 0, "an open span {}", span.metadata.name());
            let mut depth = 0;
            let mut parent = span.parent;
            while let Some(id) = parent {
                depth += 1;
                parent = state.spans[id as usize - 1].parent;
            }
            // Without the establishment that a check-out waits for.
            if span.metadata.target() != "wharf::connection" || span.metadata.name() == "check_out" {
                let name = span.fields.get("otel.name").map_or(span.metadata.name(), String::as_str);
                told.push(format!("{}{name}", "  ".repeat(depth)));
            }
        }
        told
    }

    fn fields(&self, name: &str) -> Fields {
        let state = self.state.lock().unwrap();
        state.spans.iter().find(|span| span.metadata.name() == name).unwrap().fields.clone()
    }
}

impl tracing::Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && *metadata.level() <= self.most
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut state = self.state.lock().unwrap();
        let here = state.entered.last().copied();
        let parent = if attributes.is_contextual() { here } else { attributes.parent().map(Id::into_u64) };
        let mut fields = Fields::new();
        attributes.record(&mut Noting(&mut fields));
        state.spans.push(Span { metadata: attributes.metadata(), parent, fields, handles: 1 });
        Id::from_u64(state.spans.len() as u64)
    }
    fn record(&self, id: &Id, values: &Record<'_>) {
        self.with(id, |span| values.record(&mut Noting(&mut span.fields)));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, id: &Id) {
        self.state.lock().unwrap().entered.push(id.into_u64());
    }
    fn exit(&self, id: &Id) {
        assert_eq!(self.state.lock().unwrap().entered.pop(), Some(id.into_u64()));
    }
    fn clone_span(&self, id: &Id) -> Id {
        self.with(id, |span| span.handles += 1);
        id.clone()
    }
    fn try_close(&self, id: Id) -> bool {
        self.with(&id, |span| {
            span.handles -= 1;
            span.handles == 0
        })
    }
    fn current_span(&self) -> Current {
        let state = self.state.lock().unwrap();
        match state.entered.last() {
            Some(&id) => Current::new(Id::from_u64(id), state.spans[id as usize - 1].metadata),
            None => Current::none(),
        }
    }
}

/// Starts a primary that refuses every `find`.
async fn primary() -> ScriptedServer {
    let server = ScriptedServer::start(|| {
        Box::new(|command: &Document| {
            Answer::Reply(match name(command).as_str() {
                "hello" | "isMaster" | "ismaster" => doc! {
                    "ok": 1, "helloOk": true, "isWritablePrimary": true, "setName": "rs", "hosts": ["a:1"],
                    "minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
                },
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
    let collector = Collector::up_to(Level::DEBUG);
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
    let collector = Collector::up_to(Level::DEBUG);
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
    let collector = Collector::up_to(Level::INFO);
    let _guard = tracing::subscriber::set_default(collector.clone());
    orders(&client).insert_one(doc! { "_id": 1 }).await.unwrap();
    assert_eq!(collector.tree(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn single_client_has_the_same_spans() {
    let server = primary().await;
    let options = options(&server);
    let calls = std::thread::spawn(move || {
        let collector = Collector::up_to(Level::DEBUG);
        let client = single::Client::new(options).unwrap();
        client.warm_up().unwrap();
        tracing::subscriber::with_default(collector.clone(), || {
            let orders = client.database("shop").collection::<Document>("orders");
            orders.insert_one(doc! { "_id": 1 }).run().unwrap();
        });
        collector.tree()
    });
    let told = tokio::task::spawn_blocking(|| calls.join().unwrap()).await.unwrap();
    assert_eq!(told, ["insert shop.orders", "  insert"]);
}
