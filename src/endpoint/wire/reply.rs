//! Success or failure of a command, according to its reply.

use std::error::Error as StdError;
use std::fmt;

use bson::raw::{RawArray, RawElement};
use bson::spec::ElementType;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::{WireError, element};
use crate::pool::error::Labels;
use crate::text::printable::Printable;

/// A reply with `ok: 0`: the server refused the command, or the command failed while it was executed.
///
/// ```
/// use wharf::OperationError;
///
/// const DUPLICATE_KEY: i32 = 11_000;
///
/// fn is_duplicate(error: &OperationError) -> bool {
///     let refused = error.command_error().and_then(|error| error.server_error());
///     refused.is_some_and(|error| error.code == DUPLICATE_KEY)
/// }
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerError {
    /// The server's error code; 0 if the reply has none.
    pub code: i32,
    /// The server's error name; empty if the reply has none.
    pub code_name: String,
    /// The server's human-readable message (`errmsg`).
    pub message: String,
    /// The error labels that the specifications define.
    pub labels: Labels,
    /// The reply's `writeConcernError`, if any.
    pub write_concern_error: Option<Box<WriteConcernError>>,
    /// The whole reply, including `topologyVersion` and all other fields.
    pub reply: RawDocumentBuf,
}

crate::pool::error::debug_as_sentence!(ServerError);

impl ServerError {
    /// Returns whether the server gave the error this label, even if no specification defines the label.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.has(label) || label_names(&self.reply).any(|given| given == label)
    }

    /// Returns the change in the server's state that the error reports, if any. See [`StateChange::of_reply`].
    #[must_use]
    pub fn state_change(&self) -> Option<StateChange> {
        let of_concern = || self.write_concern_error.as_ref()?.state_change();
        StateChange::of(self.code, &self.message).or_else(of_concern)
    }

    /// Returns whether the retryable writes specification lists the code as retryable. The operation may then be
    /// retried if no part of it was executed, or if it may be executed twice.
    #[must_use]
    pub fn has_retryable_code(&self) -> bool {
        is_retryable_code(self.code)
    }

    /// Reads an error's fields. A field of the wrong type is treated as missing, because the failure itself matters
    /// more than its description.
    pub(crate) fn read(reply: &RawDocument) -> Self {
        let code = whole_number(reply, "code").ok().flatten();
        Self {
            code: code.and_then(|code| i32::try_from(code).ok()).unwrap_or(0),
            code_name: text(reply, "codeName").unwrap_or_default(),
            message: text(reply, "errmsg").unwrap_or_default(),
            labels: labels(reply),
            write_concern_error: WriteConcernError::of_reply(reply).map(Box::new),
            reply: reply.to_owned(),
        }
    }
}

/// The server's error about a write concern that was not met (CRUD, "WriteConcernError").
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("error {code}: {message}", message = Printable(message))]
#[non_exhaustive]
pub struct WriteConcernError {
    /// The server's error code; 0 if there is none.
    pub code: i32,
    /// The server's error name; empty if there is none.
    pub code_name: String,
    /// The server's human-readable message (`errmsg`).
    pub message: String,
    /// The whole reply: the result of the command, and `writeConcernError` with its `errInfo`.
    pub reply: RawDocumentBuf,
}

crate::pool::error::debug_as_sentence!(WriteConcernError);

impl WriteConcernError {
    /// Reads the `writeConcernError` from a reply, if it has one.
    pub(crate) fn of_reply(reply: &RawDocument) -> Option<Self> {
        reply.get_document("writeConcernError").is_ok().then(|| Self::of(reply.to_owned()))
    }

    fn state_change(&self) -> Option<StateChange> {
        StateChange::of(self.code, &self.message)
    }

    /// Reads the `writeConcernError` from a reply that has one.
    pub(crate) fn of(reply: RawDocumentBuf) -> Self {
        let error = reply.get_document("writeConcernError").ok();
        let read = |field| error.and_then(|error| text(error, field));
        Self {
            code: error.map_or(0, code),
            code_name: read("codeName").unwrap_or_default(),
            message: read("errmsg").unwrap_or_else(|| "no message".to_owned()),
            reply,
        }
    }
}

/// Returns whether an error with this code is retryable ("Determining Retryable Write Errors").
pub(crate) fn is_retryable_code(code: i32) -> bool {
    matches!(code, 6 | 7 | 89 | 91 | 189 | 262 | 9001 | 10107 | 11600 | 11602 | 13435 | 13436)
}

