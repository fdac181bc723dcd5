//! Connection strings (connection string and URI options specifications).
//!
//! A connection string that is not one is refused. An option that there is not, or a value that its option does not
//! allow, is ignored with a warning, as the specification wants it. Three kinds of values are refused instead:
//!
//! - those without which the connection would be less protected: invalid values of `tls` and its kin
//!   (`Row::protects`), an unknown `authMechanism`, an empty `authSource`, contradictions among TLS options;
//! - those that the specification allows and wharf cannot honour, such as a `maxPoolSize` of two million;
//! - every one, with [`Options::parse_strict`].
//!
//! Errors and warnings show what they are about, but never what may be part of a password. A password that is not
//! percent-encoded can end up in any other part, so nothing after a stray at-sign's left neighbour is trusted: if there is
//! an at-sign outside of the user information, neither hosts nor values are shown, and ports never are. So can a secret in
//! an option: if there is one, keys that nobody knows are not shown either.

mod draft;
mod finish;
mod table;
mod text;
mod value;

use super::{InvalidOption, Options, Secret, ServerAddress, SrvName, UriWarning};
use draft::{Draft, Rejection};
use table::{OldName, Repetition, Row};
use text::{decode, is_plain};
use value::Value;

/// The options that a TXT record may set.
#[cfg(feature = "srv")]
const TXT_OPTIONS: [&str; 3] = ["authSource", "replicaSet", "loadBalanced"];

/// The options of which only one may be given, because each of them says how strictly TLS is checked.
const EXCLUSIVE: [(&str, &str); 7] = [
    ("tlsInsecure", "tlsAllowInvalidCertificates"),
    ("tlsInsecure", "tlsAllowInvalidHostnames"),
    ("tlsInsecure", "tlsDisableOCSPEndpointCheck"),
    ("tlsInsecure", "tlsDisableCertificateRevocationCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableOCSPEndpointCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableCertificateRevocationCheck"),
    ("tlsDisableOCSPEndpointCheck", "tlsDisableCertificateRevocationCheck"),
];

