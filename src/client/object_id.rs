//! Document identifiers that are unique across a process and its forked children.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::oid::ObjectId;

use crate::pool::runtime::{Process, random_bytes};

/// The position of the process's value in an [`ObjectId`]: after the seconds and before the counter.
const OF_PROCESS: std::ops::Range<usize> = 4..9;
/// The bits of [`PROCESS`] that hold the process's number plus one, or zero before the first use.
const TAG: u64 = 0xff_ffff;

/// The five random bytes of this process's identifiers, above a tag for the process that generated them.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// Returns a new identifier (BSON ObjectID, "Specification"). Unlike [`ObjectId::new`], it never repeats an identifier
/// from the parent or a sibling.
pub(crate) fn object_id() -> ObjectId {
    // `ObjectId::new` provides the seconds, and a counter that starts at a random value. Forked children continue with
    // the same counter.
    let mut bytes = ObjectId::new().bytes();
    bytes[OF_PROCESS].copy_from_slice(&of_process().to_be_bytes()[..5]);
    ObjectId::from_bytes(bytes)
}

/// Returns the random value of this process, in the upper five bytes.
fn of_process() -> u64 {
    let tag = u64::from(Process::this().number()).wrapping_add(1) & TAG;
    // Relaxed: the value publishes nothing else.
    let present = PROCESS.load(Ordering::Relaxed);
    if present & TAG == tag {
        return present;
    }
    let drawn = u64::from_ne_bytes(random_bytes()) & !TAG | tag;
    // Relaxed: as above. The first swap wins.
    match PROCESS.compare_exchange(present, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_a_process_share_five_bytes_and_count_up() {
        let (first, second) = (object_id().bytes(), object_id().bytes());
        assert_eq!(first[OF_PROCESS], second[OF_PROCESS]);
        assert_ne!(first[9..], second[9..], "the counter");
        assert_ne!(first[OF_PROCESS], ObjectId::new().bytes()[OF_PROCESS], "that value would be the parent's");
        assert!(object_id().timestamp() >= ObjectId::from_bytes(first).timestamp());
    }

    #[cfg(unix)]
    #[test]
    fn siblings_and_their_parent_have_different_bytes() {
        use std::collections::HashSet;
        use std::io::{Read, Write};

        use crate::pool::runtime::{in_child, watch_forks};

        watch_forks();
        // The parent generates an identifier before it forks the children.
        let _ = object_id();
        let of_process = || <[u8; 5]>::try_from(&object_id().bytes()[OF_PROCESS]).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        for _ in 0..2 {
            assert_eq!(in_child(|| (&writer).write_all(&of_process()).map_err(|_| 1)), 0);
        }
        drop(writer);
        let mut of_children = Vec::new();
        reader.read_to_end(&mut of_children).unwrap();
        let mut all: HashSet<[u8; 5]> = of_children.chunks(5).map(|bytes| bytes.try_into().unwrap()).collect();
        all.insert(of_process());
        assert_eq!(all.len(), 3, "{all:?}");
    }
}
