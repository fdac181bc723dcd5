//! Databases, collections and indexes through handles, on a real server and on one that follows a script.

use std::time::Duration;

use bson::{Document, doc};
use wharf::client::{CursorType, IndexModel, IndexSpecification, SearchIndexModel, TimeoutMode};
use wharf::{Acknowledgement, Client, ReadPreference, ReadPreferenceMode, WriteConcern};
use wharf_testbed::scripted::{Answer, name};

use super::documents::filled;
use super::wire::assert_sent;
use super::{Order, arrived, collection, scripted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_are_created_listed_and_dropped() {
    let (_server, orders) = filled("indexes").await;
    let by_customer = IndexModel::new(doc! { "customer": 1, "price": -1 }).unique(true).sparse(true);
    assert_eq!(orders.create_index(by_customer).await.unwrap(), "customer_1_price_-1");
    let others = [
        IndexModel::new(doc! { "customer": "text" }).name("words").default_language("english"),
        IndexModel::new(doc! { "_id": 1 }),
        IndexModel::new(doc! { "at": "2d" }).bits(20).min(-10.0).max(10.0),
    ];
    assert_eq!(orders.create_indexes(others).comment("c").await.unwrap(), ["words", "_id_", "at_2d"]);
    let mut names = orders.list_index_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["_id_", "at_2d", "customer_1_price_-1", "words"]);
    let typed: Vec<IndexSpecification> = orders.list_indexes().await.unwrap().try_collect().await.unwrap();
    let id = typed.iter().find(|index| index.name == "_id_").unwrap();
    assert_eq!((&id.keys, &id.options), (&doc! { "_id": 1 }, &doc! { "v": 2 }));
    let mut typed: Vec<_> = typed.into_iter().map(|index| index.name).collect();
    typed.sort();
    assert_eq!(typed, names);
    let listed: Vec<Document> = orders.list_indexes().typed().batch_size(1).await.unwrap().try_collect().await.unwrap();
    let unique =
        listed.iter().find(|index| index.get_str("name").is_ok_and(|name| name == "customer_1_price_-1")).unwrap();
    assert!(unique.get_bool("unique").unwrap() && unique.get_bool("sparse").unwrap(), "{unique}");

    orders.drop_index("words").await.unwrap();
    assert_eq!(orders.list_index_names().await.unwrap().len(), 3);
    let error = orders.drop_index("words").await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code_name, "IndexNotFound");
    let error = orders.drop_index("*").await.unwrap_err();
    assert!(error.to_string().starts_with("the argument index cannot be sent: * stands for all indexes"), "{error}");
    let error = orders.drop_index(7).await.unwrap_err().to_string();
    assert!(error.contains("it must be the name of an index or a document of its keys"), "{error}");
    orders.drop_index(doc! { "at": "2d" }).await.unwrap();
    assert_eq!(orders.list_index_names().await.unwrap().len(), 2);
    orders.drop_indexes().await.unwrap();
    assert_eq!(orders.list_index_names().await.unwrap(), ["_id_"]);
    orders.drop().await.unwrap();
    orders.drop_indexes().await.unwrap();
    orders.drop_index("words").await.unwrap();
    let error = orders.create_indexes([]).await.unwrap_err();
    assert_eq!(error.to_string(), "the argument models cannot be sent: there are none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_tells_indexes_with_the_same_keys_apart() {
    let (_server, orders) = filled("collations").await;
    let in_language = |locale: &str| IndexModel::new(doc! { "customer": 1 }).collation(doc! { "locale": locale });
    assert_eq!(orders.create_index(in_language("en")).await.unwrap(), "customer_1");
    assert_eq!(orders.create_index(in_language("de").name("german")).await.unwrap(), "german");
    orders.drop_index("customer_1").await.unwrap();
    let left: Vec<IndexSpecification> = orders.list_indexes().await.unwrap().try_collect().await.unwrap();
    let german = left.iter().find(|index| index.name == "german").unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(german.options.get_document("collation").unwrap().get_str("locale").unwrap(), "de");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_database_is_listed_once() {
    let (_server, base) = collection::<Order>("unused").await;
    let client = base.client();
    let created = ["listed_1", "listed_2", "listed_3"].map(|name| client.database(name));
    for database in &created {
        database.drop().await.unwrap();
        database.collection::<Order>("orders").insert_one(Order::new(1)).await.unwrap();
    }
    let names = client.list_database_names().await.unwrap();
    let described = client.list_databases().await.unwrap().into_iter().map(|database| database.name).collect();
    for listed in [names, described] {
        for name in created.iter().map(|database| database.name()).chain(["admin", "local"]) {
            assert_eq!(listed.iter().filter(|listed| *listed == name).count(), 1, "{name}: {listed:?}");
        }
    }
    for database in &created {
        database.drop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections_are_created_listed_renamed_and_dropped() {
    let (_server, base) = collection::<Order>("unused").await;
    let shop = base.client().database("administration");
    shop.drop().await.unwrap();
    let defaults = doc! { "storageEngine": {} };
    let log = shop.create_collection("log").index_option_defaults(defaults).storage_engine(doc! { "wiredTiger": {} });
    log.capped(true).size(4096).max_documents(2).await.unwrap();
    let series = doc! { "timeField": "at", "metaField": "of", "granularity": "minutes" };
    shop.create_collection("series").time_series(&series).expire_after(Duration::from_secs(3600)).await.unwrap();
    let valid = doc! { "price": { "$gte": 0 } };
    let valid =
        shop.create_collection("orders").validator(&valid).validation_level("strict").validation_action("error");
    valid.collation(doc! { "locale": "en" }).await.unwrap();
    let dear = [doc! { "$match": { "price": { "$gte": 5 } } }];
    shop.create_collection("dear").view_on("orders").pipeline(&dear).collation(doc! { "locale": "en" }).await.unwrap();
    shop.create_collection("clustered").clustered_index(doc! { "key": { "_id": 1 }, "unique": true }).await.unwrap();
    let mut names = shop.list_collection_names().await.unwrap();
    names.retain(|name| !name.starts_with("system."));
    names.sort();
    assert_eq!(names, ["clustered", "dear", "log", "orders", "series"]);
    let capped = shop.list_collection_names().filter(doc! { "options.capped": true }).await.unwrap();
    assert_eq!(capped, ["log"]);
    let listed = shop.list_collections().filter(doc! { "name": "series" }).batch_size(1).await.unwrap();
    let listed: Vec<_> = listed.try_collect().await.unwrap();
    assert_eq!((&*listed[0].name, &*listed[0].collection_type, listed.len()), ("series", "timeseries", 1));
    assert_eq!(listed[0].options.get_i64("expireAfterSeconds").unwrap(), 3600);
    assert!(listed[0].uuid.is_none() && listed[0].id_index.is_none());
    let listed = shop.list_collections().filter(doc! { "name": "orders" }).await.unwrap();
    let listed: Vec<_> = listed.try_collect().await.unwrap();
    assert!(listed[0].uuid.is_some() && !listed[0].read_only);
    assert_eq!(listed[0].id_index.as_ref().unwrap().keys, doc! { "_id": 1 });

    let orders = shop.collection::<Order>("orders");
    orders.insert_many((0..10).map(Order::new)).await.unwrap();
    let refused = Order { price: -1, ..Order::new(11) };
    assert!(orders.insert_one(&refused).await.unwrap_err().server_error().is_some());
    orders.insert_one(&refused).bypass_document_validation(true).await.unwrap();
    assert_eq!(shop.collection::<Order>("dear").count_documents(doc! {}).await.unwrap(), 5);
    assert!(orders.rename("log").await.unwrap_err().server_error().is_some());
    orders.rename("log").drop_target(true).await.unwrap();
    assert_eq!(shop.collection::<Order>("log").count_documents(doc! {}).await.unwrap(), 11);
    orders.drop().await.unwrap();

    let mut session = shop.client().start_session().await.unwrap();
    let reply = shop.run_command(doc! { "count": "log" }).session(&mut session).await.unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 11);
    let databases = shop.client().list_databases().filter(doc! { "name": "administration" }).await.unwrap();
    assert!(databases.len() == 1 && databases[0].name == "administration" && !databases[0].empty, "{databases:?}");
    assert!(databases[0].size_on_disk > 0);
    assert!(shop.client().list_database_names().await.unwrap().contains(&"administration".to_owned()));
    shop.drop().await.unwrap();
    assert!(!shop.client().list_database_names().await.unwrap().contains(&"administration".to_owned()));
}

fn listed(command: &Document) -> Answer {
    Answer::Reply(match name(command).as_str() {
        "listDatabases" => doc! { "ok": 1, "databases": [{ "name": "a" }] },
        "listCollections" | "listIndexes" => {
            doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "shop.c", "firstBatch": [{ "name": "a" }] } }
        }
        "getMore" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.c", "nextBatch": [{ "name": "b" }] } },
        _ => doc! { "ok": 1 },
    })
}

