//! The messages that the client on a single thread logs while it waits.

use bson::{doc, rawdoc};
use tracing::Level;
use wharf_testbed::log::kept;
use wharf_testbed::scripted::{Answer, name};

use super::tests::{World, answer, answer_of_query, close, is_hello, ping, replica_set};
use crate::client::Operation;

/// Returns how many of a call's selections logged that they were waiting.
fn waits(call: impl FnOnce()) -> usize {
    let messages = kept("wharf::serverSelection", Level::INFO, call);
    messages.iter().filter(|message| message["message"].starts_with("Waiting for suitable server")).count()
}

#[test]
fn selection_that_scans_again_and_again_says_so_once() {
    let world = World::new();
    let server = world.server(|command, number| match is_hello(command) {
        true if number < 3 => Answer::Reply(doc! { "ok": 1, "isreplicaset": true, "maxWireVersion": 21 }),
        _ => answer(command),
    });
    let client = world.client(&format!("mongodb://{}/?serverSelectionTryOnce=false", server.server.address()));
    assert_eq!(waits(|| ping(&client).unwrap()), 1);
    assert_eq!(waits(|| ping(&client).unwrap()), 0, "a server is there");
}

#[test]
fn selection_that_waits_for_its_only_scan_says_so_unless_it_begins_with_it() {
    let world = World::new();
    let server = world.server(|command, number| match name(command).as_str() {
        "find" if number == 0 => Answer::Close,
        _ => answer_of_query(command),
    });
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    assert_eq!(waits(|| ping(&client).unwrap()), 0, "it begins with the scan");
    // The connection is lost, so the retry finds no server, and waits for half a second before the scan.
    let read = || client.run(Operation::read("test", &rawdoc! { "find": "things" })).map(drop).unwrap();
    assert_eq!(waits(read), 1);
}

/// There is no primary when the bulk write begins, nor before its second command.
#[test]
fn bulk_write_that_waits_twice_says_so_once() {
    let world = World::new();
    let ([server], address) = replica_set(&world, ["isWritablePrimary"], |_, _, number, hello| match hello {
        Some(Answer::Reply(mut hello)) => {
            if let 0 | 2 = number {
                hello.remove("isWritablePrimary");
                hello.insert("secondary", true);
            }
            hello.insert("maxWriteBatchSize", 1);
            Answer::Reply(hello)
        }
        _ if number == 0 => {
            let shuts_down = doc! { "code": 91, "errmsg": "it shuts down" };
            Answer::Reply(doc! { "ok": 1, "n": 1, "writeConcernError": shuts_down })
        }
        _ => Answer::Reply(doc! { "ok": 1, "n": 1 }),
    });
    let client = world.client(&format!("mongodb://{address}/?replicaSet=rs&serverSelectionTryOnce=false"));
    let insert = || drop(client.insert("test", "things", [doc! { "_id": 1 }, doc! { "_id": 2 }]).run());
    assert_eq!(waits(insert), 1);
    assert!(close(&server.times(is_hello), &[0, 500, 1_000, 1_500]), "{:?}", server.times(is_hello));
    assert!(close(&server.times(|command| name(command) == "insert"), &[500, 1_500]));
}
