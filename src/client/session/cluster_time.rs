//! The cluster time, which clients pass on between servers (Driver Sessions, "Gossipping the cluster time").

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use bson::{RawDocument, Timestamp};

use super::elements;
use crate::endpoint::wire::element::{self, TIMESTAMP};

/// The maximum length in bytes of a `$clusterTime` that the client keeps. Every command carries it, and a genuine
/// `$clusterTime` is shorter than 200 bytes.
const LONGEST: usize = 1_024;

/// A `$clusterTime` that a server sent. Never changed, only replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTime {
    time: Timestamp,
    /// The `$clusterTime` element as it is appended to commands.
    element: Box<[u8]>,
}

impl ClusterTime {
    /// Reads the value of a `$clusterTime`. Returns `None` if it has no timestamp in `clusterTime`, or is longer than
    /// 1,024 bytes.
    pub fn read(document: &RawDocument) -> Option<Self> {
        if document.as_bytes().len() > LONGEST {
            return None;
        }
        Some(Self { time: Self::time_of(document)?, element: elements::cluster_time(document) })
    }

    /// Reads the timestamp of a `$clusterTime`, which is usually its first element.
    #[inline]
    fn time_of(document: &RawDocument) -> Option<Timestamp> {
        match element::find(document, b"clusterTime\0") {
            Some((TIMESTAMP, value)) => element::timestamp(value),
            _ => document.get_timestamp("clusterTime").ok(),
        }
    }

    /// Returns the timestamp, the only part that decides which of two cluster times is newer.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// Returns the document as the server sent it, with the signature.
    pub fn document(&self) -> &RawDocument {
        let value = &self.element[elements::CLUSTER_TIME.len()..];
        RawDocument::from_bytes(value).expect("BUG: the element was made from a document")
    }

    /// Appends `$clusterTime` to the elements of a command.
    pub fn append_to(&self, elements: &mut Vec<u8>) {
        elements.extend_from_slice(&self.element);
    }
}

/// The newest `$clusterTime` that a client has seen from any of its servers.
#[derive(Debug, Default)]
pub struct SharedClusterTime {
    newest: ArcSwapOption<ClusterTime>,
    /// A lower bound on the newest time, as returned by [`ordinal`]. Most replies need only be compared with this
    /// bound.
    at_least: AtomicU64,
}

/// Maps a time to a number. A later time has a larger number.
fn ordinal(time: Timestamp) -> u64 {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

impl SharedClusterTime {
    /// Returns the newest cluster time. While the value stays the same, this writes no memory that another core reads.
    pub fn load(&self) -> impl std::ops::Deref<Target = Option<Arc<ClusterTime>>> {
        self.newest.load()
    }

    /// Stores the `$clusterTime` of a server's reply if it is newer. Returns the time to keep in the session: the
    /// reply's time, or `None` if it is not newer, is malformed or is too long.
    ///
    /// Pass only times that come directly from a server: an invalid time would make servers refuse all commands.
    #[inline]
    pub fn advance(&self, received: &RawDocument) -> Option<Arc<ClusterTime>> {
        let time = ClusterTime::time_of(received)?;
        // ORD: Acquire; pairs with the Release in `replace_by`; a thread that sees a bound sends that time or a newer
        // one. The bound only grows, so a stale value is still a bound. A time of zero means that there is no time.
        if ordinal(time) <= self.at_least.load(Ordering::Acquire) {
            return None;
        }
        self.replace_by(time, received)
    }

    fn replace_by(&self, time: Timestamp, received: &RawDocument) -> Option<Arc<ClusterTime>> {
        let mut present = self.newest.load();
        // An old time causes no allocation.
        if present.as_ref().is_some_and(|present| present.time >= time) {
            return None;
        }
        let received = Arc::new(ClusterTime::read(received)?);
        loop {
            let previous = self.newest.compare_and_swap(&present, Some(Arc::clone(&received)));
            let is_swapped = match (&*previous, &*present) {
                (None, None) => true,
                (Some(previous), Some(present)) => Arc::ptr_eq(previous, present),
                _ => false,
            };
            // Another thread may already have stored a newer time, which is kept.
            if is_swapped || previous.as_ref().is_some_and(|previous| previous.time >= time) {
                // ORD: Release; pairs with the Acquire in `advance`.
                self.at_least.fetch_max(ordinal(time), Ordering::Release);
                return Some(received);
            }
            present = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn at(time: u32, increment: u32) -> RawDocumentBuf {
        rawdoc! {
            "clusterTime": Timestamp { time, increment },
            "signature": { "hash": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![7; 20] }, "keyId": 1_i64 },
        }
    }

    #[test]
    fn newer_time_replaces_an_older_one_by_time_and_increment() {
        let shared = SharedClusterTime::default();
        assert!(shared.load().is_none());
        for (received, is_newer) in [
            (at(5, 5), true),
            (at(5, 5), false),
            (at(5, 4), false),
            (at(4, 9), false),
            (at(5, 6), true),
            (at(6, 0), true),
        ] {
            let before = shared.load().clone();
            assert_eq!(shared.advance(&received).is_some(), is_newer, "{received:?}");
            let after = shared.load().clone();
            assert_eq!(
                after.as_ref().unwrap().document(),
                if is_newer { &*received } else { before.as_ref().unwrap().document() }
            );
        }
    }

    #[test]
    fn malformed_time_is_ignored() {
        let shared = SharedClusterTime::default();
        for malformed in [rawdoc! {}, rawdoc! { "clusterTime": 7 }, at(0, 0)] {
            assert!(shared.advance(&malformed).is_none(), "{malformed:?}");
        }
        assert!(shared.load().is_none());
    }

    #[test]
    fn time_that_is_too_long_to_be_sent_with_each_command_is_ignored() {
        let shared = SharedClusterTime::default();
        let mut long = at(7, 1);
        long.append(bson::raw::cstr!("more"), "x".repeat(LONGEST));
        assert!(shared.advance(&long).is_none());
        assert!(shared.load().is_none());
        assert!(shared.advance(&at(6, 1)).is_some(), "an ignored time must not outdo a later one");
    }

    #[test]
    fn element_is_sent_as_it_was_received() {
        let received = at(1, 2);
        let mut elements = Vec::new();
        ClusterTime::read(&received).unwrap().append_to(&mut elements);
        assert_eq!(elements::document(&elements), rawdoc! { "$clusterTime": received });
    }

    #[test]
    fn newest_of_all_threads_times_stays() {
        let shared = SharedClusterTime::default();
        thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    let mut seen = Timestamp { time: 0, increment: 0 };
                    for round in 1..2_000 {
                        shared.advance(&at(round, thread));
                        let newest = shared.load().as_ref().unwrap().time();
                        assert!(
                            newest >= seen && newest >= Timestamp { time: round, increment: thread },
                            "it went back"
                        );
                        seen = newest;
                    }
                });
            }
        });
        assert_eq!(shared.load().as_ref().unwrap().time(), Timestamp { time: 1_999, increment: 3 });
    }
}
