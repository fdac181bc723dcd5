//! `Client::bulk_write`: writes of any kind to several collections, with the server's `bulkWrite` command.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{Bson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use thiserror::Error;

use super::super::Client;
use super::super::cursor::Cursor;
use super::super::cursor::open::Opened;
use super::super::error::ClientError;
use super::super::in_session::Explicit;
use super::super::operation::{Operation, Whole};
use super::super::spans::Described;
use super::super::write::WriteError;
use super::bulk::{Change, WriteModel, has_no_option};
use super::fields::{Fields, Shape, refused};
use super::request::{Request, is_unacknowledged};
use super::{AnyClient, Collection, Settings};
use crate::client::deployment::WaitLogged;
use crate::client::session::{SessionError, is_single};
use crate::endpoint::options::InvalidOption;
use crate::endpoint::wire::reply::{self, whole_number};
use crate::endpoint::{Limit, OutgoingSequence, ServerError, WriteConcernError};
use crate::pool::error::Labels;

const COMMAND: &str = "bulkWrite";

/// The wire version of MongoDB 8.0, the first version with the command.
const HAS_COMMAND: i32 = 25;

/// Room for the fields that the client adds to the command, in bytes (Bulk Write, "Total Message Size").
const MESSAGE_OVERHEAD: usize = 1000;

impl Client {
    /// Prepares writes of any kind to any collections in any databases, in as few commands as the server's limits
    /// allow. This method needs MongoDB 8.0, but [`Collection::bulk_write`] does not.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::{Document, doc};
    /// use wharf::client::WriteModel;
    ///
    /// let shop = client.database("shop");
    /// let (orders, stock) = (shop.collection::<Document>("orders"), shop.collection::<Document>("stock"));
    /// let written = client
    ///     .bulk_write([
    ///         orders.model(WriteModel::insert_one(doc! { "_id": 1, "article": 7 })),
    ///         stock.model(WriteModel::update_one(doc! { "_id": 7 }, doc! { "$inc": { "left": -1 } })),
    ///     ])
    ///     .await?;
    /// println!("{} inserted, {} modified", written.inserted_count, written.modified_count);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn bulk_write(&self, models: impl IntoIterator<Item = NamespaceWriteModel>) -> ClientBulkWrite<'_> {
        ClientBulkWrite::of(self, models)
    }
}

impl<T, C: AnyClient> Collection<T, C> {
    /// Returns a write to this collection, for [`Client::bulk_write`].
    pub fn model(&self, model: WriteModel) -> NamespaceWriteModel {
        NamespaceWriteModel { namespace: format!("{}.{}", self.database(), self.name()), model }
    }
}

/// A write to a collection, for [`Client::bulk_write`]. [`Collection::model`] creates it.
#[derive(Debug, Clone)]
#[must_use = "a write is sent by bulk_write"]
pub struct NamespaceWriteModel {
    namespace: String,
    model: WriteModel,
}

/// Writes of any kind to any collections, prepared by [`Client::bulk_write`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ClientBulkWrite<'c, C = Client> {
    request: Request<'c, C>,
    models: Vec<NamespaceWriteModel>,
    ordered: bool,
    verbose_results: bool,
}

impl<'c, C: AnyClient> ClientBulkWrite<'c, C> {
    #[track_caller]
    pub(crate) fn of(client: &'c C, models: impl IntoIterator<Item = NamespaceWriteModel>) -> Self {
        let request = Request::new(client, "admin", Settings::NONE, Fields::command(COMMAND, &1));
        Self { request, models: models.into_iter().collect(), ordered: true, verbose_results: false }
    }

    options!([request.body] bypass_document_validation, comment, let_vars);

    /// Sets whether the first failed write stops the rest (`ordered`). The default is true. If false, the writes are
    /// executed in any order. In a transaction, a failure always stops the rest, because it ends the transaction.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// Sets whether the result includes the result of each write ([`ClientBulkWriteResult::verbose_results`],
    /// `errorsOnly` on the wire). The default is false.
    pub fn verbose_results(mut self, verbose: bool) -> Self {
        self.verbose_results = verbose;
        self
    }

