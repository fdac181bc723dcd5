//! Handles to databases and collections, on real servers.

use bson::{Bson, Document, doc};
use serde::{Deserialize, Serialize};
use wharf::ClientError;
use wharf::client::{IndexModel, ReturnDocument, WriteModel};
use wharf::single::{Client, Collection};
use wharf_testbed::{mongod, replica_set};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    price: i64,
}

fn order(id: i32) -> Order {
    Order { id, price: i64::from(id) }
}

#[test]
fn handles_have_the_methods_of_the_other_client() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/single", server.address())).unwrap();
    let database = client.default_database().unwrap();
    let orders: Collection<Order> = database.collection("handles");
    orders.drop().run().unwrap();
    assert_eq!(orders.create_index(IndexModel::new(doc! { "price": 1 })).run().unwrap(), "price_1");
    let indexes: Vec<_> = orders.list_indexes().run().unwrap().map(|index| index.unwrap().name).collect();
    assert_eq!(indexes, ["_id_", "price_1"]);
    assert_eq!(orders.insert_one(order(1)).run().unwrap().inserted_id, Bson::Int32(1));
    assert_eq!(orders.insert_many((2..6).map(order)).run().unwrap().inserted_ids.len(), 4);
    assert!(orders.insert_one(order(1)).run().unwrap_err().is_duplicate_key());
    let found = orders.find(doc! {}).sort(doc! { "_id": -1 }).batch_size(2).run().unwrap();
    assert_eq!(found.map(|order| order.unwrap().id).collect::<Vec<_>>(), [5, 4, 3, 2, 1]);
    assert_eq!(orders.find_one(doc! { "_id": 3 }).run().unwrap(), Some(order(3)));
    let updated = orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "price": 9_i64 } }).run().unwrap();
    assert_eq!((updated.matched_count, updated.modified_count), (1, 1));
    assert_eq!(orders.replace_one(doc! { "_id": 1 }, order(1)).run().unwrap().modified_count, 1);
    let raise = doc! { "$inc": { "price": 1_i64 } };
    let raised = orders.find_one_and_update(doc! { "_id": 2 }, &raise).return_document(ReturnDocument::After);
    assert_eq!(raised.run().unwrap().unwrap().price, 3);
    assert_eq!(orders.delete_many(doc! { "_id": { "$gt": 4 } }).run().unwrap().deleted_count, 1);
    assert_eq!(orders.count_documents(doc! {}).run().unwrap(), 4);
    assert_eq!(orders.distinct("_id", doc! { "price": 1 }).run().unwrap(), [Bson::Int32(1)]);
    let sum = doc! { "$group": { "_id": Bson::Null, "total": { "$sum": "$price" } } };
    let totals = orders.aggregate([sum]).run().unwrap();
    assert_eq!(totals.map(|total| total.unwrap().get_i64("total").unwrap()).collect::<Vec<_>>(), [11]);
    let models = [WriteModel::delete_one(doc! { "_id": 1 }), WriteModel::insert_one(order(7))];
    assert_eq!(orders.bulk_write(models).run().unwrap().inserted_count, 1);
    let counted = database.run_command(doc! { "count": "handles" }).run().unwrap();
    assert_eq!(counted.get_i32("n").unwrap(), 4);
    let found = database.run_cursor_command(doc! { "find": "handles", "batchSize": 1 }).run().unwrap();
    assert_eq!(found.count(), 4);
    assert!(database.list_collection_names().run().unwrap().contains(&"handles".to_owned()));
    assert!(client.list_database_names().run().unwrap().contains(&"single".to_owned()));
    assert!(client.list_databases().run().unwrap().iter().any(|database| database.name == "single"));
    let error = orders.update_one(doc! {}, doc! { "price": 1 }).run().unwrap_err();
    assert!(matches!(error, ClientError::Argument { .. }), "{error}");
    let error = client.bulk_write([orders.model(WriteModel::insert_one(order(8)))]).run().unwrap_err().to_string();
    assert!(error.starts_with("Client::bulk_write needs MongoDB 8.0"), "{error}");
}

#[test]
fn handles_take_part_in_a_transaction_and_see_changes() {
    let set = replica_set::shared().unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    let orders = client.database("single").collection::<Order>("transacted");
    orders.delete_many(doc! {}).run().unwrap();
    orders.insert_one(order(1)).run().unwrap();
    let inserts = [doc! { "$match": { "operationType": "insert" } }];
    let mut changes = orders.watch(inserts).full_document("updateLookup").run().unwrap();
    let mut session = client.start_session().run().unwrap();
    let count = session.with_transaction(|session| {
        orders.insert_one(order(2)).session(session).run()?;
        orders.find(doc! {}).batch_size(1).session(session).run()?.map(|order| order.map(|_| 1)).sum()
    });
    let count: i32 = count.unwrap();
    assert_eq!(count, 2);
    let change = changes.next_event().unwrap().unwrap();
    assert_eq!(change.get_document("fullDocument").unwrap().get_i32("_id").unwrap(), 2);
    let untyped = orders.clone_with_type::<Document>();
    assert_eq!(untyped.find_one(doc! { "_id": 2 }).run().unwrap().unwrap().get_i64("price").unwrap(), 2);
}
