//! Failed attempts at operations, and what they mean for retries and for transactions.

use std::time::Duration;

use bson::{RawBsonRef, RawDocument};

use crate::endpoint::wire::ServerError;
use crate::endpoint::wire::reply::{self, MAX_TIME_MS_EXPIRED, is_retryable_code};
use crate::endpoint::{CommandError, CommandTimeoutError, OperationError};
use crate::pool::error::{CheckOutError, Labels};

/// An error code after which only reads are retryable.
const READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET: i32 = 134;
/// The error code of a write that was executed, but not replicated in time.
const WRITE_CONCERN_TIMEOUT: i32 = 64;
/// The error codes for a write concern that can never be met: `UnknownReplWriteConcern` and
/// `UnsatisfiableWriteConcern`.
const INVALID_WRITE_CONCERNS: [i32; 2] = [79, 100];
/// The first wire version whose servers add `RetryableWriteError` themselves: 4.4.
const LABELLING_WIRE_VERSION: i32 = 9;

/// How far a failed attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The client refused the operation: the command is invalid or too large, the client was shut down, a server is
    /// incompatible, or there is no runtime. Nothing was sent, and another attempt would fail in the same way.
    Client,
    /// No suitable server was found in time. Nothing was sent.
    Selection,
    /// The time ran out before the command was sent, or the pool is closed. Nothing was sent.
    CheckOut,
    /// The pool of the selected server was cleared. Nothing was sent.
    PoolCleared,
    /// No connection could be opened, or an existing connection was lost before the command was sent.
    NoConnection {
        /// Whether the network failed, or the server refused the handshake with a code from the list of retryable
        /// codes.
        is_retryable: bool,
    },
    /// The network failed, or the time ran out, after the command was or may have been sent.
    Network,
    /// The reply violates the protocol. The command was sent.
    Malformed,
    /// The server answered with `ok: 0`.
    Server,
    /// The server answered with `ok: 1` and a `writeConcernError`.
    WriteConcern,
}

impl FaultKind {
    /// Returns whether a server was selected, but no connection to it was available.
    pub fn found_no_connection(self) -> bool {
        matches!(self, Self::CheckOut | Self::PoolCleared | Self::NoConnection { .. })
    }
}

/// A failed attempt at an operation, with everything that matters for retries and transactions.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// How far the attempt got.
    pub kind: FaultKind,
    /// The labels that the server or the endpoint gave the error.
    pub labels: Labels,
    /// The server's error code; 0 if there is none.
    pub code: i32,
    /// The code of the `writeConcernError`; 0 if there is none.
    pub write_concern_code: i32,
    /// `baseBackoffMS`, if it is positive: the pause that the server asks for before a retry.
    pub base_backoff: Option<Duration>,
    /// Whether the command was not sent because less time was left than a round trip takes.
    pub is_unsent: bool,
}

impl Fault {
    /// Creates a fault for an attempt without a reply from the server.
    pub fn new(kind: FaultKind, labels: Labels) -> Self {
        Self { kind, labels, code: 0, write_concern_code: 0, base_backoff: None, is_unsent: false }
    }

    /// Reads a reply that has `ok: 0` or a `writeConcernError`. Returns `None` for any other reply.
    pub fn of_reply(reply: &RawDocument) -> Option<Self> {
        let write_concern_error = reply.get_document("writeConcernError").ok();
        let succeeded = reply.get("ok").ok().flatten().and_then(number).is_some_and(|ok| ok != 0.0);
        let kind = match (succeeded, write_concern_error) {
            (false, _) => FaultKind::Server,
            (true, Some(_)) => FaultKind::WriteConcern,
            (true, None) => return None,
        };
        Some(Self::read(reply, kind))
    }

    fn read(reply: &RawDocument, kind: FaultKind) -> Self {
        let backoff = reply.get("baseBackoffMS").ok().flatten().and_then(number);
        Self {
            kind,
            labels: reply::labels(reply),
            code: code(reply),
            write_concern_code: reply.get_document("writeConcernError").map_or(0, code),
            base_backoff: backoff
                .filter(|backoff| *backoff > 0.0)
                .and_then(|millis| Duration::try_from_secs_f64(millis / 1_000.0).ok()),
            is_unsent: false,
        }
    }