    async fn send(self) -> Result<ClientBulkWriteResult, ClientError> {
        let request = &self.request;
        let observation = request.client.running().command_events().operation(|| Described {
            transaction: request.session.as_ref().and_then(|session| session.explicit().span_in_transaction()),
            site: Some(request.site),
            ..Described::named(COMMAND, "admin")
        });
        let whole = Whole { observation, wait_logged: WaitLogged::new() };
        whole.observation.within(pin!(self.send_as(&whole))).await
    }

    async fn send_as(self, whole: &Whole) -> Result<ClientBulkWriteResult, ClientError> {
        let Self { mut request, models, ordered, verbose_results } = self;
        if models.is_empty() {
            return Err(refused("models", "there are none"));
        }
        request.body.add("errorsOnly", &!verbose_results);
        request.body.add("ordered", &ordered);
        request.inherit(true)?;
        let (client, site) = (request.client.running(), request.site);
        let limit = match request.started {
            Some(limit) => limit,
            None => request.limit()?.start(),
        };
        let session = request.session.map(|session| session.explicit().clone());
        let body = request.body.finish()?;
        let is_unacknowledged = is_unacknowledged(client, &body, session.as_deref());
        // The specification prescribes these error messages.
        if is_unacknowledged && verbose_results {
            let reason = "Cannot request unacknowledged write concern and verbose results";
            return Err(refused("verbose_results", reason));
        }
        if is_unacknowledged && ordered {
            return Err(refused("ordered", "Cannot request unacknowledged write concern and ordered writes"));
        }
        let mut writes = Writes::of(models)?;
        client.find_writable(COMMAND, session.as_deref(), limit, whole).await?;
        let snapshot = client.deployment().snapshot();
        if let Some(version) = snapshot.write_wire_version()
            && version < HAS_COMMAND
        {
            let problem =
                format!("needs MongoDB 8.0 (wire version {HAS_COMMAND}), and the server has wire version {version}");
            return Err(InvalidOption::because("Client::bulk_write", problem).into());
        }
        let (most_writes, most_bytes) = snapshot.write_limits();
        drop(snapshot);
        let most_bytes = most_bytes.saturating_sub(MESSAGE_OVERHEAD.saturating_add(body.as_bytes().len()));
        // A statement that fails ends its transaction on the server.
        let stops = ordered || session.as_deref().is_some_and(Explicit::is_in_transaction);
        let mut done = Done::new(verbose_results);
        let mut start = 0;
        while start < writes.operations.len() && !done.has_ended(stops) {
            let (end, namespaces) = writes.fit(start, most_writes, most_bytes);
            if end == start {
                let reason = format!("write number {start} does not fit into a message (maxMessageSizeBytes)");
                done.cause = Some(Box::new(refused("models", reason)));
                break;
            }
            let batch = &writes.operations[start..end];
            let documents: Vec<&RawDocument> = batch.iter().map(|operation| &*operation.document).collect();
            let sequences = [OutgoingSequence::new("ops", &documents), OutgoingSequence::new("nsInfo", &namespaces)];
            let is_single = documents.iter().all(|document| is_single("ops", document));
            let operation = Operation::of_write("admin", &body, is_single).sequences(&sequences);
            let (command, session) = (operation.command.within(limit), session.clone());
            let operation = Operation { command, session, part_of: Some(whole), ..operation };
            match client.cursor_at(operation, site).opened().await {
                Ok(Some(opened)) => done.read(opened, batch, start, ordered, limit).await,
                Ok(None) => done.result.acknowledged = false,
                Err(error) => done.cause = Some(Box::new(error)),
            }
            start = end;
        }
        done.finish(writes.generated_ids)
    }
}