#[tokio::test(start_paused = true)]
async fn administration_sends_the_commands_of_the_specifications() {
    let (server, client) = scripted("readPreference=secondary", |command, _| listed(command)).await;
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let shop = client.database("shop").read_concern("local").read_preference(secondary);
    let shop = shop.write_concern(WriteConcern::default().w(Acknowledgement::Servers(2)));
    let orders = shop.collection::<Document>("orders");
    let w = doc! { "w": 2 };
    let engine = doc! { "wiredTiger": {} };
    let index = IndexModel::new(doc! { "a": 1 }).expire_after(Duration::from_secs(9)).hidden(true).version(2);
    let index = index.language_override("l").text_index_version(3).sphere_2d_index_version(3).storage_engine(&engine);
    orders.create_index(index.partial_filter_expression(doc! { "b": 1 })).commit_quorum("majority").await.unwrap();
    orders.drop_index("a_1").comment("c").await.unwrap();
    orders.drop_index(doc! { "a": 1 }).await.unwrap();
    orders.rename("done").drop_target(true).await.unwrap();
    assert_eq!(shop.list_collection_names().comment("c").await.unwrap(), ["a", "b"]);
    shop.list_collection_names().filter(doc! { "options.capped": true }).authorized_collections(true).await.unwrap();
    assert_eq!(orders.list_index_names().comment("c").await.unwrap(), ["a", "b"]);
    assert_eq!(client.list_database_names().authorized_databases(true).await.unwrap(), ["a"]);
    shop.drop().await.unwrap();
    let more = |of: &str| doc! { "getMore": 7_i64, "collection": of };
    assert_sent(
        &server,
        &[
            doc! {
                "createIndexes": "orders", "writeConcern": &w, "commitQuorum": "majority",
                "indexes": [{
                    "key": { "a": 1 }, "expireAfterSeconds": 9_i64, "hidden": true, "v": 2_i64, "language_override": "l",
                    "textIndexVersion": 3_i64, "2dsphereIndexVersion": 3_i64, "storageEngine": &engine,
                    "partialFilterExpression": { "b": 1 }, "name": "a_1",
                }],
            },
            doc! { "dropIndexes": "orders", "index": "a_1", "comment": "c", "writeConcern": &w },
            doc! { "dropIndexes": "orders", "index": { "a": 1 }, "writeConcern": &w },
            doc! { "renameCollection": "shop.orders", "to": "shop.done", "dropTarget": true, "writeConcern": &w },
            doc! { "listCollections": 1, "comment": "c", "nameOnly": true, "cursor": {} },
            // The server itself applies the comment to the `getMore`, so the client sends none.
            more("c"),
            doc! {
                "listCollections": 1, "filter": { "options.capped": true }, "authorizedCollections": true, "cursor": {},
            },
            more("c"),
            doc! { "listIndexes": "orders", "comment": "c", "cursor": {} },
            {
                let mut more = more("c");
                more.insert("comment", "c");
                more
            },
            doc! { "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true },
            doc! { "dropDatabase": 1, "writeConcern": &w },
        ],
    );
    let databases: Vec<_> =
        server.commands().iter().filter_map(|command| Some(command.get_str("$db").ok()?.to_owned())).collect();
    assert!(databases.contains(&"admin".to_owned()) && databases.contains(&"shop".to_owned()));
    assert_eq!(arrived(&server).len(), 12);
}

#[tokio::test(start_paused = true)]
async fn search_indexes_have_no_concerns() {
    let (server, client) = scripted("readConcernLevel=local&w=2", |command, _| {
        Answer::Reply(match name(command).as_str() {
            "createSearchIndexes" => {
                doc! { "ok": 1, "indexesCreated": [{ "id": "1", "name": "words" }, { "id": "2", "name": "plots" }] }
            }
            "aggregate" => {
                doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.orders", "firstBatch": [{ "name": "a" }] } }
            }
            _ => doc! { "ok": 0, "code": 26, "errmsg": "ns not found" },
        })
    })
    .await;
    let shop = client.database("shop").read_concern("majority").write_concern(WriteConcern::majority());
    let orders = shop.collection::<Document>("orders");
    let model = || SearchIndexModel::new(doc! { "mappings": { "dynamic": true } }).name("words");
    assert_eq!(orders.create_search_index(model()).await.unwrap(), "words");
    let plots = SearchIndexModel::new(doc! { "fields": [] }).index_type("vectorSearch");
    assert_eq!(orders.create_search_indexes([model(), plots]).await.unwrap(), ["words", "plots"]);
    let listed: Vec<_> = orders.list_search_indexes().await.unwrap().try_collect().await.unwrap();
    assert_eq!(listed, [doc! { "name": "a" }]);
    let _ = orders.list_search_indexes().name("words").batch_size(10).comment("c").await.unwrap();
    assert_eq!(orders.update_search_index("words", doc! {}).await.unwrap_err().code(), Some(26));
    orders.drop_search_index("words").await.unwrap();
    let words = doc! { "definition": { "mappings": { "dynamic": true } }, "name": "words" };
    assert_sent(
        &server,
        &[
            doc! { "createSearchIndexes": "orders", "indexes": [&words] },
            doc! {
                "createSearchIndexes": "orders",
                "indexes": [&words, { "definition": { "fields": [] }, "type": "vectorSearch" }],
            },
            doc! { "aggregate": "orders", "pipeline": [{ "$listSearchIndexes": {} }], "cursor": {} },
            doc! {
                "aggregate": "orders", "comment": "c", "pipeline": [{ "$listSearchIndexes": { "name": "words" } }],
                "cursor": { "batchSize": 10 },
            },
            doc! { "updateSearchIndex": "orders", "name": "words", "definition": {} },
            doc! { "dropSearchIndex": "orders", "name": "words" },
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn time_limit_replaces_max_time_of_administrative_commands() {
    let (server, client) = scripted("", |_, _| {
        Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.orders", "firstBatch": [] } })
    })
    .await;
    let orders = client.database("shop").collection::<Document>("orders").timeout(Duration::from_secs(60));
    let search = || orders.list_search_indexes().max_time(Duration::from_secs(1)).allow_disk_use(true);
    let _ = search().await.unwrap();
    orders.create_index(IndexModel::new(doc! { "a": 1 })).max_time(Duration::from_secs(1)).await.unwrap();
    // A limit for each call is not sent to the server.
    let _ = search().timeout_mode(TimeoutMode::Iteration).await.unwrap();
    let arrived = arrived(&server);
    let limits: Vec<_> = arrived.iter().map(|command| command.get_i64("maxTimeMS").ok()).collect();
    assert!(
        limits[..2].iter().all(|limit| limit.is_some_and(|limit| limit > 50_000)) && limits[2].is_none(),
        "{limits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn cursor_of_any_command_has_the_options_of_its_get_more() {
    let (server, client) = scripted("readConcernLevel=local&w=2", |command, number| {
        Answer::Reply(match name(command).as_str() {
            "getMore" => {
                doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.c", "nextBatch": [{ "_id": number as i32 }] } }
            }
            _ => doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "shop.c", "firstBatch": [] } },
        })
    })
    .await;
    let shop = client.database("shop").read_concern("majority");
    let find = doc! { "find": "c", "batchSize": 3, "comment": "of the query" };
    let time = Duration::from_millis(77);
    let found = shop.run_cursor_command(&find).batch_size(5).comment("of each batch").max_time(time);
    assert_eq!(found.await.unwrap().try_collect::<Vec<_>>().await.unwrap(), [doc! { "_id": 0 }]);
    let found = shop.run_cursor_command(&find).typed::<Document>().await.unwrap();
    assert_eq!(found.try_collect::<Vec<_>>().await.unwrap(), [doc! { "_id": 1 }]);
    assert_sent(
        &server,
        &[
            find.clone(),
            doc! { "getMore": 7_i64, "collection": "c", "batchSize": 5, "comment": "of each batch", "maxTimeMS": 77_i64 },
            find,
            doc! { "getMore": 7_i64, "collection": "c" },
        ],
    );
}

#[tokio::test]
async fn database_of_the_connection_string_is_the_default() {
    let client = Client::from_uri("mongodb://127.0.0.1:1/shop").unwrap();
    assert_eq!(client.default_database().unwrap().name(), "shop");
    assert!(Client::from_uri("mongodb://127.0.0.1:1").unwrap().default_database().is_none());
    let orders = client.database("shop").collection::<Order>("orders").clone_with_type::<Document>();
    assert_eq!((orders.database(), orders.name()), ("shop", "orders"));
    let _ = orders.find(doc! {}).cursor_type(CursorType::NonTailable);
}
