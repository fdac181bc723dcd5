//! Handles to databases and collections. These are the asynchronous client's handles, and their builders have a `run`
//! method.

use bson::{Bson, Document};
use serde::de::DeserializeOwned;

use super::{ChangeStream, Client, Cursor, Session};
use crate::client::action::{
    Aggregate, BulkWrite, ChangeSearchIndex, ClientBulkWrite, CountDocuments, CreateCollection, CreateIndex,
    CreateIndexes, CreateSearchIndex, CreateSearchIndexes, Delete, Distinct, DropIndexes, DropNamespace,
    EstimatedDocumentCount, Find, FindOne, FindOneAndDelete, FindOneAndReplace, FindOneAndUpdate, InsertMany,
    InsertOne, ListCollectionNames, ListCollections, ListDatabaseNames, ListDatabases, ListIndexNames, ListIndexes,
    ListSearchIndexes, Rename, Replace, RunCommand, RunCursorCommand, Update,
};
use crate::client::{
    self, AnyClient, BulkWriteResult, Call, ClientBulkWriteResult, ClientError, DatabaseSpecification, DeleteResult,
    InsertManyResult, InsertOneResult, NamespaceWriteModel, UpdateResult, Watch, sealed,
};

/// A database of a [`single::Client`](Client): see [`client::Database`](crate::Database).
pub type Database = client::Database<Client>;

/// A collection of a [`single::Client`](Client): see [`client::Collection`](crate::Collection).
pub type Collection<T = Document> = client::Collection<T, Client>;

impl AnyClient for Client {
    type Session = Session;
}

impl sealed::Client for Client {
    fn running(&self) -> &client::Client {
        self.client()
    }

    fn finish_dropped(&self) {
        if self.client().deployment().has_kept() {
            self.finish_kept();
        }
    }
}

impl sealed::Session for Session {
    fn running(&mut self) -> &mut client::Session {
        &mut self.session
    }
}

impl Client {
    /// Returns a handle to a database. Sends nothing. The handle has the methods of
    /// [`wharf::Database`](crate::Database), but you call `run` on the builders instead of awaiting them:
    ///
    /// ```no_run
    /// # fn example(client: wharf::single::Client) -> Result<(), wharf::ClientError> {
    /// use bson::{Document, doc};
    ///
    /// let orders = client.database("shop").collection::<Document>("orders");
    /// orders.insert_one(doc! { "_id": 1, "paid": false }).run()?;
    /// orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "paid": true } }).run()?;
    /// for order in orders.find(doc! { "paid": true }).sort(doc! { "_id": 1 }).run()? {
    ///     println!("{}", order?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn database(&self, name: impl Into<String>) -> Database {
        Database::new(self.clone(), name.into())
    }

    /// Returns a handle to the database that the connection string names, or `None` if it names none.
    #[must_use]
    pub fn default_database(&self) -> Option<Database> {
        self.options().default_database.as_ref().map(|name| self.database(name))
    }

    /// Prepares writes of any kind to any collections: see [`wharf::Client::bulk_write`](crate::Client::bulk_write).
    #[track_caller]
    pub fn bulk_write(&self, models: impl IntoIterator<Item = NamespaceWriteModel>) -> ClientBulkWrite<'_, Self> {
        ClientBulkWrite::of(self, models)
    }

    /// Prepares a query for the databases, with their sizes.
    #[track_caller]
    pub fn list_databases(&self) -> ListDatabases<'_, Self> {
        ListDatabases::of(self)
    }

    /// Prepares a query for the names of the databases.
    #[track_caller]
    pub fn list_database_names(&self) -> ListDatabaseNames<'_, Self> {
        ListDatabaseNames::of(self)
    }
}

/// Converts the output of the asynchronous client into the output of a blocking call.
trait Returned<O> {
    fn of(client: Client, output: O) -> Self;
}

impl<O> Returned<O> for O {
    fn of(_: Client, output: O) -> Self {
        output
    }
}

impl<T> Returned<client::Cursor<T>> for Cursor<T> {
    fn of(client: Client, cursor: client::Cursor<T>) -> Self {
        Self::new(client, cursor)
    }
}

impl<T> Returned<client::ChangeStream<T>> for ChangeStream<T> {
    fn of(client: Client, stream: client::ChangeStream<T>) -> Self {
        Self::new(client, stream)
    }
}

fn run<P: Call<Client = Client>, R: Returned<P::Output>>(call: P) -> Result<R, ClientError> {
    let client = call.client();
    let output = client.drive_within(call.limit()?, |limit| call.begin(limit))??;
    Ok(R::of(client, output))
}

/// Implements the `run` method for builders.
macro_rules! calls {
    ($($builder:ident $(<$t:ident $(: $bound:path)?>)? => $output:ty,)*) => { $(
        impl<'c $(, $t $(: $bound)?)?> $builder<'c $(, $t)?, Client> {
            /// Sends the command, and waits for the outcome.
            ///
            /// # Errors
            ///
            /// The same as for the asynchronous client's builder, and also [`ClientError::OnRuntime`],
            /// [`ClientError::EventLoop`] and [`ClientError::InUse`].
            pub fn run(self) -> Result<$output, ClientError> {
                run(self)
            }
        }
    )* };
}

calls! {
    Aggregate<T> => Cursor<T>,
    BulkWrite => BulkWriteResult,
    ChangeSearchIndex => (),
    ClientBulkWrite => ClientBulkWriteResult,
    CountDocuments => u64,
    CreateCollection => (),
    CreateIndex => String,
    CreateIndexes => Vec<String>,
    CreateSearchIndex => String,
    CreateSearchIndexes => Vec<String>,
    Delete => DeleteResult,
    Distinct => Vec<Bson>,
    DropIndexes => (),
    DropNamespace => (),
    EstimatedDocumentCount => u64,
    Find<T> => Cursor<T>,
    FindOne<T: DeserializeOwned> => Option<T>,
    FindOneAndDelete<T: DeserializeOwned> => Option<T>,
    FindOneAndReplace<T: DeserializeOwned> => Option<T>,
    FindOneAndUpdate<T: DeserializeOwned> => Option<T>,
    InsertMany => InsertManyResult,
    InsertOne => InsertOneResult,
    ListCollectionNames => Vec<String>,
    ListCollections<T> => Cursor<T>,
    ListDatabaseNames => Vec<String>,
    ListDatabases => Vec<DatabaseSpecification>,
    ListIndexNames => Vec<String>,
    ListIndexes<T> => Cursor<T>,
    ListSearchIndexes<T> => Cursor<T>,
    Rename => (),
    Replace => UpdateResult,
    RunCommand<T: DeserializeOwned> => T,
    RunCursorCommand<T> => Cursor<T>,
    Update => UpdateResult,
    Watch<T> => ChangeStream<T>,
}

#[cfg(feature = "gridfs")]
mod files {
    use super::*;
    use crate::client::gridfs::{
        ChangeFiles, GridFsDownloadStream, GridFsUploadStream, OpenDownloadStream, OpenDownloadStreamByName,
        OpenUploadStream,
    };

    calls! {
        ChangeFiles => (),
        OpenDownloadStream => GridFsDownloadStream<Client>,
        OpenDownloadStreamByName => GridFsDownloadStream<Client>,
        OpenUploadStream => GridFsUploadStream<Client>,
    }
}
