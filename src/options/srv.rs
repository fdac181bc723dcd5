//! The name that a deployment's servers are found by in the DNS.

use super::InvalidOption;

/// The `srvServiceName` of a connection string that gives none.
const SERVICE_NAME: &str = "mongodb";

/// The longest `srvServiceName`: with the underscore before it, it is one label of a name in the DNS.
const LONGEST_SERVICE_NAME: usize = 62;

/// The name of a deployment whose servers are listed in the DNS: what follows `mongodb+srv://` (Initial DNS Seedlist
/// Discovery specification).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct SrvName {
    /// The name, in lower case and without a dot at its end.
    pub host: String,
    /// `srvServiceName`: the service, by which the records of one name are told apart. Default `mongodb`.
    pub service_name: String,
    /// `srvMaxHosts`: how many of the servers to choose, at random; 0 means all of them. Default 0.
    pub max_hosts: u32,
    /// `srvAllowedHostsSuffix`: a domain of at least two labels, in lower case and without dots around it, that the
    /// servers must be in, instead of the name's own domain. Not part of the specification's text, but of its tests.
    ///
    /// This loosens the protection against forged answers: name the narrowest domain that holds the servers. A domain
    /// under which anybody may register names (such as `co.uk`) is not recognised as one.
    pub allowed_hosts_suffix: Option<String>,
}

impl SrvName {
    pub(super) fn parse(name: &str) -> Result<Self, InvalidOption> {
        let allowed = "one name in the DNS, without a port, after mongodb+srv://";
        let host = name.strip_suffix('.').unwrap_or(name).to_lowercase();
        if host.parse::<std::net::IpAddr>().is_ok() || !Self::is_name(&host) {
            return Err(InvalidOption::new("hosts", format!("{name:?}"), allowed));
        }
        Ok(Self { host, service_name: SERVICE_NAME.to_owned(), max_hosts: 0, allowed_hosts_suffix: None })
    }

    /// Whether the text, without a dot at its end, is a name of the DNS.
    pub(crate) fn is_name(text: &str) -> bool {
        let is_label = |label: &str| {
            let unfit = |char: char| char.is_whitespace() || char.is_control() || "/?#%[]@:,\\\"".contains(char);
            !label.is_empty() && label.len() <= 63 && !label.contains(unfit)
        };
        text.len() <= 253 && text.split('.').all(is_label)
    }

    /// The domain that the servers must be in.
    ///
    /// Of a name with three or more labels it is the name without its first label; of a shorter one it is the name
    /// itself, and then a server must have a label more.
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

    /// Whether a server of this name (in lower case, without a dot at its end) is in the [`domain`](Self::domain).
    #[cfg(any(test, feature = "srv"))]
    pub(crate) fn accepts(&self, server: &str) -> bool {
        let label = server.strip_suffix(self.domain()).and_then(|rest| rest.strip_suffix('.'));
        label.is_some_and(|label| !label.is_empty())
    }

    pub(super) fn set_allowed_hosts_suffix(&mut self, suffix: &str) -> Result<(), InvalidOption> {
        let domain = suffix.strip_prefix('.').unwrap_or(suffix);
        let domain = domain.strip_suffix('.').unwrap_or(domain).to_lowercase();
        let labels: Vec<_> = domain.split('.').collect();
        if labels.len() < 2 || labels.iter().any(|label| label.is_empty()) {
            let allowed = "a domain of at least two labels, such as .db.example.com";
            return Err(InvalidOption::new("srvAllowedHostsSuffix", format!("{suffix:?}"), allowed));
        }
        self.allowed_hosts_suffix = Some(domain);
        Ok(())
    }

    /// Whether the service's name is one (RFC 6335, section 5.1, but longer).
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
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
        let allowed = format!(
            "1 to {LONGEST_SERVICE_NAME} letters, digits and single hyphens, at least one letter, no hyphen at an end"
        );
        Err(InvalidOption::new("srvServiceName", format!("{name:?}"), allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_must_be_in_the_names_domain() {
        // Prose tests 2, 3 and 4 of the specification, and what they should let pass.
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
    fn a_name_is_one_name_of_the_dns() {
        assert_eq!(SrvName::parse("Cluster.Example.COM.").unwrap().host, "cluster.example.com");
        for name in ["", ".", "a..b", "a:1", "a,b", "127.0.0.1", "::1", "[::1]", "%2Ftmp%2Fm.sock", "a b"] {
            let error = SrvName::parse(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("hosts is {name:?}, but must be one name")), "{error}");
        }
        assert!(SrvName::parse(&"a".repeat(64)).is_err());
        assert!(SrvName::parse(&"a.".repeat(127)).is_ok());
        assert!(SrvName::parse(&"a.".repeat(128)).is_err());
    }

    #[test]
    fn a_service_has_a_name_of_rfc_6335() {
        let named = |name: &str| SrvName { service_name: name.to_owned(), ..SrvName::parse("a.b.c").unwrap() };
        for name in ["mongodb", "x", "a-b-1", &"a".repeat(62)] {
            assert_eq!(named(name).check(), Ok(()), "{name}");
        }
        for name in ["", "1", "-a", "a-", "a--b", "a_b", "a.b", "ä", &"a".repeat(63)] {
            assert_eq!(named(name).check().unwrap_err().option, "srvServiceName", "{name}");
        }
    }
}
