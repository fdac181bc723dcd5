//! Writes of many documents: inserts, updates and deletes, split into commands that the server accepts.

mod outcome;

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf};
use serde::Serialize;

use self::outcome::{Failure, read};
pub use self::outcome::{WriteError, WriteFailure, Written};
use super::Client;
use super::appending::without;
use super::error::{ClientError, FailedOperation, fault_of_selection};
use super::in_session::Explicit;
use super::operation::{Operation, Whole};
use super::run::Answer;
use super::session_handle::Session;
use super::spans::Described;
use super::timed::Limited;
use super::typed::{encode, encode_hinted, extend, refuse_second};
use crate::client::deployment::{Demand, WaitLogged};
use crate::client::object_id::object_id;
use crate::client::selection::Access;
use crate::client::session::{SessionError, is_single};
use crate::endpoint::wire::reply;
use crate::endpoint::{Limit, OutgoingSequence};

/// Room for the parts of a command other than its statements, in bytes: session, cluster time, write concern, header.
const ROOM_FOR_BODY: usize = 16 * 1024;

/// The advice in the error for a value that is not a document. A document that is passed in place of a list is iterated
/// over as a list of its fields.
const IN_LIST: &str = "; pass a list of documents, such as [doc! { … }], also for one";

impl Client {
    /// Prepares inserts into a collection. Await the value to send them. The client adds an `_id` to documents without
    /// one.
    ///
    /// A document can be anything that serde serializes as a document: a struct, `doc!`, `rawdoc!`. [`Write::insert`]
    /// takes raw documents without copying them.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::rawdoc;
    ///
    /// let orders = [rawdoc! { "_id": 1, "paid": false }, rawdoc! { "_id": 2, "paid": true }];
    /// let written = client.insert("shop", "orders", &orders).await?;
    /// assert_eq!(written.inserted, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn insert<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        documents: impl IntoIterator<Item = impl Serialize>,
    ) -> Write<'c> {
        self.write(database, collection).add_all(Kind::Insert, documents)
    }

    /// Prepares updates to a collection. Each is a statement for the server's `update` command: `q`, `u` and options
    /// such as `multi` and `upsert`. Await the value to send them.
    ///
    /// The client does not inspect `u`: without operators such as `$set`, it replaces the whole document.
    #[track_caller]
    pub fn update<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Write<'c> {
        self.write(database, collection).add_all(Kind::Update, statements)
    }

    /// Prepares deletes from a collection. Each is a statement for the server's `delete` command: `q`, `limit` and
    /// options. Await the value to send them.
    #[track_caller]
    pub fn delete<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Write<'c> {
        self.write(database, collection).add_all(Kind::Delete, statements)
    }

    /// Prepares writes of any kind to a collection, in bulk. Add statements, then await the value to send them.
    #[track_caller]
    pub fn write<'c>(&self, database: &'c str, collection: &'c str) -> Write<'c> {
        Write::of(self.clone(), database, collection, Location::caller())
    }
}

impl Client {
    /// Waits until a server accepts writes, so that the limits for a command are known. Later, each command selects a
    /// server separately.
    pub(super) async fn find_writable(
        &self,
        command: &'static str,
        session: Option<&Explicit>,
        limit: Limit,
        whole: &Whole,
    ) -> Result<(), ClientError> {
        if matches!(self.deployment().try_select_now(Access::Write), Ok(Some(_))) {
            return Ok(());
        }
        let (operation, wait_logged) = (whole.observation.named(command), &whole.wait_logged);
        let demand = Demand { access: Access::Write, deprioritized: &[], only: None, operation, wait_logged };
        let Err(error) = self.deployment().select(demand, limit.deadline()).await else { return Ok(()) };
        let fault = fault_of_selection(&error);
        // In a transaction, the label allows the whole transaction to be repeated.
        let labels = session.map_or(fault.labels, |explicit| explicit.note(|state| state.failed(&fault, None, false)));
        Err(FailedOperation::selection(error, labels).into())
    }
}

/// Writes to one collection, which are sent when the value is awaited.
///
/// The statements are split into as few commands as the server's limits allow (`maxWriteBatchSize`,
/// `maxMessageSizeBytes`). Their documents are copied once, into the message.
#[must_use = "the writes are sent when the value is awaited"]
pub struct Write<'c> {
    client: Client,
    database: &'c str,
    collection: &'c str,
    statements: Vec<Statement<'c>>,
    /// The `_id`s that the client added, with the positions of their documents.
    generated_ids: Vec<(usize, ObjectId)>,
    /// The error for the first statement that serde could not serialize.
    refused: Option<ClientError>,
    ordered: bool,
    options: Option<RawDocumentBuf>,
    timeout: Limit,
    session: Option<Arc<Explicit>>,
    /// A session runs one operation at a time.
    exclusive: PhantomData<&'c mut Session>,
    site: &'static Location<'static>,
}

