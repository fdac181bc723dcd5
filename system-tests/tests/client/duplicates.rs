//! A duplicate key and a wrong password: the error is the same on every path.

use bson::{Document, doc, rawdoc};
use wharf::{ClientError, Operation};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::ok;
use super::repetitions::{client, primary, start};

/// Answers inserts and `findAndModify` with a duplicate key error, each in the form that a server uses.
fn refusing(command: &Document, _: usize) -> Answer {
    let duplicate = doc! {
        "code": 11_000, "errmsg": "E11000 duplicate key error", "keyPattern": { "_id": 1 }, "keyValue": { "_id": 7 },
    };
    match name(command).as_str() {
        "insert" => {
            let mut refused = duplicate;
            refused.insert("index", 0);
            Answer::Reply(doc! { "ok": 1, "n": 0, "writeErrors": [refused] })
        }
        "findAndModify" => {
            let mut refused = duplicate;
            refused.extend(doc! { "ok": 0, "codeName": "DuplicateKey" });
            Answer::Reply(refused)
        }
        _ => ok(),
    }
}

fn is_duplicate(error: &ClientError, address: &str) {
    assert!(error.is_duplicate_key(), "{error}");
    assert_eq!((error.code(), error.code_name()), (Some(11_000), Some("DuplicateKey")), "{error}");
    let server = error.server_error().unwrap();
    assert_eq!((server.code, &*server.code_name), (11_000, "DuplicateKey"));
    assert_eq!(server.reply.get_document("keyValue").unwrap(), &*rawdoc! { "_id": 7 });
    assert_eq!(error.address(), Some(address), "{error}");
    assert!(!error.is_timeout() && !error.is_network() && !error.is_retryable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn duplicate_key_has_one_shape_on_every_path() {
    let (server, _) = start(primary(), refusing).await;
    let (client, address) = (client(&server, "directConnection=true"), server.address());
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 7 }] };
    let modify = rawdoc! { "findAndModify": "c", "query": {}, "update": { "_id": 7 }, "upsert": true };
    is_duplicate(&client.insert("db", "c", [doc! { "_id": 7 }]).await.unwrap_err(), &address);
    let bulk = client.write("db", "c").delete(rawdoc! { "q": {}, "limit": 1 }).insert(rawdoc! { "_id": 7 });
    is_duplicate(&bulk.await.unwrap_err(), &address);
    is_duplicate(&client.run(Operation::write("db", &insert)).await.unwrap_err(), &address);
    is_duplicate(&client.run(Operation::write("db", &modify)).await.unwrap_err(), &address);
    let mut session = client.start_session().await.unwrap();
    for command in [&insert, &modify] {
        let body = async |mut session| client.run(Operation::write("db", command).session(&mut session)).await;
        is_duplicate(&session.with_transaction(body).await.unwrap_err(), &address);
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_password_is_told_without_a_match() {
    let (server, _) = start(primary(), |command, _| match name(command).as_str() {
        "saslStart" => Answer::Reply(doc! {
            "ok": 0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "Authentication failed.",
        }),
        _ => ok(),
    })
    .await;
    let uri = format!("mongodb://u:p@{}/?authMechanism=PLAIN&directConnection=true", server.address());
    let client = wharf::Client::from_uri(&uri).unwrap();
    let error = client.insert("db", "c", [doc! {}]).await.unwrap_err();
    assert_eq!((error.code(), error.code_name()), (Some(18), Some("AuthenticationFailed")), "{error}");
    assert_eq!(error.address(), Some(&*server.address()), "{error}");
    assert!(!error.is_network() && !error.is_timeout() && !error.is_retryable(), "{error}");
}
