//! A cache line's states in all cores: modified, exclusive, shared or invalid (MESI).
//!
//! | state of the core's copy | a load | a store or an update |
//! | --- | --- | --- |
//! | modified | a hit | a hit |
//! | exclusive | a hit | a hit, which makes the copy modified |
//! | shared | a hit | a transfer, which makes all other copies invalid and this one modified |
//! | invalid, another core has the line | a transfer, which makes all copies shared | a transfer, as above |
//! | invalid, no core has the line | comes from memory, exclusive | comes from memory, modified |

/// The largest number of cores that a machine can have.
pub const MOST_CORES: usize = 256;

/// A set of cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cores([u64; MOST_CORES / 64]);

impl Cores {
    fn only(core: usize) -> Self {
        let mut cores = Self::default();
        cores.insert(core);
        cores
    }

    fn insert(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    fn contains(&self, core: usize) -> bool {
        self.0[core / 64] >> (core % 64) & 1 == 1
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..MOST_CORES).filter(|&core| self.contains(core))
    }
}

/// The state of a core's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The only copy, and newer than memory.
    Modified,
    /// The only copy, and it matches memory.
    Exclusive,
    /// Other cores may also have copies.
    Shared,
    /// No copy.
    Invalid,
}

/// Where an access gets the line from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The accessing core already has the line.
    Own,
    /// No core has the line, so it comes from memory.
    Memory,
    /// A core on the same socket.
    Near {
        /// Whether several cores have the line, in which case the next reader does not have to wait for this access.
        shared: bool,
    },
    /// A core on another socket, which takes longer.
    Far {
        /// As in `Near`.
        shared: bool,
    },
}

/// A cache line.
#[derive(Debug, Clone, Default)]
pub struct Line {
    holders: Cores,
    /// Whether the only holder has the line exclusively.
    exclusive: bool,
    /// Whether the line is newer than memory.
    modified: bool,
}

impl Line {
    /// Returns the state of a core's copy.
    pub fn state(&self, core: usize) -> State {
        match (self.holders.contains(core), self.exclusive, self.modified) {
            (false, ..) => State::Invalid,
            (true, true, true) => State::Modified,
            (true, true, false) => State::Exclusive,
            (true, false, _) => State::Shared,
        }
    }

    /// Reads or writes the line.
    pub fn change(&mut self, core: usize, reads: bool, socket: impl Fn(usize) -> usize) -> Source {
        if reads { self.load(core, socket) } else { self.store(core, socket) }
    }

    /// Reads the line. `socket` returns a core's socket.
    pub fn load(&mut self, core: usize, socket: impl Fn(usize) -> usize) -> Source {
        if self.holders.contains(core) {
            return Source::Own;
        }
        if self.holders == Cores::default() {
            *self = Self { holders: Cores::only(core), exclusive: true, modified: false };
            return Source::Memory;
        }
        // The nearest copy is read.
        let is_near = self.holders.iter().any(|holder| socket(holder) == socket(core));
        let shared = !self.exclusive;
        self.holders.insert(core);
        (self.exclusive, self.modified) = (false, false);
        if is_near { Source::Near { shared } } else { Source::Far { shared } }
    }

    /// Writes the line.
    pub fn store(&mut self, core: usize, socket: impl Fn(usize) -> usize) -> Source {
        let before = std::mem::replace(self, Self { holders: Cores::only(core), exclusive: true, modified: true });
        if before.holders == Cores::default() {
            return Source::Memory;
        }
        if before.holders == Cores::only(core) && before.exclusive {
            return Source::Own;
        }
        // All other copies become invalid, and the farthest of them takes the longest.
        let is_near = before.holders.iter().all(|holder| socket(holder) == socket(core));
        if is_near { Source::Near { shared: false } } else { Source::Far { shared: false } }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{Exclusive, Invalid, Modified, Shared};
    use super::*;

    /// Four cores on two sockets.
    fn socket(core: usize) -> usize {
        core / 2
    }

    fn states(line: &Line) -> [State; 4] {
        std::array::from_fn(|core| line.state(core))
    }

    fn line_with(cores: [State; 4]) -> Line {
        let mut line = Line::default();
        for (core, state) in cores.into_iter().enumerate() {
            if state != Invalid {
                line.holders.insert(core);
            }
            line.exclusive |= matches!(state, Modified | Exclusive);
            line.modified |= state == Modified;
        }
        assert_eq!(states(&line), cores);
        line
    }

    const NEAR: Source = Source::Near { shared: false };
    const FAR: Source = Source::Far { shared: false };

    #[test]
    fn every_transition_of_a_load() {
        let cases = [
            ([Invalid; 4], Source::Memory, [Exclusive, Invalid, Invalid, Invalid]),
            ([Modified, Invalid, Invalid, Invalid], Source::Own, [Modified, Invalid, Invalid, Invalid]),
            ([Exclusive, Invalid, Invalid, Invalid], Source::Own, [Exclusive, Invalid, Invalid, Invalid]),
            ([Shared, Invalid, Shared, Invalid], Source::Own, [Shared, Invalid, Shared, Invalid]),
            ([Invalid, Modified, Invalid, Invalid], NEAR, [Shared, Shared, Invalid, Invalid]),
            ([Invalid, Exclusive, Invalid, Invalid], NEAR, [Shared, Shared, Invalid, Invalid]),
            ([Invalid, Invalid, Modified, Invalid], FAR, [Shared, Invalid, Shared, Invalid]),
            ([Invalid, Shared, Shared, Invalid], Source::Near { shared: true }, [Shared, Shared, Shared, Invalid]),
            ([Invalid, Invalid, Shared, Shared], Source::Far { shared: true }, [Shared, Invalid, Shared, Shared]),
        ];
        for (before, source, after) in cases {
            let mut line = line_with(before);
            assert_eq!(line.load(0, socket), source, "a load with {before:?}");
            assert_eq!(states(&line), after, "after a load with {before:?}");
        }
    }

    #[test]
    fn every_transition_of_a_store() {
        let after = [Modified, Invalid, Invalid, Invalid];
        let cases = [
            ([Invalid; 4], Source::Memory),
            ([Modified, Invalid, Invalid, Invalid], Source::Own),
            ([Exclusive, Invalid, Invalid, Invalid], Source::Own),
            ([Shared, Invalid, Invalid, Invalid], NEAR),
            ([Shared, Shared, Invalid, Invalid], NEAR),
            ([Shared, Invalid, Shared, Invalid], FAR),
            ([Invalid, Modified, Invalid, Invalid], NEAR),
            ([Invalid, Exclusive, Invalid, Invalid], NEAR),
            ([Invalid, Shared, Shared, Invalid], FAR),
            ([Invalid, Invalid, Invalid, Modified], FAR),
        ];
        for (before, source) in cases {
            let mut line = line_with(before);
            assert_eq!(line.store(0, socket), source, "a store with {before:?}");
            assert_eq!(states(&line), after, "after a store with {before:?}");
        }
    }

    #[test]
    fn the_last_core_is_one_like_the_others() {
        let (mut line, one_socket) = (Line::default(), |_| 0);
        assert_eq!(line.store(MOST_CORES - 1, one_socket), Source::Memory);
        assert_eq!(line.load(0, one_socket), NEAR);
        assert_eq!(line.state(MOST_CORES - 1), Shared);
    }
}