builder!(ClientBulkWrite => ClientBulkWriteResult, write_concern);

/// The writes as operations of the command.
struct Writes {
    operations: Vec<BulkOperation>,
    /// The documents of `nsInfo`, without duplicates.
    namespaces: Vec<RawDocumentBuf>,
    generated_ids: Vec<(usize, ObjectId)>,
}

struct BulkOperation {
    document: RawDocumentBuf,
    kind: Kind,
    /// The index in [`Writes::namespaces`].
    namespace: usize,
}

enum Kind {
    /// An insert, with the `_id` of the document.
    Insert(Bson),
    Update,
    Delete,
}

impl Writes {
    fn of(models: Vec<NamespaceWriteModel>) -> Result<Self, ClientError> {
        let mut this =
            Self { operations: Vec::with_capacity(models.len()), namespaces: Vec::new(), generated_ids: Vec::new() };
        let mut places = HashMap::new();
        for (place, NamespaceWriteModel { namespace, model }) in models.into_iter().enumerate() {
            let namespace = *places.entry(namespace).or_insert_with_key(|name| {
                this.namespaces.push(rawdoc! { "ns": name.as_str() });
                this.namespaces.len() - 1
            });
            let (document, kind) = match model {
                WriteModel { change: Change::Insert(document), statement } => {
                    has_no_option(&statement.finish()?, place)?;
                    let document = document?;
                    this.generated_ids.extend(document.generated.map(|id| (place, id)));
                    let mut operation = rawdoc! { "insert": 0 };
                    operation.append(cstr!("document"), document.document()?);
                    (operation, Kind::Insert(document.id()))
                }
                WriteModel { change: Change::Update, statement } => {
                    (operation(rawdoc! { "update": 0 }, &statement.finish()?)?, Kind::Update)
                }
                WriteModel { change: Change::Delete, statement } => {
                    (operation(rawdoc! { "delete": 0 }, &statement.finish()?)?, Kind::Delete)
                }
            };
            this.operations.push(BulkOperation { document, kind, namespace });
        }
        Ok(this)
    }

    /// Returns the end of the next batch, and the `nsInfo` of its command. Sets the operations' indexes into `nsInfo`.
    fn fit(&mut self, start: usize, most_writes: usize, most_bytes: usize) -> (usize, Vec<RawDocumentBuf>) {
        let (mut bytes, mut places, mut used) = (0_usize, HashMap::new(), Vec::new());
        let mut end = start;
        for operation in self.operations[start..].iter_mut().take(most_writes) {
            let namespace = &self.namespaces[operation.namespace];
            let is_new = !places.contains_key(&operation.namespace);
            bytes += operation.document.as_bytes().len() + if is_new { namespace.as_bytes().len() } else { 0 };
            if bytes > most_bytes {
                break;
            }
            let place = *places.entry(operation.namespace).or_insert_with(|| {
                used.push(namespace.clone());
                used.len() - 1
            });
            operation.refer_to(place);
            end += 1;
        }
        (end, used)
    }
}

impl BulkOperation {
    /// Sets the index of the namespace in the command's `nsInfo`: the value of the first field, a 32-bit integer.
    fn refer_to(&mut self, namespace: usize) {
        let place = i32::try_from(namespace).unwrap_or(i32::MAX);
        let mut bytes = std::mem::take(&mut self.document).into_bytes();
        // The value follows the length, the type and the name.
        if let Some(end) = bytes.iter().skip(5).position(|&byte| byte == 0)
            && let Some(value) = bytes.get_mut(5 + end + 1..5 + end + 5)
        {
            value.copy_from_slice(&place.to_le_bytes());
        }
        if let Ok(document) = RawDocumentBuf::from_bytes(bytes) {
            self.document = document;
        }
    }
}