impl Options {
    /// Reads a connection string: `mongodb://` or `mongodb+srv://`.
    ///
    /// Options that there are not, and values that are not allowed, are ignored; [`warnings`](Self::warnings) lists them,
    /// and [`parse_strict`](Self::parse_strict) refuses them. An invalid value is always refused where ignoring it would
    /// leave the connection less protected (`tls`, `ssl`, `tlsCAFile`, `tlsCertificateKeyFile`, `proxyHost` and their
    /// kin). So is a pool size above [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS).
    ///
    /// Of an option that is given more than once the last one counts, but a `proxy` option may be given only once, and all
    /// of `tls` and `ssl` must agree. Semicolons do not separate options. The value of a mechanism property must not have
    /// a comma: set such a property in code, with
    /// [`Credential::mechanism_property`](super::Credential::mechanism_property).
    ///
    /// This looks nothing up: options of `mongodb+srv://` have no hosts until they are [resolved](Self::resolve). To do
    /// both at once, use [`Options::from_uri`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the string is not a connection string, or if [`validate`](Self::validate) refuses what it says.
    /// Its message never repeats what may be part of a password.
    pub fn parse(uri: &str) -> Result<Self, InvalidOption> {
        let (is_srv, rest) = if let Some(rest) = uri.strip_prefix("mongodb://") {
            (false, rest)
        } else if let Some(rest) = uri.strip_prefix("mongodb+srv://") {
            (true, rest)
        } else {
            return Err(InvalidOption::new("scheme", scheme_of(uri), "mongodb:// or mongodb+srv://"));
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let mut reader = Reader { shows_values: !rest.contains('@'), shows_keys: true, warnings: Vec::new() };
        reader.read(is_srv, authority, rest).map_err(|error| reader.without_values(error))
    }

    /// Takes the defaults that the TXT record of an SRV name gives.
    #[cfg(feature = "srv")]
    pub(crate) fn apply_txt(&mut self, record: &str) -> Result<(), InvalidOption> {
        let warnings = std::mem::take(&mut self.warnings);
        let mut reader = Reader { shows_values: true, shows_keys: true, warnings };
        let mut draft = Draft::of(Options::nowhere());
        for pair in record.split('&') {
            let refuse = |value: String| InvalidOption::new("TXT record", value, "of key=value pairs joined by &");
            let (key, value) =
                pair.split_once('=').ok_or_else(|| refuse(format!("{} without a value", shown(pair))))?;
            let Some(row) = Row::of(key).filter(|row| TXT_OPTIONS.contains(&row.name)) else {
                let allowed = format!("only {}", TXT_OPTIONS.join(", "));
                return Err(InvalidOption::new("option in TXT record", shown(key), allowed));
            };
            reader.read_option(row, value, &mut draft)?;
        }
        let defaults = draft.options;
        if self.auth_source.is_none() && defaults.auth_source.is_some() {
            self.auth_source = defaults.auth_source;
            if let Some(credential) = self.credential.as_mut().filter(|credential| credential.source.is_none()) {
                credential.source.clone_from(&self.auth_source);
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

/// Instead of a value that may be part of a password.
const HIDDEN: &str = "not shown, because it may be part of a password";

/// The user information: a name, and perhaps a password.
fn read_user(text: &str) -> Result<(String, Option<Secret>), InvalidOption> {
    let refuse = |value| {
        let allowed = "percent-encoded where it has other characters than letters, digits and -._~!$&'()*+,;=";
        InvalidOption::new("username or password", value, allowed)
    };
    // What RFC 3986 allows, and characters beyond ASCII.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"-._~!$&'()*+,;=%".contains(&byte);
    let read = |part: &str| match part.bytes().all(fits) {
        true => decode(part).ok_or_else(|| refuse("one with a percent sign that begins no escape")),
        false => Err(refuse("one that is not percent-encoded")),
    };
    match text.split_once(':') {
        None => Ok((read(text)?, None)),
        Some((name, password)) => Ok((read(name)?, Some(Secret::new(read(password)?)))),
    }
}

/// What an error shows of a string that begins with the wrong scheme.
fn scheme_of(uri: &str) -> String {
    match uri.split_once("://") {
        Some((scheme, _)) => shown(scheme),
        None => "missing".to_owned(),
    }
}

/// A key or a scheme, if it cannot be a password by mistake.
fn shown(text: &str) -> String {
    if is_plain(text) { format!("{text:?}") } else { "not shown".to_owned() }
}

/// Reads the parts of a connection string, and collects what it says in vain.
struct Reader {
    /// Whether hosts and values are certainly not a part of a password.
    shows_values: bool,
    /// Whether keys are certainly not a part of a secret: where an option holds one whose ampersand is not
    /// percent-encoded, the rest of it looks like a key.
    shows_keys: bool,
    warnings: Vec<UriWarning>,
}

impl Reader {
    /// What follows the scheme: `authority`, and `rest` from the slash or the question mark on.
    fn read(&mut self, is_srv: bool, authority: &str, rest: &str) -> Result<Options, InvalidOption> {
        let (database, options) = rest.split_once('?').unwrap_or((rest, ""));
        let database = database.strip_prefix('/').unwrap_or(database);
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let user = user.map(read_user).transpose()?;
        let mut start = Options::nowhere();
        match is_srv {
            true => start.srv = Some(self.read_srv_name(hosts)?),
            false => self.read_hosts(hosts, &mut start)?,
        }
        if !database.is_empty() {
            let decoded = decode(database)
                .ok_or_else(|| InvalidOption::new("database", "not percent-encoded", "percent-encoded, in UTF-8"))?;
            start.default_database = Some(decoded);
            start.check()?;
        }
        let mut draft = Draft::of(start);
        self.read_options(options, &mut draft)?;
        let mut finished = draft.finish(user, self)?;
        finished.warnings = std::mem::take(&mut self.warnings);
        finished.validate()?;
        Ok(finished)
    }

    /// The refusal without the value, where that may be a part of a password: whoever refused it need not have known.
    fn without_values(&self, error: InvalidOption) -> InvalidOption {
        const OWN_WORDS: [&str; 4] = ["empty", "given", "not given", "given more than once"];
        match self.shows_values || OWN_WORDS.contains(&&*error.value) {
            true => error,
            false => InvalidOption { value: HIDDEN.to_owned(), ..error },
        }
    }

    fn warn(&mut self, warning: UriWarning) {
        tracing::warn!(target: "wharf::options", "{warning}");
        self.warnings.push(warning);
    }

    /// What an error shows of a host. A port is never shown, because it may be a password whose host was forgotten.
    fn host(&self, text: &str) -> String {
        if !self.shows_values {
            return HIDDEN.to_owned();
        }
        let end = match text.strip_prefix('[').and_then(|rest| rest.find(']')) {
            Some(end) => end + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        match text.split_at(end) {
            ("", "") => "empty".to_owned(),
            (host, "") => format!("{host:?}"),
            (host, _) => format!("{host:?} with a port that is not shown"),
        }
    }

    fn read_srv_name(&self, text: &str) -> Result<SrvName, InvalidOption> {
        let refuse = |allowed| InvalidOption::new("hosts", self.host(text), allowed);
        if text.contains(',') {
            return Err(refuse("one name, not several, after mongodb+srv://".to_owned()));
        }
        let name = decode(text).ok_or_else(|| refuse("percent-encoded, in UTF-8".to_owned()))?;
        SrvName::parse(&name).map_err(|error| refuse(error.allowed))
    }

    fn read_hosts(&mut self, text: &str, options: &mut Options) -> Result<(), InvalidOption> {
        if text.is_empty() {
            let allowed =
                "at least one host; the path of a socket must be percent-encoded, as in %2Ftmp%2Fmongodb.sock";
            return Err(InvalidOption::new("hosts", "empty", allowed));
        }
        for host in text.split(',') {
            let refuse = |allowed: &str| InvalidOption::new("hosts", self.host(host), allowed);
            let decoded = decode(host).ok_or_else(|| refuse("percent-encoded, in UTF-8"))?;
            let address = ServerAddress::parse(&decoded).map_err(|error| refuse(error.allowed))?;
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
        let is_secret = |key: &str| Row::of(key).is_some_and(|row| row.is_secret);
        let may_be_secret = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| is_secret(key));
        self.shows_keys = self.shows_values && !text.split('&').any(may_be_secret);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let key = if self.shows_keys { shown(pair) } else { "not shown".to_owned() };
                return Err(InvalidOption::new("option", format!("without a value ({key})"), "key=value"));
            };
            if let Some(old) = OldName::of(key) {
                deprecated.push((old, value));
            } else if let Some(row) = Row::of(key) {
                if given.iter().any(|(other, _)| other.name == row.name) {
                    self.note_repetition(row)?;
                }
                given.push((row, value));
            } else {
                let option = (self.shows_keys && is_plain(key)).then(|| key.to_owned());
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
        let is_given = |option: &&str| draft.given.contains(option);
        if let Some((one, other)) = EXCLUSIVE.into_iter().find(|(one, other)| is_given(one) && is_given(other)) {
            return Err(InvalidOption::new(one, "given", format!("left out with {other}")));
        }
        given.into_iter().try_for_each(|(row, value)| self.read_option(row, value, draft))
    }

    fn note_repetition(&mut self, row: Row) -> Result<(), InvalidOption> {
        match row.repetition {
            Repetition::Adds => {}
            Repetition::LastCounts => self.warn(UriWarning::RepeatedOption { option: row.name }),
            Repetition::Refused => {
                return Err(InvalidOption::new(row.name, "given more than once", "given once"));
            }
        }
        Ok(())
    }

    /// Sets one option, or leaves it as it is, with a warning.
    fn read_option(&mut self, row: Row, value: &str, draft: &mut Draft) -> Result<(), InvalidOption> {
        let option = row.name;
        let before = draft.clone();
        let text = if row.is_raw { Some(value.to_owned()) } else { decode(value) };
        let set = match text {
            Some(text) => row.read(draft, Value { option, text, reader: self }),
            None => Err(Rejection::NotDecoded),
        };
        let allowed = match set {
            Ok(()) => match draft.options.check() {
                Ok(()) => return Ok(()),
                Err(error) => error.allowed,
            },
            Err(Rejection::NotAllowed) => row.allowed.to_owned(),
            Err(Rejection::NotDecoded) => "percent-encoded, in UTF-8".to_owned(),
            Err(Rejection::Fatal(error)) => return Err(error),
        };
        *draft = before;
        let value = (self.shows_values && !row.is_secret).then(|| value.to_owned());
        if row.protects {
            let value = value.map_or_else(|| "not shown".to_owned(), |value| format!("{value:?}"));
            return Err(InvalidOption::new(option, value, allowed));
        }
        self.warn(UriWarning::InvalidValue { option, value, allowed });
        Ok(())
    }
}
