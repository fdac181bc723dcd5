//! Warnings about connection strings.

use std::fmt;

use super::InvalidOption;

/// A part of a connection string, or of a TXT record, that is ignored or deprecated.
///
/// Warnings never repeat a password.
///
/// ```
/// use wharf::Options;
///
/// let options = Options::parse("mongodb://localhost/?maxConnecting=0&foo=1")?;
/// let warnings: Vec<String> = options.warnings().iter().map(ToString::to_string).collect();
/// assert_eq!(warnings[0], r#"option "foo" is not supported; it is ignored"#);
/// assert_eq!(warnings[1], r#"maxConnecting must be 1 to 1048575, got "0"; the value is ignored"#);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UriWarning {
    /// An unknown option. It is ignored.
    UnknownOption {
        /// The option. `None` if it may be part of a password.
        option: Option<String>,
    },
    /// A value that the option does not allow. The option is ignored.
    InvalidValue {
        /// The error that strict parsing returns. The error shows the value, unless the value may be a secret.
        error: InvalidOption,
    },
    /// An option that is given more than once. The last value applies.
    RepeatedOption {
        /// The option.
        option: &'static str,
    },
    /// A server that is listed more than once. The repetition is ignored.
    RepeatedHost {
        /// The server's address. `None` if it may be part of a password.
        host: Option<String>,
    },
    /// An old name for an option.
    DeprecatedOption {
        /// The old name.
        option: &'static str,
        /// The new name.
        replacement: &'static str,
        /// Whether the option is ignored because the new name is also given.
        ignored: bool,
    },
    /// An old word for `true` or `false`.
    DeprecatedBoolean {
        /// The option.
        option: &'static str,
        /// The word.
        value: String,
        /// The meaning of the word.
        meaning: bool,
    },
    /// A mechanism property whose value contains a comma. Other drivers would end the value there. Set such a property
    /// in code.
    CommaInProperty {
        /// The property, or `(not shown)` if it may hold a secret.
        property: String,
    },
    /// White space after the connection string, such as a line break. It is ignored.
    SpaceAtEnd,
    /// An option that has no effect, because of other options.
    NoEffect {
        /// The option.
        option: &'static str,
        /// Why it has no effect.
        reason: &'static str,
    },
}

impl fmt::Display for UriWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let consequence = match self {
            Self::UnknownOption { .. } => "; it is ignored",
            Self::InvalidValue { .. } => "; the value is ignored",
            Self::RepeatedOption { .. } => "; the last value counts",
            Self::SpaceAtEnd => "; it is left out",
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
