//! PLAIN: a user name and a password in clear text (RFC 4616), for LDAP.

use zeroize::Zeroizing;

/// Returns the mechanism's only message. Neither the user name nor the password may contain a zero byte.
#[must_use]
pub fn message(username: &str, password: &str) -> Zeroizing<Vec<u8>> {
    let mut message = Zeroizing::new(Vec::with_capacity(username.len() + password.len() + 2));
    for part in [username, password] {
        message.push(0);
        message.extend_from_slice(part.as_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;

    #[test]
    fn message_matches_the_specification() {
        assert_eq!(BASE64.encode(&*message("user", "pencil")), "AHVzZXIAcGVuY2ls");
    }
}
