//! The part that all builders share: a command while it is being built, and the ways to run it.

use crate::client::session::{self, SessionError, name, takes_read_concern, writes_its_result};
use crate::endpoint::options::{PRIMARY, ReadPreference, WriteConcern};
use std::panic::Location;
use std::time::Duration;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::super::Client;
use super::super::appending::own_read_concern;
use super::super::cursor::open::OpenCursor;
use super::super::cursor::{Cursor, TimeoutMode};
use super::super::error::ClientError;
use super::super::in_session::Explicit;
use super::super::operation::Operation;
use super::super::query::{Query, Verb};
use super::super::session_handle::Session;
use super::super::timed::Limited;
use super::super::typed::{Prepared, with};
use super::super::write::Write;
use super::fields::Fields;
use super::{AnyClient, Settings};
use crate::endpoint::wire::reply::whole_number;
use crate::endpoint::{Limit, OutgoingSequence};
use crate::pool::runtime::Boxed;

/// A builder that a client runs. Its time limit may already be running, because a blocking call may have to wait for
/// other calls.
pub(crate) trait Call: Sized {
    type Client;
    type Output;

    fn client(&self) -> Self::Client;

    /// Returns the time limit without starting it.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and its session have a limit.
    fn limit(&self) -> Result<Limit, SessionError>;

    /// Sends the command, with a limit that has already started.
    fn begin(self, limit: Limit) -> impl Future<Output = Result<Self::Output, ClientError>> + Send;
}

/// The command that a builder creates.
pub(super) struct Request<'c, C = Client> {
    pub client: &'c C,
    pub database: &'c str,
    /// The command's document, without its statements.
    pub body: Fields,
    /// The settings that the command inherits from its collection or database.
    settings: &'c Settings,
    pub read_preference: Option<&'c ReadPreference>,
    pub read_concern: Option<String>,
    pub write_concern: Option<WriteConcern>,
    pub session: Option<&'c mut Session>,
    pub timeout: Limit,
    /// The time limit of the collection or database.
    pub inherited_timeout: Limit,
    /// The time limit of the call, if it has already started.
    pub started: Option<Limit>,
    pub site: &'static Location<'static>,
}

impl<'c, C> Request<'c, C> {
    /// Creates a request from a command's document.
    #[track_caller]
    pub fn new(client: &'c C, database: &'c str, settings: &'c Settings, body: Fields) -> Self {
        Self {
            client,
            database,
            body,
            settings,
            read_preference: None,
            read_concern: None,
            write_concern: None,
            session: None,
            timeout: Limit::Unset,
            inherited_timeout: Limit::Unset,
            started: None,
            site: Location::caller(),
        }
    }
}

impl<'c, C: AnyClient> Request<'c, C> {
    /// Returns the time limit that has already started or, if there is none, the limit of the call, without starting
    /// it.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and its session have a limit.
    pub fn limit(&self) -> Result<Limit, SessionError> {
        if let Some(started) = self.started {
            return Ok(started);
        }
        self.client.running().limit_in(self.explicit(), self.timeout())
    }

    /// Returns the limit of this call or, if there is none, of its collection or database. In a call to
    /// `with_transaction`, the limit of the collection or database does not apply, because the session has a limit
    /// (Client Side Operations Timeout, "Validation and Overrides").
    fn timeout(&self) -> Limit {
        let is_inherited = !self.timeout.is_set() && self.inherited_timeout.is_set();
        match is_inherited && self.explicit().is_none_or(|explicit| explicit.limit().is_none()) {
            true => self.inherited_timeout,
            false => self.timeout,
        }
    }

    fn explicit(&self) -> Option<&Explicit> {
        self.session.as_ref().map(|session| &**session.explicit())
    }

    /// Sets [`limit`](Self::limit) to a limit that has already started.
    pub fn start(&mut self, limit: Limit) {
        self.started = Some(limit);
        // The limit starts again for each later command of a cursor.
        if self.session.is_none() {
            self.timeout = limit.unstarted();
        }
    }

