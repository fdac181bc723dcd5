//! Writes of many documents: inserts, updates and deletes, split into commands that the server accepts.

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawArray, RawBson, RawDocument, RawDocumentBuf};
use serde::Serialize;
use thiserror::Error;

use super::Client;
use super::error::{ClientError, FailedOperation, fault_of_selection};
use super::in_session::Explicit;
use super::operation::{Operation, Whole};
use super::run::Answer;
use super::session::Session;
use super::typed::{encode, extend};
use crate::deployment::{Demand, WaitLogged};
use crate::endpoint::{Limit, OutgoingSequence};
use crate::options::Acknowledgement;
use crate::printable::Printable;
use crate::runtime::object_id;
use crate::selection::Access;
use crate::session::{ErrorLabels, is_single};
use crate::wire::reply::whole_number;

/// Room for what the client adds to the statements of a command, in bytes: session, cluster time, write concern, header.
const ROOM_FOR_BODY: usize = 16 * 1024;

impl Client {
    /// Prepares inserts into a collection. Await the value to send them. A document without `_id` gets one.
    ///
    /// A document is anything that serde writes as one: a struct, `doc!`, `rawdoc!`. [`Write::insert`] takes raw documents
    /// without a copy.
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

    /// Prepares updates of a collection, each a statement of the server's command `update`: `q`, `u` and its options,
    /// such as `multi` and `upsert`. Await the value to send them.
    ///
    /// The client does not look into `u`: without operators such as `$set`, it replaces the whole document.
    #[track_caller]
    pub fn update<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Write<'c> {
        self.write(database, collection).add_all(Kind::Update, statements)
    }

    /// Prepares deletes from a collection, each a statement of the server's command `delete`: `q`, `limit` and its
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
        Write {
            client: self.clone(),
            database,
            collection,
            statements: Vec::new(),
            refused: None,
            ordered: true,
            options: None,
            timeout: None,
            session: None,
            exclusive: PhantomData,
            site: Location::caller(),
        }
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
    /// Why the first statement that serde could not write was refused.
    refused: Option<ClientError>,
    ordered: bool,
    options: Option<RawDocumentBuf>,
    timeout: Option<Duration>,
    session: Option<Arc<Explicit>>,
    /// The session is for one operation at a time.
    exclusive: PhantomData<&'c mut Session>,
    site: &'static Location<'static>,
}