/// Converts an `update` or `delete` statement into an operation for the `bulkWrite` command.
fn operation(mut operation: RawDocumentBuf, statement: &RawDocument) -> Result<RawDocumentBuf, ClientError> {
    let mut multi = false;
    for field in statement {
        let (field, value) = field.map_err(|error| refused("models", error.to_string()))?;
        match (field.as_str(), value) {
            ("q", filter) => operation.append(cstr!("filter"), filter),
            ("u", update) => operation.append(cstr!("updateMods"), update),
            ("multi", _) => multi = true,
            ("limit", limit) => multi = limit == RawBsonRef::Int32(0),
            (_, option) => operation.append(field, option),
        }
    }
    operation.append(cstr!("multi"), multi);
    Ok(operation)
}

/// The results of a series of commands.
struct Done {
    result: ClientBulkWriteResult,
    /// Whether the server reported a successful write.
    has_succeeded: bool,
    write_errors: BTreeMap<usize, WriteError>,
    write_concern_errors: Vec<WriteConcernError>,
    labels: Labels,
    other_labels: Vec<String>,
    cause: Option<Box<ClientError>>,
    address: Option<Arc<str>>,
    is_timeout: bool,
}

impl Done {
    fn new(is_verbose: bool) -> Self {
        let verbose_results = is_verbose.then(VerboseResults::default);
        Self {
            result: ClientBulkWriteResult { acknowledged: true, verbose_results, ..ClientBulkWriteResult::default() },
            has_succeeded: false,
            write_errors: BTreeMap::new(),
            write_concern_errors: Vec::new(),
            labels: Labels::NONE,
            other_labels: Vec::new(),
            cause: None,
            address: None,
            is_timeout: false,
        }
    }

    /// Returns whether the series ends here. With `stops`, the first statement that fails ends it.
    fn has_ended(&self, stops: bool) -> bool {
        self.cause.is_some() || (stops && !self.write_errors.is_empty())
    }

    /// Adds the results of a command for its batch of operations, which begins at the index `start`.
    async fn read(&mut self, opened: Opened, batch: &[BulkOperation], start: usize, ordered: bool, limit: Limit) {
        let Opened { mut cursor, server, unmet } = opened;
        let reply = cursor.reply();
        self.labels = self.labels.with(reply::labels(reply));
        self.other_labels.extend(reply::other_labels(reply));
        if reply::has_field(reply, "writeConcernError") {
            self.write_concern_errors.push(WriteConcernError::of(reply.to_owned()));
        }
        if let Some(unmet) = unmet {
            self.labels = self.labels.with(unmet.labels);
            self.is_timeout |= unmet.is_timeout || unmet.is_late;
        }
        self.is_timeout |= limit.is_set() && reply::has_max_time_expired(reply);
        let failed_before = self.write_errors.len();
        let counted = Counted::read(reply);
        if let Err(error) = self.read_outcomes(&mut cursor, batch, start, ordered).await {
            self.cause = Some(Box::new(error));
        }
        match counted {
            Ok(counted) => {
                // Bulk Write, "Handling the `bulkWrite` Server Response".
                let has_succeeded = match (ordered, self.write_errors.first_key_value()) {
                    (true, Some((first, _))) if self.write_errors.len() > failed_before => *first > start,
                    // The outcome that contains the error may not have been fetched.
                    (true, _) => counted.errors == 0 || counted.has_changes(),
                    (false, _) => counted.errors < batch.len() as u64,
                };
                if has_succeeded {
                    self.has_succeeded = true;
                    counted.add_to(&mut self.result);
                }
            }
            Err(error) => _ = self.cause.get_or_insert_with(|| Box::new(error)),
        }
        if !self.write_errors.is_empty() || !self.write_concern_errors.is_empty() {
            self.address.get_or_insert_with(|| server.text.clone());
        }
    }

