//! Random numbers that a forked child does not share with its parent or its siblings.
//!
//! A fork copies the generators, so all children of one parent would draw the same numbers. In a child, each generator
//! is therefore reseeded from the operating system.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::process;
use std::time::SystemTime;

use fastrand::Rng;

use super::fork::Process;

thread_local! {
    /// This thread's generator, and the process that seeded it.
    static GENERATOR: RefCell<Option<(Process, Rng)>> = const { RefCell::new(None) };
}

pub(crate) fn random_number() -> u64 {
    draw(|generator| generator.u64(..))
}

/// Returns a random number from 0 (inclusive) to 1 (exclusive).
pub(crate) fn random_fraction() -> f64 {
    draw(Rng::f64)
}

/// Returns random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        // The keys of a `RandomState` are random, but a forked child inherits them. So the process ID and the time are
        // also hashed.
        for part in bytes.chunks_mut(8) {
            let number = RandomState::new().hash_one((process::id(), SystemTime::now()));
            part.copy_from_slice(&number.to_ne_bytes()[..part.len()]);
        }
    }
    bytes
}

fn draw<T>(draw: impl FnOnce(&mut Rng) -> T) -> T {
    GENERATOR.with_borrow_mut(|generator| {
        let present = generator.take().filter(|(seeded, _)| !seeded.is_ancestor());
        let (_, generator) = generator.insert(present.unwrap_or_else(seeded));
        draw(generator)
    })
}

#[cold]
fn seeded() -> (Process, Rng) {
    (Process::this(), Rng::with_seed(u64::from_ne_bytes(random_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn siblings_and_their_parent_draw_different_numbers() {
        use std::collections::HashSet;
        use std::io::{Read, Write};

        use super::super::fork::{tests::in_child, watch};

        watch();
        // The parent uses its generator before the fork.
        let _ = (random_number(), random_fraction());
        let drawn = || {
            let fraction = random_fraction();
            assert!((0.0..1.0).contains(&fraction));
            [random_number().to_ne_bytes(), fraction.to_ne_bytes()]
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
        assert_eq!(all.len(), 6, "{all:?}");
    }
}
