//! The error for an invalid option.

use std::fmt;

use thiserror::Error;

/// The error for an option that has an invalid value, is missing, or contradicts another option.
///
/// The error prints as a sentence that names the option, the given value and the allowed values:
///
/// ```
/// use wharf::Options;
///
/// let error = Options::parse("mongodb://localhost/?maxPoolSize=2000000").unwrap_err();
/// assert_eq!(error.option, "maxPoolSize");
/// assert_eq!(error.to_string(), "maxPoolSize must be at most 1048575, got 2000000");
///
/// let error = Options::parse("mongodb://localhost/?w=0&journal=true").unwrap_err();
/// assert_eq!(error.to_string(), "journal cannot be true with w=0");
/// ```
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub struct InvalidOption {
    /// The option's name in connection strings.
    pub option: &'static str,
    /// The rest of the sentence: what the option must be, or what is wrong with it.
    pub problem: String,
    /// The given value, if it helps to describe the problem. It is never a secret.
    pub value: Option<String>,
}

impl InvalidOption {
    /// Creates the error for an invalid value. `must` completes the phrase "must be".
    pub(crate) fn new(option: &'static str, must: impl fmt::Display, value: impl Into<String>) -> Self {
        Self { option, problem: format!("must be {must}"), value: Some(value.into()) }
    }

    /// Creates the error for any other problem. `problem` completes the sentence that begins with the option's name.
    pub(crate) fn because(option: &'static str, problem: impl Into<String>) -> Self {
        Self { option, problem: problem.into(), value: None }
    }

    /// Creates the error for an unknown option. `shown` is the option's name, or a placeholder for it.
    pub(crate) fn unknown(shown: impl fmt::Display, nearest: Option<&str>) -> Self {
        let advice = nearest.map(|name| format!("; the nearest name is {name}")).unwrap_or_default();
        Self::because("option", format!("{shown} is not supported{advice}"))
    }

    /// Creates the error for an option that cannot be combined with `other`.
    pub(crate) fn conflict(option: &'static str, other: impl fmt::Display) -> Self {
        Self::because(option, format!("cannot be combined with {other}"))
    }

    /// Creates the error for a missing option. `reason` completes the phrase "is required".
    pub(crate) fn missing(option: &'static str, reason: impl fmt::Display) -> Self {
        Self::because(option, format!("is required {reason}"))
    }
}

impl fmt::Display for InvalidOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.option, self.problem)?;
        match &self.value {
            Some(value) => write!(f, ", got {value}"),
            None => Ok(()),
        }
    }
}

crate::pool::error::debug_as_sentence!(InvalidOption);