/// A change in a server's state that an error reports (SDAM, "not writable primary and node is recovering").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateChange {
    /// "not writable primary": the server is available, but is not the primary.
    NotWritablePrimary,
    /// "node is recovering": for now, the server does not accept reads or writes.
    Recovering,
    /// "node is shutting down": like `Recovering`, but the server's connections are also about to close.
    ShuttingDown,
}

impl StateChange {
    /// Returns the change in the server's state that a reply reports, in its error or in its `writeConcernError`. The
    /// reply may report success. Errors in `writeErrors` do not concern the server's state.
    #[must_use]
    pub fn of_reply(reply: &RawDocument) -> Option<Self> {
        match check(reply) {
            Err(Unsuccessful::Command(error)) => error.state_change(),
            _ => WriteConcernError::of_reply(reply)?.state_change(),
        }
    }

    /// Returns the state change that a code indicates. The message is considered only if the code is 0, which means
    /// that there is no code.
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

/// Returns the code of an error, or 0 if it has none.
pub(crate) fn code(error: &RawDocument) -> i32 {
    whole_number(error, "code").ok().flatten().and_then(|code| i32::try_from(code).ok()).unwrap_or(0)
}

/// Returns whether a part of the command exceeded the server's time limit, although the reply reports success. The
/// reply says so in its `writeErrors` or its `writeConcernError` (CSOT, "Error Transformations").
#[must_use]
pub fn has_max_time_expired(reply: &RawDocument) -> bool {
    let expired = |error: &RawDocument| code(error) == MAX_TIME_MS_EXPIRED;
    let mut of_writes = reply.get_array("writeErrors").ok().into_iter().flatten().flatten();
    reply.get_document("writeConcernError").is_ok_and(expired)
        || of_writes.any(|error| error.as_document().is_some_and(expired))
}

/// Returns the error labels that the specifications define.
pub(crate) fn labels(reply: &RawDocument) -> Labels {
    label_names(reply).fold(Labels::NONE, |labels, name| labels.with(Labels::of([&*name])))
}

/// Returns the error labels that no specification defines.
pub(crate) fn other_labels(reply: &RawDocument) -> impl Iterator<Item = String> {
    label_names(reply).filter(|name| Labels::of([&**name]) == Labels::NONE)
}

/// Returns the names of all of an error's labels, in the server's order.
fn label_names(reply: &RawDocument) -> impl Iterator<Item = String> {
    reply.get_array("errorLabels").ok().into_iter().flat_map(texts)
}

/// Returns the value of a field, if it is text. Servers may truncate their messages in the middle of a character, so
/// bytes that are not UTF-8 become U+FFFD.
pub(crate) fn text(document: &RawDocument, field: &str) -> Option<String> {
    let mut elements = document.iter_elements().map_while(Result::ok);
    lossy(&elements.find(|element| element.key() == field)?)
}

/// Returns the strings in an array, reading each as [`text`] does.
pub(crate) fn texts(array: &RawArray) -> impl Iterator<Item = String> {
    array.iter_elements().map_while(Result::ok).filter_map(|element| lossy(&element))
}

/// Returns an element's value if it is text, reading it as [`text`] does.
pub(crate) fn lossy(element: &RawElement<'_>) -> Option<String> {
    match element.element_type() {
        ElementType::String => match element.value_utf8_lossy() {
            Ok(RawBson::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The code for `MaxTimeMSExpired`.
pub const MAX_TIME_MS_EXPIRED: i32 = 50;

/// The code for `DuplicateKey`.
pub const DUPLICATE_KEY: i32 = 11_000;

/// The code for `ReauthenticationRequired`.
pub const REAUTHENTICATION_REQUIRED: i32 = 391;

/// Displays the server's message, with line breaks and other control characters escaped. The message is truncated after
/// 1,024 bytes. The server must not be able to write its own lines into a log, or to fill the log.
/// [`ServerError::message`] is the original text.
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

/// Why a reply does not report success.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsuccessful {
    /// The command failed.
    Command(Box<ServerError>),
    /// The reply does not say whether the command succeeded.
    Wire(WireError),
}

/// Checks whether a reply reports success.
///
/// # Errors
///
/// Returns [`Unsuccessful::Command`] if `ok` is false, and [`Unsuccessful::Wire`] if it is missing or not a number.
#[inline]
pub fn check(reply: &RawDocument) -> Result<(), Unsuccessful> {
    if begins_with_success(reply) { Ok(()) } else { check_further(reply) }
}

const DOUBLE: u8 = ElementType::Double as u8;

/// The value of `ok` in every successful reply from a server.
const SUCCESS: [u8; 8] = 1.0_f64.to_le_bytes();

/// Returns whether the reply begins with a successful `ok`, as a reply that returns nothing else does.
#[inline]
pub(crate) fn begins_with_success(reply: &RawDocument) -> bool {
    // The first element comes right after the document's length.
    match reply.as_bytes().get(4..16) {
        Some([DOUBLE, b'o', b'k', 0, value @ ..]) => value == SUCCESS,
        _ => false,
    }
}

/// Returns whether `ok`, as a double, reports success. NaN does not.
#[inline]
fn is_true(value: &[u8]) -> bool {
    value.first_chunk().is_some_and(|value| f64::from_le_bytes(*value).abs() > 0.0)
}

/// Like [`check`], but for a reply that does not begin with success.
fn check_further(reply: &RawDocument) -> Result<(), Unsuccessful> {
    match element::find(reply, b"ok\0") {
        // Servers write `ok` as a double.
        Some((DOUBLE, value)) if is_true(value) => Ok(()),
        _ => check_strictly(reply),
    }
}

/// Checks any other reply, and reports invalid values.
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

/// Returns whether a document has a field, at a fraction of the cost of [`RawDocument::get`]. Anything after invalid
/// bytes is ignored.
pub(crate) fn has_field(document: &RawDocument, field: &str) -> bool {
    // The number of bytes for the document's length and end, the element's type, and the end of its name.
    if document.as_bytes().len() < 4 + 1 + 2 + field.len() {
        return false;
    }
    match element::has(document, field.as_bytes()) {
        Some(has_field) => has_field,
        None => matches!(document.get(field), Ok(Some(_))),
    }
}

/// Returns the whole number in a field, which may have any numeric type. Returns `None` if the field is missing or
/// null.
pub(crate) fn whole_number(reply: &RawDocument, field: &'static str) -> Result<Option<i64>, WireError> {
    let refuse = |value: String| Err(WireError::ReplyField { field, value: value.into(), allowed: "a whole number" });
    match reply.get(field) {
        Ok(None | Some(RawBsonRef::Null)) => Ok(None),
        Ok(Some(RawBsonRef::Int32(number))) => Ok(Some(number.into())),
        Ok(Some(RawBsonRef::Int64(number))) => Ok(Some(number)),
        // A double represents every whole number below 2^53 exactly.
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
    fn field_is_found_also_behind_a_rare_type() {
        let rare = bson::Regex { pattern: bson::raw::cstr!("a").into(), options: bson::raw::cstr!("").into() };
        for document in [rawdoc! { "a": 1, "b": 2 }, rawdoc! { "a": rare, "b": 2 }] {
            assert!(has_field(&document, "a") && has_field(&document, "b"), "{document:?}");
            assert!(!has_field(&document, "") && !has_field(&document, "bb") && !has_field(&document, "c"));
        }
    }

    #[test]
    fn failed_command_keeps_the_whole_error_of_the_server() {
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
    fn message_of_the_server_is_escaped_to_one_line() {
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
    fn message_of_the_server_is_cut() {
        let long = "\u{202e}a".repeat(1 << 20);
        let reply = rawdoc! { "ok": 0, "code": 1, "codeName": &*long, "errmsg": &*long };
        let Err(Unsuccessful::Command(error)) = check(&reply) else { panic!("not a command error") };
        let shown = error.to_string();
        assert!(shown.contains("\\u{202e}a") && !shown.contains('\u{202e}'), "{shown}");
        assert!(shown.len() < 3_000, "{}", shown.len());
        assert_eq!(error.message, long);
    }

    #[test]
    fn nan_is_not_success() {
        for not_a_number in [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)] {
            for reply in [rawdoc! { "ok": not_a_number }, rawdoc! { "n": 1, "ok": not_a_number }] {
                let Err(Unsuccessful::Wire(error)) = check(&reply) else { panic!("not a wire error: {reply:?}") };
                assert_eq!(error.to_string(), "the reply's ok must be 0 or 1, got NaN");
            }
        }
        for number in [f64::INFINITY, -1.0, f64::MIN_POSITIVE, 2.0] {
            assert_eq!(check(&rawdoc! { "ok": number }), Ok(()));
        }
    }

    #[test]
    fn state_change_is_recognised_by_code_or_else_by_message() {
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
            // If there is a code, the message is ignored.
            let error = rawdoc! { "code": code, "errmsg": "not master or secondary" };
            let failed = rawdoc! { "ok": 0, "code": code, "errmsg": "not master or secondary" };
            assert_eq!(StateChange::of_reply(&failed), expected, "{code}");
            assert_eq!(
                StateChange::of_reply(&rawdoc! { "ok": 1, "writeConcernError": error.clone() }),
                expected,
                "{code}"
            );
            assert_eq!(
                StateChange::of_reply(&rawdoc! { "ok": 0, "writeConcernError": error.clone() }),
                expected,
                "{code}"
            );
            assert_eq!(StateChange::of_reply(&rawdoc! { "ok": 1, "writeErrors": [error] }), None, "{code}");
        }
        let messages = [
            ("not master or secondary; cannot", Some(Recovering)),
            ("the node is recovering now", Some(Recovering)),
            ("not master and so on", Some(NotWritablePrimary)),
            ("Not master", None),
        ];
        for (message, expected) in messages {
            assert_eq!(StateChange::of_reply(&rawdoc! { "ok": 0, "errmsg": message }), expected, "{message}");
            assert_eq!(
                StateChange::of_reply(&rawdoc! { "ok": 0, "errmsg": message, "code": 0 }),
                expected,
                "{message}"
            );
            assert_eq!(StateChange::of_reply(&rawdoc! { "ok": 0, "errmsg": message, "code": 1 }), None, "{message}");
        }
        assert_eq!(StateChange::of_reply(&rawdoc! { "ok": 1 }), None);
    }

    /// Replaces the placeholder `~` with the first bytes of a three-byte character.
    fn cut_inside_a_character(document: &RawDocument) -> RawDocumentBuf {
        let bytes = document.as_bytes().iter().map(|&byte| if byte == b'~' { 0xe2 } else { byte });
        RawDocumentBuf::from_bytes(bytes.collect()).unwrap()
    }

    #[test]
    fn text_that_the_server_cut_inside_a_character_is_kept() {
        let reply = cut_inside_a_character(&rawdoc! {
            "ok": 0, "errmsg": "dup key: ~", "code": 11_000, "codeName": "Dup~", "errorLabels": ["a~", "RetryableError", 1],
            "writeConcernError": { "code": 64, "errmsg": "waiting~" },
        });
        let Err(Unsuccessful::Command(error)) = check(&reply) else { panic!("not a command error") };
        assert_eq!((&*error.message, &*error.code_name, error.code), ("dup key: \u{fffd}", "Dup\u{fffd}", 11_000));
        assert_eq!(error.labels, Labels::RETRYABLE);
        assert!(error.has_label("a\u{fffd}") && error.has_label("RetryableError") && !error.has_label("a"));
        let concern = error.write_concern_error.as_deref().unwrap();
        assert_eq!((concern.code, &*concern.message), (64, "waiting\u{fffd}"));
        assert_eq!(text(&reply, "code"), None);
        assert_eq!(text(&reply, "message"), None);
    }

    #[test]
    fn time_limit_of_the_server_is_found_by_code_in_writes_too() {
        let expired = rawdoc! { "code": 50, "errmsg": "operation time limit exceeded" };
        let other = rawdoc! { "code": 11000, "codeName": "MaxTimeMSExpired" };
        let reply = rawdoc! { "ok": 1, "writeErrors": [other.clone(), expired.clone()] };
        assert!(has_max_time_expired(&reply));
        assert!(has_max_time_expired(&rawdoc! { "ok": 1, "writeConcernError": expired }));
        assert!(!has_max_time_expired(&rawdoc! { "ok": 1, "writeConcernError": other.clone() }));
        assert!(!has_max_time_expired(&rawdoc! { "ok": 1, "writeErrors": [other] }));
        assert!(!has_max_time_expired(&rawdoc! { "ok": 1 }));
    }

    #[test]
    fn failed_command_needs_no_other_field() {
        let Err(Unsuccessful::Command(error)) = check(&rawdoc! { "ok": 0, "code": "wrong" }) else {
            panic!("not a command error")
        };
        assert_eq!((error.code, &*error.code_name, &*error.message), (0, "", ""));
    }

    #[test]
    fn reply_without_a_valid_ok_is_refused() {
        for (reply, value) in [(rawdoc! {}, "is missing"), (rawdoc! { "ok": "yes" }, "must be 0 or 1, got String")] {
            let Err(Unsuccessful::Wire(error)) = check(&reply) else { panic!("not a wire error") };
            assert_eq!(error.to_string(), format!("the reply's ok {value}"));
        }
    }
}