    /// Completes the command. This happens outside a builder's future, so the future does not need to hold the whole
    /// builder.
    pub fn ready(mut self, writes: bool) -> Result<Ready<'c>, ClientError> {
        let read_preference = self.inherit(writes)?;
        let limit = self.started.unwrap_or_else(|| self.timeout());
        let Self { client, database, session, site, .. } = self;
        Ok(Ready {
            client: client.running(),
            database,
            body: self.body.finish()?,
            session,
            read_preference,
            limit,
            site,
        })
    }

    /// Runs a command that reads.
    pub async fn read(self) -> Result<RawDocumentBuf, ClientError> {
        let mut ready = self.ready(false)?;
        ready.read().await
    }

    /// Runs a command that writes to several documents.
    pub async fn write(self) -> Result<RawDocumentBuf, ClientError> {
        let mut ready = self.ready(true)?;
        ready.write(false, &[]).await
    }

    /// Runs a query.
    pub fn query<T>(
        self,
        verb: Verb,
        options: CursorOptions,
    ) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        let cursor = self.open(verb, options);
        async move { Ok(cursor.await?.typed()) }
    }

    fn open(mut self, verb: Verb, options: CursorOptions) -> impl Future<Output = Result<Cursor, ClientError>> + Send {
        async move {
            let writes = verb == Verb::Aggregate && writes_its_result(self.body.document()?);
            let (read_preference, timeout) = (self.inherit(writes)?, self.timeout());
            let prepared = Prepared {
                client: self.client.running().clone(),
                database: self.database,
                body: self.body.finish(),
                session: self.session,
                read_preference,
                timeout,
            };
            let mut query = options.apply(Query::of(verb, prepared, self.site));
            if let Some(limit) = self.started {
                query.set_limit(limit);
            }
            query.await
        }
    }

    /// Runs any command that opens a cursor, with the options that `set` applies. For `is_named`, see
    /// [`Ready::command`].
    pub fn cursor(
        self,
        is_named: bool,
        set: impl for<'o> FnOnce(OpenCursor<'o>) -> OpenCursor<'o> + Send,
    ) -> impl Future<Output = Result<Cursor, ClientError>> + Send {
        async move {
            let timeout = self.timeout();
            let Self { client, database, session, read_preference, started, site, .. } = self;
            let body = self.body.finish()?;
            let operation = Operation { is_named_by_command: is_named, ..Operation::new(database, &body) };
            let operation = with(operation, session, read_preference, timeout);
            set(client.running().cursor_at(operation, site).started(started)).await
        }
    }

    /// Runs, on the primary, a command whose reply contains a cursor over descriptions.
    pub fn list<T>(mut self, options: CursorOptions) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        self.read_preference = Some(&PRIMARY);
        self.query(Verb::Aggregate, options)
    }

    /// Converts the request into a bulk write. The fields of the request become the options of the write.
    pub fn into_write(mut self, collection: &'c str, ordered: bool) -> Result<Write<'c>, ClientError> {
        self.inherit(true)?;
        let limit = self.started.unwrap_or_else(|| self.timeout());
        let mut write = Write::of(self.client.running().clone(), self.database, collection, self.site);
        if !ordered {
            write = write.unordered();
        }
        if let Some(session) = self.session {
            write = write.session(session);
        }
        write.set_limit(limit);
        Ok(write.options(self.body.finish()?))
    }

    /// Adds the concerns, and returns the read preference. This call's settings take precedence over those of its
    /// collection or database. In a transaction, the settings of the collection or database do not apply (Transactions,
    /// "Interaction with Read and Write Concern" and "Read Preference").
    pub fn inherit(&mut self, writes: bool) -> Result<Option<&'c ReadPreference>, ClientError> {
        let mut settings = self.settings;
        if settings.is_set()
            && let Some(session) = &self.session
            && session.explicit().is_in_transaction()
        {
            settings = Settings::NONE;
        }
        let read_concern = self.read_concern.as_deref().or(settings.read_concern.as_deref());
        if let Some(level) = read_concern
            && name(self.body.document()?).is_some_and(takes_read_concern)
            && !self.body.has("readConcern")
            && let Some(read_concern) = own_read_concern(self.client.running(), level)
        {
            self.body.add("readConcern", &read_concern);
        }
        let write_concern = self.write_concern.as_ref().or(settings.write_concern.as_ref()).filter(|_| writes);
        if let Some(concern) = write_concern
            && !self.body.has("writeConcern")
        {
            let concern = match self.limit()?.is_set() {
                true => concern.clone().without_w_timeout().document(),
                false => concern.document(),
            };
            match concern {
                Some(concern) => self.body.add("writeConcern", &concern),
                // The server's default is not sent (Read and Write Concern, "On the Wire").
                None if self.client.running().options().write_concern.document().is_none() => {}
                // Otherwise, the write concern from the client's options would be added.
                None => self.body.add("writeConcern", &RawDocumentBuf::new()),
            }
        }
        Ok(self.read_preference.or(settings.read_preference.as_ref()))
    }
}

