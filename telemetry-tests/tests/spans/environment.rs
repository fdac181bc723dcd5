//! The environment variables, each tested in a separate process (OpenTelemetry, "Prose Tests").

use std::process::Command;

use bson::{Document, doc};
use opentelemetry::global;
use wharf::{Client, Collection};

use super::{World, attributes, primary};

const ENABLED: &str = "OTEL_RUST_INSTRUMENTATION_MONGODB_ENABLED";
const QUERY_TEXT: &str = "OTEL_RUST_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH";

/// Runs a process with these environment variables, in which a client without options finds a document. Returns the
/// output that describes the spans.
fn in_process(variables: &[(&str, &str)]) -> String {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.env_remove(ENABLED).env_remove(QUERY_TEXT).envs(variables.iter().copied());
    let output =
        process.args(["--exact", "environment::finds_a_document", "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    printed.lines().find_map(|line| Some(line.split_once("spans: ")?.1.to_owned())).expect("the line of the process")
}

#[tokio::test]
#[ignore = "the other tests run it in processes of their own"]
async fn finds_a_document() {
    let world = World::start(|command, _| primary(command)).await;
    let client = Client::new(world.uri()).unwrap();
    // An application may set the provider after it has built the client.
    global::set_tracer_provider(world.provider.clone());
    let orders: Collection<Document> = client.database("shop").collection("orders");
    orders.find_one(doc! { "_id": 7 }).await.unwrap();
    let spans = world.spans();
    let text = spans.get(1).and_then(|command| attributes(command).get("db.query.text").cloned());
    println!("spans: {} {}", world.tree().join(","), text.unwrap_or_default());
}

#[test]
fn p1_variable_switches_the_spans_on() {
    assert_eq!(in_process(&[(ENABLED, "false")]), " ");
    assert_eq!(in_process(&[(ENABLED, "true")]), "find shop.orders,  find ");
}

#[test]
fn p2_variable_adds_the_text_of_commands() {
    let texts = in_process(&[(ENABLED, "true"), (QUERY_TEXT, "1024")]);
    assert!(texts.starts_with(r#"find shop.orders,  find {"find":"orders","filter":{"_id":7}"#), "{texts}");
    assert_eq!(in_process(&[(ENABLED, "true")]), "find shop.orders,  find ");
}