    /// Reads the outcomes of the operations.
    async fn read_outcomes(
        &mut self,
        cursor: &mut Cursor,
        batch: &[BulkOperation],
        start: usize,
        ordered: bool,
    ) -> Result<(), ClientError> {
        while let Some(outcome) = cursor.next_document().await? {
            let index = number(outcome, "idx")?.and_then(|index| usize::try_from(index).ok());
            let Some((index, operation)) = index.and_then(|index| Some((index, batch.get(index)?))) else {
                return Err(unreadable("idx is not that of an operation"));
            };
            let index = start + index;
            if number(outcome, "ok")? != Some(1) {
                self.write_errors.insert(index, WriteError { index, error: ServerError::read(outcome) });
                if ordered {
                    break;
                }
                continue;
            }
            let Some(verbose) = &mut self.result.verbose_results else { continue };
            let n = number(outcome, "n")?.unwrap_or(0);
            match &operation.kind {
                Kind::Insert(id) => {
                    _ = verbose.insert_results.insert(index, ClientInsertOneResult { inserted_id: id.clone() });
                }
                Kind::Update => {
                    let upserted =
                        outcome.get_document("upserted").ok().and_then(|upserted| upserted.get("_id").ok()?);
                    let result = ClientUpdateResult {
                        matched_count: n,
                        modified_count: number(outcome, "nModified")?.unwrap_or(0),
                        upserted_id: upserted.and_then(|id| id.try_into().ok()),
                    };
                    verbose.update_results.insert(index, result);
                }
                Kind::Delete => _ = verbose.delete_results.insert(index, ClientDeleteResult { deleted_count: n }),
            }
        }
        Ok(())
    }

    fn finish(self, generated_ids: Vec<(usize, ObjectId)>) -> Result<ClientBulkWriteResult, ClientError> {
        let Self { result, has_succeeded, write_errors, write_concern_errors, labels, cause, .. } = self;
        match cause {
            None if write_errors.is_empty() && write_concern_errors.is_empty() => Ok(result),
            // There is nothing to report besides the error.
            Some(cause)
                if !has_succeeded
                    && write_errors.is_empty()
                    && write_concern_errors.is_empty()
                    && result.acknowledged
                    && (generated_ids.is_empty() || !matches!(*cause, ClientError::Reply { .. })) =>
            {
                Err(cause.with_generated_ids(generated_ids))
            }
            cause => Err(ClientError::BulkWrite(Box::new(ClientBulkWriteFailure {
                partial_result: has_succeeded.then_some(result),
                write_errors,
                write_concern_errors,
                labels,
                cause,
                generated_ids,
                other_labels: self.other_labels,
                address: self.address,
                is_timeout: self.is_timeout,
            }))),
        }
    }
}

/// The counts in a reply.
struct Counted {
    errors: u64,
    inserted: u64,
    upserted: u64,
    matched: u64,
    modified: u64,
    deleted: u64,
}

impl Counted {
    fn has_changes(&self) -> bool {
        self.inserted + self.upserted + self.matched + self.deleted > 0
    }

    fn read(reply: &RawDocument) -> Result<Self, ClientError> {
        let count = |field| Ok::<_, ClientError>(number(reply, field)?.unwrap_or(0));
        Ok(Self {
            errors: count("nErrors")?,
            inserted: count("nInserted")?,
            upserted: count("nUpserted")?,
            matched: count("nMatched")?,
            modified: count("nModified")?,
            deleted: count("nDeleted")?,
        })
    }

    fn add_to(self, result: &mut ClientBulkWriteResult) {
        result.inserted_count += self.inserted;
        result.upserted_count += self.upserted;
        result.matched_count += self.matched;
        result.modified_count += self.modified;
        result.deleted_count += self.deleted;
    }
}

fn number(document: &RawDocument, field: &'static str) -> Result<Option<u64>, ClientError> {
    let number = whole_number(document, field).map_err(|error| unreadable(error.to_string()))?;
    Ok(number.and_then(|number| u64::try_from(number).ok()))
}

fn unreadable(reason: impl Into<Arc<str>>) -> ClientError {
    ClientError::unreadable(COMMAND, reason)
}