/// A command with the settings that it inherits. Its calls are boxed, so the compiler neither compiles them for each
/// document type nor proves for each that they are `Send`.
pub(super) struct Ready<'c> {
    client: &'c Client,
    database: &'c str,
    body: RawDocumentBuf,
    session: Option<&'c mut Session>,
    read_preference: Option<&'c ReadPreference>,
    limit: Limit,
    site: &'static Location<'static>,
}

impl Ready<'_> {
    /// Returns whether the application asks for no acknowledgement.
    pub fn is_unacknowledged(&self) -> bool {
        is_unacknowledged(self.client, &self.body, self.session.as_ref().map(|session| &**session.explicit()))
    }

    /// Runs a command that reads.
    pub fn read(&mut self) -> Boxed<'_, Result<RawDocumentBuf, ClientError>> {
        let operation = Operation::read(self.database, &self.body);
        let operation = with(operation, self.session.as_deref_mut(), self.read_preference, self.limit);
        self.client.run_at(operation, self.site)
    }

    /// Runs any command. If `is_named` is true, the span has the command's name instead of `runCommand`.
    pub fn command(&mut self, is_named: bool) -> Boxed<'_, Result<RawDocumentBuf, ClientError>> {
        let operation = Operation { is_named_by_command: is_named, ..Operation::new(self.database, &self.body) };
        let operation = with(operation, self.session.as_deref_mut(), self.read_preference, self.limit);
        self.client.run_at(operation, self.site)
    }

    /// Runs a command that writes. `is_single` says whether each statement concerns at most one document.
    pub fn write<'o>(
        &'o mut self,
        is_single: bool,
        sequences: &'o [OutgoingSequence<'o>],
    ) -> Boxed<'o, Result<RawDocumentBuf, ClientError>> {
        let operation = Operation::of_write(self.database, &self.body, is_single).sequences(sequences);
        let operation = with(operation, self.session.as_deref_mut(), None, self.limit);
        self.client.run_at(operation, self.site)
    }
}

/// Returns whether a command that writes asks for no acknowledgement.
pub(super) fn is_unacknowledged(client: &Client, body: &RawDocument, explicit: Option<&Explicit>) -> bool {
    match body.get_document("writeConcern") {
        Ok(concern) => matches!(whole_number(concern, "w"), Ok(Some(0))),
        Err(_) if explicit.is_some_and(Explicit::is_in_transaction) => false,
        Err(_) => session::is_unacknowledged(&client.options().write_concern),
    }
}

/// A query builder's settings for its cursor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CursorOptions {
    pub batch_size: Option<i32>,
    pub max_await_time: Option<Duration>,
    pub timeout_mode: Option<TimeoutMode>,
}

