//! What a connection string says in vain.

use std::fmt;

use super::InvalidOption;

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
        /// What is wrong. It shows the value, unless that may hold a secret.
        error: InvalidOption,
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
        let consequence = match self {
            Self::UnknownOption { .. } => "; it is ignored",
            Self::InvalidValue { .. } => "; the value is ignored",
            Self::RepeatedOption { .. } => "; the last value counts",
            Self::DeprecatedOption { ignored: true, .. } => ", which is given, too",
            Self::RepeatedHost { .. }
            | Self::DeprecatedOption { ignored: false, .. }
            | Self::DeprecatedBoolean { .. }
            | Self::CommaInProperty { .. }
            | Self::NoEffect { .. } => "",
        };
        write!(f, "{}{consequence}", self.to_error())
    }
}