struct Statement<'c> {
    kind: Kind,
    document: Cow<'c, RawDocument>,
}

impl Statement<'_> {
    /// Refuses a statement that the server would not accept, because the server's message does not identify the statement.
    fn check(&self, place: usize) -> Result<(), ClientError> {
        let (required, form) = match self.kind {
            Kind::Insert => return Ok(()),
            Kind::Update => (["q", "u"], "{ q: <filter>, u: <change>, … }"),
            Kind::Delete => (["q", "limit"], "{ q: <filter>, limit: <1, or 0 for all>, … }"),
        };
        match required.into_iter().find(|field| !reply::has_field(&self.document, field)) {
            None => Ok(()),
            Some(missing) => {
                let reason = format!("statement number {place} has no {missing}: a statement is {form}");
                Err(ClientError::Argument { name: self.kind.argument(), reason: reason.into() })
            }
        }
    }
}

/// The command that a statement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    /// Returns the command's name.
    fn command(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Returns the name of the argument with the statements.
    fn argument(self) -> &'static str {
        match self {
            Self::Insert => "documents",
            Self::Update => "updates",
            Self::Delete => "deletes",
        }
    }
}

impl<'c> Write<'c> {
    /// Creates writes without statements, for the caller at `site`.
    pub(super) fn of(client: Client, database: &'c str, collection: &'c str, site: &'static Location<'static>) -> Self {
        Self {
            client,
            database,
            collection,
            statements: Vec::new(),
            generated_ids: Vec::new(),
            refused: None,
            ordered: true,
            options: None,
            timeout: Limit::Unset,
            session: None,
            exclusive: PhantomData,
            site,
        }
    }

    /// Adds an insert of a document that already has its `_id`. `generated` is the `_id`, if the client added it.
    pub(super) fn insert_new(mut self, document: RawDocumentBuf, generated: Option<ObjectId>) -> Self {
        let place = self.statements.len();
        self.generated_ids.extend(generated.map(|id| (place, id)));
        self.insert(document)
    }

