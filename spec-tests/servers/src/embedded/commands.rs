//! Reads commands, decides how to treat each of them, and replies to the simple ones.

use std::time::Duration;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::connection::{Client, MAX_BSON_OBJECT_SIZE};
use super::{Shared, hello};

/// A command, borrowed from its message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command<'a> {
    /// The command's name: the name of the first element.
    pub name: &'a str,
    /// The value of the first element.
    pub argument: RawBsonRef<'a>,
    /// The database that the command runs on (`$db`).
    pub database: &'a str,
    /// All the elements.
    pub body: &'a RawDocument,
}

impl<'a> Command<'a> {
    /// Reads the command in `body`; returns `None` if it has no first element or no database.
    pub fn read(body: &'a RawDocument) -> Option<Self> {
        let (name, argument) = body.into_iter().next()?.ok()?;
        let database = body.get("$db").ok()??.as_str()?;
        Some(Self { name: name.as_str(), argument, database, body })
    }

    /// Returns whether this is `hello`, or the legacy hello in either spelling.
    pub fn is_hello(&self) -> bool {
        matches!(self.name, "hello" | "isMaster" | "ismaster")
    }

    /// Returns the value of a field, or `None` if the field is missing.
    pub fn field(&self, field: &str) -> Result<Option<RawBsonRef<'a>>, Refusal> {
        self.body.get(field).map_err(|error| Refusal::bad_value(error.to_string()))
    }

    /// Returns the non-negative whole number in a field, or `None` if the field is missing.
    pub fn count(&self, field: &str) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.field(field)? else { return Ok(None) };
        let number = whole_number(value).ok_or_else(|| Refusal::type_mismatch(field, "a whole number"))?;
        let negative = || Refusal::bad_value(format!("field '{field}' must not be negative, got {number}"));
        Ok(Some(u64::try_from(number).map_err(|_| negative())?))
    }
}

/// Returns a value of any numeric type as a whole number, or `None` if it is not whole.
pub(super) fn whole_number(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) if number.fract() == 0.0 && number.abs() < 1e15 => Some(number as i64),
        _ => None,
    }
}

/// The failure of a command: `ok: 0` with this code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: i32,
    pub code_name: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self { code: 2, code_name: "BadValue", message: message.into() }
    }

    pub fn type_mismatch(field: &str, expected: &str) -> Self {
        Self { code: 14, code_name: "TypeMismatch", message: format!("field '{field}' must be {expected}") }
    }

    fn to_reply(&self) -> RawDocumentBuf {
        rawdoc! { "ok": 0.0, "errmsg": self.message.as_str(), "code": self.code, "codeName": self.code_name }
    }
}

/// How the server treats a command.
#[derive(Debug)]
pub(super) struct Course {
    /// How long to wait first.
    pub pause: Duration,
    /// What to do next.
    pub effect: Effect,
}

/// How the server treats a command after the pause.
#[derive(Debug)]
pub(super) enum Effect {
    /// Execute it.
    Execute,
    /// Send this reply without executing it.
    Reply(RawDocumentBuf),
    /// Close the connection.
    Close,
    /// Send nothing, ever.
    Hang,
}

/// Counts a command, and determines from the faults and the fail point how to treat it.
pub(super) fn receive(command: &Command<'_>, client: &mut Client, shared: &Shared) -> Course {
    let handshake = if command.is_hello() { hello::greet(command, client, shared) } else { None };
    shared.counters.send_modify(|counters| {
        counters.count_command(command.name);
        if handshake.is_some() {
            counters.last_handshake = handshake;
        }
    });
    if command.is_hello() && shared.faults.current().hang_at_hello {
        return Course { pause: Duration::ZERO, effect: Effect::Hang };
    }
    // The fail point does not apply to the command that configures it. If it did, it could not be turned off.
    let failure = match command.name {
        "configureFailPoint" => None,
        name => shared.fail_point.next(name, client.app_name.as_deref()),
    };
    failure.unwrap_or(Course { pause: Duration::ZERO, effect: Effect::Execute })
}

/// Executes a command, and returns a reply that reports success or failure.
pub(super) fn execute(command: &Command<'_>, client: &Client, shared: &Shared) -> RawDocumentBuf {
    let reply = match command.name {
        "hello" | "isMaster" | "ismaster" => Ok(hello::reply(command, client, shared)),
        "ping" | "endSessions" => Ok(rawdoc! { "ok": 1.0 }),
        "buildInfo" | "buildinfo" => Ok(build_info()),
        "find" => shared.collection.find(command),
        "getMore" => shared.collection.get_more(command),
        "killCursors" => shared.collection.kill_cursors(command),
        "configureFailPoint" => shared.fail_point.configure(command),
        name => Err(Refusal { code: 59, code_name: "CommandNotFound", message: format!("no such command: '{name}'") }),
    };
    reply.unwrap_or_else(|refusal| refusal.to_reply())
}

fn build_info() -> RawDocumentBuf {
    rawdoc! {
        "version": "7.0.0",
        "versionArray": [7, 0, 0, 0],
        "gitVersion": "embedded",
        "maxBsonObjectSize": MAX_BSON_OBJECT_SIZE,
        "ok": 1.0,
    }
}
