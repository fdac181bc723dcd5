//! Strict parsing, which turns warnings into errors, and the options that pools do not apply.

use super::uri::nearest_option;
use super::{InvalidOption, Options, ReadPreferenceMode, UriWarning};

impl Options {
    /// Reads a connection string like [`parse`](Self::parse), but turns every warning into an error.
    ///
    /// [`resolve`](Self::resolve) then does the same for the TXT record of a `mongodb+srv://` name.
    /// [`endpoint`](Self::endpoint) and [`endpoints`](Self::endpoints) also refuse options that only a
    /// [`Client`](crate::Client) applies ([`unapplied`](Self::unapplied)), because commands on a pool would not have
    /// the promised effect.
    ///
    /// ```
    /// use wharf::Options;
    ///
    /// let error = Options::parse_strict("mongodb://localhost/?maxPoolSise=50").unwrap_err();
    /// assert_eq!(error.to_string(), r#"option "maxPoolSise" is not supported; the nearest name is maxPoolSize"#);
    ///
    /// let error = Options::parse_strict("mongodb://localhost/?retryReads=on").unwrap_err();
    /// assert_eq!(error.to_string(), r#"retryReads must be true or false, got "on""#);
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] for the first warning, or for the same reasons as [`parse`](Self::parse). Its message never
    /// repeats text that may be part of a password.
    pub fn parse_strict(uri: &str) -> Result<Self, InvalidOption> {
        let options = Self { is_strict: true, ..Self::parse(uri)? };
        options.refuse_warnings()?;
        Ok(options)
    }

    /// Turns the first warning into an error.
    pub(crate) fn refuse_warnings(&self) -> Result<(), InvalidOption> {
        match self.warnings.first() {
            Some(warning) => Err(warning.to_error()),
            None => Ok(()),
        }
    }

    /// Logs the options that a pool does not apply. After strict parsing, the first such option is an error.
    pub(crate) fn check_applied(&self) -> Result<(), InvalidOption> {
        for warning in self.unapplied() {
            if self.is_strict {
                return Err(warning.to_error());
            }
            tracing::warn!(target: "wharf::options", "{warning}");
        }
        Ok(())
    }

    /// Returns a warning for each option that is set and that a [`Pool`](crate::Pool) does not apply, although a write
    /// or a read may depend on the option: `w`, `journal`, `wTimeoutMS`, `readConcernLevel` and `readPreference`.
    ///
    /// A pool sends commands unchanged. Put `writeConcern`, `readConcern` and `$readPreference` into the commands.
    /// [`endpoint`](Self::endpoint) and [`endpoints`](Self::endpoints) log these warnings with the `wharf::options`
    /// target, or fail after [`parse_strict`](Self::parse_strict). A [`Client`](crate::Client) applies these options.
    /// [`warnings`](Self::warnings) does not list them, because the connection string is valid.
    #[must_use]
    pub fn unapplied(&self) -> Vec<UriWarning> {
        const WRITE: &str = "a pool sends commands as they are: give each write its writeConcern";
        const READ: &str = "a pool sends commands as they are: give each read its readConcern";
        const SELECT: &str = "a pool sends commands as they are: give each read its $readPreference";
        let set = [
            ("w", self.write_concern.w.is_some(), WRITE),
            ("journal", self.write_concern.journal.is_some(), WRITE),
            ("wTimeoutMS", self.write_concern.w_timeout.is_some(), WRITE),
            ("readConcernLevel", self.read_concern.is_some(), READ),
            ("readPreference", self.read_preference.mode != ReadPreferenceMode::Primary, SELECT),
        ];
        let set = set.into_iter().filter(|(_, is_set, _)| *is_set);
        set.map(|(option, _, reason)| UriWarning::NoEffect { option, reason }).collect()
    }
}

impl UriWarning {
    /// Returns the error that strict parsing turns the warning into.
    pub(super) fn to_error(&self) -> InvalidOption {
        let shown = |text: &Option<String>| match text {
            Some(text) => format!("{text:?}"),
            None => "that is not shown".to_owned(),
        };
        match self {
            Self::UnknownOption { option } => {
                InvalidOption::unknown(shown(option), option.as_deref().and_then(nearest_option))
            }
            Self::InvalidValue { error } => error.clone(),
            Self::RepeatedOption { option } => InvalidOption::because(option, "is given more than once"),
            Self::RepeatedHost { host } => {
                InvalidOption::because("host", format!("{} is listed more than once", shown(host)))
            }
            Self::DeprecatedOption { option, replacement, .. } => {
                InvalidOption::because(option, format!("is deprecated; use {replacement}"))
            }
            Self::DeprecatedBoolean { option, value, meaning } => {
                InvalidOption::because(option, format!("must be true or false, got {value:?}; use {option}={meaning}"))
            }
            Self::CommaInProperty { property } => InvalidOption::because(
                "authMechanismProperties",
                format!("has a comma in the value of {property}; use Credential::mechanism_property"),
            ),
            Self::SpaceAtEnd => InvalidOption::because("connection string", "has white space at its end"),
            Self::NoEffect { option, reason } => {
                InvalidOption::because(option, format!("has no effect, because {reason}"))
            }
        }
    }
}