impl CursorOptions {
    fn apply(self, mut query: Query<'_>) -> Query<'_> {
        if let Some(size) = self.batch_size {
            query = query.batch_size(size);
        }
        if let Some(limit) = self.max_await_time {
            query = query.max_await_time(limit);
        }
        if let Some(mode) = self.timeout_mode {
            query = query.timeout_mode(mode);
        }
        query
    }
}

/// Returns the first document in the reply to a query, if there is one.
pub(super) fn first_of_batch<'r>(
    command: &'static str,
    reply: &'r RawDocument,
) -> Result<Option<&'r RawDocument>, ClientError> {
    let unreadable = |reason: String| ClientError::unreadable(command, reason);
    let cursor = reply.get_document("cursor").map_err(|error| unreadable(error.to_string()))?;
    let batch = cursor.get_array("firstBatch").map_err(|error| unreadable(error.to_string()))?;
    match batch.into_iter().next() {
        None => Ok(None),
        Some(Ok(RawBsonRef::Document(document))) => Ok(Some(document)),
        Some(_) => Err(unreadable("firstBatch has a value that is no document".to_owned())),
    }
}

/// Declares the methods with which a builder configures its cursor.
macro_rules! cursor_options {
    () => {
        /// Sets the number of documents in each batch (`batchSize`). By default the server decides. In a `find`, zero
        /// also leaves the choice to the server, and a negative number requests that many documents in a single batch.
        pub fn batch_size(mut self, documents: i32) -> Self {
            self.cursor.batch_size = Some(documents);
            self
        }

        /// Sets how long the server waits for new documents (`maxAwaitTimeMS`, the `maxTimeMS` of each `getMore`). This
        /// applies only to tailable cursors that await data.
        pub fn max_await_time(mut self, limit: std::time::Duration) -> Self {
            self.cursor.max_await_time = Some(limit);
            self
        }

        /// Sets what `timeoutMS` limits. This requires a `timeoutMS`, in the call or in the options.
        pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
            self.cursor.timeout_mode = Some(mode);
            self
        }
    };
}

