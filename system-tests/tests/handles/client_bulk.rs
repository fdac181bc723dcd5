//! `Client::bulk_write`, on a server that follows a script, because the method needs MongoDB 8.0.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use wharf::client::{ClientBulkWriteFailure, NamespaceWriteModel, TransactionOptions, WriteModel};
use wharf::{Client, ClientError, Collection, Options, PoolEvent};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{Order, arrived, scripted, scripted_as};

/// Returns the reply to a `bulkWrite` with these outcomes. Its cursor is exhausted.
fn reply(counts: Document, outcomes: Vec<Document>) -> Document {
    let mut reply = doc! {
        "ok": 1, "nErrors": 0, "nInserted": 0, "nUpserted": 0, "nMatched": 0, "nModified": 0, "nDeleted": 0,
        "cursor": { "id": 0_i64, "ns": "admin.$cmd.bulkWrite", "firstBatch": outcomes },
    };
    reply.extend(counts);
    reply
}

/// Returns the same reply, but with a cursor that has more outcomes.
fn open(counts: Document, outcomes: Vec<Document>) -> Document {
    let mut reply = reply(counts, outcomes);
    reply.get_document_mut("cursor").unwrap().insert("id", 7_i64);
    reply
}

/// Returns the outcome of a write that was refused.
fn refused(index: i32) -> Document {
    doc! { "ok": 0, "idx": index, "code": 11_000, "errmsg": "E11000 duplicate key", "n": 0 }
}

/// Starts a server that accepts at most two writes in a command. `answers` receives the name of a command, and its
/// index among the commands with that name.
async fn start(
    parameters: &str,
    answers: impl Fn(&str, usize) -> Document + Clone + Send + 'static,
) -> (ScriptedServer, Client) {
    let hello = doc! { "maxWireVersion": 25, "maxWriteBatchSize": 2 };
    scripted_as(hello, parameters, move |command, number| Answer::Reply(answers(&name(command), number))).await
}

fn orders(client: &Client) -> Collection<Document> {
    client.database("shop").collection("orders")
}

fn inserts(client: &Client, count: i32) -> Vec<NamespaceWriteModel> {
    (0..count).map(|id| orders(client).model(WriteModel::insert_one(doc! { "_id": id }))).collect()
}

