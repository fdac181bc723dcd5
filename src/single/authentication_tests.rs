//! What becomes of operations whose connection cannot be authenticated.

use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc, rawdoc};
use wharf_testbed::scripted::{Answer, name};

use super::tests::{World, answer, close, is_hello};
use crate::client::{ClientError, Operation, ServerSelectionError};
use crate::error::Stage;

/// Answers everything, but the first authentications in another way.
fn after(first: usize, other: Answer) -> impl Fn(&Document, usize) -> Answer + Clone + Send + 'static {
    move |command, number| match name(command).as_str() {
        "saslStart" if number < first => other.clone(),
        "saslStart" => {
            let payload = Binary { subtype: BinarySubtype::Generic, bytes: Vec::new() };
            Answer::Reply(doc! { "ok": 1, "conversationId": 1, "done": true, "payload": payload })
        }
        "insert" => Answer::Reply(doc! { "ok": 1, "n": 1 }),
        "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.things", "firstBatch": [] } }),
        _ => answer(command),
    }
}

fn is_authentication(command: &Document) -> bool {
    name(command) == "saslStart"
}

/// Returns whether an operation failed because of the authentication.
fn is_unauthenticated(error: &ClientError) -> bool {
    let ClientError::Selection(ServerSelectionError::TriedOnce { unauthenticated: Some(error), .. }) = error else {
        return false;
    };
    error.stage() == Stage::Authenticate
}

/// The failure is one of the connection's handshake, as with a pool (Retryable Reads, "Retryable Error"). It is not one of
/// the check, after which the server would be left alone for 5 s.
#[test]
fn read_is_retried_if_the_authentication_loses_its_connection() {
    let world = World::new();
    let server = world.server(after(1, Answer::Close));
    let client = world.client(&format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address()));
    client.run(Operation::read("test", &rawdoc! { "find": "things" })).unwrap();
    assert!(close(&server.times(is_authentication), &[0, 500]), "{:?}", server.times(is_authentication));
}

#[test]
fn insert_is_retried_unless_the_options_say_otherwise() {
    for (retries, expected) in [("true", &[0, 500][..]), ("false", &[0])] {
        let world = World::new();
        let server = world.server(after(1, Answer::Close));
        let address = server.server.address();
        let client = world.client(&format!("mongodb://u:p@{address}/?authMechanism=PLAIN&retryWrites={retries}"));
        let written = client.insert("test", "things", [doc! { "_id": 1 }]).run();
        let is_expected = match &written {
            Ok(written) => retries == "true" && written.inserted == 1,
            Err(error) => retries == "false" && is_unauthenticated(error),
        };
        assert!(is_expected, "{retries}: {written:?}");
        assert!(close(&server.times(is_authentication), expected), "{:?}", server.times(is_authentication));
    }
}

#[test]
fn command_fails_if_the_authentication_loses_its_connection_and_the_next_one_does_not() {
    let world = World::new();
    let server = world.server(after(1, Answer::Close));
    let client = world.client(&format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address()));
    let ping = rawdoc! { "ping": 1 };
    let error = client.run_command("admin", &ping).unwrap_err();
    assert!(is_unauthenticated(&error), "{error:?}");
    assert_eq!(server.times(is_authentication).len(), 1, "any command is no retryable operation");
    client.run_command("admin", &ping).unwrap();
    assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
}

#[test]
fn refused_password_is_not_retried() {
    let world = World::new();
    let refusal = doc! { "ok": 0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "it is wrong" };
    let server = world.server(after(1, Answer::Reply(refusal)));
    let client = world.client(&format!("mongodb://u:p@{}/?authMechanism=PLAIN", server.server.address()));
    let find = rawdoc! { "find": "things" };
    let error = client.run(Operation::read("test", &find)).unwrap_err();
    assert!(is_unauthenticated(&error) && error.to_string().contains("it is wrong"), "{error:?}");
    assert_eq!(server.times(is_authentication).len(), 1);
    // An administrator has mended it.
    client.run(Operation::read("test", &find)).unwrap();
    assert!(close(&server.times(is_hello), &[0, 500]), "{:?}", server.times(is_hello));
}
