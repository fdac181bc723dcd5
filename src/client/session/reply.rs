//! The session data in replies.

use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, Timestamp};

use crate::endpoint::wire::element::{self, TIMESTAMP};

const DOCUMENT: u8 = ElementType::EmbeddedDocument as u8;

/// The fields of a reply that sessions use, whether the command succeeded or not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplyTimes<'r> {
    /// `$clusterTime`.
    pub cluster_time: Option<&'r RawDocument>,
    /// `operationTime`: when the operation happened.
    pub operation_time: Option<Timestamp>,
    /// `recoveryToken`: lets another mongos find the transaction.
    pub recovery_token: Option<&'r RawDocument>,
    /// `atClusterTime`: the point in time of a snapshot read. It is at the top level of the reply (for `distinct`), or
    /// in its `cursor`.
    pub at_cluster_time: Option<Timestamp>,
    /// Whether there is a `writeConcernError`. The client looks for it in all successful replies.
    pub has_write_concern_error: bool,
}

impl<'r> ReplyTimes<'r> {
    /// Reads a reply. Ignores fields of the wrong type, and everything after invalid bytes.
    pub fn read(reply: &'r RawDocument) -> Self {
        let mut times = Self::default();
        let is_all = element::walk(reply, |name, kind, value| times.add(name, kind, value));
        if is_all { times } else { Self::read_strictly(reply) }
    }

    /// Stores a field, if sessions use it.
    #[inline]
    fn add(&mut self, name: &[u8], kind: u8, value: &'r [u8]) {
        let document = || (kind == DOCUMENT).then(|| RawDocument::from_bytes(value).ok()).flatten();
        let time = || if kind == TIMESTAMP { element::timestamp(value) } else { None };
        match name {
            b"$clusterTime" => self.cluster_time = document().or(self.cluster_time),
            b"operationTime" => self.operation_time = time().or(self.operation_time),
            b"writeConcernError" => self.has_write_concern_error = true,
            b"recoveryToken" => self.recovery_token = document().or(self.recovery_token),
            b"atClusterTime" => self.at_cluster_time = time().or(self.at_cluster_time),
            b"cursor" => {
                if let Some(cursor) = document() {
                    self.at_cluster_time = cursor.get_timestamp("atClusterTime").ok().or(self.at_cluster_time);
                }
            }
            _ => {}
        }
    }

    /// Reads an arbitrary reply, element by element.
    #[cold]
    fn read_strictly(reply: &'r RawDocument) -> Self {
        let mut times = Self::default();
        for element in reply.iter_elements().map_while(Result::ok) {
            let name = element.key().as_str();
            times.has_write_concern_error |= name == "writeConcernError";
            // Only these fields are decoded.
            if !matches!(name, "$clusterTime" | "operationTime" | "recoveryToken" | "atClusterTime" | "cursor") {
                continue;
            }
            match (name, element.value()) {
                ("$clusterTime", Ok(RawBsonRef::Document(document))) => times.cluster_time = Some(document),
                ("operationTime", Ok(RawBsonRef::Timestamp(time))) => times.operation_time = Some(time),
                ("recoveryToken", Ok(RawBsonRef::Document(document))) => times.recovery_token = Some(document),
                ("atClusterTime", Ok(RawBsonRef::Timestamp(time))) => times.at_cluster_time = Some(time),
                ("cursor", Ok(RawBsonRef::Document(cursor))) => {
                    times.at_cluster_time = cursor.get_timestamp("atClusterTime").ok().or(times.at_cluster_time);
                }
                _ => {}
            }
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::cstr;
    use bson::rawdoc;

    use super::*;

    #[test]
    fn fields_are_found_wherever_they_stand() {
        let (at, operation) = (Timestamp { time: 3, increment: 1 }, Timestamp { time: 4, increment: 2 });
        let cluster_time = rawdoc! { "clusterTime": operation };
        let token = rawdoc! { "recoveryShardId": "s" };
        let reply = rawdoc! {
            "cursor": { "firstBatch": [{ "operationTime": 1 }], "atClusterTime": at },
            "ok": 1.0, "writeConcernError": {}, "$clusterTime": cluster_time.clone(), "operationTime": operation, "recoveryToken": token.clone(),
        };
        let expected = ReplyTimes {
            cluster_time: Some(&cluster_time),
            operation_time: Some(operation),
            recovery_token: Some(&token),
            at_cluster_time: Some(at),
            has_write_concern_error: true,
        };
        assert_eq!(ReplyTimes::read(&reply), expected);
        assert_eq!(ReplyTimes::read_strictly(&reply), expected);
        let mut with_rare = reply.clone();
        with_rare.append(cstr!("rare"), bson::Regex { pattern: cstr!("a").into(), options: cstr!("").into() });
        assert_eq!(ReplyTimes::read(&with_rare), expected);
        let distinct = rawdoc! { "values": [], "atClusterTime": at, "ok": 1 };
        assert_eq!(ReplyTimes::read(&distinct).at_cluster_time, Some(at));
    }

    #[test]
    fn missing_and_malformed_fields_are_ignored() {
        assert_eq!(ReplyTimes::read(&rawdoc! { "ok": 1 }), ReplyTimes::default());
        let malformed =
            rawdoc! { "$clusterTime": 1, "operationTime": "x", "recoveryToken": 2, "cursor": 0, "atClusterTime": 1 };
        assert_eq!(ReplyTimes::read(&malformed), ReplyTimes::default());
        assert_eq!(ReplyTimes::read_strictly(&malformed), ReplyTimes::default());
    }
}
