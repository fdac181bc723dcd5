//! What a command's reply says about its success.

use std::error::Error as StdError;
use std::fmt;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::WireError;

/// A server executed a command, or refused to, and reports that it failed: a reply with `ok: 0`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CommandError {
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

impl CommandError {
    /// Whether the server gave the error this label.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|given| given == label)
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

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, code_name, message, .. } = self;
        match code_name.as_str() {
            "" => write!(f, "the server answered with error {code}: {message}"),
            name => write!(f, "the server answered with error {code} ({name}): {message}"),
        }
    }
}

impl StdError for CommandError {}

/// Why a reply is not that of a successful command.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsuccessful {
    /// The command failed.
    Command(Box<CommandError>),
    /// The reply does not say whether the command succeeded.
    Wire(WireError),
}

/// Tells a successful command's reply from a failed one's.
///
/// # Errors
///
/// [`Unsuccessful::Command`] if `ok` is false, [`Unsuccessful::Wire`] if it is missing or no number.
pub fn check(reply: &RawDocument) -> Result<(), Unsuccessful> {
    let refuse = |value| Err(Unsuccessful::Wire(WireError::ReplyField { field: "ok", value, allowed: "0 or 1" }));
    let succeeded = match reply.get("ok") {
        Ok(Some(RawBsonRef::Double(ok))) => ok != 0.0,
        Ok(Some(RawBsonRef::Int32(ok))) => ok != 0,
        Ok(Some(RawBsonRef::Int64(ok))) => ok != 0,
        Ok(Some(RawBsonRef::Boolean(ok))) => ok,
        Ok(Some(other)) => return refuse(format!("{:?}", other.element_type())),
        Ok(None) => return refuse("missing".into()),
        Err(error) => return refuse(error.to_string()),
    };
    if succeeded { Ok(()) } else { Err(Unsuccessful::Command(Box::new(CommandError::read(reply)))) }
}

/// The whole number in a field, whichever numeric type the server chose for it; `None` if the field is missing.
pub(crate) fn whole_number(reply: &RawDocument, field: &'static str) -> Result<Option<i64>, WireError> {
    let refuse = |value| Err(WireError::ReplyField { field, value, allowed: "a whole number" });
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