struct Statement<'c> {
    kind: Kind,
    document: Cow<'c, RawDocument>,
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
    /// Adds the insert of a document. A document without `_id` gets one: see [`Written::generated_ids`].
    pub fn insert(self, document: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Insert, document.into())
    }

    /// Adds a statement of the command `update`, such as `{ q: { _id: 1 }, u: { $set: { paid: true } } }`.
    pub fn update(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Update, statement.into())
    }

    /// Adds a statement of the command `delete`, such as `{ q: { _id: 1 }, limit: 1 }`.
    pub fn delete(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        self.add(Kind::Delete, statement.into())
    }

    fn add(mut self, kind: Kind, document: Cow<'c, RawDocument>) -> Self {
        self.statements.push(Statement { kind, document });
        self
    }

    fn add_all(self, kind: Kind, values: impl IntoIterator<Item = impl Serialize>) -> Self {
        values.into_iter().fold(self, |mut write, value| match encode(kind.argument(), &value) {
            Ok(document) => write.add(kind, Cow::Owned(document)),
            Err(error) => {
                write.refused.get_or_insert(error);
                write
            }
        })
    }

    /// Goes on with the other statements after one has failed, in any order. By default the first failure is the last
    /// statement that is executed.
    pub fn unordered(mut self) -> Self {
        self.ordered = false;
        self
    }

    /// Sets further fields of each command, such as `bypassDocumentValidation`, `let`, `comment` or `writeConcern`.
    /// Anything that serde writes as a document.
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
        self.timeout = Some(limit);
        self
    }

    /// Sets the session, and with it the transaction, that the writes belong to.
    pub fn session(mut self, session: &'c mut Session) -> Self {
        self.session = Some(session.explicit().clone());
        self
    }

    async fn run(mut self) -> Result<Written, ClientError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if self.statements.is_empty() {
            return Err(ClientError::Argument { name: "statements", reason: "there are none".into() });
        }
        let mut written = Written::default();
        self.add_ids(&mut written);
        let client = self.client.clone();
        // All commands share one time limit.
        let own = self.timeout.map_or(Limit::Unset, Limit::of);
        let of_session = match &self.session {
            Some(explicit) => explicit.limit_of(own)?,
            None => None,
        };
        let limit = of_session.unwrap_or_else(|| own.or(client.options().timeout)).start();
        let whole = Whole { id: client.command_events().operation(), wait_logged: WaitLogged::new() };
        // The limits of the server are known when there is one. Each command then selects its own.
        if !matches!(client.deployment().try_select_now(Access::Write), Ok(Some(_))) {
            let first = self.statements.first().map_or("bulkWrite", |statement| statement.kind.command());
            let (purpose, wait_logged) = (whole.id.named(first), &whole.wait_logged);
            let demand = Demand { access: Access::Write, deprioritized: &[], only: None, purpose, wait_logged };
            if let Err(error) = client.deployment().select(demand, limit.deadline()).await {
                let fault = fault_of_selection(&error);
                // In a transaction, the label lets the whole be repeated.
                let labels = self.session.map_or(fault.labels, |explicit| explicit.operation_failed(&fault));
                return Err(FailedOperation::selection(error, labels).into());
            }
        }
        let (most_statements, most_bytes) = client.deployment().snapshot().write_limits();
        let most_bytes = most_bytes.saturating_sub(self.bytes_of_body());
        let mut failure = Failure::default();
        for batch in self.batches(most_statements, most_bytes) {
            let kind = self.statements[batch[0]].kind;
            match self.send(kind, &batch, limit, &whole).await {
                Ok((reply, labels)) => {
                    let failed_before = failure.errors.len();
                    if let Err(error) = read(kind, &reply, &batch, &mut written, &mut failure) {
                        // What the commands before it have done is known.
                        failure.cause = Some(Box::new(error));
                        break;
                    }
                    failure.add_labels(labels);
                    if self.ordered && failure.errors.len() > failed_before {
                        break;
                    }
                }
                // A command that failed as a whole ends the series, ordered or not.
                Err(error) => {
                    failure.cause = Some(Box::new(error));
                    break;
                }
            }
        }
        match failure {
            Failure { cause: Some(cause), ref errors, ref concerns, .. }
                if errors.is_empty() && concerns.is_empty() && written.is_nothing() =>
            {
                Err(*cause)
            }
            failure if failure.is_none() => Ok(written),
            Failure { errors, concerns, labels, cause } => Err(ClientError::Write(Box::new(WriteFailure {
                written,
                errors,
                write_concern_errors: concerns,
                labels,
                cause,
            }))),
        }
    }

    /// Returns the room in a message that the statements do not have, in bytes.
    fn bytes_of_body(&self) -> usize {
        let options = self.options.as_ref().map_or(0, |options| options.as_bytes().len());
        ROOM_FOR_BODY.saturating_add(self.collection.len()).saturating_add(options)
    }

    /// Gives each inserted document an `_id`, as its first field, if it has none.
    fn add_ids(&mut self, written: &mut Written) {
        for (index, statement) in self.statements.iter_mut().enumerate() {
            if statement.kind == Kind::Insert && matches!(statement.document.get("_id"), Ok(None)) {
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

    /// Returns the statements of each command, by their places: of one kind, and within the limits.
    fn batches(&self, most_statements: usize, most_bytes: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.statements.len()).collect();
        if !self.ordered {
            // A stable sort: the order within a kind stays.
            order.sort_by_key(|&place| Kind::ALL.iter().position(|kind| *kind == self.statements[place].kind));
        }
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let mut bytes = 0;
        for place in order {
            let statement = &self.statements[place];
            let length = statement.document.as_bytes().len();
            match batches.last_mut() {
                Some(batch)
                    if self.statements[batch[0]].kind == statement.kind
                        && batch.len() < most_statements
                        && bytes + length <= most_bytes =>
                {
                    batch.push(place);
                    bytes += length;
                }
                _ => {
                    batches.push(vec![place]);
                    bytes = length;
                }
            }
        }
        batches
    }

    /// Sends a command, and returns its reply with the error labels that the client knows, if its write concern was not met.
    async fn send(
        &self,
        kind: Kind,
        batch: &[usize],
        limit: Limit,
        whole: &Whole,
    ) -> Result<(RawDocumentBuf, ErrorLabels), ClientError> {
        let mut body = RawDocumentBuf::new();
        match kind {
            Kind::Insert => body.append(cstr!("insert"), self.collection),
            Kind::Update => body.append(cstr!("update"), self.collection),
            Kind::Delete => body.append(cstr!("delete"), self.collection),
        }
        body.append(cstr!("ordered"), self.ordered);
        if let Some(options) = &self.options {
            extend(&mut body, options)?;
        }
        let documents: Vec<&RawDocument> = batch.iter().map(|&place| &*self.statements[place].document).collect();
        let sequences = [OutgoingSequence::new(kind.argument(), &documents)];
        let is_single = documents.iter().all(|document| is_single(kind.argument(), document));
        let operation = Operation::of_write(self.database, &body, is_single).sequences(&sequences);
        let (command, session) = (operation.command.within(limit), self.session.clone());
        let operation = Operation { command, session, part_of: Some(whole), ..operation };
        // An unmet write concern is reported with those of the other commands.
        let Answer { reply, session, connection, unmet, .. } = self.client.answer(operation, self.site).await?;
        self.client.give_back(session, connection.as_ref());
        Ok((reply, unmet.unwrap_or(ErrorLabels::NONE)))
    }
}

impl<'c> IntoFuture for Write<'c> {
    type Output = Result<Written, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the writes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Write`] if some statements may have been executed, otherwise the error that ended the first command.
    /// [`ClientError::Argument`] if there are no statements, or serde could not write one.
    ///
    /// # Cancel safety
    ///
    /// That of [`Client::run`] for the command in progress; the commands after it are not sent.
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

/// What writes have done.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Written {
    /// The number of documents that were inserted, without those of upserts.
    pub inserted: u64,
    /// The number of documents that updates found.
    pub matched: u64,
    /// The number of documents that updates changed.
    pub modified: u64,
    /// The number of documents that were deleted.
    pub deleted: u64,
    /// The places of the statements that inserted a document by `upsert`, with its `_id`.
    pub upserted: Vec<(usize, RawBson)>,
    /// The places of the inserts whose documents had no `_id`, with the one that each was given.
    pub generated_ids: Vec<(usize, ObjectId)>,
}

impl Written {
    fn is_nothing(&self) -> bool {
        self.inserted + self.matched + self.modified + self.deleted == 0 && self.upserted.is_empty()
    }
}

/// Some writes failed, or it is unknown whether they were executed.
#[derive(Clone, Error)]
#[error("{}", self.sentence())]
#[non_exhaustive]
pub struct WriteFailure {
    /// What the writes have done.
    pub written: Written,
    /// The statements that the server refused.
    pub errors: Vec<WriteError>,
    /// The commands that were executed, but not with the write concern that they asked for: the server's
    /// `writeConcernError`s.
    pub write_concern_errors: Vec<RawDocumentBuf>,
    /// The error labels of the replies that report these errors, with those that the client adds.
    pub labels: Vec<String>,
    /// The error that ended the series, if a command failed as a whole.
    #[source]
    pub cause: Option<Box<ClientError>>,
}

crate::error::debug_as_sentence!(WriteFailure);

impl WriteFailure {
    fn sentence(&self) -> String {
        match (self.errors.first(), self.write_concern_errors.first(), &self.cause) {
            (Some(first), ..) => {
                format!("{} of the statements failed; the first is {first}", self.errors.len())
            }
            (None, Some(concern), _) => {
                let message = concern.get_str("errmsg").unwrap_or("no message");
                format!("the write concern was not met: {}", Printable(message))
            }
            (None, None, Some(cause)) => format!("a part of the writes was executed before: {cause}"),
            (None, None, None) => "no statement failed".to_owned(),
        }
    }
}

/// A statement that the server refused.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WriteError {
    /// The statement's place, from 0.
    pub index: usize,
    /// The server's number for the error.
    pub code: i32,
    /// The server's message.
    pub message: String,
    /// The server's whole error, with `errInfo`.
    pub document: RawDocumentBuf,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {}: error {}: {}", self.index, self.code, Printable(&self.message))
    }
}

/// The failures of a series of commands.
#[derive(Default)]
struct Failure {
    errors: Vec<WriteError>,
    concerns: Vec<RawDocumentBuf>,
    labels: Vec<String>,
    cause: Option<Box<ClientError>>,
}

impl Failure {
    fn is_none(&self) -> bool {
        self.errors.is_empty() && self.concerns.is_empty() && self.cause.is_none()
    }

    /// Adds the labels that no reply had: of servers before 4.4, the client gives the label `RetryableWriteError`.
    fn add_labels(&mut self, labels: ErrorLabels) {
        for name in labels.names() {
            if !self.labels.iter().any(|given| given == name) {
                self.labels.push(name.to_owned());
            }
        }
    }
}

/// Adds what a reply says to the results.
fn read(
    kind: Kind,
    reply: &RawDocument,
    batch: &[usize],
    written: &mut Written,
    failure: &mut Failure,
) -> Result<(), ClientError> {
    let unreadable = |reason: String| ClientError::Reply { command: kind.command(), reason: reason.into() };
    let number = |field| -> Result<u64, ClientError> {
        let number = whole_number(reply, field).map_err(|error| unreadable(error.to_string()))?;
        Ok(number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0))
    };
    let place = |document: &RawDocument| -> Result<usize, ClientError> {
        let index = whole_number(document, "index").map_err(|error| unreadable(error.to_string()))?;
        let index = index.and_then(|index| usize::try_from(index).ok()).and_then(|index| batch.get(index));
        index.copied().ok_or_else(|| unreadable("an index is not that of a statement".to_owned()))
    };
    let upserted = documents(reply.get_array("upserted").ok());
    let count = number("n")?;
    match kind {
        Kind::Insert => written.inserted += count,
        Kind::Delete => written.deleted += count,
        Kind::Update => {
            written.matched += count.saturating_sub(upserted.len() as u64);
            written.modified += number("nModified")?;
            for document in upserted {
                let id = document.get("_id").ok().flatten().map_or(RawBson::Null, Into::into);
                written.upserted.push((place(document)?, id));
            }
        }
    }
    for error in documents(reply.get_array("writeErrors").ok()) {
        failure.errors.push(WriteError {
            index: place(error)?,
            code: whole_number(error, "code").ok().flatten().and_then(|code| i32::try_from(code).ok()).unwrap_or(0),
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
            document: error.to_owned(),
        });
    }
    if let Ok(concern) = reply.get_document("writeConcernError") {
        failure.concerns.push(concern.to_owned());
    }
    for label in reply.get_array("errorLabels").ok().into_iter().flatten().flatten() {
        failure.labels.extend(label.as_str().map(str::to_owned));
    }
    Ok(())
}

fn documents(array: Option<&RawArray>) -> Vec<&RawDocument> {
    array.into_iter().flatten().filter_map(|element| element.ok()?.as_document()).collect()
}

/// Returns whether writes with this acknowledgement get no reply.
pub(super) fn is_unacknowledged(acknowledgement: Option<&Acknowledgement>) -> bool {
    acknowledgement == Some(&Acknowledgement::Servers(0))
}
