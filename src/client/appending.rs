//! The elements that the client appends to operations' commands.

use std::sync::LazyLock;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::Client;
use super::operation::{Kind, Operation};
use crate::client::session::{SessionUse, name, takes_after_cluster_time, takes_read_concern};
use crate::endpoint::options::{PRIMARY, ReadPreference, ReadPreferenceMode};
use crate::endpoint::wire::reply;

/// A command, separated from the read concern that its caller set. The session adds `afterClusterTime` to the read
/// concern (Causal Consistency, "Read Concern").
pub(super) struct SplitReadConcern {
    /// The command without the read concern.
    pub(super) body: RawDocumentBuf,
    read_concern: RawDocumentBuf,
}

impl SplitReadConcern {
    /// Takes the read concern out of an operation in a causally consistent session. Returns `None` if the operation has
    /// no read concern, or if the session adds nothing to the read concern.
    pub(super) fn of(operation: &Operation<'_>, body: &RawDocument) -> Option<Self> {
        if operation.kind == Kind::Command
            || !has_field(operation, "readConcern")
            || !name(body).is_some_and(takes_after_cluster_time)
        {
            return None;
        }
        let Ok(Some(RawBsonRef::Document(own))) = body.get("readConcern") else { return None };
        let has_time = |field| !matches!(own.get(field), Ok(None));
        if has_time("afterClusterTime") || has_time("atClusterTime") {
            return None;
        }
        Some(Self { body: without(body, "readConcern")?, read_concern: own.to_owned() })
    }
}

/// Returns the document without a field, or `None` if the document is unreadable. An unreadable document is sent
/// unchanged, and the server reports the problem.
pub(super) fn without(body: &RawDocument, left_out: &str) -> Option<RawDocumentBuf> {
    let mut rest = RawDocumentBuf::new();
    for field in body {
        let (name, value) = field.ok()?;
        if name.as_str() != left_out {
            rest.append(name, value);
        }
    }
    Some(rest)
}

/// Returns the properties of the operation that matter to an explicit session.
pub(super) fn session_use<'u>(
    client: &'u Client,
    operation: &Operation<'u>,
    is_unacknowledged: bool,
    transaction_number: Option<i64>,
    split: Option<&'u SplitReadConcern>,
) -> SessionUse<'u> {
    let has_own_read_concern = has_field(operation, "readConcern");
    let is_complete = has_own_read_concern && split.is_none();
    let takes_after = !is_complete && operation.kind != Kind::Command;
    SessionUse {
        is_read: !matches!(operation.kind, Kind::Write { .. }),
        read_concern: usual_read_concern(client, operation).filter(|_| !has_own_read_concern),
        has_own_read_concern,
        own_read_concern: split.map(|split| &*split.read_concern),
        has_own_write_concern: has_field(operation, "writeConcern"),
        is_unacknowledged,
        read_preference: operation.read_preference,
        takes_after_cluster_time: takes_after && name(operation.command.body()).is_some_and(takes_after_cluster_time),
        transaction_number,
        is_beside_transaction: operation.is_beside_transaction,
    }
}

/// Returns the read concern that a handle or a call sets. For the server's default (an empty `level`), returns `None`,
/// or an empty document if the client's options have a level.
pub(super) fn own_read_concern(client: &Client, level: &str) -> Option<RawDocumentBuf> {
    match level {
        "" => client.options().read_concern.is_some().then(RawDocumentBuf::new),
        level => Some(rawdoc! { "level": level }),
    }
}

/// Appends the read concern for a command without an explicit session.
#[inline]
pub(super) fn append_read_concern(appended: &mut Vec<u8>, client: &Client, operation: &Operation<'_>) {
    if operation.kind == Kind::Read
        && let Some(level) = usual_read_concern(client, operation)
        && !has_field(operation, "readConcern")
    {
        append_elements(appended, &rawdoc! { "readConcern": { "level": level } });
    }
}

/// Returns the read concern from the options, if it applies to the operation.
fn usual_read_concern<'u>(client: &'u Client, operation: &Operation<'_>) -> Option<&'u str> {
    match (operation.kind, client.options().read_concern.as_deref()) {
        (Kind::Read, Some(level)) => name(operation.command.body()).is_some_and(takes_read_concern).then_some(level),
        _ => None,
    }
}

/// Appends the write concern from the options, unless the caller's document already has a write concern.
#[inline]
pub(super) fn append_write_concern(appended: &mut Vec<u8>, client: &Client, operation: &Operation<'_>) {
    let usual = &client.options().write_concern;
    let concern = || match operation.command.own_limit().is_set() {
        true => usual.clone().without_w_timeout().document(),
        false => usual.document(),
    };
    if !has_field(operation, "writeConcern")
        && let Some(concern) = concern()
    {
        append_elements(appended, &rawdoc! { "writeConcern": concern });
    }
}

/// Returns the read preference for an operation outside a transaction, if there is one.
pub(super) fn usual_preference<'u>(client: &'u Client, operation: &Operation<'u>) -> Option<&'u ReadPreference> {
    let options = client.options();
    match operation.kind {
        Kind::Read => operation.read_preference.or(Some(&options.read_preference)),
        // On a direct connection, a member of any type can handle the command.
        Kind::Command if options.direct_connection == Some(true) && !has_field(operation, "$readPreference") => {
            operation.read_preference.or(Some(&PRIMARY))
        }
        Kind::Command => operation.read_preference,
        Kind::Write { .. } => None,
    }
}

/// Returns whether the caller's document contains the field.
pub(super) fn has_field(operation: &Operation<'_>, field: &str) -> bool {
    reply::has_field(operation.command.body(), field)
}

/// Appends `$readPreference`, if the command needs one (Server Selection, "Passing read preference to mongos and load
/// balancers" and "Topology type Single").
pub(super) fn append_preference(appended: &mut Vec<u8>, preference: &ReadPreference, is_single: bool) {
    // Encoded once, because every command on a direct connection carries it.
    static PRIMARY_PREFERRED: LazyLock<RawDocumentBuf> =
        LazyLock::new(|| rawdoc! { "$readPreference": { "mode": "primaryPreferred" } });
    match preference.mode {
        ReadPreferenceMode::Primary if is_single => append_elements(appended, &PRIMARY_PREFERRED),
        ReadPreferenceMode::Primary => {}
        _ => append_elements(appended, &rawdoc! { "$readPreference": preference.document() }),
    }
}

/// Appends the elements of a document, without its length and end.
pub(super) fn append_elements(appended: &mut Vec<u8>, document: &RawDocument) {
    appended.extend_from_slice(elements(document));
}

/// Returns the elements of a document, without its length and end.
pub(super) fn elements(document: &RawDocument) -> &[u8] {
    let bytes = document.as_bytes();
    &bytes[4..bytes.len() - 1]
}
