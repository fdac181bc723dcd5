//! Connection strings (connection string and URI options specifications).
//!
//! A string that is not in the form of a connection string is refused. An unknown option, or a value that its option
//! does not allow, is ignored with a warning, as the specification requires. Three kinds of values are refused instead:
//!
//! - values whose absence would leave the connection less protected: invalid values of `tls` and other protective
//!   options (`Row::protects`), an unknown `authMechanism`, an empty `authSource`, contradictions among TLS options;
//! - values that the specification allows but wharf cannot honour, such as a `maxPoolSize` of two million;
//! - with [`Options::parse_strict`], any value that would otherwise cause a warning.
//!
//! Errors and warnings never show text that may be part of a password. A password that is not percent-encoded can end
//! up in any other part of the string. So if there is an at sign outside the user information, hosts and values are not
//! shown. Ports are never shown. The rest of a secret option can look like a key, so if there is a secret option,
//! unknown keys are not shown.

mod draft;
#[cfg(feature = "serde")]
mod fields;
mod finish;
mod table;
mod text;
mod value;

use zeroize::Zeroizing;

use super::{InvalidOption, Options, Secret, ServerAddress, SrvName, UriWarning};
#[cfg(feature = "srv")]
use crate::text::printable::Printable;
use draft::{Draft, Rejection};
use table::{OldName, Repetition, Row};
use text::{decode, is_plain};
use value::Value;

/// The options that a TXT record may set.
#[cfg(feature = "srv")]
const TXT_OPTIONS: [&str; 3] = ["authSource", "replicaSet", "loadBalanced"];

/// The maximum length, in bytes, of a string that a TXT record may set. Database names are shorter.
#[cfg(feature = "srv")]
const MOST_OF_TXT: usize = 255;

impl Options {
    /// Reads a connection string: `mongodb://` or `mongodb+srv://`.
    ///
    /// Unknown options and values that are not allowed are ignored. [`warnings`](Self::warnings) lists them, and
    /// [`parse_strict`](Self::parse_strict) refuses them. An invalid value is always refused if ignoring it would leave
    /// the connection less protected, as with `tls`, `tlsCAFile`, `tlsCertificateKeyFile` and `proxyHost`. A pool size
    /// above [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS) is also refused.
    ///
    /// If an option is given more than once, the last value applies. A `proxy…` option may be given only once, and all
    /// values of `tls` and `ssl` must agree. Semicolons do not separate options. The value of a mechanism property must
    /// not contain a comma: set such a value with
    /// [`Credential::mechanism_property`](super::Credential::mechanism_property). White space at the end of the string
    /// is ignored, with a warning.
    ///
    /// This function does not use DNS. Options from `mongodb+srv://` have no hosts until they are
    /// [resolved](Self::resolve). [`Options::from_uri`] parses and resolves.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the string is not a connection string, or if [`validate`](Self::validate) refuses the options.
    /// Its message never repeats text that may be part of a password.
    pub fn parse(uri: &str) -> Result<Self, InvalidOption> {
        let mut reader = Reader::default();
        let options = reader.read(uri).and_then(|draft| reader.finish(draft));
        options.map_err(|error| reader.without_values(error))
    }

