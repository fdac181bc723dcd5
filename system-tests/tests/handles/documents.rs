//! Reading and writing documents through handles, on a real server.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use serde::{Deserialize, Serialize};
use wharf::client::TimeoutMode;
use wharf::{Acknowledgement, ClientError, Collection, WriteConcern};

use super::{Order, collection};

pub(super) async fn filled(name: &str) -> (impl Sized, Collection<Order>) {
    let (server, orders) = collection::<Order>(name).await;
    orders.insert_many((0..10).map(Order::new)).await.unwrap();
    (server, orders)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_inserted_found_changed_and_deleted() {
    let (_server, orders) = collection::<Order>("lines").await;
    let inserted = orders.insert_one(Order::new(1)).await.unwrap();
    assert_eq!((inserted.acknowledged, inserted.inserted_id), (true, Bson::Int32(1)));
    let many = [Order::new(2), Order::new(3)];
    let inserted = orders.insert_many(&many).await.unwrap();
    assert_eq!(inserted.inserted_ids.into_iter().collect::<Vec<_>>(), [(0, Bson::Int32(2)), (1, Bson::Int32(3))]);
    assert_eq!(orders.find_one(doc! { "_id": 2 }).await.unwrap(), Some(Order::new(2)));
    assert_eq!(orders.find_one(doc! { "_id": 9 }).await.unwrap(), None);

    let updated = orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "price": 5_i64 } }).await.unwrap();
    assert_eq!((updated.matched_count, updated.modified_count, updated.upserted_id), (1, 1, None));
    let pipeline = [doc! { "$set": { "price": { "$add": ["$price", 1_i64] } } }];
    let updated = orders.update_many(doc! { "_id": { "$gte": 2 } }, pipeline).await.unwrap();
    assert_eq!((updated.matched_count, updated.modified_count), (2, 2));
    let replaced = orders.replace_one(doc! { "_id": 7 }, Order::new(7)).upsert(true).await.unwrap();
    assert_eq!((replaced.matched_count, replaced.modified_count, replaced.upserted_id), (0, 0, Some(Bson::Int32(7))));
    let replaced = orders.replace_one(doc! { "_id": 7 }, Order { price: 1, ..Order::new(7) }).await.unwrap();
    assert_eq!((replaced.matched_count, replaced.modified_count, replaced.upserted_id), (1, 1, None));

    let prices = orders.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    let prices: Vec<_> = prices.try_collect::<Vec<_>>().await.unwrap().iter().map(|order| order.price).collect();
    assert_eq!(prices, [5, 3, 4, 1]);
    assert_eq!(orders.delete_one(doc! {}).await.unwrap().deleted_count, 1);
    assert_eq!(orders.delete_many(doc! {}).await.unwrap().deleted_count, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_without_id_gets_the_one_that_is_returned() {
    #[derive(Serialize, Deserialize)]
    struct Note {
        #[serde(rename = "_id", skip_serializing_if = "Option::is_none")]
        id: Option<ObjectId>,
        text: String,
    }
    let note = |id: Option<ObjectId>, text: &str| Note { id, text: text.to_owned() };
    let (_server, notes) = collection::<Note>("notes").await;
    let id = notes.insert_one(note(None, "a")).await.unwrap().inserted_id;
    assert_eq!(notes.find_one(doc! { "_id": &id }).await.unwrap().unwrap().text, "a");
    let own = ObjectId::from_bytes([7; 12]);
    let ids = notes.insert_many([note(None, "b"), note(Some(own), "c"), note(None, "d")]).await.unwrap().inserted_ids;
    assert_eq!(ids[&1], Bson::ObjectId(own));
    for (place, text) in [(0, "b"), (1, "c"), (2, "d")] {
        assert_eq!(notes.find_one(doc! { "_id": &ids[&place] }).await.unwrap().unwrap().text, text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_returns_batches_of_the_type_that_is_asked_for() {
    let (_server, orders) = filled("typed").await;
    let all = orders.find(doc! {}).batch_size(3).sort(doc! { "_id": 1 }).await.unwrap();
    let all: Vec<Order> = all.try_collect().await.unwrap();
    assert_eq!(all, (0..10).map(Order::new).collect::<Vec<_>>());
    let some = orders.find(doc! { "price": { "$gt": 2 } }).skip(1).limit(2).projection(doc! { "price": 1 });
    let some: Vec<Document> = some.typed().await.unwrap().try_collect().await.unwrap();
    assert_eq!(some, [doc! { "_id": 4, "price": 4_i64 }, doc! { "_id": 5, "price": 5_i64 }]);
    let raw = orders.clone_with_type::<Document>().find_one(doc! { "_id": 4 }).sort(doc! { "_id": 1 }).await.unwrap();
    assert_eq!(raw.unwrap().get_str("customer").unwrap(), "customer 0");
    let error = orders.find_one(doc! {}).projection(doc! { "_id": 1 }).await.unwrap_err();
    assert!(matches!(error, ClientError::Reply { .. }), "{error}");
    let limit = Duration::from_secs(10);
    let mut found = orders.find(doc! {}).timeout(limit).timeout_mode(TimeoutMode::Iteration).await.unwrap();
    assert_eq!(found.next().await.unwrap(), Some(Order::new(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_that_the_server_refuses_is_an_error() {
    const DUPLICATE_KEY: i32 = 11_000;
    let (_server, orders) = filled("duplicates").await;
    let error = orders.insert_one(Order::new(3)).await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, DUPLICATE_KEY, "{error}");
    let ClientError::Write(failure) = error else { panic!("another error") };
    assert_eq!((failure.errors[0].index, failure.written.inserted), (0, 0));
    let many = [Order::new(20), Order::new(3), Order::new(21)];
    for (ordered, inserted) in [(true, 1), (false, 1)] {
        let error = orders.insert_many(&many).ordered(ordered).await.unwrap_err();
        let ClientError::Write(failure) = error else { panic!("another error: {error}") };
        assert_eq!(failure.written.inserted, inserted, "ordered: {ordered}");
    }
    let error = orders.update_one(doc! { "_id": 3 }, doc! { "$noSuchOperator": {} }).await.unwrap_err();
    assert!(error.server_error().is_some(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_write_has_no_counts() {
    let (_server, orders) = filled("unacknowledged").await;
    let orders = orders.write_concern(WriteConcern::default().w(Acknowledgement::Servers(0)));
    let inserted = orders.insert_one(Order::new(30)).await.unwrap();
    assert_eq!((inserted.acknowledged, inserted.inserted_id), (false, Bson::Int32(30)));
    let many = orders.insert_many([Order::new(31)]).await.unwrap();
    assert_eq!((many.acknowledged, many.inserted_ids.len()), (false, 1));
    let updated = orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "price": 1 } }).await.unwrap();
    assert_eq!((updated.acknowledged, updated.matched_count), (false, 0));
    let deleted = orders.delete_many(doc! { "_id": 2 }).await.unwrap();
    assert_eq!((deleted.acknowledged, deleted.deleted_count), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_session_belong_to_it() {
    let (_server, orders) = filled("sessions").await;
    let mut session = orders.client().start_session().await.unwrap();
    let mut found = orders.find(doc! {}).batch_size(2).session(&mut session).await.unwrap();
    assert!(found.next().await.unwrap().is_some());
    drop(found);
    let price = doc! { "$inc": { "price": 1_i64 } };
    assert_eq!(orders.update_one(doc! { "_id": 1 }, price).session(&mut session).await.unwrap().matched_count, 1);
    assert_eq!(orders.find_one(doc! { "_id": 1 }).session(&mut session).await.unwrap().unwrap().price, 2);
    orders.insert_many([Order::new(40)]).session(&mut session).await.unwrap();
    assert!(session.operation_time().is_none(), "a standalone server has no such time");
}