/// Declares the methods that all builders share, and the builder's future. The builder must have a `send` method. If
/// the call itself reads values of the type parameter, the parameter has a bound. For a cursor, it has no bound,
/// because the values may borrow from the batch.
macro_rules! builder {
    ($name:ident $(<$t:ident $(: $bound:path)?>)? => $output:ty $(, $inherited:ident)*) => {
        impl<'c $(, $t)?, C: super::AnyClient> $name<'c $(, $t)?, C> {
            /// Sets the session that the call belongs to. If the session is in a transaction, the call is part of it.
            pub fn session(mut self, session: &'c mut C::Session) -> Self {
                self.request.session = Some(super::sealed::Session::running(session));
                self
            }

            /// Sets `timeoutMS`: how long the call may take in total, including all its attempts. The default is the
            /// limit of the collection or database or, if there is none, [`Options::timeout`](crate::Options::timeout).
            /// Zero means no limit.
            pub fn timeout(mut self, limit: std::time::Duration) -> Self {
                self.request.timeout = Limit::of(limit);
                self
            }

            /// Adds fields to the command, under their names in the server's manual, for options that have no method
            /// here. The value can be anything that serde serializes as a document. A field that the command already
            /// has is refused.
            pub fn options(mut self, fields: impl serde::Serialize) -> Self {
                self.request.body.extend("options", &fields);
                self
            }

            /// Calls `set` with this builder and the value, if there is a value. Use this for options that do not
            /// accept `None`: `.optional(limit, Find::limit)`.
            pub fn optional<V>(self, value: Option<V>, set: impl FnOnce(Self, V) -> Self) -> Self {
                match value {
                    Some(value) => set(self, value),
                    None => self,
                }
            }

            $(builder!(@inherited $inherited);)*
        }

        impl<'c $(, $t $(: $bound)?)?> IntoFuture for $name<'c $(, $t)?> {
            type Output = Result<$output, ClientError>;
            type IntoFuture = std::pin::Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

            /// Sends the command.
            ///
            /// # Errors
            ///
            /// [`ClientError::Argument`] if a value cannot be sent, in which case nothing is sent.
            /// [`ClientError::Write`] if the server refused a statement. [`ClientError::Reply`] if serde cannot read a
            /// document as the collection's type. Otherwise the errors of [`Client::run`](crate::Client::run).
            ///
            /// # Cancel safety
            ///
            /// The same as for [`Client::run`](crate::Client::run).
            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }

        impl<'c $(, $t $(: $bound)?)?, C: super::AnyClient> super::Call for $name<'c $(, $t)?, C> {
            type Client = C;
            type Output = $output;

            fn client(&self) -> C {
                self.request.client.clone()
            }

            fn limit(&self) -> Result<Limit, SessionError> {
                self.request.limit()
            }

            fn begin(mut self, limit: Limit) -> impl Future<Output = Result<$output, ClientError>> + Send {
                self.request.start(limit);
                self.send()
            }
        }

        impl<$($t,)? C> std::fmt::Debug for $name<'_ $(, $t)?, C> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("database", &self.request.database).finish_non_exhaustive()
            }
        }
    };

    (@inherited read_preference) => {
        /// Sets the servers that the command may be sent to. The default comes from the collection or database.
        pub fn read_preference(mut self, preference: &'c crate::endpoint::options::ReadPreference) -> Self {
            self.request.read_preference = Some(preference);
            self
        }
    };
    (@inherited read_concern) => {
        /// Sets the level of the read concern, such as `majority`. The default comes from the collection or database.
        /// An empty string means the server's default.
        pub fn read_concern(mut self, level: impl Into<String>) -> Self {
            self.request.read_concern = Some(level.into());
            self
        }
    };
    (@inherited write_concern) => {
        /// Sets the write concern. The default comes from the collection or database.
        pub fn write_concern(mut self, concern: crate::endpoint::options::WriteConcern) -> Self {
            self.request.write_concern = Some(concern);
            self
        }
    };
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    /// glibc's allocator serves blocks of up to 1032 bytes from a per-thread cache. Larger blocks add about 3 % to the
    /// time that an `insert_one` takes.
    #[test]
    fn future_of_a_call_on_one_document_fits_into_a_block_of_the_threads_cache() {
        let client = Client::from_uri("mongodb://a").unwrap();
        let items = client.database("shop").collection::<RawDocumentBuf>("items");
        let (filter, item) = (rawdoc! { "_id": 1 }, rawdoc! { "name": "pencil" });
        let futures = [
            size_of_val(&*items.find_one(&filter).into_future()),
            size_of_val(&*items.insert_one(&item).into_future()),
            size_of_val(&*items.update_one(&filter, rawdoc! { "$set": { "name": "pen" } }).into_future()),
            size_of_val(&*items.replace_one(&filter, &item).into_future()),
            size_of_val(&*items.delete_one(&filter).into_future()),
            size_of_val(&*items.find_one_and_delete(&filter).into_future()),
            size_of_val(&*client.run_at(Operation::new("shop", &filter), Location::caller())),
        ];
        assert!(futures.iter().all(|&size| size <= 1032), "{futures:?}");
    }

    /// A call that is not boxed would contain everything that it awaits, and each crate that polls it would compile all
    /// of that again: see [`Boxed`].
    #[tokio::test]
    async fn future_of_a_clients_call_contains_little_but_a_box() {
        let client = Client::from_uri("mongodb://a").unwrap();
        let mut session = client.start_session().await.unwrap();
        let ping = rawdoc! { "ping": 1 };
        let futures = [
            size_of_val(&client.run_command("admin", &ping)),
            size_of_val(&client.connect()),
            size_of_val(&client.warm_up(1)),
            size_of_val(&client.shutdown(Duration::ZERO)),
            size_of_val(&session.commit_transaction()),
        ];
        assert!(futures.iter().all(|&size| size <= 256), "{futures:?}");
    }
}
