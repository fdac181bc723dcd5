//! The `connection_logging` suite, run by a client against a real server.
//!
//! The runner for the unified suites has no server with authentication, which one case needs. It also runs several
//! clients at a time, whose connections it could not tell apart, because the messages name the server but not the
//! client. Here, only one client exists in the process at a time.
//!
//! The fetched copy has one list of messages in an earlier order, which the runner corrects (`wharf_testbed::edition`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, doc, rawdoc};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use wharf::{Endpoint, Operation, Options, Pool, PoolEvent, UriWarning};
use wharf_testbed::edition::Edition;
use wharf_testbed::log::Listener;
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::table::{Row, show};

/// How long an operation may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The log messages from all pools in this process.
type Kept = Arc<Mutex<Vec<BTreeMap<&'static str, Value>>>>;

/// Returns a subscriber that keeps the messages about pools and connections.
fn keeping(kept: Kept) -> impl Subscriber + Send + Sync {
    Listener {
        reads: |metadata: &Metadata<'_>| metadata.target() == "wharf::connection",
        on_event: move |event: &Event<'_>| {
            let mut fields = Fields::default();
            event.record(&mut fields);
            assert_eq!(*event.metadata().level(), Level::DEBUG, "{:?}", fields.0);
            kept.lock().unwrap().push(fields.0);
        },
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, Value>);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }
}

/// The client of a case.
struct Client {
    client: wharf::Client,
    seen: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Client {
    async fn new(address: &str, client: &Value) -> Self {
        let mut uri = format!("mongodb://root:root@{address}/?");
        for (name, value) in client["uriOptions"].as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            uri.push_str(&format!("{name}={value}&"));
        }
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let builder = wharf::Client::builder(Options::parse(uri.trim_end_matches('&')).unwrap());
        // A subscriber makes the pool build events even if nothing reads the log, so the client has one only if the
        // case observes events.
        let builder = match client["observeEvents"].is_null() {
            true => builder,
            false => {
                let counts = seen.clone();
                builder
                    .subscriber(move |event: &PoolEvent| *counts.lock().unwrap().entry(event.name()).or_insert(0) += 1)
            }
        };
        let client = builder.build().unwrap();
        // In the suite, a client connects when it is created. In wharf, it would connect on first use.
        client.connect().await.unwrap();
        Self { client, seen }
    }

    async fn run(&self, operation: &Value) {
        match operation["name"].as_str().unwrap() {
            "listDatabases" => {
                let outcome = self.client.run(Operation::read("admin", &rawdoc! { "listDatabases": 1 })).await;
                let expects_error = !operation["expectError"].is_null();
                assert_eq!(outcome.is_err(), expects_error, "{outcome:?}");
            }
            "close" => assert!(self.client.shutdown(PATIENCE).await),
            "waitForEvent" => {
                let event = operation["arguments"]["event"].as_object().unwrap().keys().next().unwrap();
                let count = operation["arguments"]["count"].as_u64().unwrap() as usize;
                // wharf's name for `poolReadyEvent` is `PoolReady`.
                let is_meant = |name: &str| name.eq_ignore_ascii_case(event.trim_end_matches("Event"));
                let seen = || self.seen.lock().unwrap().iter().any(|(name, seen)| is_meant(name) && *seen >= count);
                while !seen() {
                    tokio::task::yield_now().await;
                }
            }
            other => panic!("the runner does not know {other}"),
        }
    }
}

/// Converts plain JSON to BSON.
fn bson(value: &Value) -> Bson {
    match value {
        Value::Null => Bson::Null,
        Value::Bool(value) => Bson::Boolean(*value),
        Value::Number(value) => Bson::Int64(value.as_i64().expect("a whole number")),
        Value::String(value) => Bson::String(value.clone()),
        Value::Array(values) => values.iter().map(bson).collect::<Vec<_>>().into(),
        Value::Object(values) => Bson::Document(values.iter().map(|(key, value)| (key.clone(), bson(value))).collect()),
    }
}

async fn set_fail_point(root: &Pool<Endpoint>, fail_point: &Value) {
    let command = bson::RawDocumentBuf::try_from(bson(fail_point).as_document().unwrap()).unwrap();
    root.run_command("admin", &command).await.unwrap();
}

/// Returns whether a value matches under the rules of the unified test format.
fn matches(expected: &Value, actual: Option<&Value>) -> bool {
    let Some(special) = expected.as_object() else { return actual == Some(expected) };
    match special.iter().next().map(|(name, of)| (name.as_str(), of)) {
        Some(("$$exists", exists)) => actual.is_some() == exists.as_bool().unwrap(),
        Some(("$$type", types)) => {
            let types = match types {
                Value::Array(types) => types.clone(),
                one => vec![one.clone()],
            };
            types.iter().any(|of| match of.as_str().unwrap() {
                "string" => actual.is_some_and(Value::is_string),
                "int" | "long" => actual.is_some_and(Value::is_u64),
                "double" => actual.is_some_and(Value::is_f64),
                other => panic!("the runner does not know the type {other}"),
            })
        }
        other => panic!("the runner does not know {other:?}"),
    }
}