    /// Applies the defaults from the TXT record of an SRV name.
    #[cfg(feature = "srv")]
    pub(crate) fn apply_txt(&mut self, record: &str) -> Result<(), InvalidOption> {
        let mut reader = Reader { warnings: std::mem::take(&mut self.warnings), ..Reader::default() };
        let mut draft = Draft::of(Options::nowhere());
        for pair in record.split('&').filter(|pair| !pair.is_empty()) {
            let refuse = || InvalidOption::new("TXT record", "key=value pairs joined by &", shown(pair));
            let (key, value) = pair.split_once('=').ok_or_else(refuse)?;
            let Some(row) = Row::of(key).filter(|row| TXT_OPTIONS.contains(&row.name)) else {
                let must = format!("one of {}", TXT_OPTIONS.join(", "));
                return Err(InvalidOption::new("option in TXT record", must, shown(key)));
            };
            reader.read_option(row, value, &mut draft)?;
        }
        let defaults = draft.options;
        // Errors show both strings, and each authentication sends `authSource`.
        for (option, text) in [("authSource", &defaults.auth_source), ("replicaSet", &defaults.replica_set)] {
            let Some(text) = text else { continue };
            if text.len() > MOST_OF_TXT || Printable(text).to_string() != *text {
                let must = format!("at most {MOST_OF_TXT} bytes of printable text in a TXT record");
                return Err(InvalidOption::new(option, must, Printable(text).to_string()));
            }
        }
        if self.auth_source.is_none() && defaults.auth_source.is_some() {
            self.auth_source = defaults.auth_source;
            if let Some(credential) = &mut self.credential {
                credential.inherit_source(self.auth_source.as_ref());
            }
        }
        if self.replica_set.is_none() {
            self.replica_set = defaults.replica_set;
        }
        if let (None, Some(load_balanced)) = (self.load_balanced, defaults.load_balanced) {
            self.load_balanced = Some(load_balanced);
            self.pool.load_balanced = load_balanced;
        }
        self.warnings = reader.warnings;
        Ok(())
    }
}

/// What an error says about text that is not percent-encoded correctly.
const NOT_ENCODED: &str = "must be percent-encoded, in UTF-8";

/// Returns the option name that is closest to a misspelt name, if any name is close.
pub(super) fn nearest_option(misspelt: &str) -> Option<&'static str> {
    Row::nearest(misspelt)
}

/// The text that errors show in place of a value that may be part of a password.
const HIDDEN: &str = "a value that is not shown, because it may be part of a password";

/// Reads the user information: a name and an optional password.
fn read_user(text: &str) -> Result<(String, Option<Secret>), InvalidOption> {
    let refuse = |problem| InvalidOption::because("username or password", problem);
    // The characters that RFC 3986 allows, and non-ASCII characters.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"-._~!$&'()*+,;=%".contains(&byte);
    let read = |part: &str| match part.bytes().all(fits) {
        true => {
            decode(part).ok_or_else(|| refuse("must be percent-encoded: one of its percent signs begins no escape"))
        }
        false => Err(refuse(
            "must be percent-encoded where it has other characters than letters, digits and -._~!$&'()*+,;=",
        )),
    };
    match text.split_once(':') {
        None => Ok((read(text)?, None)),
        Some((name, password)) => Ok((read(name)?, Some(Secret::new(read(password)?)))),
    }
}

/// Returns the invalid scheme of a connection string, in the form that an error shows.
fn scheme_of(uri: &str) -> Option<String> {
    uri.split_once("://").map(|(scheme, _)| shown(scheme))
}

/// Returns a key or a scheme in the form that an error shows. Text that may be a misplaced password is not shown.
fn shown(text: &str) -> String {
    if is_plain(text) { format!("{text:?}") } else { "a text that is not shown".to_owned() }
}

/// Reads the parts of a connection string, and collects warnings.
struct Reader {
    /// Whether hosts and values may be shown, because they cannot be part of a password.
    shows_values: bool,
    /// Whether keys may be shown. This is true only if they cannot be part of a secret. The rest of a secret option
    /// whose ampersand is not percent-encoded looks like a key.
    shows_keys: bool,
    /// Whether a value that its option does not allow is an error instead of a warning.
    refuses_values: bool,
    warnings: Vec<UriWarning>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { shows_values: true, shows_keys: true, refuses_values: false, warnings: Vec::new() }
    }
}

