//! What a connection string says in vain.

use std::fmt;

/// Something that a connection string, or a TXT record, says and that is not done as it says.
///
/// Warnings never repeat a password; where a value is not shown, it is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UriWarning {
    /// An option that there is not. It was ignored.
    UnknownOption {
        /// The option, unless it may be part of a password.
        option: Option<String>,
    },
    /// A value that the option does not allow. The option was ignored.
    InvalidValue {
        /// The option.
        option: &'static str,
        /// The value, unless it may hold a secret.
        value: Option<String>,
        /// What would have been accepted.
        allowed: String,
    },
    /// An option that was given more than once. The last one counts.
    RepeatedOption {
        /// The option.
        option: &'static str,
    },
    /// A server that was listed more than once. It is one server.
    RepeatedHost {
        /// The server's address, unless it may be part of a password.
        host: Option<String>,
    },
    /// An option that goes by another name now.
    DeprecatedOption {
        /// The old name.
        option: &'static str,
        /// The new name.
        replacement: &'static str,
        /// Whether it was ignored because the new name was given, too.
        ignored: bool,
    },
    /// A yes or no in other words than `true` and `false`.
    DeprecatedBoolean {
        /// The option.
        option: &'static str,
        /// The word.
        value: String,
        /// What it was taken for.
        meaning: bool,
    },
    /// A mechanism property whose value has a comma, which other drivers take for its end. Set it in code.
    CommaInProperty {
        /// The property, or `(not shown)` if it may hold a secret.
        property: String,
    },
    /// An option that changes nothing, because of what else is given or left out.
    NoEffect {
        /// The option.
        option: &'static str,
        /// Why it changes nothing.
        reason: &'static str,
    },
}

impl fmt::Display for UriWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption { option: Some(option) } => write!(f, "Unsupported option {option:?} is ignored"),
            Self::UnknownOption { option: None } => f.write_str("An unsupported option is ignored"),
            Self::InvalidValue { option, value: Some(value), allowed } => {
                write!(f, "Unsupported value {value:?} of {option:?} is ignored; allowed is {allowed}")
            }
            Self::InvalidValue { option, value: None, allowed } => {
                write!(f, "Unsupported value of {option:?} is ignored; allowed is {allowed}")
            }
            Self::RepeatedOption { option } => write!(f, "{option:?} is given more than once; the last one counts"),
            Self::RepeatedHost { host: Some(host) } => write!(f, "{host:?} is listed more than once"),
            Self::RepeatedHost { host: None } => f.write_str("A host is listed more than once"),
            Self::DeprecatedOption { option, replacement, ignored: false } => {
                write!(f, "Deprecated option {option:?} has been replaced with {replacement:?}")
            }
            Self::DeprecatedOption { option, replacement, ignored: true } => {
                write!(f, "Deprecated option {option:?} is ignored because {replacement:?} is present")
            }
            Self::DeprecatedBoolean { option, value, meaning } => {
                write!(f, "Deprecated value {value:?} of {option:?}; use \"{option}={meaning}\"")
            }
            Self::CommaInProperty { property } => {
                write!(
                    f,
                    "The value of {property:?} in \"authMechanismProperties\" has a comma; set it in code instead"
                )
            }
            Self::NoEffect { option, reason } => write!(f, "{option:?} has no effect, because {reason}"),
        }
    }
}