fn failure(error: ClientError) -> ClientBulkWriteFailure {
    match error {
        ClientError::BulkWrite(failure) => *failure,
        other => panic!("another error: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_all_kinds_to_two_collections_are_one_command() {
    let answers = |command: &str, _| match command {
        "bulkWrite" => open(
            doc! { "nInserted": 1, "nUpserted": 1, "nMatched": 2, "nModified": 1, "nDeleted": 3 },
            vec![doc! { "ok": 1, "idx": 0, "n": 1 }, doc! { "ok": 1, "idx": 1, "n": 1, "nModified": 1 }],
        ),
        _ => {
            let rest = [
                doc! { "ok": 1, "idx": 2, "n": 1, "nModified": 0, "upserted": { "_id": 9 } },
                doc! { "ok": 1, "idx": 3.0, "n": 0, "nModified": 0 },
                doc! { "ok": 1.0, "idx": 4_i64, "n": 1 },
                doc! { "ok": 1, "idx": 5, "n": 2 },
            ];
            doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "admin.$cmd.bulkWrite", "nextBatch": rest } }
        }
    };
    let hello = doc! { "maxWireVersion": 25 };
    let (server, client) =
        scripted_as(hello, "", move |command, number| Answer::Reply(answers(&name(command), number))).await;
    let shop = client.database("shop");
    let (orders, stock) = (shop.collection::<Order>("orders"), shop.collection::<Document>("stock"));
    let (filter, update) = (doc! { "_id": 1 }, doc! { "$set": { "a": 1 } });
    let models = [
        orders.model(WriteModel::insert_one(Order::new(1))),
        stock.model(WriteModel::update_one(&filter, &update).hint("_id_").sort(doc! { "a": 1 })),
        orders.model(WriteModel::replace_one(&filter, doc! { "b": 1 }).upsert(true)),
        stock.model(WriteModel::update_many(&filter, [&update]).array_filters([doc! { "p": 1 }])),
        stock.model(WriteModel::delete_one(&filter).collation(doc! { "locale": "en" })),
        orders.model(WriteModel::delete_many(&filter)),
    ];
    let write = client.bulk_write(models).verbose_results(true).comment("c").let_vars(doc! { "v": 1 });
    let written = write.bypass_document_validation(true).await.unwrap();
    assert!(written.acknowledged);
    assert_eq!((written.inserted_count, written.upserted_count, written.matched_count), (1, 1, 2));
    assert_eq!((written.modified_count, written.deleted_count), (1, 3));
    let verbose = written.verbose_results.unwrap();
    assert_eq!(verbose.insert_results[&0].inserted_id, Bson::Int32(1));
    let updates: Vec<_> = verbose.update_results.iter().map(|(place, update)| (*place, update.matched_count)).collect();
    assert_eq!(updates, [(1, 1), (2, 1), (3, 0)]);
    assert_eq!(verbose.update_results[&1].modified_count, 1);
    assert_eq!(
        (&verbose.update_results[&1].upserted_id, &verbose.update_results[&2].upserted_id),
        (&None, &Some(Bson::Int32(9)))
    );
    let deletes: Vec<_> = verbose.delete_results.iter().map(|(place, delete)| (*place, delete.deleted_count)).collect();
    assert_eq!(deletes, [(4, 1), (5, 2)]);
    let sent = arrived(&server);
    let expected = doc! {
        "bulkWrite": 1, "comment": "c", "let": { "v": 1 }, "bypassDocumentValidation": true, "errorsOnly": false,
        "ordered": true,
        "ops": [
            { "insert": 0, "document": { "_id": 1, "customer": "customer 1", "price": 1_i64 } },
            { "update": 1, "filter": &filter, "updateMods": &update, "hint": "_id_", "sort": { "a": 1 }, "multi": false },
            { "update": 0, "filter": &filter, "updateMods": { "b": 1 }, "upsert": true, "multi": false },
            {
                "update": 1, "filter": &filter, "updateMods": [&update], "arrayFilters": [{ "p": 1 }], "multi": true,
            },
            { "delete": 1, "filter": &filter, "collation": { "locale": "en" }, "multi": false },
            { "delete": 0, "filter": &filter, "multi": true },
        ],
        "nsInfo": [{ "ns": "shop.orders" }, { "ns": "shop.stock" }],
    };
    assert_eq!(sent[0], expected);
    assert_eq!((name(&sent[1]).as_str(), sent[1].get_str("collection").unwrap()), ("getMore", "$cmd.bulkWrite"));
    let all = server.commands();
    let of = |wanted: &str| all.iter().find(|command| name(command) == wanted).unwrap();
    assert_eq!(of("bulkWrite").get_str("$db").unwrap(), "admin");
    assert_eq!(of("bulkWrite").get("lsid"), of("getMore").get("lsid"));
}

#[tokio::test(start_paused = true)]
async fn batches_have_only_their_own_namespaces() {
    let (server, client) = start("", |_, number| reply(doc! { "nInserted": 2 - number as i32 }, vec![])).await;
    let shop = client.database("shop");
    let insert = |of: &str, id: i32| shop.collection::<Document>(of).model(WriteModel::insert_one(doc! { "_id": id }));
    let written = client.bulk_write([insert("a", 1), insert("b", 2), insert("b", 3)]).await.unwrap();
    assert_eq!((written.inserted_count, written.verbose_results), (3, None));
    let sent = arrived(&server);
    let command = |operations: Vec<Document>, namespaces: Vec<Document>| {
        doc! { "bulkWrite": 1, "errorsOnly": true, "ordered": true, "ops": operations, "nsInfo": namespaces }
    };
    let operation = |namespace: i32, id: i32| doc! { "insert": namespace, "document": { "_id": id } };
    let first = command(vec![operation(0, 1), operation(1, 2)], vec![doc! { "ns": "shop.a" }, doc! { "ns": "shop.b" }]);
    assert_eq!(sent, [first, command(vec![operation(0, 3)], vec![doc! { "ns": "shop.b" }])]);
}

