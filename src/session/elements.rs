//! The elements that sessions append to commands, encoded one after the other without a document around them.
//!
//! The client appends them to a command's document when it encodes the message. So the document of the application is
//! neither changed nor copied, and nothing is allocated once the buffer has its size.

use bson::RawDocument;

use super::server_session::SessionId;

/// The element `$clusterTime` before its value.
pub(super) const CLUSTER_TIME: &[u8] = b"\x03$clusterTime\0";

/// The element `lsid` before the UUID's bytes: a document of 30 bytes, and in it `id`, 16 bytes of the binary subtype 4.
const LSID: &[u8] = b"\x03lsid\0\x1e\0\0\0\x05id\0\x10\0\0\0\x04";

/// Appends `lsid`.
pub(super) fn lsid(elements: &mut Vec<u8>, id: SessionId) {
    elements.extend_from_slice(LSID);
    elements.extend_from_slice(&id.bytes());
    elements.push(0);
}

/// Returns the element `$clusterTime`.
pub(super) fn cluster_time(document: &RawDocument) -> Box<[u8]> {
    [CLUSTER_TIME, document.as_bytes()].concat().into()
}

/// Returns the document that has these elements.
#[cfg(test)]
pub(super) fn document(elements: &[u8]) -> bson::RawDocumentBuf {
    let mut bytes = (elements.len() as u32 + 5).to_le_bytes().to_vec();
    bytes.extend(elements);
    bytes.push(0);
    bson::RawDocumentBuf::from_bytes(bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn session_is_appended_by_its_identifier() {
        let id = SessionId::new();
        let mut elements = Vec::new();
        lsid(&mut elements, id);
        assert_eq!(document(&elements), rawdoc! { "lsid": id.document() });
    }
}
