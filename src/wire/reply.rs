//! What a command's reply says about its success.

use std::error::Error as StdError;
use std::fmt;

use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::{WireError, element};
use crate::error::Labels;
use crate::printable::Printable;

/// A server executed a command, or refused to, and reports that it failed: a reply with `ok: 0`.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerError {
    /// The server's number for the error; 0 if it gave none.
    pub code: i32,
    /// The server's name for the error; empty if it gave none.
    pub code_name: String,
    /// What the server says, for people (`errmsg`).
    pub message: String,
    /// The error labels, in the server's order.
    pub labels: Vec<String>,
    /// The whole reply: `topologyVersion`, `writeConcernError` and all else.
    pub reply: RawDocumentBuf,
}

crate::error::debug_as_sentence!(ServerError);

impl ServerError {
    /// Whether the server gave the error this label.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|given| given == label)
    }

    /// Returns the labels that the server gave the error, of those that matter to a pool.
    pub(crate) fn pool_labels(&self) -> Labels {
        [Labels::SYSTEM_OVERLOADED, Labels::RETRYABLE]
            .into_iter()
            .filter(|label| label.names().all(|name| self.has_label(name)))
            .fold(Labels::NONE, Labels::with)
    }

    /// What the error says of the server's state. See [`state_change`].
    #[must_use]
    pub fn state_change(&self) -> Option<StateChange> {
        StateChange::of(self.code, &self.message).or_else(|| write_concern_state_change(&self.reply))
    }

    /// Whether the code is one of those that the retryable writes specification lists: the operation may be tried again if
    /// nothing of it was executed, or if it may be executed twice.
    #[must_use]
    pub fn has_retryable_code(&self) -> bool {
        matches!(self.code, 6 | 7 | 89 | 91 | 189 | 262 | 9001 | 10107 | 11600 | 11602 | 13435 | 13436)
    }

    /// Reads what there is of an error. A field of the wrong type counts as missing: that the command failed matters
    /// more than how well the server says so.
    fn read(reply: &RawDocument) -> Self {
        let text = |field| match reply.get(field) {
            Ok(Some(RawBsonRef::String(text))) => text.to_owned(),
            _ => String::new(),
        };
        let code = whole_number(reply, "code").ok().flatten();
        let labels = match reply.get("errorLabels") {
            Ok(Some(RawBsonRef::Array(labels))) => {
                labels.into_iter().flatten().filter_map(|label| label.as_str().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        };
        Self {
            code: code.and_then(|code| i32::try_from(code).ok()).unwrap_or(0),
            code_name: text("codeName"),
            message: text("errmsg"),
            labels,
            reply: reply.to_owned(),
        }
    }
}

/// What an error says of the server's state (SDAM, "not writable primary and node is recovering").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateChange {
    /// "not writable primary": it is available, but not the primary.
    NotWritablePrimary,
    /// "node is recovering": it can neither be written to nor read from for now.
    Recovering,
    /// "node is shutting down": as before, and its connections are about to end.
    ShuttingDown,
}

impl StateChange {
    /// The state that a code means; the message counts only where there is no code, which is 0.
    fn of(code: i32, message: &str) -> Option<Self> {
        match code {
            91 | 11600 => Some(Self::ShuttingDown),
            189 | 11602 | 13436 => Some(Self::Recovering),
            10058 | 10107 | 13435 => Some(Self::NotWritablePrimary),
            0 if message.contains("not master or secondary") || message.contains("node is recovering") => {
                Some(Self::Recovering)
            }
            0 if message.contains("not master") => Some(Self::NotWritablePrimary),
            _ => None,
        }
    }
}

/// What a reply says of the server's state, whether it reports success or not: by its error, or by its
/// `writeConcernError`. Errors within `writeErrors` say nothing of it.
#[must_use]
pub fn state_change(reply: &RawDocument) -> Option<StateChange> {
    match check(reply) {
        Err(Unsuccessful::Command(error)) => error.state_change(),
        _ => write_concern_state_change(reply),
    }
}

fn write_concern_state_change(reply: &RawDocument) -> Option<StateChange> {
    let error = reply.get_document("writeConcernError").ok()?;
    let (code, message) = code_and_message(error);
    StateChange::of(code, message)
}

