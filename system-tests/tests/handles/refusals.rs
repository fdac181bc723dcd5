//! Calls that are refused before anything is sent, and errors about documents.

use bson::{Document, doc};
use wharf::client::WriteModel;
use wharf::{Client, ClientError};
use wharf_testbed::scripted::{Answer, name};

use super::{Order, scripted};

#[tokio::test]
async fn value_that_cannot_be_sent_is_named_with_its_argument() {
    // No server listens here, so a call that tried to send something would fail differently.
    let orders = Client::from_uri("mongodb://127.0.0.1:1").unwrap().database("shop").collection::<Document>("orders");
    let set = doc! { "$set": { "paid": true } };
    let refusals: [(ClientError, &str); 23] = [
        (
            orders.update_one(doc! {}, doc! { "paid": true }).await.unwrap_err(),
            "the argument update cannot be sent: its first field is paid: an update begins with an operator such as $set, \
             and replace_one replaces a document",
        ),
        (
            orders.update_many(doc! {}, doc! {}).await.unwrap_err(),
            "the argument update cannot be sent: it is empty: an update has an operator such as $set",
        ),
        (
            orders.replace_one(doc! {}, &set).await.unwrap_err(),
            "the argument replacement cannot be sent: its first field is $set: update_one takes operators",
        ),
        (orders.update_one(5, &set).await.unwrap_err(), "filter cannot be sent: it must be a document, got Int32"),
        (
            orders.update_one(doc! {}, "paid").await.unwrap_err(),
            "update cannot be sent: it must be a document of operators or an array",
        ),
        (
            orders.delete_one([set.clone()]).await.unwrap_err(),
            "filter cannot be sent: it must be a document, got Array",
        ),
        (orders.find_one("all").await.unwrap_err(), "filter cannot be sent: it must be a document, got String"),
        (orders.find(doc! {}).sort("price").await.unwrap_err(), "sort cannot be sent: it must be a document"),
        (orders.find(doc! {}).hint(1).await.unwrap_err(), "hint cannot be sent: it must be the name of an index"),
        (
            orders.find(doc! {}).sort(doc! { "a": 1 }).options(doc! { "sort": { "b": 1 } }).await.unwrap_err(),
            "the argument options cannot be sent: the command has the field sort already",
        ),
        (
            orders.find_one(doc! {}).options(doc! { "limit": 2 }).await.unwrap_err(),
            "the argument limit cannot be sent: the command has the field limit already",
        ),
        (
            orders.find_one(None::<Document>).await.unwrap_err(),
            "filter cannot be sent: it must be a document, got Null",
        ),
        (
            orders.find(doc! {}).options(doc! { "filter": {} }).await.unwrap_err(),
            "the argument options cannot be sent: the command has the field filter already",
        ),
        (
            orders.update_one(doc! {}, &set).array_filters(doc! {}).await.unwrap_err(),
            "array_filters cannot be sent: it must be an array",
        ),
        (orders.insert_many([(); 0].map(|()| doc! {})).await.unwrap_err(), "documents cannot be sent: there are none"),
        (
            orders.clone_with_type::<i32>().insert_one(5).await.unwrap_err(),
            "the argument document cannot be sent: it must be a document, got Int32",
        ),
        (
            orders.clone_with_type::<Vec<Document>>().insert_one(vec![doc! {}]).await.unwrap_err(),
            "insert several documents with insert_many",
        ),
        (
            orders.find_one_and_update(doc! {}, doc! { "a": 1 }).await.unwrap_err(),
            "update cannot be sent: its first field is a",
        ),
        (
            orders.find_one_and_replace(doc! {}, &set).await.unwrap_err(),
            "replacement cannot be sent: its first field is $set",
        ),
        (orders.count_documents(1).await.unwrap_err(), "filter cannot be sent: it must be a document"),
        (orders.aggregate(doc! {}).await.unwrap_err(), "pipeline cannot be sent: it must be an array"),
        (orders.bulk_write([]).await.unwrap_err(), "models cannot be sent: there are none"),
        (
            orders.bulk_write([WriteModel::insert_one(doc! {}).upsert(true)]).await.unwrap_err(),
            "models cannot be sent: an insert has no option upsert (number 0)",
        ),
    ];
    for (error, expected) in refusals {
        assert!(matches!(error, ClientError::Argument { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_has_the_ids_that_the_client_gave_if_the_outcome_is_unknown() {
    // The server may have executed any of these writes.
    let (server, client) = scripted("retryWrites=false", |_, _| Answer::Close).await;
    let notes = client.database("shop").collection::<Document>("notes");
    let one = notes.insert_one(doc! { "text": "a" }).await.unwrap_err();
    let many = notes.insert_many([doc! { "_id": 1 }, doc! { "text": "b" }]).await.unwrap_err();
    let raw = client.insert("shop", "notes", [doc! { "text": "c" }]).await.unwrap_err();
    let sent = server.commands();
    let sent = sent.iter().filter(|command| name(command) == "insert").map(|insert| {
        let documents = insert.get_array("documents").unwrap();
        documents.last().unwrap().as_document().unwrap().get_object_id("_id").unwrap()
    });
    let sent: Vec<_> = sent.collect();
    assert_eq!(one.generated_ids(), [(0, sent[0])], "{one}");
    assert_eq!(many.generated_ids(), [(1, sent[1])], "{many}");
    assert_eq!(raw.generated_ids(), [(0, sent[2])], "{raw}");
}

#[tokio::test(start_paused = true)]
async fn error_has_the_ids_that_the_client_gave_if_the_reply_cannot_be_read() {
    let (_server, client) = scripted("", |_, _| {
        Answer::Reply(doc! { "ok": 1, "n": 1, "writeErrors": [{ "code": 121, "errmsg": "it has no index" }] })
    })
    .await;
    let notes = client.database("shop").collection::<Document>("notes");
    let one = notes.insert_one(doc! { "text": "a" }).await.unwrap_err();
    let many = notes.insert_many([doc! { "text": "a" }]).await.unwrap_err();
    for error in [one, many] {
        assert_eq!(error.generated_ids().len(), 1, "{error}");
        assert!(error.to_string().contains("the reply to insert cannot be read"), "{error}");
        let wrapped = ClientError::other(std::io::Error::other(error));
        assert_eq!(wrapped.generated_ids().len(), 1, "{wrapped}");
    }
    let own = client.database("shop").collection::<Order>("orders").insert_one(Order::new(1)).await.unwrap_err();
    assert!(matches!(own, ClientError::Reply { .. }), "{own}");
}

#[tokio::test(start_paused = true)]
async fn write_error_has_the_ids_that_the_client_gave() {
    let (_server, client) = scripted("", |_, _| {
        Answer::Reply(doc! { "ok": 1, "n": 0, "writeErrors": [{ "index": 0, "code": 121, "errmsg": "invalid" }] })
    })
    .await;
    let notes = client.database("shop").collection::<Document>("notes");
    let error = notes.insert_one(doc! { "text": "a" }).await.unwrap_err();
    assert_eq!(error.generated_ids().len(), 1, "{error}");
    let error = notes.insert_many([doc! { "text": "a" }]).await.unwrap_err();
    assert_eq!(error.generated_ids().len(), 1, "{error}");
    let own = client.database("shop").collection::<Order>("orders").insert_one(Order::new(1)).await.unwrap_err();
    assert!(own.generated_ids().is_empty());
}
