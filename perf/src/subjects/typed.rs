//! Operations on one document of an application's own type: through wharf's handles, through wharf's raw operations and
//! serde, and through the official driver.
//!
//! Each interface reads and writes the documents in its idiomatic way. Each operation checks its result.

use std::sync::atomic::{AtomicU32, Ordering};

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocumentBuf, doc, rawdoc};
use serde::Serialize;
use wharf::endpoint::OutgoingSequence;
use wharf::{Client, Operation};

use super::{PATIENCE, Subject, uri};
use crate::Failure;
use crate::item::{DATABASE, INSERTED, ITEMS, ITEMS_READ, Item, fill, id_of, item, written};

/// The operations.
pub const FIND_ONE: u8 = 0;
pub const INSERT_ONE: u8 = 1;
pub const UPDATE_ONE: u8 = 2;

/// Yields the item numbers in sequence.
#[derive(Default)]
struct Numbers(AtomicU32);

impl Numbers {
    fn next(&self) -> u32 {
        // Relaxed: any number will do.
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// An update that sets an item's fields. It always changes the item.
#[derive(Serialize)]
struct Set {
    #[serde(rename = "$set")]
    fields: Item,
}

impl Set {
    fn to(number: u32) -> Self {
        Self { fields: item(number) }
    }
}

fn check(is_right: bool) -> Result<(), Failure> {
    if is_right { Ok(()) } else { Err("an operation did not have its result".into()) }
}

/// Runs the operations through wharf's handles.
pub struct Handle<const CALL: u8> {
    client: Client,
    items: wharf::Collection<Item>,
    inserted: wharf::Collection<Item>,
    numbers: Numbers,
}

impl<const CALL: u8> Subject for Handle<CALL> {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        fill(server, ITEMS_READ).await?;
        let client = Client::from_uri(&uri(server, connections))?;
        client.connect().await?;
        let database = client.database(DATABASE);
        let (items, inserted) = (database.collection(ITEMS), database.collection(INSERTED));
        Ok(Self { client, items, inserted, numbers: Numbers::default() })
    }

    async fn run(&self) -> Result<(), Failure> {
        let number = self.numbers.next();
        let id = id_of(number % ITEMS_READ);
        match CALL {
            FIND_ONE => {
                let found = self.items.find_one(doc! { "_id": id }).await?;
                check(found.is_some_and(|item| item.id == Some(id)))
            }
            INSERT_ONE => check(self.inserted.insert_one(item(number)).await?.acknowledged),
            _ => check(self.items.update_one(doc! { "_id": id }, Set::to(number)).await?.matched_count == 1),
        }
    }

    async fn close(&self) {
        self.client.shutdown(PATIENCE).await;
    }
}

/// Runs the operations through wharf's raw operations and serde.
pub struct Raw<const CALL: u8> {
    client: Client,
    numbers: Numbers,
}

impl<const CALL: u8> Raw<CALL> {
    async fn write(&self, command: RawDocumentBuf, argument: &str, document: RawDocumentBuf) -> Result<(), Failure> {
        let documents = [document];
        let sequences = [OutgoingSequence::new(argument, &documents)];
        let reply = self.client.run(Operation::write(DATABASE, &command).sequences(&sequences)).await?;
        check(reply.get_i32("n")? == 1)
    }
}

impl<const CALL: u8> Subject for Raw<CALL> {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        fill(server, ITEMS_READ).await?;
        let client = Client::from_uri(&uri(server, connections))?;
        client.connect().await?;
        Ok(Self { client, numbers: Numbers::default() })
    }

    async fn run(&self) -> Result<(), Failure> {
        let number = self.numbers.next();
        let id = id_of(number % ITEMS_READ);
        match CALL {
            FIND_ONE => {
                let find = rawdoc! { "find": ITEMS, "filter": { "_id": id }, "limit": 1, "singleBatch": true };
                let reply = self.client.run(Operation::read(DATABASE, &find)).await?;
                let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
                let Some(RawBsonRef::Document(first)) = batch.into_iter().next().transpose()? else {
                    return check(false);
                };
                let found: Item = bson::deserialize_from_slice(first.as_bytes())?;
                check(found.id == Some(id))
            }
            INSERT_ONE => {
                let new = Item { id: Some(ObjectId::new()), ..item(number) };
                self.write(rawdoc! { "insert": INSERTED, "ordered": true }, "documents", written(&new)?).await
            }
            _ => {
                let update = rawdoc! { "q": { "_id": id }, "u": { "$set": written(&item(number))? } };
                self.write(rawdoc! { "update": ITEMS, "ordered": true }, "updates", update).await
            }
        }
    }

    async fn close(&self) {
        self.client.shutdown(PATIENCE).await;
    }
}

/// Runs the operations through the official driver.
pub struct OfficialTyped<const CALL: u8> {
    items: mongodb::Collection<Item>,
    inserted: mongodb::Collection<Item>,
    numbers: Numbers,
}

impl<const CALL: u8> Subject for OfficialTyped<CALL> {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        fill(server, ITEMS_READ).await?;
        let database = mongodb::Client::with_uri_str(uri(server, connections)).await?.database(DATABASE);
        // Waits until the server is known.
        database.run_command(doc! { "ping": 1 }).await?;
        let (items, inserted) = (database.collection(ITEMS), database.collection(INSERTED));
        Ok(Self { items, inserted, numbers: Numbers::default() })
    }

    async fn run(&self) -> Result<(), Failure> {
        let number = self.numbers.next();
        let id = id_of(number % ITEMS_READ);
        match CALL {
            FIND_ONE => {
                let found = self.items.find_one(doc! { "_id": id }).await?;
                check(found.is_some_and(|item| item.id == Some(id)))
            }
            INSERT_ONE => check(self.inserted.insert_one(item(number)).await?.inserted_id.as_object_id().is_some()),
            _ => {
                // The driver takes updates only as documents.
                let update = bson::serialize_to_document(&Set::to(number))?;
                check(self.items.update_one(doc! { "_id": id }, update).await?.matched_count == 1)
            }
        }
    }

    async fn close(&self) {
        self.items.client().clone().shutdown().await;
    }
}
