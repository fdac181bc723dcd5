//! The environment variables from the logging specification ("Configurable Minimum Log Severity", "Configurable Log
//! Destination").

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};

use tracing::level_filters::LevelFilter;

/// The components, each with its target and its variable.
const COMPONENTS: [(&str, &str); 4] = [
    ("wharf::command", "MONGODB_LOG_COMMAND"),
    ("wharf::topology", "MONGODB_LOG_TOPOLOGY"),
    ("wharf::serverSelection", "MONGODB_LOG_SERVER_SELECTION"),
    ("wharf::connection", "MONGODB_LOG_CONNECTION"),
];

/// The variable for all components whose own variable is not set to a valid value.
const ALL: &str = "MONGODB_LOG_ALL";

/// Returns the level of each target according to the logging specification's environment variables.
///
/// The variables are `MONGODB_LOG_COMMAND`, `MONGODB_LOG_TOPOLOGY`, `MONGODB_LOG_SERVER_SELECTION` and
/// `MONGODB_LOG_CONNECTION`. `MONGODB_LOG_ALL` applies to every component whose own variable is not set. The values of
/// all these variables are case-insensitive: `off`, `emergency`, `alert`, `critical`, `error`, `warn`, `notice`,
/// `info`, `debug` and `trace`. A variable with any other value is treated as if it were not set. A target for which no
/// variable is set is off.
///
/// `tracing` has no levels above `ERROR`, so `emergency`, `alert` and `critical` stand for `ERROR`, and `notice` for
/// `INFO`.
///
/// wharf itself does not read levels from the environment: the returned levels are for the filter of the application's
/// subscriber, for example `Targets` from `tracing-subscriber`, which accepts them directly.
///
/// ```
/// use wharf::telemetry::log_levels;
///
/// let directives: Vec<_> = log_levels().map(|(target, level)| format!("{target}={level}")).into();
/// assert_eq!(directives[3], "wharf::connection=off");
/// ```
#[must_use]
pub fn log_levels() -> [(&'static str, LevelFilter); 4] {
    levels_of(|variable| env::var(variable).ok())
}

/// Opens the destination named by the environment variable `MONGODB_LOG_PATH`: `stdout`, `stderr`, or a file, to which
/// log messages are appended. If the variable is not set, or if the file cannot be opened, the destination is standard
/// error.
///
/// wharf itself does not write there: the destination is for the application's subscriber, for example as the writer
/// for `tracing-subscriber`.
#[must_use]
pub fn log_output() -> Box<dyn Write + Send> {
    output_of(env::var_os("MONGODB_LOG_PATH"))
}

fn levels_of(value: impl Fn(&'static str) -> Option<String>) -> [(&'static str, LevelFilter); 4] {
    let level = |variable| value(variable).and_then(|value| level_of(&value));
    COMPONENTS.map(|(target, variable)| (target, level(variable).or_else(|| level(ALL)).unwrap_or(LevelFilter::OFF)))
}

/// Returns the level for a severity. A severity that `tracing` lacks is mapped to the nearest less severe level.
fn level_of(severity: &str) -> Option<LevelFilter> {
    Some(match &*severity.to_ascii_lowercase() {
        "off" => LevelFilter::OFF,
        "emergency" | "alert" | "critical" | "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "notice" | "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

fn output_of(path: Option<OsString>) -> Box<dyn Write + Send> {
    let Some(path) = path else { return Box::new(io::stderr()) };
    match path.to_str() {
        Some(name) if name.eq_ignore_ascii_case("stdout") => Box::new(io::stdout()),
        Some(name) if name.eq_ignore_ascii_case("stderr") => Box::new(io::stderr()),
        _ => match OpenOptions::new().append(true).create(true).open(path) {
            Ok(file) => Box::new(file),
            Err(_) => Box::new(io::stderr()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the levels of the command, topology, serverSelection and connection components.
    fn levels(variables: &[(&str, &str)]) -> [LevelFilter; 4] {
        let value = |wanted| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned());
        levels_of(value).map(|(_, level)| level)
    }

    #[test]
    fn nothing_is_logged_by_default() {
        assert_eq!(levels(&[]), [LevelFilter::OFF; 4]);
    }

    #[test]
    fn each_component_has_a_variable_which_precedes_the_one_for_all() {
        let (off, debug, trace) = (LevelFilter::OFF, LevelFilter::DEBUG, LevelFilter::TRACE);
        assert_eq!(levels(&[("MONGODB_LOG_ALL", "debug")]), [debug; 4]);
        let all = ("MONGODB_LOG_ALL", "trace");
        assert_eq!(levels(&[all, ("MONGODB_LOG_COMMAND", "debug")]), [debug, trace, trace, trace]);
        assert_eq!(levels(&[all, ("MONGODB_LOG_TOPOLOGY", "debug")]), [trace, debug, trace, trace]);
        assert_eq!(levels(&[all, ("MONGODB_LOG_SERVER_SELECTION", "off")]), [trace, trace, off, trace]);
        assert_eq!(levels(&[("MONGODB_LOG_CONNECTION", "debug")]), [off, off, off, debug]);
    }

    #[test]
    fn severities_have_levels_in_any_case_and_others_count_as_not_set() {
        for (severity, level) in [
            ("off", LevelFilter::OFF),
            ("emergency", LevelFilter::ERROR),
            ("ALERT", LevelFilter::ERROR),
            ("critical", LevelFilter::ERROR),
            ("error", LevelFilter::ERROR),
            ("Warn", LevelFilter::WARN),
            ("notice", LevelFilter::INFO),
            ("info", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ] {
            assert_eq!(level_of(severity), Some(level), "{severity}");
        }
        for invalid in ["", "warning", "3", " debug"] {
            assert_eq!(level_of(invalid), None, "{invalid}");
            let variables = [("MONGODB_LOG_ALL", "info"), ("MONGODB_LOG_COMMAND", invalid)];
            assert_eq!(levels(&variables), [LevelFilter::INFO; 4], "{invalid}");
        }
    }

    #[test]
    fn file_is_appended_to() {
        let folder = wharf_testbed::folder::Folder::create("log-output").unwrap();
        let path = folder.path().join("log");
        for text in ["first ", "second"] {
            output_of(Some(path.clone().into())).write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), "first second");
        // A path that cannot be opened is not an error.
        drop(output_of(Some(folder.path().into())));
        for name in ["stdout", "STDERR"] {
            drop(output_of(Some(name.into())));
            assert!(!std::path::Path::new(name).exists(), "a file {name} was made");
        }
    }
}
