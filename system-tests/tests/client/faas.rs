//! A client in a cloud function, which may be frozen at any time. Such a client polls (Server Monitoring,
//! "serverMonitoringMode"), and its handshake describes the function (MongoDB Handshake, "client.env").

use std::process::Command;
use std::time::Duration;

use bson::{Bson, Document, RawBsonRef, doc, rawdoc};
use wharf::client::TopologyEvent;
use wharf::{Client, Options};
use wharf_testbed::mongod;

use super::events::Events;

/// Tells the child which server to monitor.
const SERVER: &str = "WHARF_TEST_FUNCTION_SERVER";
/// Tells the child which function it is: the expected `env` field in its handshakes, as JSON. Absent if the child is
/// not a function.
const FUNCTION: &str = "WHARF_TEST_FUNCTION";

#[test]
fn client_in_a_function_says_so_and_polls_without_a_connection_for_round_trips() {
    let server = mongod::shared().unwrap();
    // These two variables belong to AWS Lambda. A child that is not a Lambda function must not report their values.
    let of_lambda = [("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024"), ("AWS_REGION", "us-east-2")];
    let functions = [
        (
            Some(("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")),
            Some(doc! { "name": "aws.lambda", "memory_mb": 1024, "region": "us-east-2" }),
        ),
        (Some(("FUNCTIONS_WORKER_RUNTIME", "custom")), Some(doc! { "name": "azure.func" })),
        (Some(("K_SERVICE", "shop")), Some(doc! { "name": "gcp.func" })),
        (Some(("VERCEL", "1")), Some(doc! { "name": "vercel" })),
        (None, None),
    ];
    for (function, env) in functions {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["faas::in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"]);
        child.env(SERVER, server.address().to_string()).env_remove(FUNCTION);
        child.envs(env.map(|env| (FUNCTION, Bson::from(env).into_relaxed_extjson().to_string())));
        let others =
            ["FUNCTION_NAME", "FUNCTION_MEMORY_MB", "FUNCTION_TIMEOUT_SEC", "FUNCTION_REGION", "VERCEL_REGION"];
        let container = ["KUBERNETES_SERVICE_HOST"];
        let names = ["AWS_EXECUTION_ENV", "AWS_LAMBDA_RUNTIME_API", "FUNCTIONS_WORKER_RUNTIME", "K_SERVICE", "VERCEL"];
        for name in names.into_iter().chain(others).chain(container) {
            child.env_remove(name);
        }
        child.envs(of_lambda).envs(function);
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{function:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in a process with the variables of a function, started by the test above"]
async fn in_a_process_of_its_own() {
    let Ok(address) = std::env::var(SERVER) else { return };
    let env: Option<Document> = std::env::var(FUNCTION).ok().map(|env| serde_json::from_str(&env).unwrap());
    let is_function = env.is_some();
    let name = format!("function {}", std::process::id());
    let events = Events::default();
    let options = Options::parse(&format!("mongodb://{address}/?heartbeatFrequencyMS=500")).unwrap();
    let client = Client::builder(options.app_name(&name)).topology_subscriber(events.clone()).build().unwrap();
    client.connect().await.unwrap();
    // All connections exist after three more checks, or as soon as a check waits for the server's state to change.
    for _ in 0..3 {
        let next = |event: &TopologyEvent| match event {
            TopologyEvent::ServerHeartbeatStarted { awaited, .. } => is_function || *awaited,
            _ => false,
        };
        events.after(if is_function { events.mark() } else { 0 }, next).await;
    }
    let waits = |event: &TopologyEvent| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. });
    assert_eq!(events.all().iter().any(waits), !is_function, "{:#?}", events.all());
    let others = Client::from_uri(&format!("mongodb://{address}")).unwrap();
    let count = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            { "$currentOp": { "allUsers": true, "idleConnections": true } },
            { "$match": { "appName": &*name } },
        ],
        "cursor": {},
    };
    let expected = if is_function { 1 } else { 2 };
    let counted = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            let reply = others.run_command("admin", &count).await.unwrap();
            let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
            let found: Vec<_> = batch.into_iter().map(|operation| env_of(operation.unwrap())).collect();
            // The connection that measures round trips opens as the monitor begins to wait.
            if found.len() >= expected {
                break found;
            }
        }
    });
    assert_eq!(counted.await.unwrap(), vec![env; expected]);
}

/// Returns the environment that a connection reported, as the server shows it. The `container` field is left out,
/// because the test may run in a container.
fn env_of(operation: RawBsonRef<'_>) -> Option<Document> {
    let metadata = operation.as_document().unwrap().get_document("clientMetadata").unwrap();
    let mut env = Document::try_from(metadata.get_document("env").ok()?).unwrap();
    env.remove("container");
    Some(env).filter(|env| !env.is_empty())
}
