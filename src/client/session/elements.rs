//! The elements that sessions append to commands, encoded one after another without an enclosing document.
//!
//! The client appends them to a command's document when it encodes the message. So the application's document is
//! neither changed nor copied, and nothing is allocated once the buffer is large enough.

use bson::{RawDocument, Timestamp};

use super::server_session::SessionId;

/// The part of the `$clusterTime` element that precedes its value.
pub(super) const CLUSTER_TIME: &[u8] = b"\x03$clusterTime\0";

/// The `lsid` element up to the UUID's bytes: a document of 30 bytes, whose `id` is 16 bytes of binary subtype 4.
const LSID: &[u8; 19] = b"\x03lsid\0\x1e\0\0\0\x05id\0\x10\0\0\0\x04";

/// Appends `lsid`.
pub(super) fn lsid(elements: &mut Vec<u8>, id: SessionId) {
    // Appended in a single call, because every operation appends it.
    let mut element = [0; LSID.len() + 16 + 1];
    element[..LSID.len()].copy_from_slice(LSID);
    element[LSID.len()..][..16].copy_from_slice(&id.bytes());
    elements.extend_from_slice(&element);
}

/// Returns the `$clusterTime` element.
pub(super) fn cluster_time(document: &RawDocument) -> Box<[u8]> {
    [CLUSTER_TIME, document.as_bytes()].concat().into()
}

/// Appends `txnNumber`.
pub(super) fn transaction_number(elements: &mut Vec<u8>, number: i64) {
    elements.extend_from_slice(b"\x12txnNumber\0");
    elements.extend_from_slice(&number.to_le_bytes());
}

/// Appends the fields for a command in a transaction. `begins` says whether the command begins the transaction.
pub(super) fn transaction(elements: &mut Vec<u8>, number: i64, begins: bool) {
    transaction_number(elements, number);
    if begins {
        elements.extend_from_slice(b"\x08startTransaction\0\x01");
    }
    elements.extend_from_slice(b"\x08autocommit\0\0");
}

/// Appends `readConcern`. An empty read concern is omitted, because it is the server's default.
pub(super) fn read_concern(
    elements: &mut Vec<u8>,
    level: Option<&str>,
    after_cluster_time: Option<Timestamp>,
    at_cluster_time: Option<Timestamp>,
) {
    let level = level.filter(|level| !level.is_empty());
    if level.is_none() && after_cluster_time.is_none() && at_cluster_time.is_none() {
        return;
    }
    elements.extend_from_slice(b"\x03readConcern\0");
    let start = elements.len();
    elements.extend_from_slice(&[0; 4]);
    if let Some(level) = level {
        elements.extend_from_slice(b"\x02level\0");
        elements.extend_from_slice(&length(level.len() + 1));
        elements.extend_from_slice(level.as_bytes());
        elements.push(0);
    }
    for (name, time) in
        [(&b"\x11afterClusterTime\0"[..], after_cluster_time), (&b"\x11atClusterTime\0"[..], at_cluster_time)]
    {
        if let Some(time) = time {
            append_timestamp(elements, name, time);
        }
    }
    elements.push(0);
    let written = length(elements.len() - start);
    elements[start..start + 4].copy_from_slice(&written);
}

/// Appends the application's own `readConcern`, and adds `afterClusterTime` to it.
pub(super) fn own_read_concern(elements: &mut Vec<u8>, own: &RawDocument, after_cluster_time: Option<Timestamp>) {
    elements.extend_from_slice(b"\x03readConcern\0");
    let start = elements.len();
    let own = own.as_bytes();
    elements.extend_from_slice(&own[..own.len() - 1]);
    if let Some(time) = after_cluster_time {
        append_timestamp(elements, b"\x11afterClusterTime\0", time);
    }
    elements.push(0);
    let written = length(elements.len() - start);
    elements[start..start + 4].copy_from_slice(&written);
}

fn append_timestamp(elements: &mut Vec<u8>, name: &[u8], Timestamp { time, increment }: Timestamp) {
    elements.extend_from_slice(name);
    elements.extend_from_slice(&(u64::from(time) << 32 | u64::from(increment)).to_le_bytes());
}

/// Returns a length as BSON encodes it. A value that is too long for an `i32` does not fit in a message either, which
/// the encoder reports.
fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).unwrap_or(i32::MAX).to_le_bytes()
}

/// Returns a document made of these elements.
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

    #[test]
    fn transaction_is_appended_with_its_fields() {
        let mut elements = Vec::new();
        transaction(&mut elements, 5, true);
        let expected = rawdoc! { "txnNumber": 5_i64, "startTransaction": true, "autocommit": false };
        assert_eq!(document(&elements), expected);
        elements.clear();
        transaction(&mut elements, i64::MAX, false);
        assert_eq!(document(&elements), rawdoc! { "txnNumber": i64::MAX, "autocommit": false });
    }

    #[test]
    fn read_concern_has_only_what_is_set() {
        let (after, at) = (Timestamp { time: 7, increment: 1 }, Timestamp { time: 8, increment: 2 });
        let appended = |level, after, at| {
            let mut elements = b"\x08x\0\x01".to_vec();
            read_concern(&mut elements, level, after, at);
            document(&elements)
        };
        assert_eq!(appended(None, None, None), rawdoc! { "x": true });
        assert_eq!(appended(Some(""), None, None), rawdoc! { "x": true });
        let expected = rawdoc! { "x": true, "readConcern": { "level": "majority", "afterClusterTime": after } };
        assert_eq!(appended(Some("majority"), Some(after), None), expected);
        let expected = rawdoc! { "x": true, "readConcern": { "afterClusterTime": after } };
        assert_eq!(appended(None, Some(after), None), expected);
        assert_eq!(appended(Some(""), Some(after), None), expected);
        let expected = rawdoc! { "x": true, "readConcern": { "level": "snapshot", "atClusterTime": at } };
        assert_eq!(appended(Some("snapshot"), None, Some(at)), expected);
    }
}
