//! Handles to databases and collections.
#![cfg(not(any(loom, shuttle)))]

mod administration;
mod client_bulk;
mod documents;
mod queries;
mod refusals;
mod wire;

use std::sync::Arc;

use bson::{Document, doc, rawdoc};
use serde::{Deserialize, Serialize};
use wharf::{Client, Collection, Operation};
use wharf_testbed::mongod::{self, Mongod};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    customer: String,
    price: i64,
}

impl Order {
    fn new(id: i32) -> Self {
        Self { id, customer: format!("customer {}", id % 2), price: i64::from(id) }
    }
}

/// Returns an empty collection on the shared server.
async fn collection<T>(name: &str) -> (Arc<Mongod>, Collection<T>) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let _ = client.run(Operation::write("handles", &rawdoc! { "drop": name })).await;
    let collection = client.database("handles").collection(name);
    (server, collection)
}

/// Starts a primary that answers commands other than `hello` with `answer`, and a client for it. `answer` receives the
/// command's index among the commands with the same name.
async fn scripted(
    parameters: &str,
    answer: impl Fn(&Document, usize) -> Answer + Clone + Send + 'static,
) -> (ScriptedServer, Client) {
    scripted_as(doc! { "maxWireVersion": 21 }, parameters, answer).await
}

/// Like [`scripted`], but with additional fields in the reply to `hello`.
async fn scripted_as(
    hello: Document,
    parameters: &str,
    answer: impl Fn(&Document, usize) -> Answer + Clone + Send + 'static,
) -> (ScriptedServer, Client) {
    let server = ScriptedServer::start(move || {
        let (answer, hello) = (answer.clone(), hello.clone());
        let mut names = Vec::new();
        Box::new(move |command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => {
                let mut reply = doc! {
                    "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0,
                    "logicalSessionTimeoutMinutes": 30, "setName": "rs", "setVersion": 1,
                };
                reply.extend(hello.clone());
                Answer::Reply(reply)
            }
            other => {
                let number = names.iter().filter(|name| *name == other).count();
                names.push(other.to_owned());
                answer(command, number)
            }
        })
    });
    let server = server.await.unwrap();
    let parameters = format!("directConnection=true&serverMonitoringMode=poll&{parameters}");
    let client = Client::from_uri(&format!("mongodb://{}/?{parameters}", server.address())).unwrap();
    (server, client)
}

/// Returns the commands received so far, without `hello` and without the client's additions to each command.
fn arrived(server: &ScriptedServer) -> Vec<Document> {
    let mut commands = server.commands();
    commands.retain(|command| !matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster" | "endSessions"));
    for command in &mut commands {
        for added in ["$db", "lsid", "txnNumber", "$clusterTime"] {
            command.remove(added);
        }
        if command.get("$readPreference") == Some(&doc! { "mode": "primaryPreferred" }.into()) {
            command.remove("$readPreference");
        }
    }
    commands
}