/// The options whose cases are not run. A driver that lacks them must not add them (CMAP, "Deprecated Options"). The test
/// asserts that wharf lacks them.
const DEPRECATED: [&str; 2] = ["waitQueueSize", "waitQueueMultiple"];

/// Returns the messages that a case expects, in the order of the newest edition.
fn expected_messages(case: &Value) -> Vec<Value> {
    let mut messages = case["expectLogMessages"][0]["messages"].as_array().unwrap().clone();
    if Edition::present() == Edition::Newest {
        return messages;
    }
    let place = |messages: &[Value], text: &str| messages.iter().position(|of| of["data"]["message"] == text);
    let cleared = place(&messages, "Connection pool cleared");
    let closed = place(&messages, "Connection closed");
    if let (Some(cleared), Some(closed)) = (cleared, closed)
        && cleared > closed
    {
        let message = messages.remove(cleared);
        messages.insert(closed, message);
    }
    messages
}

#[test]
fn connection_logging_suite_passes() {
    let kept = Kept::default();
    // The subscriber is global, because the pools' tasks run on other threads.
    tracing::subscriber::set_global_default(keeping(kept.clone())).expect("the only subscriber of this process");
    let mongod = Mongod::start(MongodOptions { auth: true, ..MongodOptions::default() }).unwrap();
    let address = mongod.address().to_string();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (files, passed, skipped) = runtime.block_on(async {
        // The localhost exception allows creating the first user without authentication.
        let mut first = Options::new([&*address]).unwrap().endpoint().unwrap().connect().await.unwrap();
        let user = doc! { "createUser": "root", "pwd": "root", "roles": [{ "role": "root", "db": "admin" }] };
        first.run_command("admin", &bson::RawDocumentBuf::try_from(&user).unwrap()).await.unwrap();
        let root = Options::from_uri(&format!("mongodb://root:root@{address}/")).await.unwrap();
        let root = root.endpoint().unwrap().pool().build().unwrap();
        root.ready();
        let folder = wharf_testbed::provision::suite("connection_logging").expect("the official test suite");
        let (mut files, mut passed, mut skipped) = (0, 0, 0);
        for entry in fs::read_dir(folder).unwrap() {
            let file: Value = serde_json::from_str(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
            files += 1;
            for case in file["tests"].as_array().unwrap() {
                let description = case["description"].as_str().unwrap();
                if let Some(option) = DEPRECATED.iter().find(|option| description.starts_with(**option)) {
                    let options = Options::parse(&format!("mongodb://localhost/?{option}=100")).unwrap();
                    assert!(matches!(options.warnings(), [UriWarning::UnknownOption { .. }]), "{option}");
                    skipped += 1;
                    continue;
                }
                tokio::time::timeout(PATIENCE, run_case(&address, &root, &kept, case)).await.expect("the case hangs");
                passed += 1;
            }
        }
        (files, passed, skipped)
    });
    assert_eq!((passed, skipped), (5, Edition::present().pick(0, 2)), "the suite has grown or shrunk");
    let reason =
        format!("connection_logging: {skipped} skipped: needs {}, which are deprecated\n", DEPRECATED.join(" or "));
    let row = Row { files, skipped, cases: passed + skipped, ..Row::passed("connection_logging", passed) };
    show([row], if skipped > 0 { &reason } else { "" });
}

async fn run_case(address: &str, root: &Pool<Endpoint>, kept: &Kept, case: &Value) {
    kept.lock().unwrap().clear();
    let mut client = None;
    for operation in case["operations"].as_array().unwrap() {
        match operation["name"].as_str().unwrap() {
            "createEntities" => {
                let entity = &operation["arguments"]["entities"][0]["client"];
                client = Some(Client::new(address, entity).await);
            }
            "failPoint" => set_fail_point(root, &operation["arguments"]["failPoint"]).await,
            _ => client.as_ref().expect("a client is created first").run(operation).await,
        }
    }
    // The client lives until the messages have been compared, because its end is logged, too.
    let messages = kept.lock().unwrap().clone();
    let (description, expected) = (&case["description"], expected_messages(case));
    assert_eq!(messages.len(), expected.len(), "{description}: {messages:#?}");
    for (expected, actual) in expected.iter().zip(&messages) {
        assert_eq!((&expected["level"], &expected["component"]), (&"debug".into(), &"connection".into()));
        for (key, value) in expected["data"].as_object().unwrap() {
            assert!(matches(value, actual.get(key.as_str())), "{description}: {key} of {actual:#?} is not {value}");
        }
    }
    // A client that is only dropped may log its end during the next case.
    assert!(client.expect("a case creates a client").client.shutdown(PATIENCE).await);
}