    /// Classifies the error from an attempt for which a server had been selected. `is_connection_reusable` says whether
    /// the connection is reusable afterwards. If it is reusable after a wire protocol error, the command was not sent.
    pub fn of_error(error: &OperationError, is_connection_reusable: bool) -> Self {
        let kind = match error {
            OperationError::Command(failure) => match failure {
                CommandError::Server { source, .. } => return Self::of_server(source),
                CommandError::Timeout { source: CommandTimeoutError::Server(source), .. } => {
                    return Self::of_server(source);
                }
                CommandError::Timeout { source: CommandTimeoutError::Unsent, .. } => FaultKind::CheckOut,
                CommandError::Timeout { .. } | CommandError::Network { .. } => FaultKind::Network,
                CommandError::Wire { .. } if is_connection_reusable => FaultKind::Client,
                CommandError::Wire { .. } => FaultKind::Malformed,
                CommandError::Lost { .. } | CommandError::NotReusable { .. } => {
                    FaultKind::NoConnection { is_retryable: true }
                }
                // The server refused the command because the connection must authenticate again.
                CommandError::Reauthentication { .. } => FaultKind::NoConnection { is_retryable: false },
            },
            OperationError::Interrupted(cleared) if cleared.sent => FaultKind::Network,
            OperationError::Interrupted(_) => FaultKind::PoolCleared,
            OperationError::CheckOut(CheckOutError::PoolCleared(_)) => FaultKind::PoolCleared,
            OperationError::CheckOut(CheckOutError::Establish(error)) => {
                FaultKind::NoConnection { is_retryable: error.is_retryable() }
            }
            OperationError::CheckOut(CheckOutError::NoRuntime(_)) => FaultKind::Client,
            OperationError::CheckOut(_) | OperationError::CheckOutTimeout { .. } => FaultKind::CheckOut,
        };
        let unsent =
            matches!(error, OperationError::Command(CommandError::Timeout { source: CommandTimeoutError::Unsent, .. }));
        Self { is_unsent: unsent, ..Self::new(kind, error.labels()) }
    }

    fn of_server(error: &ServerError) -> Self {
        Self::read(&error.reply, FaultKind::Server)
    }

    /// Returns whether the error has this label.
    pub fn has(&self, label: Labels) -> bool {
        self.labels.contains(label)
    }

    /// Returns whether the server is overloaded, in which case a retry must wait.
    pub fn is_overload(&self) -> bool {
        self.has(Labels::SYSTEM_OVERLOADED)
    }

