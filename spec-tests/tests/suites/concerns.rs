//! The parts of the `read_write_concern` suite that are not in the unified format: the meaning of connection strings,
//! and the resulting commands.

use std::time::Duration;

use bson::{Bson, Document, doc, rawdoc};
use serde_json::{Value, json};
use wharf::client::ClientError;
use wharf::{Acknowledgement, Client, Operation, Options, WriteConcern};
use wharf_testbed::edition::root;
use wharf_testbed::scripted::{Answer, ScriptedServer, name};
use wharf_testbed::table::{Row, show};

fn cases(folder: &str, file: &str) -> Vec<Value> {
    let path = root().join(folder).join(file).with_extension("json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    file["tests"].as_array().unwrap().clone()
}

fn write_concern(fields: &Value) -> WriteConcern {
    let mut concern = WriteConcern::default();
    for (name, value) in fields.as_object().unwrap() {
        concern = match (name.as_str(), value) {
            ("w", Value::String(mode)) => concern.w(Acknowledgement::Mode(mode.clone())),
            ("w", value) => concern.w(Acknowledgement::Servers(value.as_u64().unwrap().try_into().unwrap())),
            ("journal", value) => concern.journal(value.as_bool().unwrap()),
            ("wtimeoutMS", value) => concern.w_timeout(Duration::from_millis(value.as_u64().unwrap())),
            _ => panic!("{name} is not a field of a write concern"),
        };
    }
    concern
}

/// Returns a connection string that sets these read and write concerns.
fn uri(address: &str, read: &Value, write: &Value) -> String {
    let mut uri = format!("mongodb://{address}/?");
    for (name, value) in read.as_object().into_iter().chain(write.as_object()).flatten() {
        let name = if name == "level" { "readConcernLevel" } else { name };
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        uri.push_str(&format!("{name}={value}&"));
    }
    uri
}

/// Asserts that the connection string is refused, or that its concern is ignored with a warning ("Connection String
/// Tests").
fn assert_invalid(uri: &str) {
    if let Ok(options) = Options::parse(uri) {
        assert!(!options.warnings().is_empty(), "{uri}");
        assert_eq!(options.write_concern, WriteConcern::default(), "{uri}");
    }
}

#[test]
fn connection_strings_have_the_concerns_of_the_suite() {
    let folder = "read_write_concern/connection-string";
    let mut count = 0;
    for case in ["read-concern", "write-concern"].iter().flat_map(|file| cases(folder, file)) {
        count += 1;
        let uri = case["uri"].as_str().unwrap();
        if case["valid"] == false {
            assert_invalid(uri);
            continue;
        }
        let options = Options::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
        assert_eq!(!options.warnings().is_empty(), case["warning"].as_bool().unwrap(), "{uri}");
        if case["readConcern"].is_object() {
            assert_eq!(options.read_concern.as_deref(), case["readConcern"]["level"].as_str(), "{uri}");
        }
        if case["writeConcern"].is_object() {
            assert_eq!(options.write_concern, write_concern(&case["writeConcern"]), "{uri}");
        }
    }
    assert_eq!(count, 18, "the suite has another size");
    show([Row { files: 2, ..Row::passed(folder, count) }], "");
}

/// Answers each command, except unacknowledged inserts.
fn answer(command: &Document, address: &str) -> Answer {
    let concern = command.get_document("writeConcern");
    match name(command).as_str() {
        "insert" if concern.is_ok_and(|concern| matches!(concern.get_i32("w"), Ok(0))) => Answer::Hang,
        "insert" => Answer::Reply(doc! { "ok": 1, "n": 1 }),
        "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "db.things", "firstBatch": [] } }),
        _ => Answer::Reply(doc! { "ok": 1, "isWritablePrimary": true, "maxWireVersion": 21, "me": address }),
    }
}

/// Sends a command with the read and write concerns from a connection string. Returns the command, and whether the
/// write was acknowledged.
async fn send(is_read: bool, case: &Value) -> Result<(Document, bool), ClientError> {
    let server = ScriptedServer::start(|| Box::new(|command| answer(command, "localhost"))).await.unwrap();
    let client = Client::from_uri(&uri(&server.address(), &case["readConcern"], &case["writeConcern"])).unwrap();
    let is_acknowledged = match is_read {
        true => client.run(Operation::read("db", &rawdoc! { "find": "things" })).await.map(|_| true)?,
        false => client.insert("db", "things", [doc! { "_id": 1 }]).await?.inserted == 1,
    };
    let wanted = if is_read { "find" } else { "insert" };
    while !server.command_names().iter().any(|name| name == wanted) {
        server.until(server.commands().len() + 1).await;
    }
    let sent = server.commands().into_iter().find(|command| name(command) == wanted);
    Ok((sent.expect("the command has arrived"), is_acknowledged))
}

#[tokio::test]
async fn concerns_are_sent_as_the_documents_of_the_suite() {
    let folder = "read_write_concern/document";
    let mut count = 0;
    for (file, field) in [("read-concern", "readConcern"), ("write-concern", "writeConcern")] {
        for case in cases(folder, file) {
            count += 1;
            let at = &case["description"];
            if case["valid"] == false {
                assert_invalid(&uri("localhost", &json!(null), &case["writeConcern"]));
                continue;
            }
            let (sent, is_acknowledged) = send(file == "read-concern", &case).await.unwrap();
            let expected = Bson::try_from(case[&format!("{field}Document")].clone()).unwrap();
            let expected = (case["isServerDefault"] == false).then_some(expected);
            let found = sent.get(field).cloned();
            let sorted = |document: Option<Bson>| {
                let mut fields: Vec<_> = document
                    .iter()
                    .flat_map(|of| of.as_document().unwrap())
                    .map(|(name, value)| (name.clone(), value.to_string()))
                    .collect();
                fields.sort();
                fields
            };
            assert_eq!(found.is_some(), expected.is_some(), "{at}: {sent}");
            assert_eq!(sorted(found), sorted(expected), "{at}: {sent}");
            assert_eq!(is_acknowledged, case["isAcknowledged"].as_bool().unwrap_or(true), "{at}");
        }
    }
    assert_eq!(count, 20, "the suite has another size");
    show([Row { files: 2, ..Row::passed(folder, count) }], "");
}
