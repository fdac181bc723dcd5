//! Counts, aggregations, changes to one document, bulk writes and change streams through handles, on real servers.

use bson::{Bson, Document, doc};
use serde::Deserialize;
use wharf::client::{OperationType, ReturnDocument, TransactionOptions, WriteModel};
use wharf::{Client, ClientError, Collection, ReadPreference, ReadPreferenceMode};
use wharf_testbed::replica_set;

use super::documents::filled;
use super::{Order, collection};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_counted_in_three_ways() {
    let (_server, orders) = filled("counts").await;
    assert_eq!(orders.count_documents(doc! { "price": { "$gte": 4 } }).await.unwrap(), 6);
    assert_eq!(orders.count_documents(doc! {}).skip(3).limit(5).await.unwrap(), 5);
    assert_eq!(orders.count_documents(doc! { "_id": "none" }).await.unwrap(), 0);
    assert_eq!(orders.estimated_document_count().await.unwrap(), 10);
    let customers = orders.distinct("customer", doc! { "price": { "$lt": 5 } }).await.unwrap();
    assert_eq!(customers, [Bson::from("customer 0"), Bson::from("customer 1")]);
    let secondary = ReadPreference::new(ReadPreferenceMode::SecondaryPreferred);
    assert_eq!(orders.count_documents(doc! {}).read_preference(&secondary).await.unwrap(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_may_borrow_from_the_batch() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Customer<'b> {
        #[serde(rename = "_id")]
        id: i32,
        customer: &'b str,
    }
    /// A handle of a type with a lifetime can be used where a handle with a shorter lifetime is expected.
    fn shorter<'s>(orders: &'s Collection<Customer<'static>>, _: &'s str) -> &'s Collection<Customer<'s>> {
        orders
    }

    let (_server, orders) = filled("borrowing").await;
    let (orders, name) = (orders.clone_with_type(), String::new());
    let mut found = shorter(&orders, &name).find(doc! { "_id": 3 }).await.unwrap();
    assert!(found.advance().await.unwrap());
    assert_eq!(found.current::<Customer<'_>>().unwrap(), Customer { id: 3, customer: "customer 1" });
    let stages = [doc! { "$match": { "_id": 4 } }];
    let mut found = orders.aggregate(stages).typed::<Customer<'_>>().await.unwrap().typed::<Customer<'_>>();
    assert!(found.advance().await.unwrap());
    assert_eq!(found.current::<Customer<'_>>().unwrap().customer, "customer 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregation_returns_the_type_that_is_asked_for() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Total {
        #[serde(rename = "_id")]
        customer: String,
        total: i64,
    }
    let (_server, orders) = filled("totals").await;
    let sum = doc! { "$group": { "_id": "$customer", "total": { "$sum": "$price" } } };
    let totals = orders.aggregate([sum, doc! { "$sort": { "_id": 1 } }]).typed::<Total>().batch_size(1).await.unwrap();
    let totals: Vec<_> = totals.try_collect().await.unwrap();
    let expected = [("customer 0", 20), ("customer 1", 25)];
    assert_eq!(totals, expected.map(|(customer, total)| Total { customer: customer.to_owned(), total }));
    let shop = orders.client().database(orders.database());
    let values = shop.aggregate([doc! { "$documents": [{ "a": 1 }] }]).await.unwrap();
    assert_eq!(values.try_collect::<Vec<_>>().await.unwrap(), [doc! { "a": 1 }]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_document_is_returned_as_it_was_or_as_it_is() {
    let (_server, orders) = filled("modified").await;
    let raise = doc! { "$inc": { "price": 10_i64 } };
    let before = orders.find_one_and_update(doc! { "_id": 3 }, &raise).await.unwrap();
    assert_eq!(before, Some(Order::new(3)));
    let after = orders.find_one_and_update(doc! { "_id": 3 }, &raise).return_document(ReturnDocument::After);
    assert_eq!(after.await.unwrap().unwrap().price, 23);
    let of_many = orders.find_one_and_update(doc! {}, &raise).sort(doc! { "_id": -1 }).projection(doc! { "_id": 1 });
    assert_eq!(of_many.typed::<Document>().await.unwrap(), Some(doc! { "_id": 9 }));
    assert_eq!(orders.find_one_and_update(doc! { "_id": 99 }, &raise).await.unwrap(), None);
    let replaced = orders.find_one_and_replace(doc! { "_id": 4 }, Order { price: 1, ..Order::new(4) });
    assert_eq!(replaced.return_document(ReturnDocument::After).await.unwrap().unwrap().price, 1);
    let inserted = orders.find_one_and_replace(doc! { "_id": 50 }, Order::new(50)).upsert(true);
    assert_eq!(inserted.await.unwrap(), None);
    assert_eq!(orders.find_one_and_delete(doc! { "_id": 50 }).await.unwrap(), Some(Order::new(50)));
    assert_eq!(orders.find_one_and_delete(doc! { "_id": 50 }).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_of_all_kinds_returns_ids_and_counts() {
    let (_server, orders) = filled("bulk").await;
    let raise = doc! { "$inc": { "price": 10_i64 } };
    let models = [
        WriteModel::insert_one(Order::new(20)),
        WriteModel::insert_one(doc! { "customer": "x", "price": 0_i64 }),
        WriteModel::update_many(doc! { "_id": { "$lt": 3 } }, &raise),
        WriteModel::update_one(doc! { "_id": 30 }, &raise).upsert(true),
        WriteModel::replace_one(doc! { "_id": 4 }, Order::new(4)),
        WriteModel::delete_one(doc! { "_id": 5 }),
        WriteModel::delete_many(doc! { "_id": { "$in": [6, 7] } }),
    ];
    let written = orders.bulk_write(models).await.unwrap();
    assert!(written.acknowledged);
    assert_eq!((written.inserted_count, written.matched_count, written.modified_count), (2, 4, 3));
    assert_eq!((written.deleted_count, written.upserted_ids.len()), (3, 1));
    assert_eq!(written.upserted_ids[&3], Bson::Int32(30));
    assert_eq!(written.inserted_ids[&0], Bson::Int32(20));
    let generated = orders.find_one(doc! { "_id": &written.inserted_ids[&1] }).typed::<Document>();
    assert_eq!(generated.await.unwrap().unwrap().get_str("customer").unwrap(), "x");

    let duplicate = || WriteModel::insert_one(Order::new(1));
    let delete = || WriteModel::delete_one(doc! { "_id": 8 });
    for (ordered, deleted) in [(true, 0), (false, 1)] {
        let error = orders.bulk_write([duplicate(), delete()]).ordered(ordered).await.unwrap_err();
        let ClientError::Write(failure) = error else { panic!("another error: {error}") };
        assert_eq!((failure.errors.len(), failure.errors[0].index, failure.written.deleted), (1, 0, deleted));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_handles_is_committed_as_a_whole() {
    let set = tokio::task::spawn_blocking(|| replica_set::shared().unwrap()).await.unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    let orders = client.database("handles").collection::<Order>("transactions");
    orders.delete_many(doc! {}).await.unwrap();
    orders.insert_many((0..4).map(Order::new)).await.unwrap();
    let orders = orders.read_concern("local").write_concern(wharf::WriteConcern::majority());
    let mut session = client.start_session().await.unwrap();
    let options = TransactionOptions::default();
    let body = async |mut session: wharf::client::Session| {
        orders.insert_one(Order::new(5)).session(&mut session).await?;
        orders.update_one(doc! { "_id": 1 }, doc! { "$inc": { "price": 4_i64 } }).session(&mut session).await?;
        orders.bulk_write([WriteModel::delete_one(doc! { "_id": 2 })]).session(&mut session).await?;
        let deleted = orders.find_one_and_delete(doc! { "_id": 3 }).session(&mut session).await?;
        assert_eq!(deleted, Some(Order::new(3)));
        let found = orders.find(doc! {}).batch_size(1).session(&mut session).await?;
        assert_eq!(found.try_collect::<Vec<_>>().await?.len(), 3);
        assert_eq!(orders.count_documents(doc! {}).session(&mut session).await?, 3);
        orders.find_one(doc! { "_id": 1 }).session(&mut session).await
    };
    let changed = session.with_transaction_in_task(options, body).await.unwrap();
    assert_eq!(changed.unwrap().price, 5);
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_collection_are_watched() {
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Change {
        full_document: Order,
    }
    let set = tokio::task::spawn_blocking(|| replica_set::shared().unwrap()).await.unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    let orders = client.database("handles").collection::<Order>("watched");
    let _ = orders.find_one_and_delete(doc! { "_id": 7 }).await.unwrap();
    let inserts = [doc! { "$match": { "operationType": "insert" } }];
    let mut inserted = orders.watch(inserts).typed::<Change>().await.unwrap();
    let mut changes = orders.watch(()).full_document("updateLookup").await.unwrap();
    orders.insert_one(Order::new(7)).await.unwrap();
    orders.update_one(doc! { "_id": 7 }, doc! { "$set": { "price": 8_i64 } }).await.unwrap();
    assert_eq!(inserted.next().await.unwrap().unwrap().full_document, Order::new(7));

    let insert = changes.next().await.unwrap().unwrap();
    assert_eq!((insert.operation_type, insert.document_key), (OperationType::Insert, Some(doc! { "_id": 7 })));
    assert_eq!((insert.full_document.unwrap().id, insert.update_description), (7, None));
    let namespace = insert.ns.unwrap();
    assert_eq!((namespace.db.as_str(), namespace.coll.as_deref()), ("handles", Some("watched")));
    let update = changes.next().await.unwrap().unwrap();
    assert_eq!(update.operation_type, OperationType::Update);
    assert_eq!(update.full_document.map(|order| order.price), Some(8));
    assert_eq!(update.update_description.unwrap().updated_fields, doc! { "price": 8_i64 });
    assert!(update.cluster_time.unwrap() > insert.cluster_time.unwrap());
    let mut resumed = orders.watch(()).resume_after(&insert.id).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().unwrap().id, update.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_can_be_read_without_a_copy() {
    #[derive(Debug, Deserialize)]
    struct Named<'b> {
        customer: &'b str,
    }
    let (_server, orders) = filled("borrowed").await;
    let mut found = orders.find(doc! {}).batch_size(3).sort(doc! { "_id": 1 }).await.unwrap();
    let error = found.current::<Named<'_>>().unwrap_err();
    assert!(matches!(error, ClientError::Reply { .. }), "{error}");
    let mut count = 0;
    while found.advance().await.unwrap() {
        assert_eq!(found.current::<Named<'_>>().unwrap().customer, format!("customer {}", count % 2));
        assert_eq!(found.current::<Order>().unwrap(), Order::new(count));
        count += 1;
    }
    assert_eq!(count, 10);
    let error = found.current::<Order>().unwrap_err();
    assert!(error.to_string().contains("the cursor is at no document"), "{error}");
    let mut found = orders.find(doc! {}).projection(doc! { "_id": 1 }).await.unwrap();
    assert!(found.advance().await.unwrap());
    assert!(found.current::<Named<'_>>().unwrap_err().to_string().contains("_id"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_a_tailable_cursor_waits_for_documents() {
    let (_server, capped) = collection::<Order>("capped").await;
    let create = bson::rawdoc! { "create": "capped", "capped": true, "size": 4096 };
    capped.client().run(wharf::Operation::write("handles", &create)).await.unwrap();
    capped.insert_one(Order::new(1)).await.unwrap();
    let tailing = capped.find(doc! {}).cursor_type(wharf::client::CursorType::TailableAwait);
    let mut tailing = tailing.max_await_time(std::time::Duration::from_millis(50)).await.unwrap();
    assert_eq!(tailing.next().await.unwrap(), Some(Order::new(1)));
    assert_eq!(tailing.next_if_any().await.unwrap(), None);
    let (next, inserted) = tokio::join!(tailing.next(), async { capped.insert_one(Order::new(2)).await });
    inserted.unwrap();
    assert_eq!(next.unwrap(), Some(Order::new(2)));
    assert!(!tailing.is_over());
}
