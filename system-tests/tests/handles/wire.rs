//! The commands that the handles' methods send.

use std::time::Duration;

use bson::{Bson, Document, doc};
use wharf::client::action::Find;
use wharf::client::{CursorType, IndexModel, ReturnDocument, Session, TransactionOptions, WriteModel};
use wharf::{Acknowledgement, Client, ClientError, Database, ReadPreference, ReadPreferenceMode, WriteConcern};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{Order, arrived, scripted};

/// Answers like a server without documents.
fn empty(command: &Document) -> Answer {
    Answer::Reply(match name(command).as_str() {
        "find" | "aggregate" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.orders", "firstBatch": [] } },
        _ => doc! { "ok": 1, "n": 0 },
    })
}

async fn start() -> (ScriptedServer, Client, Database) {
    let (server, client) = scripted("", |command, _| empty(command)).await;
    let shop = client.database("shop");
    (server, client, shop)
}

#[tokio::test(start_paused = true)]
async fn each_method_sends_the_command_of_the_specification() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Document>("orders");
    let (filter, update) = (doc! { "_id": 1 }, doc! { "$set": { "paid": true } });
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    orders.insert_many([doc! { "_id": 1 }, doc! { "_id": 2 }]).ordered(false).await.unwrap();
    let _ = orders.find(doc! { "paid": true }).await.unwrap();
    orders.find_one(&filter).await.unwrap();
    orders.update_one(&filter, &update).await.unwrap();
    orders.update_many(&filter, [&update]).await.unwrap();
    orders.replace_one(&filter, doc! { "paid": true }).await.unwrap();
    orders.delete_one(&filter).await.unwrap();
    orders.delete_many(&filter).await.unwrap();
    let expected = [
        doc! { "insert": "orders", "ordered": true, "documents": [{ "_id": 1 }] },
        doc! { "insert": "orders", "ordered": false, "documents": [{ "_id": 1 }, { "_id": 2 }] },
        doc! { "find": "orders", "filter": { "paid": true } },
        doc! { "find": "orders", "filter": { "_id": 1 }, "limit": 1, "singleBatch": true },
        doc! { "update": "orders", "ordered": true, "updates": [{ "q": &filter, "u": &update }] },
        doc! { "update": "orders", "ordered": true, "updates": [{ "q": &filter, "u": [&update], "multi": true }] },
        doc! { "update": "orders", "ordered": true, "updates": [{ "q": &filter, "u": { "paid": true } }] },
        doc! { "delete": "orders", "ordered": true, "deletes": [{ "q": &filter, "limit": 1 }] },
        doc! { "delete": "orders", "ordered": true, "deletes": [{ "q": &filter, "limit": 0 }] },
    ];
    assert_sent(&server, &expected);
}

