//! Server sessions.

use std::fmt;
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{RawDocumentBuf, Uuid};

use super::elements;
use super::moment::Moment;
use crate::pool::runtime::{Process, random_bytes};

/// A session with less time left than this is no longer used (Driver Sessions, "Algorithm to acquire").
const LEAST_LEFT: Duration = Duration::from_secs(60);

/// The identifier of a server session: a version 4 UUID that the client generates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Generates a new identifier.
    pub fn new() -> Self {
        // The bytes come from the operating system, because an application's cargo features can give the `uuid` crate a
        // generator whose state is copied by a fork.
        let mut bytes: [u8; 16] = random_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// Returns the UUID's bytes.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the document that commands carry as `lsid`: `{ id: UUID }`.
    pub fn document(self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        let id = bson::RawBinaryRef { subtype: BinarySubtype::Uuid, bytes: &self.0 };
        document.append(bson::raw::cstr!("id"), id);
        document
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes(self.0), f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server session in use by one operation, or by one explicit session.
///
/// Give it back with [`ServerSessionPool::release`](super::ServerSessionPool::release). If it is dropped instead, the
/// server ends the session after a period of inactivity.
#[derive(Debug)]
#[must_use]
pub struct ServerSession {
    pub(super) id: SessionId,
    /// When the identifier was generated or last sent.
    pub(super) last_use: Moment,
    /// The last transaction number assigned in this session; 0 if there is none.
    pub(super) transaction_number: i64,
    pub(super) is_dirty: bool,
    /// Whether a command in the session was cancelled, and the client will not learn when the command finishes.
    pub(super) is_cut_off: bool,
    /// The process that the session belongs to.
    pub(super) process: Process,
}

impl ServerSession {
    /// Creates a new session. The server starts the session when it receives the first command.
    pub fn new(now: Moment) -> Self {
        Self {
            id: SessionId::new(),
            last_use: now,
            transaction_number: 0,
            is_dirty: false,
            is_cut_off: false,
            process: Process::this(),
        }
    }

    /// Returns a copy, for a command in the same operation that is sent while another command is in flight. The copy is
    /// never reused.
    pub fn copy(&self) -> Self {
        Self { is_dirty: true, ..*self }
    }

    /// Returns the identifier.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the time at which the identifier was generated or last sent.
    pub fn last_use(&self) -> Moment {
        self.last_use
    }

    /// Returns the last transaction number assigned; 0 if there is none.
    pub fn transaction_number(&self) -> i64 {
        self.transaction_number
    }

    /// Assigns the next transaction number, for a transaction, or for one write that may be retried (Retryable Writes,
    /// "Generating Transaction IDs").
    pub fn next_transaction_number(&mut self) -> i64 {
        // At a billion writes a second, the numbers would run out after 292 years.
        self.transaction_number = self.transaction_number.saturating_add(1);
        self.transaction_number
    }

    /// Appends `lsid` to the elements of a command that is about to be sent.
    pub fn append_to(&mut self, elements: &mut Vec<u8>, now: Moment) {
        self.last_use = now;
        elements::lsid(elements, self.id);
    }

    /// Appends `txnNumber` to the elements of a write that may be retried with this number.
    pub fn append_transaction_number(elements: &mut Vec<u8>, number: i64) {
        elements::transaction_number(elements, number);
    }

    /// Records that the network failed during a command in this session: the server may still execute it, so no other
    /// session may use the identifier afterwards. This session itself may continue.
    pub fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Records that a command in this session was cancelled when it may already have been sent, and that the client
    /// will not learn when the command finishes.
    pub fn cut_off(&mut self) {
        self.is_cut_off = true;
    }

    /// Returns whether the server should be told that the session has ended, because the session does not return to a
    /// pool. A dirty session is only discarded.
    pub fn is_to_be_ended(&self) -> bool {
        self.is_cut_off && !self.is_dirty && !self.process.is_ancestor()
    }

    /// Returns whether this process may use the session and the server will keep it for at least another minute.
    /// `timeout` is `logicalSessionTimeoutMinutes`, or `None` in load-balanced mode, where clients treat sessions as if
    /// they did not expire.
    pub(super) fn is_reusable(&self, now: Moment, timeout: Option<Duration>) -> bool {
        let is_kept = timeout.is_none_or(|timeout| self.last_use + timeout >= now + LEAST_LEFT);
        is_kept && !self.is_dirty && !self.is_cut_off && !self.process.is_ancestor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_a_random_uuid_in_a_document() {
        let id = SessionId::new();
        assert_ne!(id, SessionId::new());
        assert_eq!((id.bytes()[6] >> 4, id.bytes()[8] >> 6), (4, 2), "version and variant");
        let document = id.document();
        let uuid = document.get_binary("id").unwrap();
        assert_eq!((uuid.subtype, uuid.bytes), (BinarySubtype::Uuid, &id.bytes()[..]));
        assert_eq!(format!("{id:?}"), Uuid::from_bytes(id.bytes()).to_string());
    }

    #[test]
    fn transaction_numbers_start_at_one_and_increase() {
        let mut session = ServerSession::new(Moment::now());
        assert_eq!([session.next_transaction_number(), session.next_transaction_number()], [1, 2]);
        assert_eq!(session.transaction_number(), 2);
    }

    #[test]
    fn session_is_reusable_until_a_minute_before_it_expires() {
        let start = Moment::now();
        let mut session = ServerSession::new(start);
        let timeout = Some(Duration::from_secs(30 * 60));
        let last = start + Duration::from_secs(29 * 60);
        assert!(session.is_reusable(last, timeout));
        assert!(!session.is_reusable(last + Duration::from_millis(1), timeout));
        assert!(session.is_reusable(last + Duration::from_secs(3_600), None), "load-balanced");
        session.append_to(&mut Vec::new(), last);
        assert!(session.is_reusable(last + Duration::from_secs(60), timeout), "it was used in between");
        session.mark_dirty();
        assert!(!session.is_reusable(last, timeout) && !session.is_reusable(last, None));
    }
}
