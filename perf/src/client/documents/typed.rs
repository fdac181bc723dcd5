//! The ways to read and write many documents of an application's own type.

use std::hint::black_box;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;

use super::subjects::Transfer;
use super::{Documents, Work};
use crate::Failure;
use crate::item::{BorrowedItem, DATABASE, INSERTED, ITEMS, Item, item};
use crate::subjects::uri;

/// Returns a wharf client's collection.
async fn handle<T>(arguments: &Documents) -> Result<wharf::Collection<T>, Failure> {
    let client = wharf::Client::from_uri(&uri(&arguments.child.server, arguments.child.connections))?;
    let name = if arguments.work == Work::InsertTyped { INSERTED } else { ITEMS };
    Ok(client.database(DATABASE).collection(name))
}

/// Returns an official client's collection.
async fn official<T: Send + Sync>(arguments: &Documents) -> Result<Collection<T>, Failure> {
    let client = mongodb::Client::with_uri_str(uri(&arguments.child.server, arguments.child.connections)).await?;
    let name = if arguments.work == Work::InsertTyped { INSERTED } else { ITEMS };
    Ok(client.database(DATABASE).collection(name))
}

/// A wharf cursor that is read into a `Vec`.
pub struct HandleFind {
    items: wharf::Collection<Item>,
    batch: i32,
}

impl Transfer for HandleFind {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { items: handle(arguments).await?, batch: arguments.batch.try_into()? })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let items: Vec<Item> = self.items.find(doc! {}).batch_size(self.batch).await?.try_collect().await?;
        Ok(black_box(items).len() as u64)
    }
}

/// A cursor from the official driver that is read into a `Vec`.
pub struct OfficialFindTyped {
    items: Collection<Item>,
    batch: u32,
}

impl Transfer for OfficialFindTyped {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { items: official(arguments).await?, batch: arguments.batch })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let items: Vec<Item> = self.items.find(doc! {}).batch_size(self.batch).await?.try_collect().await?;
        Ok(black_box(items).len() as u64)
    }
}

/// A wharf cursor whose values borrow from the batch.
pub struct HandleFindBorrowed {
    items: wharf::Collection<Document>,
    batch: i32,
}

impl Transfer for HandleFindBorrowed {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { items: handle(arguments).await?, batch: arguments.batch.try_into()? })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let mut items = self.items.find(doc! {}).batch_size(self.batch).await?;
        let mut count = 0;
        while items.advance().await? {
            black_box(items.current::<BorrowedItem<'_>>()?);
            count += 1;
        }
        Ok(count)
    }
}

/// A cursor from the official driver whose values borrow from its document.
pub struct OfficialFindBorrowed {
    items: Collection<Document>,
    batch: u32,
}

impl Transfer for OfficialFindBorrowed {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { items: official(arguments).await?, batch: arguments.batch })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let mut items = self.items.find(doc! {}).batch_size(self.batch).await?.with_type::<BorrowedItem<'_>>();
        let mut count = 0;
        while items.advance().await? {
            black_box(items.deserialize_current()?);
            count += 1;
        }
        Ok(count)
    }
}

/// `insert_many` on a wharf handle.
pub struct HandleInsert {
    inserted: wharf::Collection<Item>,
    items: Vec<Item>,
}

impl Transfer for HandleInsert {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { inserted: handle(arguments).await?, items: (0..arguments.documents).map(item).collect() })
    }

    async fn prepare(&self) -> Result<(), Failure> {
        self.inserted.drop().await?;
        self.inserted.client().database(DATABASE).create_collection(INSERTED).await?;
        Ok(())
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        Ok(self.inserted.insert_many(&self.items).await?.inserted_ids.len() as u64)
    }
}

/// The official driver's `insert_many`.
pub struct OfficialInsertTyped {
    inserted: Collection<Item>,
    items: Vec<Item>,
}

impl Transfer for OfficialInsertTyped {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { inserted: official(arguments).await?, items: (0..arguments.documents).map(item).collect() })
    }

    async fn prepare(&self) -> Result<(), Failure> {
        self.inserted.drop().await?;
        self.inserted.client().database(DATABASE).create_collection(INSERTED).await?;
        Ok(())
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        Ok(self.inserted.insert_many(&self.items).await?.inserted_ids.len() as u64)
    }
}
