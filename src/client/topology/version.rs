//! The version of a server's view of the topology.

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument};

use crate::endpoint::wire::reply::whole_number;

/// `topologyVersion`: a counter that a server process increments whenever its view of the topology changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopologyVersion {
    /// `processId`: the server process that maintains the counter.
    pub process_id: ObjectId,
    /// `counter`: the number of changes that the process has seen.
    pub counter: i64,
}

impl TopologyVersion {
    /// Reads the `topologyVersion` field of a hello reply or an error reply. Returns `None` if the field is missing or
    /// invalid. In both cases, the reply is treated as more recent, as the specification allows.
    #[must_use]
    pub fn of_reply(reply: &RawDocument) -> Option<Self> {
        Self::of_document(reply.get_document("topologyVersion").ok()?)
    }

    /// Reads the value of a `topologyVersion` field. Returns `None` if it is invalid.
    #[must_use]
    pub fn of_document(version: &RawDocument) -> Option<Self> {
        let Ok(Some(RawBsonRef::ObjectId(process_id))) = version.get("processId") else { return None };
        let counter = whole_number(version, "counter").ok().flatten()?;
        Some(Self { process_id, counter })
    }

    /// Returns whether `new` is more recent than `current` ("topologyVersion Comparison"). A missing version, or a version
    /// from another process, counts as more recent.
    #[must_use]
    pub fn is_newer(new: Option<Self>, current: Option<Self>) -> bool {
        Self::comparable(new, current).is_none_or(|(new, current)| new > current)
    }

    /// Returns whether `new` is older than `current`. A missing version, or a version from another process, is not older.
    #[must_use]
    pub fn is_older(new: Option<Self>, current: Option<Self>) -> bool {
        Self::comparable(new, current).is_some_and(|(new, current)| new < current)
    }

    /// Returns the two counters if they belong to the same process.
    fn comparable(new: Option<Self>, current: Option<Self>) -> Option<(i64, i64)> {
        let (new, current) = (new?, current?);
        (new.process_id == current.process_id).then_some((new.counter, current.counter))
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn version(process: u8, counter: i64) -> Option<TopologyVersion> {
        Some(TopologyVersion { process_id: ObjectId::from_bytes([process; 12]), counter })
    }

    #[test]
    fn only_counters_of_one_process_are_compared() {
        for (new, current, newer, older) in [
            (None, None, true, false),
            (None, version(1, 5), true, false),
            (version(1, 1), None, true, false),
            (version(2, 1), version(1, 5), true, false),
            (version(1, 6), version(1, 5), true, false),
            (version(1, 5), version(1, 5), false, false),
            (version(1, 4), version(1, 5), false, true),
        ] {
            assert_eq!(TopologyVersion::is_newer(new, current), newer, "{new:?} after {current:?}");
            assert_eq!(TopologyVersion::is_older(new, current), older, "{new:?} after {current:?}");
        }
    }

    #[test]
    fn invalid_version_counts_as_missing() {
        let process_id = ObjectId::from_bytes([7; 12]);
        let reply = rawdoc! { "topologyVersion": { "processId": process_id, "counter": 3_i64 } };
        assert_eq!(TopologyVersion::of_reply(&reply), version(7, 3));
        for reply in [
            rawdoc! {},
            rawdoc! { "topologyVersion": 3 },
            rawdoc! { "topologyVersion": { "counter": 3_i64 } },
            rawdoc! { "topologyVersion": { "processId": process_id, "counter": "3" } },
        ] {
            assert_eq!(TopologyVersion::of_reply(&reply), None, "{reply:?}");
        }
    }
}