    /// Adds an insert of a document. The client adds an `_id` to a document without one: see
    /// [`Written::generated_ids`].
    pub fn insert(self, document: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Insert, document.into())
    }

    /// Adds a statement for the `update` command, such as `{ q: { _id: 1 }, u: { $set: { paid: true } } }`.
    pub fn update(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Update, statement.into())
    }

    /// Adds a statement for the `delete` command, such as `{ q: { _id: 1 }, limit: 1 }`.
    pub fn delete(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Delete, statement.into())
    }

    fn add(mut self, kind: Kind, document: Cow<'c, RawDocument>) -> Self {
        self.statements.push(Statement { kind, document });
        self
    }

    fn add_all(self, kind: Kind, values: impl IntoIterator<Item = impl Serialize>) -> Self {
        values.into_iter().fold(self, |mut write, value| match encode_hinted(kind.argument(), &value, IN_LIST) {
            Ok(document) => write.add(kind, Cow::Owned(document)),
            Err(error) => {
                write.refused.get_or_insert(error);
                write
            }
        })
    }

    /// Allows the statements to run in any order, and continues after a statement fails. By default, and in a
    /// transaction, the first failure stops the rest.
    pub fn unordered(mut self) -> Self {
        self.ordered = false;
        self
    }

    /// Sets additional fields in each command, such as `bypassDocumentValidation`, `let`, `comment` or `writeConcern`.
    /// The value can be anything that serde serializes as a document. `let` applies to updates and deletes: inserts in
    /// the same bulk are sent without it. A field that the command already has, such as `ordered`, is refused.
    pub fn options(mut self, fields: impl Serialize) -> Self {
        match encode("options", &fields) {
            Ok(fields) => self.options = Some(fields),
            Err(error) => _ = self.refused.get_or_insert(error),
        }
        self
    }

    /// Sets `timeoutMS`: how long all commands may take together. The default is
    /// [`Options::timeout`](crate::Options::timeout). Zero means no limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Limit::of(limit);
        self
    }

    /// Sets the session that the writes belong to. If the session is in a transaction, the writes belong to the
    /// transaction.
    pub fn session(mut self, session: &'c mut Session) -> Self {
        self.session = Some(session.explicit().clone());
        self
    }

    async fn run(self) -> Result<Written, ClientError> {
        let observation = self.client.command_events().operation(|| Described {
            collection: Some(self.collection),
            transaction: self.session.as_deref().and_then(Explicit::span_in_transaction),
            site: Some(self.site),
            ..Described::named(self.name(), self.database)
        });
        let whole = Whole { observation, wait_logged: WaitLogged::new() };
        whole.observation.within(pin!(self.run_as(&whole))).await
    }

    /// Returns the name of the operation: the name of the command, if all statements are of one kind.
    fn name(&self) -> &'static str {
        match self.statements.split_first() {
            Some((first, others)) if others.iter().all(|statement| statement.kind == first.kind) => {
                first.kind.command()
            }
            _ => "bulkWrite",
        }
    }

    async fn run_as(mut self, whole: &Whole) -> Result<Written, ClientError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if self.statements.is_empty() {
            return Err(ClientError::Argument { name: "statements", reason: "there are none".into() });
        }
        for (place, statement) in self.statements.iter().enumerate() {
            statement.check(place)?;
        }
        if self.options.is_some() {
            let is_used = |kind: &Kind| self.statements.iter().any(|statement| statement.kind == *kind);
            Kind::ALL.into_iter().filter(is_used).try_for_each(|kind| self.body(kind).map(drop))?;
        }
        let mut written = Written { generated_ids: std::mem::take(&mut self.generated_ids), ..Written::default() };
        self.add_ids(&mut written);
        let client = self.client.clone();
        // All commands share one time limit.
        let limit = self.limit()?.start();
        let first = self.statements.first().map_or("bulkWrite", |statement| statement.kind.command());
        client.find_writable(first, self.session.as_deref(), limit, whole).await?;
        // A statement that fails aborts its transaction on the server.
        let stops = self.ordered || self.session.as_deref().is_some_and(Explicit::is_in_transaction);
        let mut failure = Failure::default();
        let order = self.order();
        let mut rest = &order[..];
        while let Some(first) = rest.first() {
            let kind = self.statements[*first].kind;
            let (batch, later) = rest.split_at(self.fitting(rest));
            rest = later;
            // An unmet write concern is reported at the end, together with the errors from other commands.
            let Answer { reached, session, unmet, is_acknowledged } = match self.send(kind, batch, limit, whole).await {
                Ok(answer) => answer,
                // A command that failed as a whole stops the rest, ordered or not.
                Err(error) => {
                    failure.cause = Some(Box::new(error));
                    break;
                }
            };
            client.give_back(session, reached.connection.as_ref());
            if !is_acknowledged {
                written.acknowledged = false;
                continue;
            }
            let failed_before = failure.errors.len();
            let place = |index: usize| batch.get(index).copied();
            if let Err(error) = read(kind, &reached.reply, place, &mut written, &mut failure) {
                // The results of the earlier commands are known, and are reported with the error.
                failure.cause = Some(Box::new(error));
                break;
            }
            failure.note(&reached.server.address, unmet, limit);
            if stops && failure.errors.len() > failed_before {
                break;
            }
        }
        match failure {
            Failure { cause: Some(cause), ref errors, ref concerns, .. }
                if errors.is_empty() && concerns.is_empty() && written.is_nothing() =>
            {
                Err(cause.with_generated_ids(written.generated_ids))
            }
            failure if failure.is_none() => Ok(written),
            failure => Err(ClientError::Write(Box::new(failure.of(written)))),
        }
    }

    /// Returns the number of bytes in a message that statements cannot use.
    fn bytes_of_body(&self) -> usize {
        let options = self.options.as_ref().map_or(0, |options| options.as_bytes().len());
        ROOM_FOR_BODY.saturating_add(self.collection.len()).saturating_add(options)
    }

    /// Adds an `_id`, as the first field, to each inserted document that has none.
    fn add_ids(&mut self, written: &mut Written) {
        for (index, statement) in self.statements.iter_mut().enumerate() {
            if statement.kind == Kind::Insert && !reply::has_field(&statement.document, "_id") {
                let id = object_id();
                let mut document = RawDocumentBuf::new();
                document.append(cstr!("_id"), id);
                let (new, rest) = (document.into_bytes(), statement.document.as_bytes());
                let mut bytes = Vec::with_capacity(new.len() + rest.len());
                bytes.extend_from_slice(&new[..new.len() - 1]);
                bytes.extend_from_slice(&rest[4..]);
                if let Ok(length) = i32::try_from(bytes.len()) {
                    bytes[..4].copy_from_slice(&length.to_le_bytes());
                    if let Ok(document) = RawDocumentBuf::from_bytes(bytes) {
                        statement.document = Cow::Owned(document);
                        written.generated_ids.push((index, id));
                    }
                }
            }
        }
    }

    /// Returns the positions of the statements, in the order in which they are sent.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.statements.len()).collect();
        if !self.ordered {
            // The sort is stable, so the order within each kind is kept.
            order.sort_by_key(|&place| Kind::ALL.iter().position(|kind| *kind == self.statements[place].kind));
        }
        order
    }

    /// Returns the number of statements in the next command: at least one, all of one kind, and within the limits of
    /// the server that currently accepts writes.
    fn fitting(&self, places: &[usize]) -> usize {
        let (most_statements, most_bytes) = self.client.deployment().snapshot().write_limits();
        let most_bytes = most_bytes.saturating_sub(self.bytes_of_body());
        let mut statements = places.iter().map(|&place| &self.statements[place]);
        let Some(first) = statements.next() else { return 0 };
        let mut bytes = first.document.as_bytes().len();
        let fits = |statement: &&Statement<'_>| {
            bytes += statement.document.as_bytes().len();
            statement.kind == first.kind && bytes <= most_bytes
        };
        1 + statements.take(most_statements.saturating_sub(1)).take_while(fits).count()
    }

    /// Returns the options of a command. `let` applies to updates and deletes: in a bulk with any of these, inserts are
    /// sent without it.
    fn options_of(&self, kind: Kind) -> Option<Cow<'_, RawDocument>> {
        let options = self.options.as_deref()?;
        let has_others = || self.statements.iter().any(|statement| statement.kind != Kind::Insert);
        match kind == Kind::Insert && reply::has_field(options, "let") && has_others() {
            true => without(options, "let").map(Cow::Owned),
            false => Some(Cow::Borrowed(options)),
        }
    }

    /// Returns a command without its statements.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if the options have a field that the command already has.
    fn body(&self, kind: Kind) -> Result<RawDocumentBuf, ClientError> {
        let mut body = RawDocumentBuf::new();
        match kind {
            Kind::Insert => body.append(cstr!("insert"), self.collection),
            Kind::Update => body.append(cstr!("update"), self.collection),
            Kind::Delete => body.append(cstr!("delete"), self.collection),
        }
        body.append(cstr!("ordered"), self.ordered);
        if let Some(options) = self.options_of(kind) {
            extend("options", &mut body, &options)?;
            refuse_second("options", &body, kind.argument())?;
        }
        Ok(body)
    }

    /// Sends a command.
    async fn send(&self, kind: Kind, batch: &[usize], limit: Limit, whole: &Whole) -> Result<Answer, ClientError> {
        let body = self.body(kind)?;
        let documents: Vec<&RawDocument> = batch.iter().map(|&place| &*self.statements[place].document).collect();
        let sequences = [OutgoingSequence::new(kind.argument(), &documents)];
        let is_single = documents.iter().all(|document| is_single(kind.argument(), document));
        let operation = Operation::of_write(self.database, &body, is_single).sequences(&sequences);
        let (command, session) = (operation.command.within(limit), self.session.clone());
        let operation = Operation { command, session, part_of: Some(whole), ..operation };
        self.client.answer(operation, self.site).await
    }
}

impl Limited for Write<'_> {
    fn limit(&self) -> Result<Limit, SessionError> {
        self.client.limit_in(self.session.as_deref(), self.timeout)
    }

    fn set_limit(&mut self, limit: Limit) {
        self.timeout = limit;
    }
}

impl<'c> IntoFuture for Write<'c> {
    type Output = Result<Written, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the writes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Write`] if some statements may have been executed, otherwise the error with which the first
    /// command failed. [`ClientError::Argument`] if there are no statements, if serde could not serialize a statement,
    /// if a statement lacks `q`, `u` or `limit`, or if the options have a field that the command already has.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Client::run`], for the command in progress; later commands are not sent.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write")
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("statements", &self.statements.len())
            .field("ordered", &self.ordered)
            .finish_non_exhaustive()
    }
}
