//! Random numbers and identifiers that a forked child does not share with its parent or its siblings.
//!
//! A fork copies the generators: all children of one parent would draw the same numbers. So in a child, each generator
//! is seeded again from the operating system.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bson::oid::ObjectId;
use fastrand::Rng;

use super::fork::forks;

/// The position of the process's value in an [`ObjectId`]: after the seconds and before the counter.
const OF_PROCESS: std::ops::Range<usize> = 4..9;
/// The lower bits of [`PROCESS`]: [`forks`] plus one, or zero if nothing was drawn yet.
const TAG: u64 = 0xff_ffff;

/// The five random bytes of this process's identifiers, above a tag for the process that drew them.
static PROCESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's generator, and the value of [`forks`] when it was seeded.
    static GENERATOR: RefCell<Option<(u32, Rng)>> = const { RefCell::new(None) };
}

pub(crate) fn random_number() -> u64 {
    draw(|generator| generator.u64(..))
}

/// Returns a random number from 0 to 1, without 1.
pub(crate) fn random_fraction() -> f64 {
    draw(Rng::f64)
}

/// Returns a new identifier (BSON ObjectID, "Specification"). Unlike [`ObjectId::new`], it never repeats an identifier
/// of the parent or of a sibling.
pub(crate) fn object_id() -> ObjectId {
    // The seconds and the counter, which starts with a random value. Children share the counter's start.
    let mut bytes = ObjectId::new().bytes();
    bytes[OF_PROCESS].copy_from_slice(&of_process().to_be_bytes()[..5]);
    ObjectId::from_bytes(bytes)
}

/// Returns random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        // The keys of a `RandomState` are random, but a child inherits them.
        for part in bytes.chunks_mut(8) {
            let number = RandomState::new().hash_one((process::id(), SystemTime::now()));
            part.copy_from_slice(&number.to_ne_bytes()[..part.len()]);
        }
    }
    bytes
}

fn draw<T>(draw: impl FnOnce(&mut Rng) -> T) -> T {
    GENERATOR.with_borrow_mut(|generator| {
        let present = generator.take().filter(|(seeded, _)| *seeded == forks());
        let (_, generator) = generator.insert(present.unwrap_or_else(seeded));
        draw(generator)
    })
}

#[cold]
fn seeded() -> (u32, Rng) {
    (forks(), Rng::with_seed(u64::from_ne_bytes(random_bytes())))
}

/// Returns the random value of this process, in the upper five bytes.
fn of_process() -> u64 {
    let tag = u64::from(forks()).wrapping_add(1) & TAG;
    // Relaxed: the value publishes nothing beyond itself.
    let present = PROCESS.load(Ordering::Relaxed);
    if present & TAG == tag {
        return present;
    }
    let drawn = u64::from_ne_bytes(random_bytes()) & !TAG | tag;
    // Relaxed: as above. The first thread to swap decides.
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
    fn siblings_and_their_parent_draw_different_numbers() {
        use std::collections::HashSet;
        use std::io::{Read, Write};

        use super::super::fork::{tests::in_child, watch};

        watch();
        // Each has drawn before.
        let _ = (random_number(), random_fraction(), object_id());
        let drawn = || {
            let (mut of_process, fraction) = ([0; 8], random_fraction());
            of_process[..5].copy_from_slice(&object_id().bytes()[OF_PROCESS]);
            assert!((0.0..1.0).contains(&fraction));
            [random_number().to_ne_bytes(), fraction.to_ne_bytes(), of_process]
        };
        let (mut reader, writer) = std::io::pipe().unwrap();
        for _ in 0..2 {
            assert_eq!(in_child(|| (&writer).write_all(drawn().as_flattened()).map_err(|_| 1)), 0);
        }
        drop(writer);
        let mut of_children = Vec::new();
        reader.read_to_end(&mut of_children).unwrap();
        let mut all: HashSet<[u8; 8]> = of_children.chunks(8).map(|bytes| bytes.try_into().unwrap()).collect();
        all.extend(drawn());
        assert_eq!(all.len(), 9, "{all:?}");
    }
}