/// Prose test 11, on a server that allows only small messages: the command's document is 43 bytes long, a namespace
/// takes 21 or more, and an insert takes 58.
#[tokio::test(start_paused = true)]
async fn namespace_counts_for_the_size_of_a_message() {
    let insert = |client: &Client, namespace: &str| {
        client.database("db").collection::<Document>(namespace).model(WriteModel::insert_one(doc! { "a": "b" }))
    };
    let two = 1_000 + 43 + 21 + 2 * 58;
    for (most_bytes, second, batches) in
        [(two, "coll", 1), (two - 1, "coll", 2), (two, "call", 2), (two + 21, "call", 1)]
    {
        let hello = doc! { "maxWireVersion": 25, "maxMessageSizeBytes": most_bytes };
        let (server, client) =
            scripted_as(hello, "", |_, _| Answer::Reply(reply(doc! { "nInserted": 1 }, vec![]))).await;
        client.bulk_write([insert(&client, "coll"), insert(&client, second)]).await.unwrap();
        assert_eq!(arrived(&server).len(), batches, "{most_bytes} bytes, {second}");
    }
    let hello = doc! { "maxWireVersion": 25, "maxMessageSizeBytes": two - 59 };
    let (server, client) = scripted_as(hello, "", |_, _| Answer::Close).await;
    let error = client.bulk_write([insert(&client, "coll")]).await.unwrap_err();
    let expected =
        "the argument models cannot be sent: write number 0 does not fit into a message (maxMessageSizeBytes)";
    assert_eq!(error.to_string(), expected);
    assert!(arrived(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn write_error_ends_a_series_that_is_ordered() {
    for (index, inserted) in [(0, None), (1, Some(1))] {
        let answers = move |_: &str, _| reply(doc! { "nErrors": 1, "nInserted": index }, vec![refused(index)]);
        let (server, client) = start("", answers).await;
        let error = client.bulk_write(inserts(&client, 3)).await.unwrap_err();
        assert!(error.is_duplicate_key() && error.address().is_some(), "{error}");
        assert_eq!(error.to_string(), format!("E11000 duplicate key (error 11000, statement number {index})"));
        let failure = failure(error);
        let indexes: Vec<_> = failure.write_errors.keys().copied().collect();
        assert_eq!(indexes, [index as usize]);
        assert_eq!(failure.partial_result.map(|result| result.inserted_count), inserted);
        assert_eq!(arrived(&server).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn write_errors_are_collected_if_the_writes_are_not_ordered() {
    for (refused_by, inserted) in [([2, 1], None), ([1, 1], Some(1)), ([2, 0], Some(1))] {
        let answers = move |_: &str, number: usize| {
            let (writes, refusals) = ([2, 1][number], refused_by[number]);
            reply(doc! { "nErrors": refusals, "nInserted": writes - refusals }, (0..refusals).map(refused).collect())
        };
        let (server, client) = start("", answers).await;
        let failure = failure(client.bulk_write(inserts(&client, 3)).ordered(false).await.unwrap_err());
        let indexes: Vec<_> = failure.write_errors.keys().copied().collect();
        let expected = (0..refused_by[0]).chain((0..refused_by[1]).map(|index| 2 + index));
        assert_eq!(indexes, expected.map(|index| index as usize).collect::<Vec<_>>());
        assert_eq!(failure.partial_result.map(|result| result.inserted_count), inserted);
        assert_eq!(arrived(&server).len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn error_has_every_label_and_the_ids_although_the_reply_cannot_be_read() {
    let answers = |_: &str, _: usize| {
        let mut reply = reply(doc! { "nErrors": 1 }, vec![refused(0)]);
        reply.insert("errorLabels", ["NewLabel"]);
        reply
    };
    let (_server, client) = start("", answers).await;
    let error = client.bulk_write(inserts(&client, 1)).await.unwrap_err();
    assert!(error.has_label("NewLabel") && !error.has_label("OldLabel"), "{error}");

    let (_server, client) = start("", |_, _| reply(doc! { "nInserted": "one" }, vec![])).await;
    let models = [orders(&client).model(WriteModel::insert_one(doc! { "text": "a" }))];
    let error = client.bulk_write(models).await.unwrap_err();
    assert_eq!(error.generated_ids().len(), 1, "{error}");
    assert!(error.to_string().starts_with("the reply to bulkWrite cannot be read"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn write_that_fails_in_a_transaction_is_the_last() {
    let answers = |_: &str, _: usize| reply(doc! { "nErrors": 1, "nInserted": 1 }, vec![refused(0)]);
    let (server, client) = start("", answers).await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let bulk = client.bulk_write(inserts(&client, 3)).ordered(false).session(&mut session).await;
    assert_eq!(failure(bulk.unwrap_err()).write_errors.len(), 1);
    assert_eq!(arrived(&server).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn write_concern_errors_of_all_batches_are_collected() {
    let answers = |_: &str, number: usize| {
        let mut reply = reply(doc! { "nInserted": 2 - number as i32 }, vec![]);
        reply.insert("writeConcernError", doc! { "code": 64, "errmsg": "waiting for replication timed out" });
        reply
    };
    let (_server, client) = start("retryWrites=false", answers).await;
    let error = client.bulk_write(inserts(&client, 3)).await.unwrap_err();
    assert_eq!(error.write_concern_error().unwrap().code, 64);
    assert!(error.to_string().starts_with("the write concern was not met: "), "{error}");
    let failure = failure(error);
    assert_eq!(failure.write_concern_errors.len(), 2);
    assert_eq!(failure.partial_result.unwrap().inserted_count, 3);
}

/// Prose test 9.
#[tokio::test(start_paused = true)]
async fn error_of_a_get_more_keeps_what_was_learnt_and_closes_the_cursor() {
    let answers = |command: &str, _| match command {
        "bulkWrite" => {
            open(doc! { "nUpserted": 2 }, vec![doc! { "ok": 1, "idx": 0, "n": 1, "upserted": { "_id": 1 } }])
        }
        "getMore" => doc! { "ok": 0, "code": 8, "errmsg": "it failed" },
        _ => doc! { "ok": 1 },
    };
    let (server, client) = start("", answers).await;
    let upsert = |id: i32| {
        orders(&client).model(WriteModel::update_one(doc! { "_id": id }, doc! { "$set": { "x": 1 } }).upsert(true))
    };
    let models = [upsert(1), upsert(2), upsert(3)];
    let failure = failure(client.bulk_write(models).verbose_results(true).await.unwrap_err());
    assert_eq!(failure.cause.unwrap().code(), Some(8));
    let partial = failure.partial_result.unwrap();
    assert_eq!((partial.upserted_count, partial.verbose_results.unwrap().update_results.len()), (2, 1));
    let is_killed = || arrived(&server).iter().any(|command| name(command) == "killCursors");
    while !is_killed() {
        tokio::task::yield_now().await;
    }
    assert!(arrived(&server).iter().filter(|command| name(command) == "bulkWrite").count() == 1);
}

/// The outcome with the error is in the batch that cannot be fetched.
#[tokio::test(start_paused = true)]
async fn writes_before_an_error_that_was_not_fetched_are_in_the_partial_result() {
    let answers = |command: &str, _| match command {
        "bulkWrite" => open(doc! { "nErrors": 1, "nInserted": 1 }, vec![doc! { "ok": 1, "idx": 0, "n": 1 }]),
        "getMore" => doc! { "ok": 0, "code": 43, "errmsg": "cursor not found" },
        _ => doc! { "ok": 1 },
    };
    let (_server, client) = start("", answers).await;
    let failure = failure(client.bulk_write(inserts(&client, 2)).verbose_results(true).await.unwrap_err());
    assert_eq!(failure.partial_result.unwrap().inserted_count, 1);
    assert!(failure.cause.is_some() && failure.write_errors.is_empty());
}

/// Behind a load balancer, the cursor is on the server of its connection (Load Balancers, "Cursors").
#[tokio::test(start_paused = true)]
async fn unmet_write_concern_leaves_the_cursor_of_results_on_its_connection() {
    let server = ScriptedServer::start(|| {
        Box::new(|command: &Document| {
            Answer::Reply(match name(command).as_str() {
                "bulkWrite" => {
                    let mut reply = open(doc! { "nInserted": 1 }, vec![doc! { "ok": 1, "idx": 0, "n": 1 }]);
                    reply.insert(
                        "writeConcernError",
                        doc! { "code": 64, "errmsg": "waiting for replication timed out" },
                    );
                    reply
                }
                "getMore" => {
                    let cursor = doc! { "id": 0_i64, "ns": "admin.$cmd.bulkWrite", "nextBatch": [] };
                    doc! { "ok": 1, "cursor": cursor }
                }
                _ => doc! {
                    "ok": 1, "isWritablePrimary": true, "helloOk": true, "msg": "isdbgrid", "minWireVersion": 0,
                    "maxWireVersion": 25, "logicalSessionTimeoutMinutes": 30, "serviceId": ObjectId::from_bytes([1; 12]),
                },
            })
        })
    });
    let server = server.await.unwrap();
    let options = Options::parse(&format!("mongodb://{}/?loadBalanced=true", server.address())).unwrap();
    let check_outs = Arc::new(AtomicUsize::new(0));
    let counted = check_outs.clone();
    let count = move |event: &PoolEvent| {
        if let PoolEvent::ConnectionCheckedOut { .. } = event {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let client = Client::builder(options).subscriber(count).build().unwrap();
    let failure = failure(client.bulk_write(inserts(&client, 1)).verbose_results(true).await.unwrap_err());
    assert_eq!(failure.write_concern_errors.len(), 1);
    assert!(failure.cause.is_none(), "{failure}");
    assert_eq!(check_outs.load(Ordering::Relaxed), 1, "the getMore checked a connection out");
}

#[tokio::test(start_paused = true)]
async fn error_of_the_first_command_is_returned_as_it_is() {
    let (_server, client) = start("", |_, _| doc! { "ok": 0, "code": 8, "errmsg": "it failed" }).await;
    let error = client.bulk_write(inserts(&client, 1)).await.unwrap_err();
    assert!(matches!(error, ClientError::Operation(_)) && error.code() == Some(8), "{error}");
    let (server, client) = scripted_as(doc! { "maxWireVersion": 25 }, "retryWrites=false", |_, _| Answer::Close).await;
    let error = client.bulk_write([orders(&client).model(WriteModel::insert_one(doc! {}))]).await.unwrap_err();
    let sent = arrived(&server)[0].get_array("ops").unwrap()[0].as_document().unwrap().clone();
    let sent = sent.get_document("document").unwrap();
    assert_eq!(sent.keys().next().unwrap(), "_id");
    let sent = sent.get_object_id("_id").unwrap();
    assert_eq!(error.generated_ids(), [(0, sent)], "{error}");
}

#[tokio::test(start_paused = true)]
async fn series_that_breaks_off_has_a_partial_result() {
    let answers = |_: &str, number: usize| match number {
        0 => reply(doc! { "nInserted": 2 }, vec![]),
        _ => doc! { "ok": 0, "code": 8, "errmsg": "it failed" },
    };
    let (_server, client) = start("", answers).await;
    let error = client.bulk_write(inserts(&client, 3)).await.unwrap_err();
    assert!(error.to_string().starts_with("a part of the writes was executed before: "), "{error}");
    assert_eq!(failure(error).partial_result.unwrap().inserted_count, 2);
}

#[tokio::test(start_paused = true)]
async fn bulk_that_cannot_succeed_is_refused_before_anything_is_sent() {
    let (server, client) = start("w=0", |_, _| doc! { "ok": 1 }).await;
    let set = doc! { "$set": { "a": 1 } };
    let model = |model: WriteModel| [orders(&client).model(model)];
    for (error, expected) in [
        (client.bulk_write([]).await.unwrap_err(), "models cannot be sent: there are none"),
        (
            client.bulk_write(inserts(&client, 1)).await.unwrap_err(),
            "Cannot request unacknowledged write concern and ordered writes",
        ),
        (
            client.bulk_write(inserts(&client, 1)).ordered(false).verbose_results(true).await.unwrap_err(),
            "Cannot request unacknowledged write concern and verbose results",
        ),
        (
            client
                .bulk_write(model(WriteModel::update_one(doc! {}, doc! { "a": 1 })))
                .ordered(false)
                .await
                .unwrap_err(),
            "the argument update cannot be sent: its first field is a",
        ),
        (
            client.bulk_write(model(WriteModel::replace_one(doc! {}, &set))).ordered(false).await.unwrap_err(),
            "the argument replacement cannot be sent: its first field is $set",
        ),
        (
            client.bulk_write(model(WriteModel::insert_one(doc! {}).hint("a"))).ordered(false).await.unwrap_err(),
            "models cannot be sent: an insert has no option hint (number 0)",
        ),
    ] {
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(arrived(&server).is_empty());
    let (server, client) = scripted("", |_, _| Answer::Close).await;
    let error = client.bulk_write(inserts(&client, 1)).await.unwrap_err();
    let expected = "Client::bulk_write needs MongoDB 8.0 (wire version 25), and the server has wire version 21";
    assert_eq!(error.to_string(), expected);
    assert!(arrived(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn write_without_acknowledgement_says_so() {
    let (server, client) = start("w=0", |_, _| doc! { "ok": 1 }).await;
    let written = client.bulk_write(inserts(&client, 2)).ordered(false).await.unwrap();
    assert_eq!((written.acknowledged, written.inserted_count), (false, 0));
    // The call returned without waiting for the command to arrive.
    while arrived(&server).is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(arrived(&server)[0].get_document("writeConcern").unwrap(), &doc! { "w": 0 });
}

#[tokio::test(start_paused = true)]
async fn only_writes_of_one_document_each_are_retried() {
    let delete = |many: bool| {
        let filter = doc! { "_id": 1 };
        if many { WriteModel::delete_many(filter) } else { WriteModel::delete_one(filter) }
    };
    for many in [false, true] {
        let (server, client) = scripted_as(doc! { "maxWireVersion": 25 }, "", move |_, _| {
            let labels = if many { vec![] } else { vec!["RetryableWriteError"] };
            Answer::Reply(doc! { "ok": 0, "code": 91, "errmsg": "shutting down", "errorLabels": labels })
        })
        .await;
        client.bulk_write([orders(&client).model(delete(many))]).await.unwrap_err();
        let commands = server.commands();
        let numbers: Vec<_> = commands
            .iter()
            .filter(|command| name(command) == "bulkWrite")
            .map(|command| command.get("txnNumber").cloned())
            .collect();
        match many {
            true => assert_eq!(numbers, [None]),
            false => assert!(numbers.len() == 2 && numbers[0].is_some() && numbers[0] == numbers[1], "{numbers:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bulk_of_a_transaction_has_no_concern_of_its_own() {
    let answers = |command: &str, number: usize| match command {
        "bulkWrite" if number == 0 => open(doc! { "nInserted": 1 }, vec![]),
        "getMore" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "admin.$cmd.bulkWrite", "nextBatch": [] } },
        _ => reply(doc! { "nInserted": 1 }, vec![]),
    };
    let (server, client) = start("w=1", answers).await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    client.bulk_write(inserts(&client, 1)).session(&mut session).await.unwrap();
    let concern = wharf::WriteConcern::majority();
    let refused = client.bulk_write(inserts(&client, 1)).write_concern(concern.clone()).session(&mut session).await;
    assert!(matches!(refused.unwrap_err(), ClientError::Session(_)));
    session.abort_transaction().await.unwrap();
    client.bulk_write(inserts(&client, 1)).write_concern(concern).await.unwrap();
    let commands = server.commands();
    let of = |wanted: &str| commands.iter().filter(|command| name(command) == wanted).collect::<Vec<_>>();
    let (sent, more) = (of("bulkWrite"), of("getMore"));
    assert!(sent[0].get_bool("startTransaction").unwrap() && !sent[0].contains_key("writeConcern"));
    assert!(!more[0].get_bool("autocommit").unwrap());
    assert_eq!((sent[0].get("lsid"), sent[0].get("txnNumber")), (more[0].get("lsid"), more[0].get("txnNumber")));
    assert_eq!(sent[1].get_document("writeConcern").unwrap(), &doc! { "w": "majority" });
}

/// Client Side Operations Timeout, prose test 11.
#[tokio::test(start_paused = true)]
async fn batches_share_the_time_limit() {
    let hello = doc! { "maxWireVersion": 25, "maxWriteBatchSize": 2 };
    let (server, client) = scripted_as(hello, "timeoutMS=2000", |_, _| {
        let reply = Answer::Reply(reply(doc! { "nInserted": 2 }, vec![]));
        Answer::After(std::time::Duration::from_millis(1_010), Box::new(reply))
    })
    .await;
    let error = client.bulk_write(inserts(&client, 3)).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(failure(error).partial_result.unwrap().inserted_count, 2);
    assert_eq!(arrived(&server).len(), 2);
}