/// The result of [`Client::bulk_write`].
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ClientBulkWriteResult {
    /// Whether the server acknowledged the writes. With the write concern `w: 0`, it does not, and the numbers are 0.
    pub acknowledged: bool,
    /// The number of documents that were inserted, not counting upserts.
    pub inserted_count: u64,
    /// The number of documents that upserts inserted.
    pub upserted_count: u64,
    /// The number of documents that updates and replacements matched.
    pub matched_count: u64,
    /// The number of documents that updates and replacements changed.
    pub modified_count: u64,
    /// The number of documents that were deleted.
    pub deleted_count: u64,
    /// The result of each successful write, if [`verbose_results`](ClientBulkWrite::verbose_results()) was set.
    pub verbose_results: Option<VerboseResults>,
}

/// The results of the successful writes in [`Client::bulk_write`], keyed by the positions of the writes.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct VerboseResults {
    /// The inserts.
    pub insert_results: BTreeMap<usize, ClientInsertOneResult>,
    /// The updates and replacements.
    pub update_results: BTreeMap<usize, ClientUpdateResult>,
    /// The deletions.
    pub delete_results: BTreeMap<usize, ClientDeleteResult>,
}

/// The result of an insert in [`Client::bulk_write`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ClientInsertOneResult {
    /// The `_id` of the document, which the client may have added.
    pub inserted_id: Bson,
}

/// The result of an update or a replacement in [`Client::bulk_write`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ClientUpdateResult {
    /// The number of documents that the filter matched.
    pub matched_count: u64,
    /// The number of documents that were changed.
    pub modified_count: u64,
    /// The `_id` of the document that `upsert` inserted.
    pub upserted_id: Option<Bson>,
}

/// The result of a deletion in [`Client::bulk_write`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ClientDeleteResult {
    /// The number of documents that were deleted.
    pub deleted_count: u64,
}

/// Some writes in [`Client::bulk_write`] failed, or it is unknown whether they were executed.
#[derive(Clone, Error)]
#[error("{}", self.sentence())]
#[non_exhaustive]
pub struct ClientBulkWriteFailure {
    /// The results of the writes. `None` unless the server reported that a write succeeded.
    pub partial_result: Option<ClientBulkWriteResult>,
    /// The writes that the server refused, keyed by position. If the writes are ordered, there is at most one.
    pub write_errors: BTreeMap<usize, WriteError>,
    /// The commands that were executed but did not meet their write concern.
    pub write_concern_errors: Vec<WriteConcernError>,
    /// The error labels from the replies that report these errors, and the labels that the client adds.
    pub labels: Labels,
    /// The error that stopped the operation, if a command failed as a whole or its results could not be fetched.
    #[source]
    pub cause: Option<Box<ClientError>>,
    pub(in crate::client) generated_ids: Vec<(usize, ObjectId)>,
    /// The labels in these replies that no specification defines.
    pub(in crate::client) other_labels: Vec<String>,
    /// The server where the first error occurred.
    pub(in crate::client) address: Option<Arc<str>>,
    /// Whether a reply that reports success also reports that a time limit was exceeded.
    pub(in crate::client) is_timeout: bool,
}

crate::pool::error::debug_as_sentence!(ClientBulkWriteFailure);

impl ClientBulkWriteFailure {
    fn sentence(&self) -> String {
        let first = self.write_errors.values().next();
        match (first, self.write_errors.len(), self.write_concern_errors.first(), &self.cause) {
            (Some(first), 1, ..) => first.to_string(),
            (Some(first), failed, ..) => format!("{first}; {failed} writes failed"),
            (None, _, Some(concern), _) => format!("the write concern was not met: {concern}"),
            (None, _, None, Some(cause)) if self.partial_result.is_none() => cause.to_string(),
            (None, _, None, Some(cause)) => format!("a part of the writes was executed before: {cause}"),
            (None, _, None, None) => "no write failed".to_owned(),
        }
    }
}
