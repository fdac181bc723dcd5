//! Converts host names to a canonical form, so that they can be compared.

use std::net::IpAddr;

use crate::endpoint::options::split_zone;

/// Returns a host's name in the form that certificates and `ALLOWED_HOSTS` use. A name is in lower case, without a
/// final dot. An IP address is in its shortest form, without a zone, which is meaningful only on one machine.
///
/// Returns `None` if the name is not ASCII. Such a name has several forms, and none of them appears in a certificate.
pub(super) fn canonical(name: &str) -> Option<String> {
    if let Ok(address) = split_zone(name).0.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    name.is_ascii().then(|| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_name_become_one() {
        for (name, expected) in [
            ("db.example.com", Some("db.example.com")),
            ("DB.Example.com.", Some("db.example.com")),
            ("db.example.com..", Some("db.example.com.")),
            ("0:0:0:0:0:0:0:1", Some("::1")),
            ("2001:DB8::0001", Some("2001:db8::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("127.0.0.1", Some("127.0.0.1")),
            ("bücher.example", None),
        ] {
            assert_eq!(canonical(name).as_deref(), expected, "{name}");
        }
    }
}
