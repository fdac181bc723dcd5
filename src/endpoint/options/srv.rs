//! The DNS name that lists a deployment's servers.

use super::InvalidOption;

/// The default `srvServiceName`.
const SERVICE_NAME: &str = "mongodb";

/// The single-label names that may be a `srvAllowedHostsSuffix`, because the public DNS has no names under them.
///
/// These are the names from RFC 6761 and RFC 6762, the name that ICANN reserves for private use, and the names that
/// ICANN does not delegate because private networks use them.
const PRIVATE_NAMES: [&str; 9] =
    ["corp", "example", "home", "internal", "invalid", "local", "localhost", "mail", "test"];

/// The longest `srvServiceName`. With an underscore before it, the service name must fit into one label of a DNS name.
const LONGEST_SERVICE_NAME: usize = 62;

/// The DNS name that lists a deployment's servers, as in `mongodb+srv://` (Initial DNS Seedlist Discovery specification).
///
/// ```
/// use wharf::Options;
///
/// let mut options = Options::srv("cluster.example.com")?;
/// let name = options.srv.as_mut().expect("Options::srv sets it");
/// name.max_hosts = 3;
/// assert_eq!(name.domain(), "example.com");
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct SrvName {
    /// The name, in lower case and without a final dot. With the `srv` feature, non-ASCII labels are in Punycode.
    pub host: String,
    /// `srvServiceName`: the service whose records are read. Default `mongodb`.
    pub service_name: String,
    /// `srvMaxHosts`: how many of the servers to choose at random; 0 means all. Default 0.
    pub max_hosts: u32,
    /// `srvAllowedHostsSuffix`: the domain that must contain the servers, instead of the name's own domain. Upper case,
    /// a dot at either end, and Punycode make no difference.
    ///
    /// It must have at least two labels, or be a name for private or special use: `corp`, `example`, `home`,
    /// `internal`, `invalid`, `local`, `localhost`, `mail` or `test`. A public suffix such as `co.uk`, under which
    /// anyone may register names, is refused.
    ///
    /// The option comes from DRIVERS-3329, the official drivers' change to "Initial DNS Seedlist Discovery". The
    /// specifications of 2026-08-13, which wharf follows, do not include it yet.
    ///
    /// This option weakens the protection against forged answers. Set it to the narrowest domain that contains the
    /// servers.
    pub allowed_hosts_suffix: Option<String>,
}

impl SrvName {
    pub(super) fn parse(name: &str) -> Result<Self, InvalidOption> {
        let must = "one name in the DNS, without a port, after mongodb+srv://";
        let bare = name.strip_suffix('.').unwrap_or(name);
        let is_name = |host: &String| host.parse::<std::net::IpAddr>().is_err() && Self::is_name(host);
        let host = ascii(bare).filter(is_name);
        let host = host.ok_or_else(|| InvalidOption::new("hosts", must, format!("{name:?}")))?;
        Ok(Self { host, service_name: SERVICE_NAME.to_owned(), max_hosts: 0, allowed_hosts_suffix: None })
    }

    /// Returns whether the text, without a final dot, is a DNS name.
    pub(crate) fn is_name(text: &str) -> bool {
        let is_label = |label: &str| {
            let unfit = |char: char| char.is_whitespace() || char.is_control() || "/?#%[]@:,\\\"".contains(char);
            !label.is_empty() && label.len() <= 63 && !label.contains(unfit)
        };
        text.len() <= 253 && text.split('.').all(is_label)
    }

    /// Returns the domain that must contain the servers.
    ///
    /// For a name with three or more labels, this is the name without its first label. For a shorter name it is the
    /// name itself, and a server's name must have at least one more label.
    #[must_use]
    pub fn domain(&self) -> &str {
        if let Some(suffix) = &self.allowed_hosts_suffix {
            return suffix;
        }
        match self.host.split_once('.') {
            Some((_, domain)) if domain.contains('.') => domain,
            _ => &self.host,
        }
    }