impl Reader {
    /// Reads a connection string.
    fn read(&mut self, given: &str) -> Result<Draft, InvalidOption> {
        let uri = given.trim_end();
        let (is_srv, rest) = if let Some(rest) = uri.strip_prefix("mongodb://") {
            (false, rest)
        } else if let Some(rest) = uri.strip_prefix("mongodb+srv://") {
            (true, rest)
        } else {
            let problem = "must be mongodb:// or mongodb+srv://".to_owned();
            return Err(InvalidOption { option: "scheme", problem, value: scheme_of(uri) });
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        self.shows_values = !rest.contains('@');
        if uri != given {
            self.warn(UriWarning::SpaceAtEnd);
        }
        self.read_parts(is_srv, authority, rest)
    }

    /// Reads the part after the scheme: `authority`, and `rest`, which begins at the slash or the question mark.
    fn read_parts(&mut self, is_srv: bool, authority: &str, rest: &str) -> Result<Draft, InvalidOption> {
        let mut start = Options::nowhere();
        let (database, options) = rest.split_once('?').unwrap_or((rest, ""));
        let database = database.strip_prefix('/').unwrap_or(database);
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let user = user.map(read_user).transpose()?;
        match is_srv {
            true => start.srv = Some(self.read_srv_name(hosts)?),
            false => self.read_hosts(hosts, &mut start)?,
        }
        if !database.is_empty() {
            let decoded = decode(database).ok_or_else(|| InvalidOption::because("database", NOT_ENCODED))?;
            start.default_database = Some(decoded);
            start.check()?;
        }
        let mut draft = Draft { user, ..Draft::of(start) };
        self.read_options(options, &mut draft)?;
        Ok(draft)
    }

    /// Combines the options that were read, and validates them.
    fn finish(&mut self, draft: Draft) -> Result<Options, InvalidOption> {
        let mut finished = draft.finish(self)?;
        finished.warnings = std::mem::take(&mut self.warnings);
        finished.validate()?;
        Ok(finished)
    }

    /// Returns the error, without its value if the value may be part of a password. The check that returned the error
    /// cannot tell.
    fn without_values(&self, error: InvalidOption) -> InvalidOption {
        match error.value {
            Some(_) if !self.shows_values => InvalidOption { value: Some(HIDDEN.to_owned()), ..error },
            _ => error,
        }
    }

    /// Returns an option's value in the form that an error shows.
    fn shown_value(&self, value: &str) -> String {
        if self.shows_values { format!("{value:?}") } else { HIDDEN.to_owned() }
    }

    /// Records a warning that the value of an option is ignored, or returns the error if such values are refused.
    fn ignore(&mut self, error: InvalidOption) -> Result<(), InvalidOption> {
        match self.refuses_values {
            true => Err(error),
            false => {
                self.warn(UriWarning::InvalidValue { error });
                Ok(())
            }
        }
    }

    fn warn(&mut self, warning: UriWarning) {
        tracing::warn!(target: "wharf::options", "{warning}");
        self.warnings.push(warning);
    }

    /// Returns a host in the form that an error shows. A port is not shown, because it may be a password if the string
    /// lacks a host.
    fn host(&self, text: &str) -> String {
        if !self.shows_values {
            return HIDDEN.to_owned();
        }
        let end = match text.strip_prefix('[').and_then(|rest| rest.find(']')) {
            Some(end) => end + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        match text.split_at(end) {
            (host, "") => format!("{host:?}"),
            (host, _) => format!("{host:?} and a port, which is left out because it may be a password"),
        }
    }

    fn read_srv_name(&self, text: &str) -> Result<SrvName, InvalidOption> {
        let refuse = |problem: &str| InvalidOption {
            option: "hosts",
            problem: problem.to_owned(),
            value: Some(self.host(text)),
        };
        if text.contains(',') {
            return Err(refuse("must be one name, not several, after mongodb+srv://"));
        }
        let name = decode(text).ok_or_else(|| refuse(NOT_ENCODED))?;
        SrvName::parse(&name).map_err(|error| refuse(&error.problem))
    }

    fn read_hosts(&mut self, text: &str, options: &mut Options) -> Result<(), InvalidOption> {
        if text.is_empty() {
            let problem =
                "must name at least one host; percent-encode the path of a socket, as in %2Ftmp%2Fmongodb.sock";
            return Err(InvalidOption::because("hosts", problem));
        }
        for host in text.split(',') {
            let refuse = |must: &str| InvalidOption::new("hosts", must, self.host(host));
            let decoded = decode(host).ok_or_else(|| refuse("percent-encoded, in UTF-8"))?;
            let address = ServerAddress::read(&decoded).map_err(refuse)?;
            if !options.add_host(address) {
                let host = self.shows_values.then_some(decoded);
                self.warn(UriWarning::RepeatedHost { host });
            }
        }
        Ok(())
    }

    fn read_options(&mut self, text: &str, draft: &mut Draft) -> Result<(), InvalidOption> {
        let mut given: Vec<(Row, &str)> = Vec::new();
        let mut deprecated = Vec::new();
        let is_secret = |key: &str| Row::of(Row::present_name(key).unwrap_or(key)).is_some_and(|row| row.is_secret);
        let may_be_secret = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| is_secret(key));
        self.shows_keys = self.shows_values && !text.split('&').any(may_be_secret);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let key = if self.shows_keys { shown(pair) } else { "that is not shown".to_owned() };
                return Err(InvalidOption::because("option", format!("{key} has no value")));
            };
            if let Some(old) = OldName::of(key) {
                deprecated.push((old, value));
            } else if let Some(row) = Row::of(key) {
                if given.iter().any(|(other, _)| other.name == row.name) {
                    self.note_repetition(row)?;
                }
                given.push((row, value));
            } else {
                let is_shown = Row::present_name(key).is_some() || (self.shows_keys && is_plain(key));
                let option = is_shown.then(|| key.to_owned());
                self.warn(UriWarning::UnknownOption { option });
            }
        }
        draft.given = given.iter().map(|(row, _)| row.name).collect();
        for (OldName { row, replacement }, value) in deprecated {
            let ignored = draft.given.contains(&replacement);
            self.warn(UriWarning::DeprecatedOption { option: row.name, replacement, ignored });
            if !ignored {
                self.read_option(row, value, draft)?;
            }
        }
        Draft::refuse_exclusive(|option| draft.given.contains(&option))?;
        given.into_iter().try_for_each(|(row, value)| self.read_option(row, value, draft))
    }

    fn note_repetition(&mut self, row: Row) -> Result<(), InvalidOption> {
        match row.repetition {
            Repetition::Adds => {}
            Repetition::LastCounts => self.warn(UriWarning::RepeatedOption { option: row.name }),
            Repetition::Refused => {
                return Err(InvalidOption::because(row.name, "is given more than once"));
            }
        }
        Ok(())
    }

    /// Sets one option from a value of a connection string, or leaves it unchanged with a warning.
    fn read_option(&mut self, row: Row, value: &str, draft: &mut Draft) -> Result<(), InvalidOption> {
        let text = if row.is_raw { Some(value.to_owned()) } else { decode(value) };
        self.set_option(row, text.map(Zeroizing::new), value, draft)
    }

    /// Sets one option, or leaves it unchanged with a warning. `text` is `None` if the value cannot be decoded. `shown`
    /// is the text that an error shows for the value.
    fn set_option(
        &mut self,
        row: Row,
        text: Option<Zeroizing<String>>,
        shown: &str,
        draft: &mut Draft,
    ) -> Result<(), InvalidOption> {
        let option = row.name;
        let before = draft.clone();
        let set = match text {
            Some(text) => row.read(draft, Value { option, text, reader: self }),
            None => Err(Rejection::NotDecoded),
        };
        let problem = match set {
            Ok(()) => match draft.options.check() {
                Ok(()) => return Ok(()),
                Err(error) => error.problem,
            },
            Err(Rejection::NotAllowed) => format!("must be {}", row.allowed),
            Err(Rejection::NotDecoded) => NOT_ENCODED.to_owned(),
            Err(Rejection::Fatal(error)) => return Err(error),
        };
        *draft = before;
        let value = (!row.is_secret).then(|| self.shown_value(shown));
        let error = InvalidOption { option, problem, value };
        if row.protects { Err(error) } else { self.ignore(error) }
    }
}

/// Returns the names of the options that may be shown, except `ssl` and `tlsInsecure`, which only set other options.
#[cfg(all(test, feature = "serde"))]
pub(super) fn names_that_are_shown() -> impl Iterator<Item = &'static str> {
    table::Row::all()
        .filter(|row| !row.is_secret)
        .map(|row| row.name)
        .filter(|name| !["ssl", "tlsInsecure"].contains(name))
}