fn code_and_message(error: &RawDocument) -> (i32, &str) {
    let code = whole_number(error, "code").ok().flatten().and_then(|code| i32::try_from(code).ok());
    (code.unwrap_or(0), error.get_str("errmsg").unwrap_or(""))
}

/// The error of a successful reply in which the server says that a part of the command ran out of time: in its
/// `writeErrors` or its `writeConcernError` (CSOT, "Error Transformations").
#[must_use]
pub fn max_time_expired(reply: &RawDocument) -> Option<Box<ServerError>> {
    let expired = |error: &RawDocument| code_and_message(error).0 == MAX_TIME_MS_EXPIRED;
    let write_concern_error = reply.get_document("writeConcernError").ok().filter(|error| expired(error));
    let of_a_write = || {
        let errors = reply.get_array("writeErrors").ok()?.into_iter().flatten();
        errors.filter_map(RawBsonRef::as_document).find(|error| expired(error))
    };
    let error = write_concern_error.or_else(of_a_write)?;
    Some(Box::new(ServerError { reply: reply.to_owned(), ..ServerError::read(error) }))
}

/// The code of `MaxTimeMSExpired`.
pub const MAX_TIME_MS_EXPIRED: i32 = 50;

/// The code of `ReauthenticationRequired`.
pub const REAUTHENTICATION_REQUIRED: i32 = 391;

/// Shows what the server says with line breaks and other control characters escaped, and cut after 1,024 bytes: the
/// server must neither write a line of its own into a log nor fill it. [`ServerError::message`] has it as it came.
impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, code_name, message, .. } = self;
        let message = Printable(message);
        match &**code_name {
            "" => write!(f, "the server answered with error {code}: {message}"),
            name => write!(f, "the server answered with error {code} ({}): {message}", Printable(name)),
        }
    }
}

impl StdError for ServerError {}

/// Why a reply is not that of a successful command.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsuccessful {
    /// The command failed.
    Command(Box<ServerError>),
    /// The reply does not say whether the command succeeded.
    Wire(WireError),
}

/// Tells a successful command's reply from a failed one's.
///
/// # Errors
///
/// [`Unsuccessful::Command`] if `ok` is false, [`Unsuccessful::Wire`] if it is missing or no number.
#[inline]
pub fn check(reply: &RawDocument) -> Result<(), Unsuccessful> {
    if begins_with_success(reply) { Ok(()) } else { check_further(reply) }
}

const DOUBLE: u8 = ElementType::Double as u8;

/// The value of `ok` in every reply of success that a server writes.
const SUCCESS: [u8; 8] = 1.0_f64.to_le_bytes();

/// Whether the reply is one of success with nothing before its `ok`, as those are that return nothing else.
#[inline]
pub(crate) fn begins_with_success(reply: &RawDocument) -> bool {
    // Right after the document's length.
    match reply.as_bytes().get(4..16) {
        Some([DOUBLE, b'o', b'k', 0, value @ ..]) => value == SUCCESS,
        _ => false,
    }
}

/// Whether a double of `ok` says that the command succeeded. What is no number says nothing.
#[inline]
fn is_true(value: &[u8]) -> bool {
    value.first_chunk().is_some_and(|value| f64::from_le_bytes(*value).abs() > 0.0)
}

/// As [`check`], for a reply that does not begin with success.
fn check_further(reply: &RawDocument) -> Result<(), Unsuccessful> {
    match element::find(reply, b"ok\0") {
        // As servers write it.
        Some((DOUBLE, value)) if is_true(value) => Ok(()),
        _ => check_strictly(reply),
    }
}

