//! A thread's note of the shard that it used last.

use std::cell::Cell;
use std::ptr::NonNull;

use super::core::Core;
use super::environment::Environment;
use super::shard::Shard;

/// A thread's note of the pool that it used last, and of its shard there.
///
/// A check-in begins with a slot. Without the note, it finds the head of the thread's shard through three readings, each
/// at an address that the one before has found: the slot's core, the core's shards, the head. With the note, the address of
/// the head is known from the start. The slot and its core are only compared with the note, and a processor that
/// executes ahead does not wait for a comparison. Without it, a check-out and its check-in took a fifth longer on a
/// processor whose locked instructions take 3 ns.
///
/// INV-16 (a note leads to a living shard of this process): a core's number is never given to another core, and its shards
/// stay where they are for as long as it lives. So the shard of a note may be used by a caller that borrows the core
/// of this number. The child of a fork forgets its note, and there nothing notes a shard of the parent's cores. So a
/// core that a note names is not the parent's.
#[derive(Debug)]
pub struct Nearby {
    /// The number of the core, or [`Nearby::NO_CORE`].
    core: Cell<u64>,
    shard: Cell<NonNull<Shard>>,
}

impl Nearby {
    const NO_CORE: u64 = 0;

    /// The number of the first core.
    pub(super) const FIRST_CORE: u64 = Self::NO_CORE + 1;

    /// Makes a note of nothing.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "thread-local statics alone need it, and `default` is not const")]
    pub const fn new() -> Self {
        Self { core: Cell::new(Self::NO_CORE), shard: Cell::new(NonNull::dangling()) }
    }

    /// Forgets the shard. A forked child does, before it uses a pool.
    pub fn forget(&self) {
        self.core.set(Self::NO_CORE);
    }
}

impl<E: Environment> Core<E> {
    /// Returns the calling thread's shard, unless that thread notes its shards and has no note of this pool. In that case,
    /// [`Core::own_shard`] returns it.
    ///
    /// A thread that has a note of this pool is not in a forked child that has inherited the pool (INV-16).
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn nearby_shard(&self) -> Option<&Shard> {
        let noted = self.environment.with_nearby(|note| (note.core.get() == self.number).then(|| note.shard.get()));
        let Some(noted) = noted else { return Some(self.own_shard()) };
        let shard = noted?;
        // SAFETY: INV-16: the shard is this core's, which `self` borrows.
        Some(unsafe { shard.as_ref() })
    }

    /// Returns the calling thread's shard, and has the thread note it. Not called in a forked child that has inherited the
    /// pool (INV-16).
    #[inline]
    pub(super) fn own_shard(&self) -> &Shard {
        let shard = self.shard(self.environment.shard_hint());
        self.environment.with_nearby(|note| {
            note.shard.set(NonNull::from(shard));
            note.core.set(self.number);
        });
        shard
    }
}