    /// Returns whether a server with this name (in ASCII, in lower case, without a final dot) is in the
    /// [`domain`](Self::domain).
    #[cfg(any(test, feature = "srv"))]
    pub(crate) fn accepts(&self, server: &str) -> bool {
        let Some(domain) = ascii(self.domain().trim_matches('.')) else { return false };
        let label = server.strip_suffix(&domain).and_then(|rest| rest.strip_suffix('.'));
        label.is_some_and(|label| !label.is_empty())
    }

    pub(super) fn set_allowed_hosts_suffix(&mut self, suffix: &str) -> Result<(), InvalidOption> {
        self.allowed_hosts_suffix = Some(read_suffix(suffix)?);
        Ok(())
    }

    /// Rejects an invalid suffix, because callers can set the field directly. Also refuses a service name that does not
    /// follow RFC 6335, section 5.1, except that the name may be longer than the RFC allows.
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        self.allowed_hosts_suffix.as_deref().map_or(Ok(()), |suffix| read_suffix(suffix).map(drop))?;
        let name = &self.service_name;
        let fits = (1..=LONGEST_SERVICE_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && name.bytes().any(|byte| byte.is_ascii_alphabetic())
            && !name.starts_with('-')
            && !name.ends_with('-')
            && !name.contains("--");
        if fits {
            return Ok(());
        }
        let must = format!(
            "1 to {LONGEST_SERVICE_NAME} letters, digits and single hyphens, at least one letter, no hyphen at an end"
        );
        Err(InvalidOption::new("srvServiceName", must, format!("{name:?}")))
    }
}

/// Returns a name in the form that DNS uses: in lower case, with non-ASCII labels in Punycode (IDNA). Returns `None` if
/// the name has no such form.
fn ascii(name: &str) -> Option<String> {
    // The rules for internationalized names would refuse some ASCII names that are in use.
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    #[cfg(feature = "srv")]
    return idna::domain_to_ascii(name).ok();
    #[cfg(not(feature = "srv"))]
    Some(name.to_lowercase())
}

/// Reads a `srvAllowedHostsSuffix`. The order of the steps follows DRIVERS-3329.
fn read_suffix(suffix: &str) -> Result<String, InvalidOption> {
    let refuse = |must| InvalidOption::new("srvAllowedHostsSuffix", must, format!("{suffix:?}"));
    let domain = ascii(suffix.trim_matches('.')).filter(|domain| SrvName::is_name(domain));
    let domain = domain.filter(|domain| domain.contains('.') || PRIVATE_NAMES.contains(&&**domain));
    let domain = domain.ok_or_else(|| refuse("a domain of at least two labels, such as .db.example.com"))?;
    if is_public_suffix(&domain) {
        return Err(refuse("a domain of one owner, not one that is open to the public"));
    }
    Ok(domain)
}

