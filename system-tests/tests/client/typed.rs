//! Commands, queries and writes with the application's own types, on a real server.

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use serde::{Deserialize, Serialize, Serializer};
use wharf::client::{TimeoutMode, WatchTarget};
use wharf::{Client, ClientError, Operation, ReadPreference, ReadPreferenceMode};
use wharf_testbed::mongod::{self, Mongod};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    customer: String,
    price: i64,
}

fn orders() -> Vec<Order> {
    (0..10).map(|id| Order { id, customer: format!("customer {}", id % 2), price: i64::from(id) }).collect()
}

/// Returns the shared server and a client for it. Drops this test's collection.
async fn collection(name: &str) -> (Arc<Mongod>, Client) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let _ = client.run(Operation::write("typed", &rawdoc! { "drop": name })).await;
    (server, client)
}

/// A value that serde cannot serialize.
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it has no form"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn structs_are_inserted_found_and_aggregated_in_a_line_each() {
    let (_server, client) = collection("lines").await;
    let written = client.insert("typed", "lines", orders()).await.unwrap();
    assert_eq!(written.inserted, 10);

    let newest = doc! { "sort": { "_id": -1 }, "limit": 3 };
    let mut found = client.find("typed", "lines", doc! { "customer": "customer 1" }).options(newest).await.unwrap();
    assert_eq!(found.next().await.unwrap().unwrap().get_i32("_id").unwrap(), 9);
    let mut found = found.typed::<Order>();
    assert_eq!(found.next().await.unwrap(), Some(orders()[7].clone()));
    assert_eq!(found.next().await.unwrap(), Some(orders()[5].clone()));
    assert_eq!(found.next().await.unwrap(), None);

    #[derive(Debug, PartialEq, Deserialize)]
    struct Total {
        #[serde(rename = "_id")]
        customer: String,
        total: i64,
    }
    let pipeline =
        [doc! { "$group": { "_id": "$customer", "total": { "$sum": "$price" } } }, doc! { "$sort": { "_id": 1 } }];
    let mut totals = client.aggregate("typed", "lines", pipeline).await.unwrap().typed::<Total>();
    for (customer, total) in [("customer 0", 20), ("customer 1", 25)] {
        let expected = Total { customer: customer.to_owned(), total };
        assert_eq!(totals.next().await.unwrap(), Some(expected));
    }
    assert_eq!(totals.next().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_may_be_a_struct_or_a_raw_document() {
    #[derive(Serialize)]
    struct OfCustomer<'n> {
        customer: &'n str,
    }
    let (_server, client) = collection("filters").await;
    client.insert("typed", "filters", orders()).await.unwrap();
    let raw = rawdoc! { "customer": "customer 0" };
    for mut found in [
        client.find("typed", "filters", OfCustomer { customer: "customer 0" }).batch_size(2).await.unwrap(),
        client.find("typed", "filters", &raw).await.unwrap(),
        client.find("typed", "filters", &*raw).options(rawdoc! { "batchSize": 3 }).await.unwrap(),
    ] {
        let mut count = 0;
        while found.next().await.unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_command_returns_the_type_that_is_asked_for() {
    #[derive(Serialize)]
    struct Count<'n> {
        count: &'n str,
        query: Document,
    }
    #[derive(Deserialize)]
    struct Counted {
        n: i32,
    }
    let (_server, client) = collection("commands").await;
    client.insert("typed", "commands", orders()).await.unwrap();
    let count = Count { count: "commands", query: doc! { "price": { "$lt": 4 } } };
    let counted: Counted = client.run_typed("typed", &count).await.unwrap();
    assert_eq!(counted.n, 4);
    let nearest = ReadPreference::new(ReadPreferenceMode::Nearest);
    let mut session = client.start_session().await.unwrap();
    let limit = Duration::from_secs(10);
    let reply = client.run_typed::<Document>("typed", &count).read_preference(&nearest).timeout(limit);
    assert_eq!(reply.session(&mut session).await.unwrap().get_i32("n").unwrap(), 4);
    let error = client.run_typed::<Order>("typed", &count).await.unwrap_err();
    assert!(matches!(error, ClientError::Reply { .. }), "{error}");
    let error = client.run_typed::<Document>("typed", doc! { "noSuchCommand": 1 }).await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, 59);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_no_documents_are_refused_before_anything_is_sent() {
    // There is no server to which anything could be sent.
    let client = Client::from_uri("mongodb://127.0.0.1:1").unwrap();
    let refusals: [(ClientError, &str); 7] = [
        (client.find("typed", "refused", 5).await.unwrap_err(), "the argument filter cannot be sent"),
        (client.find("typed", "refused", Unwritable).await.unwrap_err(), "it has no form"),
        (client.find("typed", "refused", doc! {}).options(["sort"]).await.unwrap_err(), "the argument options"),
        (
            client.aggregate("typed", "refused", doc! {}).await.unwrap_err(),
            "pipeline cannot be sent: it must be an array",
        ),
        (client.insert("typed", "refused", [5]).await.unwrap_err(), "the argument documents"),
        (client.update("typed", "refused", [Unwritable]).await.unwrap_err(), "the argument updates"),
        (client.run_typed::<Document>("typed", "ping").await.unwrap_err(), "the argument command"),
    ];
    for (error, expected) in refusals {
        assert!(matches!(error, ClientError::Argument { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_that_the_command_has_already_is_refused_before_anything_is_sent() {
    let client = Client::from_uri("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1").unwrap();
    let find = || client.find("typed", "twice", doc! {});
    let aggregate = || client.aggregate("typed", "twice", [(); 0]);
    let cursor = doc! { "cursor": { "batchSize": 2 } };
    let insert = || client.insert("typed", "twice", [doc! {}]);
    let refusals: [(ClientError, &str, &str); 8] = [
        (find().options(doc! { "batchSize": 2 }).batch_size(3).await.unwrap_err(), "batch_size", "batchSize"),
        (find().batch_size(3).options(doc! { "batchSize": 2 }).await.unwrap_err(), "batch_size", "batchSize"),
        (find().options(doc! { "filter": {} }).await.unwrap_err(), "options", "filter"),
        (aggregate().options(&cursor).batch_size(3).await.unwrap_err(), "batch_size", "cursor"),
        (aggregate().options(&cursor).options(&cursor).await.unwrap_err(), "options", "cursor"),
        (client.watch(WatchTarget::Cluster, ()).options(&cursor).await.unwrap_err(), "options", "cursor"),
        (insert().options(doc! { "ordered": false }).await.unwrap_err(), "options", "ordered"),
        (insert().options(doc! { "documents": [] }).await.unwrap_err(), "options", "documents"),
    ];
    for (error, argument, field) in refusals {
        let expected = format!("the argument {argument} cannot be sent: the command has the field {field} already");
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misspelt_field_is_in_the_error_of_the_server() {
    let (_server, client) = collection("misspelt").await;
    let misspelt = doc! { "batch_size": 2 };
    for error in [
        client.find("typed", "misspelt", doc! {}).options(&misspelt).batch_size(3).await.unwrap_err(),
        client.aggregate("typed", "misspelt", [(); 0]).options(&misspelt).await.unwrap_err(),
        client.insert("typed", "misspelt", [doc! {}]).options(&misspelt).await.unwrap_err(),
    ] {
        assert!(error.server_error().unwrap().message.contains("batch_size"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_that_serde_cannot_read_costs_only_itself() {
    let (_server, client) = collection("unreadable").await;
    let mixed = [doc! { "_id": 1, "customer": 7 }, doc! { "_id": 2, "customer": "b", "price": 1_i64 }];
    client.insert("typed", "unreadable", mixed).await.unwrap();
    let mut found = client
        .find("typed", "unreadable", doc! {})
        .options(doc! { "sort": { "_id": 1 } })
        .await
        .unwrap()
        .typed::<Order>();
    let error = found.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Reply { .. }), "{error}");
    assert_eq!(found.next().await.unwrap().unwrap().id, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_size_is_that_of_every_batch() {
    let (_server, client) = collection("batches").await;
    client.insert("typed", "batches", orders()).await.unwrap();
    let stages = [doc! { "$sort": { "_id": 1 } }];
    for mut found in [
        client.find("typed", "batches", doc! {}).batch_size(4).await.unwrap(),
        client.aggregate("typed", "batches", stages).batch_size(4).await.unwrap(),
    ] {
        let mut seen = Vec::new();
        while let Some(document) = found.next().await.unwrap() {
            seen.push(document.get_i32("_id").unwrap());
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limit_may_hold_for_each_call_instead_of_all() {
    let (_server, client) = collection("limited").await;
    client.insert("typed", "limited", orders()).await.unwrap();
    let query = |mode| client.find("typed", "limited", doc! {}).batch_size(2).timeout_mode(mode);
    let error = query(TimeoutMode::Iteration).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidOption(_)), "there is no limit: {error}");
    let limit = Duration::from_millis(700);
    for (mode, lasts) in [(TimeoutMode::Iteration, true), (TimeoutMode::CursorLifetime, false)] {
        let mut found = query(mode).timeout(limit).await.unwrap();
        for _ in 0..2 {
            found.next().await.unwrap().unwrap();
        }
        // The pause is longer than the limit, and the next document is in another batch.
        tokio::time::sleep(limit + Duration::from_millis(100)).await;
        assert_eq!(found.next().await.is_ok(), lasts, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregate_with_out_gets_the_write_concern_of_the_options() {
    let (server, client) = collection("written").await;
    client.insert("typed", "written", orders()).await.unwrap();
    let unmet = wharf::WriteConcern::default().w(wharf::Acknowledgement::Servers(3));
    let options = wharf::Options::parse(&format!("mongodb://{}", server.address())).unwrap().write_concern(unmet);
    let strict = Client::new(options).unwrap();
    let out = [doc! { "$out": "copied" }];
    // A standalone server refuses a write concern that requires three servers.
    assert!(strict.aggregate("typed", "written", &out).await.unwrap_err().server_error().is_some());
    let own = doc! { "writeConcern": { "w": 1 } };
    let _ = strict.aggregate("typed", "written", &out).options(own).await.unwrap();
    // A command that only reads carries no write concern.
    let _ = strict.aggregate("typed", "copied", [doc! { "$match": {} }]).await.unwrap();
    let count: RawDocumentBuf = client.run_typed("typed", doc! { "count": "copied" }).await.unwrap();
    assert_eq!(count.get_i32("n").unwrap(), 10);
}
