//! `update_one`, `update_many`, `replace_one`, `delete_one` and `delete_many`.

use crate::client::session::{SessionError, name};
use std::borrow::Borrow;

use serde::Serialize;

use super::super::Client;
use super::super::error::ClientError;
use super::fields::{Fields, Shape, refused};
use super::request::Request;
use super::results::{Counts, DeleteResult, UpdateResult};
use super::{AnyClient, Collection};
use crate::endpoint::{Limit, OutgoingSequence};
use crate::text::printable::Printable;

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares an update of the first document that matches `filter`. `update` is a document of operators, such as
    /// `{ $set: … }`, or a pipeline.
    #[track_caller]
    pub fn update_one(&self, filter: impl Serialize, update: impl Serialize) -> Update<'_, C> {
        Update { request: self.request("update"), statement: update_statement(&filter, &update), is_single: true }
    }

    /// Prepares an update of all documents that match `filter`. The command is not retried after a network error,
    /// because the server may have executed it.
    #[track_caller]
    pub fn update_many(&self, filter: impl Serialize, update: impl Serialize) -> Update<'_, C> {
        let mut statement = update_statement(&filter, &update);
        statement.add("multi", &true);
        Update { request: self.request("update"), statement, is_single: false }
    }

    /// Prepares a replacement of the first document that matches `filter`.
    #[track_caller]
    pub fn replace_one(&self, filter: impl Serialize, replacement: impl Borrow<T>) -> Replace<'_, C>
    where
        T: Serialize,
    {
        Replace { request: self.request("update"), statement: replace_statement(&filter, replacement.borrow()) }
    }

    /// Prepares a deletion of the first document that matches `filter`.
    #[track_caller]
    pub fn delete_one(&self, filter: impl Serialize) -> Delete<'_, C> {
        Delete { request: self.request("delete"), statement: delete_statement(&filter, 1), is_single: true }
    }

    /// Prepares a deletion of all documents that match `filter`. The command is not retried after a network error,
    /// because the server may have executed it.
    #[track_caller]
    pub fn delete_many(&self, filter: impl Serialize) -> Delete<'_, C> {
        Delete { request: self.request("delete"), statement: delete_statement(&filter, 0), is_single: false }
    }
}

/// An update: [`Collection::update_one`] and [`Collection::update_many`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Update<'c, C = Client> {
    request: Request<'c, C>,
    statement: Fields,
    is_single: bool,
}

impl<'c, C: AnyClient> Update<'c, C> {
    options!([statement] array_filters, collation, hint, sort, upsert);
    options!([request.body] bypass_document_validation, comment, let_vars);

    fn send(self) -> impl Future<Output = Result<UpdateResult, ClientError>> + Send + 'c {
        send(self.request, "updates", self.statement, self.is_single, Counts::of_update)
    }
}

builder!(Update => UpdateResult, write_concern);

/// A replacement of one document: [`Collection::replace_one`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Replace<'c, C = Client> {
    request: Request<'c, C>,
    statement: Fields,
}

impl<'c, C: AnyClient> Replace<'c, C> {
    options!([statement] collation, hint, sort, upsert);
    options!([request.body] bypass_document_validation, comment, let_vars);

    fn send(self) -> impl Future<Output = Result<UpdateResult, ClientError>> + Send + 'c {
        send(self.request, "updates", self.statement, true, Counts::of_update)
    }
}

builder!(Replace => UpdateResult, write_concern);

/// A deletion: [`Collection::delete_one`] and [`Collection::delete_many`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Delete<'c, C = Client> {
    request: Request<'c, C>,
    statement: Fields,
    is_single: bool,
}

impl<'c, C: AnyClient> Delete<'c, C> {
    options!([statement] collation, hint);
    options!([request.body] comment, let_vars);

    fn send(self) -> impl Future<Output = Result<DeleteResult, ClientError>> + Send + 'c {
        send(self.request, "deletes", self.statement, self.is_single, Counts::of_delete)
    }
}

builder!(Delete => DeleteResult, write_concern);

/// Sends a command with one statement.
fn send<'c, R, C: AnyClient>(
    mut request: Request<'c, C>,
    argument: &'static str,
    statement: Fields,
    is_single: bool,
    result: fn(Counts) -> R,
) -> impl Future<Output = Result<R, ClientError>> + Send + 'c
where
    R: 'static,
{
    request.body.add("ordered", &true);
    let ready = request.ready(true);
    let statement = statement.finish();
    async move {
        let statement = statement?;
        let documents = [&*statement];
        let sequences = [OutgoingSequence::new(argument, &documents)];
        let reply = ready?.write(is_single, &sequences).await?;
        Ok(result(Counts::read(&reply)))
    }
}

/// Returns a statement that updates documents.
pub(super) fn update_statement(filter: &impl Serialize, update: &impl Serialize) -> Fields {
    let mut statement = Fields::new();
    statement.put("filter", "q", Shape::Document, filter);
    set_update(&mut statement, "u", update);
    statement
}

/// Returns a statement that replaces a document.
pub(super) fn replace_statement(filter: &impl Serialize, replacement: &impl Serialize) -> Fields {
    let mut statement = Fields::new();
    statement.put("filter", "q", Shape::Document, filter);
    set_replacement(&mut statement, "u", replacement);
    statement
}

/// Returns a statement that deletes at most `limit` of the documents that match `filter`, or all of them if `limit` is
/// 0.
pub(super) fn delete_statement(filter: &impl Serialize, limit: i32) -> Fields {
    let mut statement = Fields::new();
    statement.put("filter", "q", Shape::Document, filter);
    statement.add("limit", &limit);
    statement
}

/// Adds an update, which must consist of operators (CRUD, "Update vs. Replace Validation").
pub(super) fn set_update(fields: &mut Fields, field: &'static str, update: &impl Serialize) {
    fields.put("update", field, Shape::Update, update);
    let Some(update) = fields.last_document() else { return };
    let reason = match name(update) {
        Some(key) if key.starts_with('$') => return,
        Some(key) => format!(
            "its first field is {}: an update begins with an operator such as $set, and replace_one replaces a document",
            Printable(key)
        ),
        None => "it is empty: an update has an operator such as $set".to_owned(),
    };
    fields.refuse(refused("update", reason));
}

/// Adds a replacement, which must not contain operators (CRUD, "Update vs. Replace Validation").
pub(super) fn set_replacement(fields: &mut Fields, field: &'static str, replacement: &impl Serialize) {
    fields.put("replacement", field, Shape::Document, replacement);
    if let Some(key) = fields.last_document().and_then(name)
        && key.starts_with('$')
    {
        let reason = format!("its first field is {}: update_one takes operators", Printable(key));
        fields.refuse(refused("replacement", reason));
    }
}