    /// Returns whether the server refused the command because it is overloaded, and did not execute any of it
    /// ("Retryable Overload Error").
    pub fn is_retryable_overload(&self) -> bool {
        self.has(Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE))
    }

    /// Returns whether a read may be repeated (Retryable Reads, "Retryable Error").
    pub fn is_retryable_read(&self) -> bool {
        match self.kind {
            FaultKind::Network | FaultKind::PoolCleared => true,
            FaultKind::NoConnection { is_retryable } => is_retryable,
            FaultKind::Server => is_retryable_code(self.code) || self.code == READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
            FaultKind::Client | FaultKind::Selection | FaultKind::CheckOut => false,
            FaultKind::Malformed | FaultKind::WriteConcern => false,
        }
    }

    /// Returns the labels, with `RetryableWriteError` where the client must add it ("RetryableWriteError Labels").
    ///
    /// `retries_writes` is `retryWrites`, or true for commits and aborts. The server's type matters only before 4.4.
    /// `max_wire_version` is the connection's version, or `None` if there was no connection.
    pub fn write_labels(&self, retries_writes: bool, max_wire_version: Option<i32>, is_mongos: bool) -> Labels {
        let is_before_labels = max_wire_version.is_some_and(|version| version < LABELLING_WIRE_VERSION);
        let adds = match self.kind {
            FaultKind::Network | FaultKind::PoolCleared => true,
            FaultKind::NoConnection { is_retryable } => is_retryable,
            FaultKind::Server | FaultKind::WriteConcern => {
                let by_write_concern = !is_mongos && is_retryable_code(self.write_concern_code);
                is_before_labels && (is_retryable_code(self.code) || by_write_concern)
            }
            FaultKind::Client | FaultKind::Selection | FaultKind::CheckOut | FaultKind::Malformed => false,
        };
        let added = if adds && retries_writes { Labels::RETRYABLE_WRITE } else { Labels::NONE };
        self.labels.with(added)
    }

    /// Returns the labels of an error from any command in a transaction except the commit ("Transient Transaction
    /// Error").
    pub fn transaction_labels(&self) -> Labels {
        let is_transient = match self.kind {
            FaultKind::Selection | FaultKind::PoolCleared | FaultKind::Network => true,
            FaultKind::NoConnection { is_retryable } => is_retryable,
            FaultKind::Client | FaultKind::CheckOut | FaultKind::Malformed => false,
            FaultKind::Server | FaultKind::WriteConcern => false,
        };
        let added = if is_transient { Labels::TRANSIENT_TRANSACTION } else { Labels::NONE };
        self.labels.with(added)
    }

    /// Returns the labels of an error from a commit ("UnknownTransactionCommitResult").
    pub fn commit_labels(&self, max_wire_version: Option<i32>, is_mongos: bool) -> Labels {
        let labels = self.write_labels(true, max_wire_version, is_mongos);
        let is_unknown = match self.kind {
            FaultKind::Selection | FaultKind::CheckOut | FaultKind::PoolCleared => true,
            FaultKind::NoConnection { .. } | FaultKind::Network | FaultKind::Malformed => true,
            FaultKind::Client => false,
            FaultKind::Server => [MAX_TIME_MS_EXPIRED, WRITE_CONCERN_TIMEOUT].contains(&self.code),
            FaultKind::WriteConcern => !INVALID_WRITE_CONCERNS.contains(&self.write_concern_code),
        };
        if is_unknown || labels.contains(Labels::RETRYABLE_WRITE) {
            labels.with(Labels::UNKNOWN_COMMIT_RESULT)
        } else {
            labels
        }
    }

    /// Returns whether the server's time limit expired. If a commit fails with this error, `with_transaction` does not
    /// repeat it.
    pub fn is_max_time_expired(&self) -> bool {
        self.code == MAX_TIME_MS_EXPIRED || self.write_concern_code == MAX_TIME_MS_EXPIRED
    }

    /// Returns whether the attempt may have written something ("Executing Retryable Write Commands").
    pub fn may_have_written(&self) -> bool {
        self.reached_a_server() && !self.has(Labels::NO_WRITES_PERFORMED)
    }

    /// Returns whether the error shows that an attempt reached a server. A read reports such an error in preference to
    /// one from an attempt that did not reach a server (Retryable Reads, "If a retry attempt fails").
    pub fn reached_a_server(&self) -> bool {
        match self.kind {
            FaultKind::Network | FaultKind::Malformed | FaultKind::Server | FaultKind::WriteConcern => true,
            FaultKind::Client | FaultKind::Selection | FaultKind::CheckOut => false,
            FaultKind::PoolCleared | FaultKind::NoConnection { .. } => false,
        }
    }
}

fn code(error: &RawDocument) -> i32 {
    error.get("code").ok().flatten().and_then(number).map_or(0, |code| code as i32)
}