#[tokio::test(start_paused = true)]
async fn each_option_has_its_name_on_the_wire_and_its_place() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Document>("orders");
    let (filter, update) = (doc! { "_id": 1 }, doc! { "$set": { "paid.$[p]": true } });
    let find = orders.find(&filter).allow_disk_use(true).allow_partial_results(true).collation(doc! { "locale": "en" });
    let find = find.comment("c").hint("_id_").let_vars(doc! { "v": 1 }).max(doc! { "_id": 9 }).min(doc! { "_id": 0 });
    let find = find.no_cursor_timeout(true).projection(doc! { "paid": 1 }).return_key(false).show_record_id(true);
    let find = find.skip(2).sort(doc! { "_id": -1 }).limit(-3).batch_size(5).cursor_type(CursorType::Tailable);
    let _ = find.max_time(Duration::from_micros(6_001)).options(doc! { "new": 1 }).await.unwrap();
    let one = update_options(&orders, &filter, &update);
    one.await.unwrap();
    let replacement = orders.replace_one(&filter, doc! {}).hint(doc! { "_id": 1 }).sort(doc! { "a": 1 }).upsert(true);
    replacement.collation(doc! { "locale": "en" }).bypass_document_validation(false).comment(3).await.unwrap();
    orders.delete_one(&filter).hint("a").collation(doc! { "locale": "en" }).let_vars(doc! { "v": 1 }).await.unwrap();
    orders.insert_one(doc! { "_id": 1 }).bypass_document_validation(true).comment([1]).await.unwrap();
    let collation = doc! { "locale": "en" };
    let expected = [
        doc! {
            "find": "orders", "filter": &filter, "allowDiskUse": true, "allowPartialResults": true,
            "collation": &collation, "comment": "c", "hint": "_id_", "let": { "v": 1 }, "max": { "_id": 9 },
            "min": { "_id": 0 }, "noCursorTimeout": true, "projection": { "paid": 1 }, "returnKey": false,
            "showRecordId": true, "skip": 2_i64, "sort": { "_id": -1 }, "limit": 3_i64, "singleBatch": true,
            "tailable": true, "maxTimeMS": 7_i64, "new": 1, "batchSize": 3,
        },
        doc! {
            "update": "orders", "bypassDocumentValidation": true, "comment": { "a": 1 }, "let": { "v": 1 },
            "ordered": true,
            "updates": [{
                "q": &filter, "u": &update, "arrayFilters": [{ "p": 1 }], "collation": &collation, "hint": "h",
                "sort": { "_id": 1 }, "upsert": true,
            }],
        },
        doc! {
            "update": "orders", "bypassDocumentValidation": false, "comment": 3, "ordered": true,
            "updates": [{
                "q": &filter, "u": {}, "hint": { "_id": 1 }, "sort": { "a": 1 }, "upsert": true,
                "collation": &collation,
            }],
        },
        doc! {
            "delete": "orders", "let": { "v": 1 }, "ordered": true,
            "deletes": [{ "q": &filter, "limit": 1, "hint": "a", "collation": &collation }],
        },
        doc! {
            "insert": "orders", "bypassDocumentValidation": true, "comment": [1], "ordered": true,
            "documents": [{ "_id": 1 }],
        },
    ];
    assert_sent(&server, &expected);
}

/// Find, getMore and killCursors Commands, "Mapping OP_QUERY behavior".
#[tokio::test(start_paused = true)]
async fn negative_limits_ask_for_a_single_batch_and_zeros_are_left_out() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Document>("orders");
    let cases = [
        (-200, None, doc! { "limit": 200_i64, "singleBatch": true, "batchSize": 200 }),
        (-5, Some(3), doc! { "limit": 5_i64, "singleBatch": true, "batchSize": 5 }),
        (0, Some(-5), doc! { "singleBatch": true, "batchSize": 5 }),
        (7, Some(-5), doc! { "limit": 7_i64, "singleBatch": true, "batchSize": 7 }),
        (i64::MIN, Some(i32::MIN), doc! { "limit": i64::MAX, "singleBatch": true, "batchSize": i32::MAX }),
        (0, Some(0), doc! {}),
        (5, Some(0), doc! { "limit": 5_i64 }),
        (5, Some(3), doc! { "limit": 5_i64, "batchSize": 3 }),
        (5, Some(5), doc! { "limit": 5_i64, "batchSize": 6 }),
    ];
    for (limit, size, _) in &cases {
        let find = orders.find(doc! {}).limit(*limit);
        let _ = match size {
            Some(size) => find.batch_size(*size).await,
            None => find.await,
        };
    }
    for (argument, find) in [
        ("limit", orders.find(doc! {}).limit(-5).options(doc! { "singleBatch": false })),
        ("batch_size", orders.find(doc! {}).batch_size(-5).options(doc! { "singleBatch": false })),
    ] {
        let Err(ClientError::Argument { name, .. }) = find.await else { panic!("{argument} is sent") };
        assert_eq!(name, argument);
    }
    let expected = cases.map(|(.., fields)| {
        let mut command = doc! { "find": "orders", "filter": {} };
        command.extend(fields);
        command
    });
    assert_sent(&server, &expected);
}