/// Returns whether the public may register names under the domain (Public Suffix List).
fn is_public_suffix(domain: &str) -> bool {
    #[cfg(feature = "srv")]
    return !PRIVATE_NAMES.contains(&domain) && public_suffix::DEFAULT_PROVIDER.is_effective_tld(domain);
    #[cfg(not(feature = "srv"))]
    {
        let _ = domain;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_must_be_in_the_domain_of_the_name() {
        // Prose tests 2, 3 and 4 of the specification, and servers that are accepted.
        let cases = [
            ("localhost", "host.localhost", true),
            ("localhost", "localhost.mongodb", false),
            ("localhost", "localhost", false),
            ("localhost", "test_1.cluster_1localhost", false),
            ("localhost", ".localhost", false),
            ("mongo.local", "a.mongo.local", true),
            ("mongo.local", "test_1.evil.local", false),
            ("mongo.local", "mongo.local", false),
            ("mongo.local", "test_1.my_hostmongo.local", false),
            ("blogs.mongodb.com", "blogs.mongodb.com", true),
            ("blogs.mongodb.com", "a.b.mongodb.com", true),
            ("blogs.mongodb.com", "mongodb.com", false),
            ("blogs.mongodb.com", "blogs.evil.com", false),
            ("blogs.mongodb.com", "cluster.testmongodb.com", false),
        ];
        for (name, server, accepted) in cases {
            assert_eq!(SrvName::parse(name).unwrap().accepts(server), accepted, "{name} {server}");
        }
    }

    #[test]
    fn srv_name_is_one_name_of_the_dns() {
        assert_eq!(SrvName::parse("Cluster.Example.COM.").unwrap().host, "cluster.example.com");
        for name in ["", ".", "a..b", "a:1", "a,b", "127.0.0.1", "::1", "[::1]", "%2Ftmp%2Fm.sock", "a b"] {
            let error = SrvName::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("hosts must be one name"), "{error}");
            assert!(error.ends_with(&format!(", got {name:?}")), "{error}");
        }
        assert!(SrvName::parse(&"a".repeat(64)).is_err());
        assert!(SrvName::parse(&"a.".repeat(127)).is_ok());
        assert!(SrvName::parse(&"a.".repeat(128)).is_err());
    }

    #[test]
    fn suffix_is_a_domain_that_is_not_open_to_the_public() {
        let suffix = |text: &str| {
            let mut name = SrvName::parse("cluster.localhost").unwrap();
            name.set_allowed_hosts_suffix(text).map(|()| name.allowed_hosts_suffix.unwrap())
        };
        for (text, domain) in [
            ("example.com", "example.com"),
            (".Example.COM.", "example.com"),
            ("..db.example.co.uk", "db.example.co.uk"),
            ("a_b.example.com", "a_b.example.com"),
            // Reserved for private or special use.
            ("localhost", "localhost"),
            (".LOCAL", "local"),
            ("internal.", "internal"),
        ] {
            assert_eq!(suffix(text).as_deref(), Ok(domain), "{text}");
        }
        let labels = "must be a domain of at least two labels, such as .db.example.com";
        for text in ["", ".", "..", "net", "lan", "a..b", "a b.c", "user@a.b"] {
            assert_eq!(suffix(text).unwrap_err().problem, labels, "{text}");
        }
        // Prose test 12.
        let mut name = SrvName::parse("cluster.localhost").unwrap();
        name.set_allowed_hosts_suffix("localhost").unwrap();
        assert!(name.accepts("db.cluster.localhost") && !name.accepts("localhost") && !name.accepts("a.local"));
    }

    #[cfg(feature = "srv")]
    #[test]
    fn public_suffix_is_refused() {
        // These include the cases with at least two labels from the prose tests of MongoDB's Public Suffix List
        // specification.
        let open = ["com.ac", "b.ck", "abc.nom.br", "xn--55qx5d.cn", "公司.cn", "co.uk", "github.io"];
        for domain in open {
            let error = read_suffix(domain).unwrap_err();
            assert!(error.to_string().contains("open to the public"), "{error}");
        }
        for domain in
            ["foo.com.ac", "a.b.ck", "x.abc.nom.br", "www.ck", "foo.nosuchtld", "example.xn--p1ai", "10gen.cc"]
        {
            assert_eq!(read_suffix(domain).as_deref(), Ok(domain));
        }
        assert!(["ck", "nosuchtld", "xn--p1ai"].into_iter().all(is_public_suffix));
        assert!(!PRIVATE_NAMES.into_iter().any(is_public_suffix));
    }

    #[cfg(feature = "srv")]
    #[test]
    fn srv_name_is_stored_as_the_dns_has_it() {
        assert_eq!(SrvName::parse("X.BÜCHER.example.").unwrap().host, "x.xn--bcher-kva.example");
        assert!(SrvName::parse("\u{ad}.example").is_err());
        let name = SrvName::parse("x.bücher.example").unwrap();
        assert!(name.accepts("a.xn--bcher-kva.example") && !name.accepts("a.bucher.example"));
    }

    #[test]
    fn service_name_follows_rfc_6335() {
        let named = |name: &str| SrvName { service_name: name.to_owned(), ..SrvName::parse("a.b.c").unwrap() };
        for name in ["mongodb", "x", "a-b-1", &"a".repeat(62)] {
            assert_eq!(named(name).check(), Ok(()), "{name}");
        }
        for name in ["", "1", "-a", "a-", "a--b", "a_b", "a.b", "ä", &"a".repeat(63)] {
            assert_eq!(named(name).check().unwrap_err().option, "srvServiceName", "{name}");
        }
    }
}
