//! A client in a function of a cloud provider, which may freeze at any time: it polls (Server Monitoring,
//! "serverMonitoringMode").

use std::process::Command;
use std::time::Duration;

use bson::rawdoc;
use wharf::client::TopologyEvent;
use wharf::{Client, Options};
use wharf_testbed::mongod;

use super::events::Events;

/// Says to the child which server to monitor.
const SERVER: &str = "WHARF_TEST_FUNCTION_SERVER";
/// Says to the child whether it is a function.
const IS_FUNCTION: &str = "WHARF_TEST_IS_FUNCTION";

#[test]
fn client_in_a_function_polls_without_a_connection_for_round_trips() {
    let server = mongod::shared().unwrap();
    let functions = [
        Some(("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")),
        Some(("FUNCTIONS_WORKER_RUNTIME", "custom")),
        Some(("K_SERVICE", "shop")),
        Some(("VERCEL", "1")),
        None,
    ];
    for function in functions {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["faas::in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"]);
        child.env(SERVER, server.address().to_string()).env(IS_FUNCTION, function.is_some().to_string());
        for name in ["AWS_EXECUTION_ENV", "AWS_LAMBDA_RUNTIME_API", "FUNCTIONS_WORKER_RUNTIME", "K_SERVICE", "VERCEL"] {
            child.env_remove(name);
        }
        child.envs(function);
        let output = child.output().unwrap();
        assert!(output.status.success(), "{function:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in a process with the variables of a function, started by the test above"]
async fn in_a_process_of_its_own() {
    let Ok(address) = std::env::var(SERVER) else { return };
    let is_function = std::env::var(IS_FUNCTION).as_deref() == Ok("true");
    let name = format!("function {}", std::process::id());
    let events = Events::default();
    let options = Options::parse(&format!("mongodb://{address}/?heartbeatFrequencyMS=500")).unwrap();
    let client = Client::builder(options.app_name(&name)).topology_subscriber(events.clone()).build().unwrap();
    client.connect().await.unwrap();
    // Three more checks, or one that waits: then all connections are there that there will be.
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
            let found = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count();
            // The connection for round trips opens while the monitor begins to wait.
            if found >= expected {
                break found;
            }
        }
    });
    assert_eq!(counted.await.unwrap(), expected);
}