#[tokio::test(start_paused = true)]
async fn last_value_of_an_option_is_sent_and_none_unsets_it() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Document>("orders");
    let (filter, by_price, by_date) = (doc! { "_id": 1 }, doc! { "price": 1 }, doc! { "date": 1 });
    let find = orders.find(&filter).sort(&by_price).skip(1).hint("a").sort(&by_date).skip(2).hint(None::<Document>);
    let find = find.limit(-5).limit(7).cursor_type(CursorType::TailableAwait).cursor_type(CursorType::NonTailable);
    let _ = find.options(doc! { "new": 1 }).skip(3).comment(Some("c")).let_vars(None::<Document>).await.unwrap();
    let _ = orders.find(&filter).limit(10).limit(0).cursor_type(CursorType::TailableAwait).await.unwrap();
    orders.update_one(&filter, [doc! {}]).sort(&by_price).upsert(true).sort(&by_date).upsert(false).await.unwrap();
    let _ = orders.find(&filter).optional(Some(7), Find::limit).optional(None, Find::skip).await.unwrap();
    orders.create_index(IndexModel::new(&by_date).name(format!("by_{}", "date"))).await.unwrap();
    let expected = [
        doc! {
            "find": "orders", "filter": &filter, "sort": by_date.clone(), "limit": 7_i64, "new": 1, "skip": 3_i64,
            "comment": "c",
        },
        doc! { "find": "orders", "filter": &filter, "tailable": true, "awaitData": true },
        doc! {
            "update": "orders", "ordered": true,
            "updates": [{ "q": &filter, "u": [{}], "sort": by_date.clone(), "upsert": false }],
        },
        doc! { "find": "orders", "filter": &filter, "limit": 7_i64 },
        doc! { "createIndexes": "orders", "indexes": [{ "key": by_date, "name": "by_date" }] },
    ];
    assert_sent(&server, &expected);
}

pub(super) fn assert_sent(server: &ScriptedServer, expected: &[Document]) {
    let arrived = arrived(server);
    for (command, expected) in arrived.iter().zip(expected) {
        assert_eq!(command, expected);
    }
    assert_eq!(arrived.len(), expected.len());
}

fn update_options<'c>(
    orders: &'c wharf::Collection,
    filter: &Document,
    update: &Document,
) -> wharf::client::action::Update<'c> {
    let update = orders.update_one(filter, update).array_filters([doc! { "p": 1 }]).collation(doc! { "locale": "en" });
    let update = update.hint("h").sort(doc! { "_id": 1 }).upsert(true).bypass_document_validation(true);
    update.comment(doc! { "a": 1 }).let_vars(doc! { "v": 1 })
}

