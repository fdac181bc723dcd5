//! The ways to read and write many documents.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use futures_core::Stream;
use mongodb::Collection;
use wharf::Operation;

use super::{DATABASE, Documents, READ, WRITTEN, document};
use crate::Failure;
use crate::subjects::uri;

/// A client that reads or writes many documents at once.
pub trait Transfer: Send + Sync + Sized + 'static {
    fn open(arguments: &Documents) -> impl Future<Output = Result<Self, Failure>>;

    /// Prepares a turn.
    fn prepare(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Reads or writes the documents, and returns how many there were. Views each document that it reads as a raw
    /// document, so that its length is known.
    fn transfer(&self) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// A wharf cursor, which lends its documents.
pub struct ClientFind {
    client: wharf::Client,
    find: RawDocumentBuf,
}

impl Transfer for ClientFind {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        let client = wharf::Client::from_uri(&uri(&arguments.child.server, arguments.child.connections))?;
        let find = rawdoc! { "find": READ, "filter": {}, "batchSize": i32::try_from(arguments.batch)? };
        Ok(Self { client, find })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let mut cursor = self.client.cursor(Operation::read(DATABASE, &self.find)).await?;
        let mut count = 0;
        while let Some(document) = cursor.next_document().await? {
            black_box(document.as_bytes().len());
            count += 1;
        }
        Ok(count)
    }
}

async fn official(arguments: &Documents, name: &str) -> Result<Collection<RawDocumentBuf>, Failure> {
    let client = mongodb::Client::with_uri_str(uri(&arguments.child.server, arguments.child.connections)).await?;
    Ok(client.database(DATABASE).collection(name))
}

/// A cursor from the official driver, which lends its documents.
pub struct OfficialFind {
    collection: Collection<RawDocumentBuf>,
    batch: u32,
}

impl Transfer for OfficialFind {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        Ok(Self { collection: official(arguments, READ).await?, batch: arguments.batch })
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let mut cursor = self.collection.find(Document::new()).batch_size(self.batch).await?;
        let mut count = 0;
        while cursor.advance().await? {
            black_box(cursor.current().as_bytes().len());
            count += 1;
        }
        Ok(count)
    }
}

/// A cursor from the official driver. It hands out whole batches.
pub struct OfficialBatches(OfficialFind);

impl Transfer for OfficialBatches {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        OfficialFind::open(arguments).await.map(Self)
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        let OfficialFind { collection, batch } = &self.0;
        let mut batches = collection.find(Document::new()).batch_size(*batch).batch().await?;
        let mut count = 0;
        while let Some(batch) = poll_fn(|context| Pin::new(&mut batches).poll_next(context)).await {
            for document in batch?.doc_slices()? {
                let document = document?.as_document().ok_or("a batch must be an array of documents")?;
                black_box(document.as_bytes().len());
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Inserts through wharf's client.
pub struct ClientInsert {
    client: wharf::Client,
    documents: Vec<RawDocumentBuf>,
}

impl Transfer for ClientInsert {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        let client = wharf::Client::from_uri(&uri(&arguments.child.server, arguments.child.connections))?;
        Ok(Self { client, documents: (0..arguments.documents).map(document).collect() })
    }

    async fn prepare(&self) -> Result<(), Failure> {
        self.client.run_command(DATABASE, &rawdoc! { "dropDatabase": 1 }).await?;
        self.client.run_command(DATABASE, &rawdoc! { "create": WRITTEN }).await?;
        Ok(())
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        Ok(self.client.insert(DATABASE, WRITTEN, &self.documents).await?.inserted)
    }
}

/// Inserts through the official driver with `insert_many`. Its bulk write to several collections needs a newer server.
pub struct OfficialInsert {
    collection: Collection<RawDocumentBuf>,
    documents: Vec<RawDocumentBuf>,
}

impl Transfer for OfficialInsert {
    async fn open(arguments: &Documents) -> Result<Self, Failure> {
        let collection = official(arguments, WRITTEN).await?;
        Ok(Self { collection, documents: (0..arguments.documents).map(document).collect() })
    }

    async fn prepare(&self) -> Result<(), Failure> {
        let database = self.collection.client().database(DATABASE);
        database.run_command(doc! { "dropDatabase": 1 }).await?;
        database.run_command(doc! { "create": WRITTEN }).await?;
        Ok(())
    }

    async fn transfer(&self) -> Result<u64, Failure> {
        Ok(self.collection.insert_many(&self.documents).await?.inserted_ids.len() as u64)
    }
}
