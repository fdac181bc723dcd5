//! The document for the measurements that use an application's own type.

use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, rawdoc};
use serde::{Deserialize, Serialize};
use wharf::Operation;

use crate::Failure;
use crate::subjects::uri;

/// The database, and the collection with the items that are read and updated.
pub const DATABASE: &str = "perf";
pub const ITEMS: &str = "items";
/// The number of items that are read and updated one by one.
pub const ITEMS_READ: u32 = 1_000;
/// The collection that the inserts write to.
pub const INSERTED: &str = "inserted";

/// A document with ten fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    #[serde(rename = "_id", skip_serializing_if = "Option::is_none")]
    pub id: Option<ObjectId>,
    pub number: i64,
    pub name: String,
    pub text: String,
    pub price: f64,
    pub available: bool,
    pub stock: i32,
    pub tags: Vec<String>,
    pub size: Size,
    pub changed: DateTime,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Size {
    width: i32,
    height: i32,
    unit: String,
}

/// The same document, with strings that borrow from the reply.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "serde reads the fields, and nothing else needs them")]
pub struct BorrowedItem<'b> {
    #[serde(rename = "_id")]
    _id: Option<ObjectId>,
    number: i64,
    #[serde(borrow)]
    name: &'b str,
    #[serde(borrow)]
    text: &'b str,
    price: f64,
    available: bool,
    stock: i32,
    #[serde(borrow)]
    tags: Vec<&'b str>,
    #[serde(borrow)]
    size: BorrowedSize<'b>,
    changed: DateTime,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "serde reads the fields, and nothing else needs them")]
struct BorrowedSize<'b> {
    width: i32,
    height: i32,
    #[serde(borrow)]
    unit: &'b str,
}

/// Returns an item without an `_id`, so the client that inserts it adds one.
pub fn item(number: u32) -> Item {
    Item {
        id: None,
        number: number.into(),
        name: format!("item number {number:09}"),
        text: "It is neither long nor short, and compresses badly enough.".to_owned(),
        price: f64::from(number) / 100.0,
        available: number.is_multiple_of(2),
        stock: 12,
        tags: ["new", "small", "blue"].map(str::to_owned).to_vec(),
        size: Size { width: 120, height: 80, unit: "mm".to_owned() },
        changed: DateTime::from_millis(1_764_115_200_000 + i64::from(number)),
    }
}

/// Returns the `_id` of an item that [`fill`] inserts.
pub fn id_of(number: u32) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    ObjectId::from_bytes(bytes)
}

/// Fills the database with exactly these items, unless it already has them.
pub async fn fill(server: &str, items: u32) -> Result<(), Failure> {
    let client = wharf::Client::from_uri(&uri(server, 1))?;
    let counted = client.run(Operation::read(DATABASE, &rawdoc! { "count": ITEMS })).await?;
    if counted.get_i32("n")? != i32::try_from(items)? {
        client.run_command(DATABASE, &rawdoc! { "dropDatabase": 1 }).await?;
        let documents: Vec<_> = (0..items).map(|number| Item { id: Some(id_of(number)), ..item(number) }).collect();
        client.insert(DATABASE, ITEMS, &documents).await?;
    }
    client.shutdown(crate::subjects::PATIENCE).await;
    Ok(())
}

/// Serialises an item to a document with serde.
pub fn written(item: &Item) -> Result<RawDocumentBuf, Failure> {
    Ok(bson::serialize_to_raw_document_buf(item)?)
}
