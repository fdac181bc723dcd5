//! Handles to databases and collections, with the operations that the CRUD specification names.
//!
//! A handle creates builders. A builder holds a [`Request`]: the command's document while it is being built, and how to
//! run it. The finished command runs as an operation of the client. Both clients share the handles and builders: the
//! asynchronous client awaits a builder, and the blocking client runs its [`Call`].

mod fields;
#[macro_use]
mod options;
#[macro_use]
mod request;

// rustdoc shows a type's methods in the order of the modules.
mod handles;

mod insert;

mod find;

mod aggregate;

mod update;

mod modify;

mod bulk;

mod administration;
mod client_bulk;
mod commands;
mod indexes;
mod results;
mod search;
mod watch;

use super::session_handle::Session;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bson::Document;

pub use self::administration::{
    CollectionSpecification, CreateCollection, DatabaseSpecification, DropNamespace, ListCollectionNames,
    ListCollections, ListDatabaseNames, ListDatabases, Rename,
};
pub use self::aggregate::{Aggregate, CountDocuments, Distinct, EstimatedDocumentCount};
pub use self::bulk::{BulkWrite, WriteModel};
pub use self::client_bulk::{
    ClientBulkWrite, ClientBulkWriteFailure, ClientBulkWriteResult, ClientDeleteResult, ClientInsertOneResult,
    ClientUpdateResult, NamespaceWriteModel, VerboseResults,
};
pub use self::commands::{RunCommand, RunCursorCommand};
pub(super) use self::fields::{Fields, Shape, refused};
pub use self::find::{Find, FindOne};
pub use self::indexes::{
    CreateIndex, CreateIndexes, DropIndexes, IndexModel, IndexSpecification, ListIndexNames, ListIndexes,
};
pub use self::insert::{InsertMany, InsertOne};
pub use self::modify::{FindOneAndDelete, FindOneAndReplace, FindOneAndUpdate, ReturnDocument};
pub(crate) use self::request::Call;
pub use self::results::{BulkWriteResult, DeleteResult, InsertManyResult, InsertOneResult, UpdateResult};
pub use self::search::{
    ChangeSearchIndex, CreateSearchIndex, CreateSearchIndexes, ListSearchIndexes, SearchIndexModel,
};
pub use self::update::{Delete, Replace, Update};

use self::request::Request;
use super::Client;

use crate::endpoint::Limit;
use crate::endpoint::options::{ReadPreference, WriteConcern};

/// Declares the methods of a handle that override the client's options.
macro_rules! settings {
    ($of:literal) => {
        #[doc = concat!("Sets the read preference of the ", $of, "'s reads, instead of that of the client's options.")]
        #[must_use]
        pub fn read_preference(mut self, preference: ReadPreference) -> Self {
            Arc::make_mut(&mut self.namespace).settings.read_preference = Some(preference);
            self
        }

        #[doc = concat!("Sets the read concern of the ", $of, "'s reads, such as `majority`, instead of that of the client's ")]
        #[doc = "options. An empty text stands for the server's default."]
        #[must_use]
        pub fn read_concern(mut self, level: impl Into<String>) -> Self {
            Arc::make_mut(&mut self.namespace).settings.read_concern = Some(level.into());
            self
        }

        #[doc = concat!("Sets the write concern of the ", $of, "'s writes, instead of that of the client's options.")]
        #[must_use]
        pub fn write_concern(mut self, concern: WriteConcern) -> Self {
            Arc::make_mut(&mut self.namespace).settings.write_concern = Some(concern);
            self
        }

        #[doc = concat!("Sets `timeoutMS` of the ", $of, "'s operations: how long each call may take in total, instead of the")]
        #[doc = "limit of the client's options. Zero means no limit."]
        #[must_use]
        pub fn timeout(mut self, limit: Duration) -> Self {
            Arc::make_mut(&mut self.namespace).timeout = Limit::of(limit);
            self
        }
    };
}

/// A client to which handles can belong: [`Client`], or [`single::Client`](crate::single::Client).
pub trait AnyClient: sealed::Client {
    /// This client's session.
    type Session: sealed::Session;
}

impl AnyClient for Client {
    type Session = Session;
}

/// Gives handles access to a client and its sessions.
pub(crate) mod sealed {
    pub trait Client: Clone + Send + Sync + 'static {
        /// Returns the client that runs the operations.
        fn running(&self) -> &super::Client;

        /// Does the work that dropped values have left behind, unless it runs in the background.
        fn finish_dropped(&self) {}
    }

    pub trait Session {
        /// Returns the session of the client that runs the operations.
        fn running(&mut self) -> &mut super::Session;
    }
}

impl sealed::Client for Client {
    fn running(&self) -> &Client {
        self
    }
}

impl sealed::Session for Session {
    fn running(&mut self) -> &mut Session {
        self
    }
}

/// A handle to a database, created by [`Client::database`].
///
/// A handle is cheap to clone, and can be created at any time.
#[derive(Clone)]
pub struct Database<C = Client> {
    namespace: Arc<Namespace<C>>,
}

impl<C: AnyClient> Database<C> {
    pub(crate) fn new(client: C, database: String) -> Self {
        let (collection, settings, timeout) = (String::new(), Settings::default(), Limit::Unset);
        Self { namespace: Arc::new(Namespace { client, database, collection, settings, timeout }) }
    }

    /// Returns the database's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.namespace.database
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &C {
        &self.namespace.client
    }

    settings!("database");

    /// Returns a request for a command with these fields.
    #[track_caller]
    fn request(&self, body: Fields) -> Request<'_, C> {
        self.namespace.request(body)
    }
}