fn number(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number as f64),
        RawBsonRef::Double(number) => Some(number),
        RawBsonRef::Boolean(value) => Some(value.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use bson::rawdoc;

    use super::*;
    use crate::endpoint::Origin;
    use crate::endpoint::wire::WireError;
    use crate::endpoint::wire::reply::{Unsuccessful, check};
    use crate::pool::error::{EstablishError, NoRuntimeError, PoolClearedError, PoolClosedError, Stage};

    const RETRYABLE_LOSS: FaultKind = FaultKind::NoConnection { is_retryable: true };

    fn server(code: i32) -> Fault {
        Fault::of_reply(&rawdoc! { "ok": 0.0, "code": code }).unwrap()
    }

    fn of(kind: FaultKind) -> Fault {
        Fault::new(kind, Labels::NONE)
    }

    #[test]
    fn reply_is_read_with_labels_codes_and_back_off() {
        let reply = rawdoc! {
            "ok": 0, "code": 462, "errorLabels": ["SystemOverloadedError", "Unheard", "RetryableError"], "baseBackoffMS": 250,
        };
        let fault = Fault::of_reply(&reply).unwrap();
        assert_eq!(
            (fault.kind, fault.code, fault.base_backoff),
            (FaultKind::Server, 462, Some(Duration::from_millis(250)))
        );
        assert!(fault.is_retryable_overload() && fault.is_overload());
        assert_eq!(format!("{:?}", fault.labels), r#"{"SystemOverloadedError", "RetryableError"}"#);
        let reply = rawdoc! { "ok": 1.0, "writeConcernError": { "code": 91 }, "baseBackoffMS": -5 };
        let fault = Fault::of_reply(&reply).unwrap();
        assert_eq!((fault.kind, fault.code, fault.write_concern_code), (FaultKind::WriteConcern, 0, 91));
        assert_eq!(fault.base_backoff, None);
        assert!(Fault::of_reply(&rawdoc! { "ok": 1, "writeErrors": [{ "code": 91 }] }).is_none());
    }

    fn origin() -> Box<Origin> {
        let address = "h:27017".into();
        Box::new(Origin {
            address,
            connection_id: None,
            server_connection_id: None,
            generation: None,
            service_id: None,
        })
    }

    #[test]
    fn errors_of_operations_tell_how_far_they_came() {
        let io = || io::Error::from(io::ErrorKind::BrokenPipe);
        let timeout = |source| CommandError::Timeout { origin: origin(), limit: Duration::ZERO, source };
        let interrupted = |sent| {
            OperationError::from(PoolClearedError {
                address: "h".into(),
                cause: None,
                interrupted: true,
                sent,
                never_ready: false,
            })
        };
        let wire = CommandError::Wire { origin: origin(), source: Arc::new(WireError::Unasked { count: 1 }) };
        let refused = EstablishError::permanent(Stage::Authenticate, io());
        let closed = PoolClosedError { address: "h".into() };
        for (error, expected) in [
            (CommandError::Network { origin: origin(), source: Arc::new(io()) }.into(), FaultKind::Network),
            (CommandError::Lost { origin: origin(), source: Arc::new(io()) }.into(), RETRYABLE_LOSS),
            (CommandError::NotReusable { origin: origin() }.into(), RETRYABLE_LOSS),
            (timeout(CommandTimeoutError::Unsent).into(), FaultKind::CheckOut),
            (timeout(CommandTimeoutError::Receiving).into(), FaultKind::Network),
            (wire.clone().into(), FaultKind::Malformed),
            (interrupted(true), FaultKind::Network),
            (interrupted(false), FaultKind::PoolCleared),
            (CheckOutError::from(refused).into(), FaultKind::NoConnection { is_retryable: false }),
            (CheckOutError::from(closed).into(), FaultKind::CheckOut),
            (CheckOutError::from(NoRuntimeError::of(&"h".into())).into(), FaultKind::Client),
        ] {
            assert_eq!(Fault::of_error(&error, false).kind, expected, "{error}");
        }
        assert_eq!(Fault::of_error(&wire.into(), true).kind, FaultKind::Client, "too large to be sent");
        let overloaded = CheckOutError::from(EstablishError::overloaded(Stage::Hello, io()));
        let fault = Fault::of_error(&overloaded.into(), true);
        assert!(fault.kind == RETRYABLE_LOSS && fault.is_retryable_overload());
    }

    #[test]
    fn server_errors_are_read_from_the_whole_reply() {
        let server = |reply: bson::RawDocumentBuf| match check(&reply) {
            Err(Unsuccessful::Command(error)) => *error,
            _ => panic!("a success"),
        };
        let labelled = server(rawdoc! { "ok": 0, "code": 91, "errorLabels": ["RetryableWriteError"] });
        let error = CommandError::Server { origin: origin(), source: Box::new(labelled) };
        let fault = Fault::of_error(&error.into(), true);
        assert_eq!((fault.kind, fault.code, fault.labels), (FaultKind::Server, 91, Labels::RETRYABLE_WRITE));
        // The server's time limit.
        let source = CommandTimeoutError::Server(Box::new(ServerError::read(&rawdoc! { "ok": 0, "code": 50 })));
        let error = CommandError::Timeout { origin: origin(), limit: Duration::ZERO, source };
        let fault = Fault::of_error(&error.into(), true);
        assert_eq!((fault.kind, fault.is_max_time_expired()), (FaultKind::Server, true));
    }

    #[test]
    fn overload_without_the_retryable_label_is_not_retryable() {
        let fault = Fault::new(FaultKind::Server, Labels::SYSTEM_OVERLOADED);
        assert!(fault.is_overload() && !fault.is_retryable_overload());
    }

    #[test]
    fn reads_are_repeated_after_the_codes_of_the_specification() {
        for code in [262, 11600, 11602, 10107, 13435, 13436, 189, 134, 91, 7, 6, 89, 9001] {
            assert!(server(code).is_retryable_read(), "{code}");
        }
        for code in [0, 11000, 50, 64] {
            assert!(!server(code).is_retryable_read(), "{code}");
        }
        assert!(of(FaultKind::Network).is_retryable_read() && of(FaultKind::PoolCleared).is_retryable_read());
        assert!(of(FaultKind::NoConnection { is_retryable: true }).is_retryable_read());
        assert!(!of(FaultKind::NoConnection { is_retryable: false }).is_retryable_read(), "authentication failed");
        for kind in [FaultKind::Client, FaultKind::Selection, FaultKind::CheckOut] {
            assert!(!of(kind).is_retryable_read(), "{kind:?}");
        }
        let write_concern = Fault::of_reply(&rawdoc! { "ok": 1, "writeConcernError": { "code": 91 } }).unwrap();
        assert!(!write_concern.is_retryable_read());
    }

    #[test]
    fn client_labels_writes_only_for_the_network_and_old_servers() {
        let is_labelled = |fault: &Fault, version, is_mongos| {
            fault.write_labels(true, version, is_mongos).contains(Labels::RETRYABLE_WRITE)
        };
        assert!(is_labelled(&of(FaultKind::Network), Some(17), false));
        assert!(is_labelled(&of(FaultKind::PoolCleared), None, false));
        assert!(is_labelled(&of(FaultKind::NoConnection { is_retryable: true }), None, false));
        assert!(!is_labelled(&of(FaultKind::CheckOut), None, false));
        assert!(!is_labelled(&of(FaultKind::Selection), None, false));
        assert!(!is_labelled(&server(91), Some(9), false), "a server of 4.4 labels itself");
        assert!(is_labelled(&server(91), Some(8), false) && is_labelled(&server(91), Some(8), true));
        let write_concern = Fault::of_reply(&rawdoc! { "ok": 1, "writeConcernError": { "code": 91 } }).unwrap();
        assert!(is_labelled(&write_concern, Some(8), false));
        assert!(!is_labelled(&write_concern, Some(8), true), "a mongos has repeated the write itself");
        assert!(!is_labelled(&server(11000), Some(8), false));
        assert_eq!(of(FaultKind::Network).write_labels(false, Some(17), false), Labels::NONE);
    }

    #[test]
    fn commit_is_unknown_unless_the_server_says_that_it_failed() {
        let is_unknown = |fault: &Fault| fault.commit_labels(Some(17), false).contains(Labels::UNKNOWN_COMMIT_RESULT);
        let write_concern =
            |code: i32| Fault::of_reply(&rawdoc! { "ok": 1, "writeConcernError": { "code": code } }).unwrap();
        assert!(is_unknown(&of(FaultKind::Selection)) && is_unknown(&of(FaultKind::Network)));
        assert!(is_unknown(&server(50)) && is_unknown(&write_concern(64)) && is_unknown(&write_concern(50)));
        assert!(!is_unknown(&write_concern(100)) && !is_unknown(&write_concern(79)));
        assert!(!is_unknown(&server(251)) && !is_unknown(&of(FaultKind::Client)));
        let labelled = Fault { labels: Labels::RETRYABLE_WRITE, ..server(91) };
        let both = Labels::RETRYABLE_WRITE.with(Labels::UNKNOWN_COMMIT_RESULT);
        assert_eq!(labelled.commit_labels(Some(17), false), both);
        assert!(!of(FaultKind::Network).commit_labels(Some(17), false).contains(Labels::TRANSIENT_TRANSACTION));
    }

    #[test]
    fn errors_without_an_answer_are_transient_in_a_transaction() {
        for (kind, expected) in [
            (FaultKind::Network, true),
            (FaultKind::NoConnection { is_retryable: true }, true),
            (FaultKind::NoConnection { is_retryable: false }, false),
            (FaultKind::PoolCleared, true),
            (FaultKind::Selection, true),
            (FaultKind::Client, false),
            (FaultKind::Server, false),
        ] {
            let labels = of(kind).transaction_labels();
            assert_eq!(labels.contains(Labels::TRANSIENT_TRANSACTION), expected, "{kind:?}");
        }
    }
}
