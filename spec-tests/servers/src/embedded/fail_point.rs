//! The `failCommand` fail point, to the extent that driver tests use it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use super::commands::{Command, Course, Effect, Refusal, whole_number};

/// One server's fail point. It is initially off.
#[derive(Debug, Default)]
pub(super) struct FailPoint(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many times the fail point has taken effect since the server started.
    count: i64,
    /// `None` while the fail point is off.
    active: Option<Active>,
}

/// An active fail point.
#[derive(Debug)]
struct Active {
    /// How many more times it takes effect. `None` means no limit.
    left: Option<u64>,
    /// The names of the commands that it affects.
    fail_commands: Vec<String>,
    /// The application whose connections it affects. `None` means all applications.
    app_name: Option<String>,
    close_connection: bool,
    block: Duration,
    /// The error reply to affected commands, if they get one.
    error: Option<RawDocumentBuf>,
}

impl FailPoint {
    /// Returns how the server treats this command from this application, if the fail point affects it.
    pub fn next(&self, command: &str, app_name: Option<&str>) -> Option<Course> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let active = state.active.as_mut()?;
        let is_meant = active.fail_commands.iter().any(|name| name == command)
            && active.app_name.as_deref().is_none_or(|meant| Some(meant) == app_name);
        if !is_meant {
            return None;
        }
        let effect = match &active.error {
            _ if active.close_connection => Effect::Close,
            Some(reply) => Effect::Reply(reply.clone()),
            None => Effect::Execute,
        };
        let course = Course { pause: active.block, effect };
        if let Some(left) = &mut active.left {
            *left -= 1;
            if *left == 0 {
                state.active = None;
            }
        }
        state.count += 1;
        Some(course)
    }

    /// Executes `configureFailPoint`.
    pub fn configure(&self, command: &Command<'_>) -> Result<RawDocumentBuf, Refusal> {
        if command.database != "admin" {
            let message = "configureFailPoint may only be run against the admin database.".to_owned();
            return Err(Refusal { code: 13, code_name: "Unauthorized", message });
        }
        if command.argument.as_str() != Some("failCommand") {
            return Err(Refusal::bad_value("the embedded server has only the fail point failCommand"));
        }
        let active = match read_mode(command)? {
            Mode::Off | Mode::Times(0) => None,
            Mode::AlwaysOn => Some(Active::read(command, None)?),
            Mode::Times(times) => Some(Active::read(command, Some(times))?),
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.active = active;
        Ok(rawdoc! { "count": state.count, "ok": 1.0 })
    }
}

enum Mode {
    Off,
    AlwaysOn,
    Times(u64),
}

fn read_mode(command: &Command<'_>) -> Result<Mode, Refusal> {
    let allowed = || Refusal::bad_value("field 'mode' must be 'off', 'alwaysOn' or { times: n }");
    match command.field("mode")? {
        Some(RawBsonRef::String("off")) => Ok(Mode::Off),
        Some(RawBsonRef::String("alwaysOn")) => Ok(Mode::AlwaysOn),
        Some(RawBsonRef::Document(mode)) => {
            let times = mode.get("times").ok().flatten().and_then(whole_number);
            times.and_then(|times| u64::try_from(times).ok()).map(Mode::Times).ok_or_else(allowed)
        }
        _ => Err(allowed()),
    }
}

impl Active {
    fn read(command: &Command<'_>, left: Option<u64>) -> Result<Self, Refusal> {
        let data = match command.field("data")? {
            Some(RawBsonRef::Document(data)) => data,
            _ => return Err(Refusal::type_mismatch("data", "a document")),
        };
        let mut active = Self {
            left,
            fail_commands: Vec::new(),
            app_name: None,
            close_connection: false,
            block: Duration::ZERO,
            error: None,
        };
        let mut block_connection = false;
        let mut error_code = None;
        let mut error_labels = None;
        for element in data {
            let (field, value) = element.map_err(|error| Refusal::bad_value(error.to_string()))?;
            let field = field.as_str();
            match (field, value) {
                ("failCommands", RawBsonRef::Array(_)) => active.fail_commands = texts(field, value)?,
                ("appName", RawBsonRef::String(name)) => active.app_name = Some(name.to_owned()),
                ("closeConnection", RawBsonRef::Boolean(close)) => active.close_connection = close,
                ("blockConnection", RawBsonRef::Boolean(block)) => block_connection = block,
                ("blockTimeMS", _) => active.block = Duration::from_millis(number(field, value)?),
                ("errorCode", _) => error_code = Some(number(field, value)?),
                ("errorLabels", RawBsonRef::Array(_)) => error_labels = Some(texts(field, value)?),
                _ => return Err(Refusal::bad_value(format!("the embedded server does not support data.{field}"))),
            }
        }
        if !block_connection {
            active.block = Duration::ZERO;
        }
        active.error = error_code.map(|code| error_reply(code, error_labels.as_deref())).transpose()?;
        Ok(active)
    }
}

fn number(field: &str, value: RawBsonRef<'_>) -> Result<u64, Refusal> {
    let number = whole_number(value).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Refusal::type_mismatch(field, "a non-negative whole number"))
}

fn texts(field: &str, value: RawBsonRef<'_>) -> Result<Vec<String>, Refusal> {
    let refuse = || Refusal::type_mismatch(field, "an array of strings");
    let texts = value.as_array().ok_or_else(refuse)?.into_iter();
    texts.map(|text| text.ok().and_then(RawBsonRef::as_str).map(str::to_owned).ok_or_else(refuse)).collect()
}

fn error_reply(code: u64, labels: Option<&[String]>) -> Result<RawDocumentBuf, Refusal> {
    let code = i32::try_from(code).map_err(|_| Refusal::type_mismatch("errorCode", "a 32-bit integer"))?;
    let mut reply = rawdoc! {
        "ok": 0.0,
        "errmsg": "Failing command via 'failCommand' failpoint",
        "code": code,
        "codeName": code_name(code),
    };
    if let Some(labels) = labels {
        let labels: RawArrayBuf = labels.iter().map(String::as_str).collect();
        reply.append(bson::raw::cstr!("errorLabels"), labels);
    }
    Ok(reply)
}

/// Returns the server's name for an error code that driver tests use.
fn code_name(code: i32) -> String {
    let name = match code {
        1 => "InternalError",
        6 => "HostUnreachable",
        7 => "HostNotFound",
        18 => "AuthenticationFailed",
        89 => "NetworkTimeout",
        91 => "ShutdownInProgress",
        189 => "PrimarySteppedDown",
        462 => "IngressRequestRateLimitExceeded",
        10107 => "NotWritablePrimary",
        11600 => "InterruptedAtShutdown",
        11602 => "InterruptedDueToReplStateChange",
        13435 => "NotPrimaryNoSecondaryOk",
        13436 => "NotPrimaryOrSecondary",
        other => return format!("Location{other}"),
    };
    name.to_owned()
}
