//! The server API that a client declares with every command (Versioned API specification, "Command Syntax").

use bson::RawDocumentBuf;
use bson::raw::cstr;

use crate::endpoint::options::ServerApi;

/// Returns the elements that every command carries, without a document around them: `apiVersion`, and `apiStrict` and
/// `apiDeprecationErrors` if they are set. The result is empty if no API is declared.
///
/// [`encode_with`](super::op_msg::encode_with) appends them to a command.
#[must_use]
pub fn elements(api: Option<&ServerApi>) -> Vec<u8> {
    let Some(ServerApi { version, strict, deprecation_errors }) = api else { return Vec::new() };
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("apiVersion"), version.as_str());
    for (field, value) in [(cstr!("apiStrict"), strict), (cstr!("apiDeprecationErrors"), deprecation_errors)] {
        if let Some(value) = value {
            document.append(field, *value);
        }
    }
    // The elements are between the document's length and the zero byte at its end.
    let bytes = document.as_bytes();
    bytes[4..bytes.len() - 1].to_vec()
}

#[cfg(test)]
mod tests {
    use bson::{RawDocument, rawdoc};

    use super::*;
    use crate::endpoint::options::ServerApiVersion;

    #[test]
    fn only_set_fields_are_declared() {
        let declared = |strict, deprecation_errors| {
            let api = ServerApi { version: ServerApiVersion::V1, strict, deprecation_errors };
            let elements = elements(Some(&api));
            let mut bytes = (elements.len() as u32 + 5).to_le_bytes().to_vec();
            bytes.extend(elements);
            bytes.push(0);
            RawDocument::from_bytes(&bytes).unwrap().to_owned()
        };
        assert_eq!(declared(None, None), rawdoc! { "apiVersion": "1" });
        assert_eq!(declared(Some(false), None), rawdoc! { "apiVersion": "1", "apiStrict": false });
        let all = rawdoc! { "apiVersion": "1", "apiStrict": true, "apiDeprecationErrors": true };
        assert_eq!(declared(Some(true), Some(true)), all);
        assert!(elements(None).is_empty());
    }
}