/// What every other reply says, and what is wrong with it.
#[cold]
fn check_strictly(reply: &RawDocument) -> Result<(), Unsuccessful> {
    let refuse = |value: String| {
        let value = value.into();
        Err(Unsuccessful::Wire(WireError::ReplyField { field: "ok", value, allowed: "0 or 1" }))
    };
    let succeeded = match reply.get("ok") {
        Ok(Some(RawBsonRef::Double(ok))) if ok.is_nan() => return refuse("NaN".into()),
        Ok(Some(RawBsonRef::Double(ok))) => ok != 0.0,
        Ok(Some(RawBsonRef::Int32(ok))) => ok != 0,
        Ok(Some(RawBsonRef::Int64(ok))) => ok != 0,
        Ok(Some(RawBsonRef::Boolean(ok))) => ok,
        Ok(Some(other)) => return refuse(format!("{:?}", other.element_type())),
        Ok(None) => return refuse("missing".into()),
        Err(error) => return refuse(error.to_string()),
    };
    if succeeded { Ok(()) } else { Err(Unsuccessful::Command(Box::new(ServerError::read(reply)))) }
}

/// The whole number in a field, whichever numeric type the server chose for it; `None` if the field is missing.
pub(crate) fn whole_number(reply: &RawDocument, field: &'static str) -> Result<Option<i64>, WireError> {
    let refuse = |value: String| Err(WireError::ReplyField { field, value: value.into(), allowed: "a whole number" });
    match reply.get(field) {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::Int32(number))) => Ok(Some(number.into())),
        Ok(Some(RawBsonRef::Int64(number))) => Ok(Some(number)),
        // Every whole number of less than 2^53 is a double of its own.
        Ok(Some(RawBsonRef::Double(number))) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            Ok(Some(number as i64))
        }
        Ok(Some(RawBsonRef::Double(number))) => refuse(number.to_string()),
        Ok(Some(other)) => refuse(format!("{:?}", other.element_type())),
        Err(error) => refuse(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn any_true_value_of_ok_is_success() {
        for reply in [rawdoc! { "ok": 1.0 }, rawdoc! { "ok": 1 }, rawdoc! { "ok": 1_i64 }, rawdoc! { "ok": true }] {
            assert_eq!(check(&reply), Ok(()));
        }
    }

    #[test]
    fn a_failed_command_keeps_all_that_the_server_says() {
        let reply = rawdoc! {
            "ok": 0.0,
            "errmsg": "not now",
            "code": 91,
            "codeName": "ShutdownInProgress",
            "errorLabels": ["RetryableWriteError", "SystemOverloadedError"],
        };
        let Err(Unsuccessful::Command(error)) = check(&reply) else { panic!("not a command error") };
        assert_eq!((error.code, &*error.code_name, &*error.message), (91, "ShutdownInProgress", "not now"));
        assert!(error.has_label("SystemOverloadedError") && !error.has_label("RetryableError"));
        assert_eq!(error.reply, reply);
        assert_eq!(error.to_string(), "the server answered with error 91 (ShutdownInProgress): not now");
    }

    #[test]
    fn what_the_server_says_stays_on_its_line() {
        let reply =
            rawdoc! { "ok": 0, "code": 1, "codeName": "In\ternal", "errmsg": "no\n[ERROR] \u{1b}[31mall is lost" };
        let Err(Unsuccessful::Command(error)) = check(&reply) else { panic!("not a command error") };
        assert_eq!(
            error.to_string(),
            "the server answered with error 1 (In\\ternal): no\\n[ERROR] \\u{1b}[31mall is lost"
        );
        assert_eq!(error.message, "no\n[ERROR] \u{1b}[31mall is lost");
    }

    #[test]
    fn what_the_server_says_is_cut() {
        let long = "\u{202e}a".repeat(1 << 20);
        let reply = rawdoc! { "ok": 0, "code": 1, "codeName": &*long, "errmsg": &*long };
        let Err(Unsuccessful::Command(error)) = check(&reply) else { panic!("not a command error") };
        let shown = error.to_string();
        assert!(shown.contains("\\u{202e}a") && !shown.contains('\u{202e}'), "{shown}");
        assert!(shown.len() < 3_000, "{}", shown.len());
        assert_eq!(error.message, long);
    }

    #[test]
    fn what_is_no_number_is_no_success() {
        for not_a_number in [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)] {
            for reply in [rawdoc! { "ok": not_a_number }, rawdoc! { "n": 1, "ok": not_a_number }] {
                let Err(Unsuccessful::Wire(error)) = check(&reply) else { panic!("not a wire error: {reply:?}") };
                assert_eq!(error.to_string(), "the reply's ok is NaN, but must be 0 or 1");
            }
        }
        for number in [f64::INFINITY, -1.0, f64::MIN_POSITIVE, 2.0] {
            assert_eq!(check(&rawdoc! { "ok": number }), Ok(()));
        }
    }

    #[test]
    fn a_state_change_is_told_by_its_code_and_without_one_by_its_message() {
        use StateChange::{NotWritablePrimary, Recovering, ShuttingDown};
        let codes = [
            (91, Some(ShuttingDown)),
            (11600, Some(ShuttingDown)),
            (189, Some(Recovering)),
            (11602, Some(Recovering)),
            (13436, Some(Recovering)),
            (10107, Some(NotWritablePrimary)),
            (13435, Some(NotWritablePrimary)),
            (10058, Some(NotWritablePrimary)),
            (50, None),
        ];
        for (code, expected) in codes {
            // With a code, the message says nothing.
            let error = rawdoc! { "code": code, "errmsg": "not master or secondary" };
            let failed = rawdoc! { "ok": 0, "code": code, "errmsg": "not master or secondary" };
            assert_eq!(state_change(&failed), expected, "{code}");
            assert_eq!(state_change(&rawdoc! { "ok": 1, "writeConcernError": error.clone() }), expected, "{code}");
            assert_eq!(state_change(&rawdoc! { "ok": 0, "writeConcernError": error.clone() }), expected, "{code}");
            assert_eq!(state_change(&rawdoc! { "ok": 1, "writeErrors": [error] }), None, "{code}");
        }
        let messages = [
            ("not master or secondary; cannot", Some(Recovering)),
            ("the node is recovering now", Some(Recovering)),
            ("not master and so on", Some(NotWritablePrimary)),
            ("Not master", None),
        ];
        for (message, expected) in messages {
            assert_eq!(state_change(&rawdoc! { "ok": 0, "errmsg": message }), expected, "{message}");
            assert_eq!(state_change(&rawdoc! { "ok": 0, "errmsg": message, "code": 0 }), expected, "{message}");
            assert_eq!(state_change(&rawdoc! { "ok": 0, "errmsg": message, "code": 1 }), None, "{message}");
        }
        assert_eq!(state_change(&rawdoc! { "ok": 1 }), None);
    }

    #[test]
    fn the_servers_time_limit_is_found_in_writes_too_and_by_its_code_alone() {
        let expired = rawdoc! { "code": 50, "errmsg": "operation time limit exceeded" };
        let other = rawdoc! { "code": 11000, "codeName": "MaxTimeMSExpired" };
        let reply = rawdoc! { "ok": 1, "writeErrors": [other.clone(), expired.clone()] };
        let error = max_time_expired(&reply).unwrap();
        assert_eq!((error.code, &*error.message, &error.reply), (50, "operation time limit exceeded", &reply));
        assert!(max_time_expired(&rawdoc! { "ok": 1, "writeConcernError": expired }).is_some());
        assert!(max_time_expired(&rawdoc! { "ok": 1, "writeConcernError": other.clone() }).is_none());
        assert!(max_time_expired(&rawdoc! { "ok": 1, "writeErrors": [other] }).is_none());
        assert!(max_time_expired(&rawdoc! { "ok": 1 }).is_none());
    }

    #[test]
    fn a_failed_command_needs_no_other_field() {
        let Err(Unsuccessful::Command(error)) = check(&rawdoc! { "ok": 0, "code": "wrong" }) else {
            panic!("not a command error")
        };
        assert_eq!((error.code, &*error.code_name, &*error.message), (0, "", ""));
    }

    #[test]
    fn a_reply_that_does_not_say_whether_it_succeeded_is_refused() {
        for (reply, value) in [(rawdoc! {}, "missing"), (rawdoc! { "ok": "yes" }, "String")] {
            let Err(Unsuccessful::Wire(error)) = check(&reply) else { panic!("not a wire error") };
            assert_eq!(error.to_string(), format!("the reply's ok is {value}, but must be 0 or 1"));
        }
    }
}