#[tokio::test(start_paused = true)]
async fn batch_size_that_is_the_limit_leaves_no_cursor_open() {
    let (server, _client, shop) = start().await;
    let _ = shop.collection::<Order>("orders").find(doc! {}).limit(4).batch_size(4).await.unwrap();
    assert_eq!(arrived(&server)[0].get_i32("batchSize").unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn handles_pass_their_concerns_on_and_calls_have_their_own() {
    let (server, _client, shop) = start().await;

    let shop = shop.read_concern("majority").write_concern(w(2));
    let secondary = ReadPreference::new(ReadPreferenceMode::SecondaryPreferred);
    let orders = shop.collection::<Document>("orders");
    let others = orders.clone().read_concern("local").write_concern(w(3)).read_preference(secondary.clone());
    orders.find_one(doc! {}).await.unwrap();
    others.find_one(doc! {}).await.unwrap();
    others.find_one(doc! {}).read_concern("available").await.unwrap();
    orders.find_one(doc! {}).read_preference(&secondary).await.unwrap();
    orders.delete_one(doc! {}).await.unwrap();
    others.delete_one(doc! {}).await.unwrap();
    others.delete_one(doc! {}).write_concern(w(1)).await.unwrap();
    others.insert_many([doc! { "_id": 1 }]).await.unwrap();
    others.insert_many([doc! { "_id": 1 }]).options(doc! { "writeConcern": { "w": 4 } }).await.unwrap();
    let arrived = arrived(&server);
    let all = |field: &str| arrived.iter().map(|command| command.get(field).cloned()).collect::<Vec<_>>();
    let level = |level: &str| Some(Bson::from(doc! { "level": level }));
    let sent = |servers: i32| Some(Bson::from(doc! { "w": servers }));
    let mode = Some(Bson::from(doc! { "mode": "secondaryPreferred" }));
    let expected =
        [level("majority"), level("local"), level("available"), level("majority"), None, None, None, None, None];
    assert_eq!(all("readConcern"), expected);
    assert_eq!(all("$readPreference"), [None, mode.clone(), mode.clone(), mode, None, None, None, None, None]);
    assert_eq!(all("writeConcern"), [None, None, None, None, sent(2), sent(3), sent(1), sent(3), sent(4)]);
}

#[tokio::test(start_paused = true)]
async fn transaction_has_its_own_concerns() {
    let (server, client, shop) = start().await;
    let shop = shop.read_concern("local").write_concern(WriteConcern::majority());
    let orders =
        shop.collection::<Document>("orders").read_preference(ReadPreference::new(ReadPreferenceMode::Secondary));
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default().read_concern("snapshot")).unwrap();
    orders.find_one(doc! {}).session(&mut session).await.unwrap();
    orders.delete_one(doc! {}).session(&mut session).await.unwrap();
    orders.insert_many([doc! {}]).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    let arrived = arrived(&server);
    assert_eq!(arrived[0].get_document("readConcern").unwrap(), &doc! { "level": "snapshot" });
    for command in &arrived[..3] {
        assert!(!command.get_bool("autocommit").unwrap(), "{command}");
        assert!(!command.contains_key("writeConcern") && !command.contains_key("$readPreference"), "{command}");
    }
    assert!(!arrived[1].contains_key("readConcern"));
}

#[tokio::test(start_paused = true)]
async fn time_limit_leaves_the_older_ones_out() {
    let (server, _client, shop) = start().await;
    let concern = WriteConcern::majority().w_timeout(Duration::from_micros(999_001));
    let orders = shop.collection::<Document>("orders").write_concern(concern);
    let limit = Duration::from_secs(10);
    orders.delete_one(doc! {}).await.unwrap();
    orders.delete_one(doc! {}).timeout(limit).await.unwrap();
    orders.find_one(doc! {}).max_time(Duration::from_millis(77)).timeout(limit).await.unwrap();
    let arrived = arrived(&server);
    let concern = |place: usize| arrived[place].get_document("writeConcern").unwrap().contains_key("wtimeout");
    assert_eq!((concern(0), concern(1)), (true, false));
    assert_eq!(arrived[0].get_document("writeConcern").unwrap().get_i64("wtimeout").unwrap(), 1_000, "rounded up");
    assert!(arrived[2].get_i64("maxTimeMS").unwrap() > 1_000, "{}", arrived[2]);
}

#[tokio::test(start_paused = true)]
async fn empty_write_concern_is_sent_only_to_replace_that_of_the_client() {
    let (server, _client, shop) = start().await;
    let orders = shop.write_concern(WriteConcern::default()).collection::<Document>("orders");
    orders.delete_one(doc! {}).await.unwrap();
    orders.insert_many([doc! { "_id": 1 }]).await.unwrap();
    assert!(arrived(&server).iter().all(|command| !command.contains_key("writeConcern")));
    let (server, client) = scripted("w=majority", |command, _| empty(command)).await;
    let shop = client.database("shop").write_concern(WriteConcern::default());
    shop.collection::<Document>("orders").delete_one(doc! {}).await.unwrap();
    assert_eq!(arrived(&server)[0].get_document("writeConcern").unwrap(), &doc! {});
}

#[tokio::test(start_paused = true)]
async fn empty_read_concern_is_sent_only_to_replace_that_of_the_client() {
    let own = doc! { "readConcern": { "level": "local" } };
    for (parameters, sent) in [("", None), ("readConcernLevel=majority", Some(&doc! {}))] {
        let (server, client) = scripted(parameters, |command, _| empty(command)).await;
        let orders = client.database("shop").read_concern("").collection::<Document>("orders");
        let _ = orders.find(doc! {}).await.unwrap();
        let _ = orders.watch(()).await.unwrap();
        let _ = orders.watch(()).options(&own).await.unwrap();
        let _ = orders.clone().read_concern("majority").watch(()).options(&own).await.unwrap();
        let arrived = arrived(&server);
        let concerns: Vec<_> = arrived.iter().map(|command| command.get_document("readConcern").ok()).collect();
        let own = own.get_document("readConcern").ok();
        assert_eq!(concerns, [sent, sent, own, own], "{parameters}");
    }
}

#[tokio::test(start_paused = true)]
async fn label_of_the_future_is_found_in_every_error_of_a_write() {
    let (concern, refused) =
        (doc! { "code": 64, "errmsg": "late" }, [doc! { "index": 0, "code": 121, "errmsg": "invalid" }]);
    for fields in [
        doc! { "ok": 1, "n": 1, "writeConcernError": &concern },
        doc! { "ok": 1, "n": 0, "writeErrors": &refused },
        doc! { "ok": 0, "code": 8, "errmsg": "it failed" },
    ] {
        let (_server, client) = scripted("retryWrites=false", move |_, _| {
            let mut reply = fields.clone();
            reply.insert("errorLabels", ["NewLabel"]);
            Answer::Reply(reply)
        })
        .await;
        let orders = client.database("shop").collection::<Document>("orders");
        let one = orders.insert_one(doc! { "_id": 1 }).await.unwrap_err();
        let many = orders.insert_many([doc! { "_id": 1 }]).await.unwrap_err();
        for error in [one, many] {
            assert!(error.has_label("NewLabel") && !error.has_label("OldLabel"), "{error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn statement_that_fails_in_a_transaction_is_the_last() {
    let (server, client) = scripted("", |command, _| {
        Answer::Reply(match name(command).as_str() {
            "insert" => doc! { "ok": 1, "n": 0, "writeErrors": [{ "index": 0, "code": 11_000, "errmsg": "E11000" }] },
            "update" => doc! {
                "ok": 0, "code": 251, "errmsg": "no such transaction", "errorLabels": ["TransientTransactionError"],
            },
            _ => doc! { "ok": 1 },
        })
    })
    .await;
    let orders = client.database("shop").collection::<Document>("orders");
    let mut session = client.start_session().await.unwrap();
    let body = async |mut session| {
        let models = [
            WriteModel::insert_one(doc! { "_id": 1 }),
            WriteModel::update_one(doc! { "_id": 1 }, doc! { "$set": { "paid": true } }),
        ];
        orders.bulk_write(models).ordered(false).session(&mut session).await.map(drop)
    };
    let error = session.with_transaction(body).await.unwrap_err();
    assert!(error.is_duplicate_key() && !error.has_label("TransientTransactionError"), "{error}");
    let sent: Vec<_> = arrived(&server).iter().map(name).collect();
    assert_eq!(sent, ["insert", "abortTransaction"]);
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_change_returns_no_document() {
    let (_server, client) = scripted("w=0", |_, _| Answer::Reply(doc! { "ok": 1, "value": { "_id": 1 } })).await;
    let orders = client.database("shop").collection::<Document>("orders");
    assert_eq!(orders.find_one_and_delete(doc! {}).await.unwrap(), None);
    let one = WriteConcern::default().w(Acknowledgement::Servers(1));
    let found = orders.find_one_and_delete(doc! {}).write_concern(one).await.unwrap();
    assert_eq!(found, Some(doc! { "_id": 1 }));
}

#[tokio::test(start_paused = true)]
async fn time_limit_of_a_handle_applies_to_all_its_calls() {
    let (server, client, shop) = start().await;
    let minute = Duration::from_secs(60);
    let shop = shop.timeout(minute);
    let orders = shop.collection::<Document>("orders");
    let quick = orders.clone().timeout(Duration::from_secs(1));
    let _ = orders.find(doc! {}).await.unwrap();
    orders.insert_many([doc! { "_id": 1 }]).await.unwrap();
    orders.update_one(doc! {}, doc! { "$set": { "paid": true } }).await.unwrap();
    shop.run_command(doc! { "ping": 1 }).await.unwrap();
    let _ = shop.run_cursor_command(doc! { "find": "orders" }).await.unwrap();
    let _ = orders.watch(()).await.unwrap();
    quick.delete_one(doc! {}).await.unwrap();
    orders.delete_one(doc! {}).timeout(Duration::ZERO).await.unwrap();
    // The session's limit applies to the call as a whole.
    let mut session = client.start_session().default_timeout(Duration::from_secs(30)).await.unwrap();
    let body = async |mut session: Session| orders.find_one(doc! {}).session(&mut session).await;
    session.with_transaction(body).await.unwrap();
    let limit = |command: &Document| command.get_i64("maxTimeMS").ok().map(|limit| (limit + 999) / 1000);
    let limits: Vec<_> = arrived(&server).iter().map(limit).collect();
    let expected = [60, 60, 60, 60, 60, 60, 1].map(Some).into_iter().chain([None, Some(30)]);
    assert_eq!(limits[..9], expected.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn find_and_modify_has_the_names_of_its_own_fields() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Document>("orders");
    let (filter, update) = (doc! { "_id": 1 }, doc! { "$set": { "paid": true } });
    let updating = orders.find_one_and_update(&filter, &update).array_filters([doc! { "p": 1 }]).upsert(true);
    let updating = updating.bypass_document_validation(true).projection(doc! { "paid": 1 }).sort(doc! { "_id": 1 });
    updating.return_document(ReturnDocument::After).await.unwrap();
    let replacing = orders.find_one_and_replace(&filter, doc! { "paid": true }).hint("_id_").let_vars(doc! { "v": 1 });
    replacing.return_document(ReturnDocument::Before).await.unwrap();
    let collation = doc! { "locale": "en" };
    orders.find_one_and_delete(&filter).collation(&collation).comment("c").write_concern(w(2)).await.unwrap();
    assert_sent(
        &server,
        &[
            doc! {
                "findAndModify": "orders", "query": &filter, "update": &update, "arrayFilters": [{ "p": 1 }],
                "upsert": true, "bypassDocumentValidation": true, "fields": { "paid": 1 }, "sort": { "_id": 1 },
                "new": true,
            },
            doc! {
                "findAndModify": "orders", "query": &filter, "update": { "paid": true }, "hint": "_id_",
                "let": { "v": 1 }, "new": false,
            },
            doc! {
                "findAndModify": "orders", "query": &filter, "remove": true, "collation": &collation, "comment": "c",
                "writeConcern": { "w": 2 },
            },
        ],
    );
}

fn w(servers: u32) -> WriteConcern {
    WriteConcern::default().w(Acknowledgement::Servers(servers))
}

#[tokio::test(start_paused = true)]
async fn counts_and_aggregations_are_those_of_the_specification() {
    let (server, client, shop) = start().await;
    let orders = shop.collection::<Document>("orders").read_concern("local").write_concern(w(2));
    let paid = doc! { "paid": true };
    assert_eq!(orders.count_documents(&paid).await.unwrap(), 0);
    orders.count_documents(doc! {}).skip(1).limit(2).hint("_id_").await.unwrap();
    orders.count_documents(doc! {}).skip(0).limit(0).await.unwrap();
    orders.estimated_document_count().comment("c").await.unwrap();
    orders.distinct("customer", &paid).collation(doc! { "locale": "en" }).await.unwrap_err();
    let _ = orders.aggregate([doc! { "$match": &paid }]).batch_size(3).allow_disk_use(true).await.unwrap();
    let _ = orders.aggregate([doc! { "$out": "copy" }]).batch_size(0).await.unwrap();
    let _ = shop.aggregate([doc! { "$documents": [] }]).let_vars(doc! { "v": 1 }).await.unwrap();
    let local = doc! { "level": "local" };
    let count = doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } };
    let everything = doc! { "$match": {} };
    assert_sent(
        &server,
        &[
            doc! {
                "aggregate": "orders", "pipeline": [{ "$match": &paid }, &count], "cursor": {}, "readConcern": &local,
            },
            doc! {
                "aggregate": "orders", "cursor": {}, "readConcern": &local, "hint": "_id_",
                "pipeline": [&everything, { "$skip": 1_i64 }, { "$limit": 2_i64 }, &count],
            },
            doc! { "aggregate": "orders", "pipeline": [&everything, &count], "cursor": {}, "readConcern": &local },
            doc! { "count": "orders", "comment": "c", "readConcern": &local },
            doc! {
                "distinct": "orders", "key": "customer", "query": &paid, "collation": { "locale": "en" },
                "readConcern": &local,
            },
            doc! {
                "aggregate": "orders", "pipeline": [{ "$match": &paid }], "cursor": { "batchSize": 3 },
                "allowDiskUse": true, "readConcern": &local,
            },
            doc! {
                "aggregate": "orders", "pipeline": [{ "$out": "copy" }], "cursor": {}, "readConcern": &local,
                "writeConcern": { "w": 2 },
            },
            doc! { "aggregate": 1, "pipeline": [{ "$documents": [] }], "cursor": {}, "let": { "v": 1 } },
        ],
    );
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn bulk_sends_each_kind_with_its_options() {
    let (server, _client, shop) = start().await;
    let orders = shop.collection::<Order>("orders");
    let (filter, update) = (doc! { "_id": 1 }, doc! { "$set": { "price": 1 } });
    let models = [
        WriteModel::insert_one(doc! { "_id": 1 }),
        WriteModel::update_one(&filter, &update).upsert(true).array_filters([doc! { "p": 1 }]),
        WriteModel::update_many(&filter, &update).hint("h"),
        WriteModel::replace_one(&filter, doc! {}).collation(doc! { "locale": "en" }),
        WriteModel::delete_one(&filter),
        WriteModel::delete_many(&filter).hint("h"),
    ];
    orders.bulk_write(models).comment("c").let_vars(doc! { "v": 1 }).write_concern(w(1)).await.unwrap();
    let concern = doc! { "w": 1 };
    assert_sent(
        &server,
        &[
            doc! { "insert": "orders", "ordered": true, "comment": "c", "writeConcern": &concern, "documents": [&filter] },
            doc! {
                "update": "orders", "ordered": true, "comment": "c", "let": { "v": 1 }, "writeConcern": &concern,
                "updates": [
                    { "q": &filter, "u": &update, "upsert": true, "arrayFilters": [{ "p": 1 }] },
                    { "q": &filter, "u": &update, "multi": true, "hint": "h" },
                    { "q": &filter, "u": {}, "collation": { "locale": "en" } },
                ],
            },
            doc! {
                "delete": "orders", "ordered": true, "comment": "c", "let": { "v": 1 }, "writeConcern": &concern,
                "deletes": [{ "q": &filter, "limit": 1 }, { "q": &filter, "limit": 0, "hint": "h" }],
            },
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn change_stream_has_the_options_of_its_stage_and_of_its_command() {
    let (server, _client, shop) = start().await;
    let token = doc! { "_data": "a" };
    let orders = shop.collection::<Order>("orders").read_concern("majority");
    let inserts = [doc! { "$match": { "operationType": "insert" } }];
    let watch = orders.watch(&inserts).full_document("updateLookup").resume_after(&token).batch_size(2);
    let _ =
        watch.collation(doc! { "locale": "en" }).comment("c").stage(doc! { "showExpandedEvents": true }).await.unwrap();
    let time = bson::Timestamp { time: 7, increment: 1 };
    let _ = shop.watch(()).start_at_operation_time(time).full_document_before_change("off").await.unwrap();
    assert_sent(
        &server,
        &[
            doc! {
                "aggregate": "orders", "cursor": { "batchSize": 2 }, "collation": { "locale": "en" }, "comment": "c",
                "readConcern": { "level": "majority" },
                "pipeline": [
                    {
                        "$changeStream": {
                            "fullDocument": "updateLookup", "resumeAfter": token, "showExpandedEvents": true,
                        },
                    },
                    &inserts[0],
                ],
            },
            doc! {
                "aggregate": 1, "cursor": {},
                "pipeline": [{ "$changeStream": { "startAtOperationTime": time, "fullDocumentBeforeChange": "off" } }],
            },
        ],
    );
}
