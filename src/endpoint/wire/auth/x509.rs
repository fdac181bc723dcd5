//! MONGODB-X509: authentication with the client's TLS certificate (Authentication specification, "MONGODB-X509").

use bson::raw::cstr;
use bson::{RawDocumentBuf, rawdoc};

use crate::endpoint::options::Mechanism;

/// Returns the command that asks the server to check the certificate. The server takes the user name from the
/// certificate, and compares it with `username` if that is given.
#[must_use]
pub fn command(username: Option<&str>) -> RawDocumentBuf {
    let mut command = rawdoc! { "authenticate": 1, "mechanism": Mechanism::MongoDbX509.name() };
    if let Some(username) = username {
        command.append(cstr!("user"), username);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_name_is_sent_only_if_given() {
        assert_eq!(command(None), rawdoc! { "authenticate": 1, "mechanism": "MONGODB-X509" });
        let expected = rawdoc! { "authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=client" };
        assert_eq!(command(Some("CN=client")), expected);
    }
}