impl<C> fmt::Debug for Database<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.namespace.database).finish()
    }
}

/// A handle to a collection whose documents are values of type `T`, created by [`Database::collection`].
///
/// ```no_run
/// use bson::doc;
/// use serde::{Deserialize, Serialize};
/// use wharf::{ClientError, Collection};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     #[serde(rename = "_id")]
///     id: i32,
///     price: i64,
/// }
///
/// async fn reduce(orders: &Collection<Order>) -> Result<Vec<Order>, ClientError> {
///     orders.insert_one(Order { id: 1, price: 20 }).await?;
///     orders.update_many(doc! { "price": { "$gte": 10 } }, doc! { "$inc": { "price": -1_i64 } }).await?;
///     orders.find(doc! {}).sort(doc! { "price": -1 }).limit(10).await?.try_collect().await
/// }
/// ```
///
/// | to do this | call that |
/// | --- | --- |
/// | insert | [`insert_one`](Self::insert_one), [`insert_many`](Self::insert_many) |
/// | read | [`find_one`](Self::find_one), [`find`](Self::find), [`aggregate`](Self::aggregate), [`distinct`](Self::distinct) |
/// | count | [`count_documents`](Self::count_documents), [`estimated_document_count`](Self::estimated_document_count) |
/// | change | [`update_one`](Self::update_one), [`update_many`](Self::update_many), [`replace_one`](Self::replace_one) |
/// | delete | [`delete_one`](Self::delete_one), [`delete_many`](Self::delete_many) |
/// | change or delete a document, and return it | [`find_one_and_update`](Self::find_one_and_update), [`find_one_and_replace`](Self::find_one_and_replace), [`find_one_and_delete`](Self::find_one_and_delete) |
/// | do many writes at once | [`bulk_write`](Self::bulk_write) |
/// | learn of changes | [`watch`](Self::watch) |
/// | manage indexes | [`create_index`](Self::create_index), [`list_indexes`](Self::list_indexes), [`drop_index`](Self::drop_index) |
/// | read documents as another type | `typed` of a call, [`clone_with_type`](Self::clone_with_type) |
///
/// A handle is cheap to clone, and can be created at any time. Each method returns a builder: set options with its
/// methods, then await it to send the command. Filters, updates and the values of options can be anything that serde
/// serializes as a document: `doc!`, `rawdoc!`, or a struct.
///
/// The methods are named as in the specification. [`Client::run`] and [`Client::write`] are the raw forms, which take
/// the commands as sent on the wire.
pub struct Collection<T = Document, C = Client> {
    namespace: Arc<Namespace<C>>,
    documents: PhantomData<fn() -> T>,
}

impl<T, C: AnyClient> Collection<T, C> {
    /// Returns the collection's name, without the database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.namespace.collection
    }

    /// Returns the name of the collection's database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.namespace.database
    }

    /// Returns the collection's namespace: the name of its database, a dot, and its own name.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("{}.{}", self.database(), self.name())
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &C {
        &self.namespace.client
    }

    /// Returns a handle to the same collection whose documents are values of another type.
    #[must_use]
    pub fn clone_with_type<U>(&self) -> Collection<U, C> {
        Collection { namespace: self.namespace.clone(), documents: PhantomData }
    }

    settings!("collection");

    /// Returns the time limit of the collection's operations.
    #[cfg(feature = "gridfs")]
    pub(in crate::client) fn timeout_of_all(&self) -> Limit {
        self.namespace.timeout
    }

    /// Returns a request for a command whose target is this collection.
    #[track_caller]
    fn request(&self, command: &'static str) -> Request<'_, C> {
        self.request_of(Fields::command(command, self.name()))
    }

    /// Returns a request for a command with these fields.
    #[track_caller]
    fn request_of(&self, body: Fields) -> Request<'_, C> {
        self.namespace.request(body)
    }
}

/// This is not derived, because `T` need not be `Clone`.
impl<T, C> Clone for Collection<T, C> {
    fn clone(&self) -> Self {
        Self { namespace: self.namespace.clone(), documents: PhantomData }
    }
}

impl<T, C> fmt::Debug for Collection<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collection").field(&self.namespace.database).field(&self.namespace.collection).finish()
    }
}

/// The state that all clones of a handle share.
#[derive(Clone)]
struct Namespace<C> {
    client: C,
    database: String,
    /// Empty for a database.
    collection: String,
    settings: Settings,
    timeout: Limit,
}

impl<C> Namespace<C> {
    #[track_caller]
    fn request(&self, body: Fields) -> Request<'_, C> {
        self.request_with(&self.settings, body)
    }

    /// Returns a request for a command that inherits the time limit, but neither the concerns nor the read preference.
    #[track_caller]
    fn request_without_settings(&self, body: Fields) -> Request<'_, C> {
        self.request_with(Settings::NONE, body)
    }

    #[track_caller]
    fn request_with<'c>(&'c self, settings: &'c Settings, body: Fields) -> Request<'c, C> {
        let mut request = Request::new(&self.client, &self.database, settings, body);
        request.inherited_timeout = self.timeout;
        request
    }
}

/// The settings that replace the client's options.
#[derive(Debug, Clone, Default)]
struct Settings {
    read_preference: Option<ReadPreference>,
    read_concern: Option<String>,
    write_concern: Option<WriteConcern>,
}

impl Settings {
    const NONE: &'static Self = &Self { read_preference: None, read_concern: None, write_concern: None };

    fn is_set(&self) -> bool {
        self.read_preference.is_some() || self.read_concern.is_some() || self.write_concern.is_some()
    }
}
