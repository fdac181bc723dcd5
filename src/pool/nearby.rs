//! A thread's note of the shard that it used last.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering as SignalOrdering, compiler_fence};

use super::acquire::Hit;
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
/// A thread that alternates between two pools has a note of the other one each time. Its check-outs and check-ins then take
/// the longer paths, and 1.27 times as long.
///
/// INV-16 (a note leads to a living shard of this process): a core's number is never given to another core, and its shards
/// stay where they are for as long as it lives. So the shard of a note may be used by a caller that borrows the core
/// of this number. A forked child forgets its note, and there a core of the parent is never noted for longer than
/// `Core::note_own_shard` takes. So a core that a note names is not the parent's.
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
        let Some(noted) = noted else { return Some(self.shard(self.environment.shard_hint())) };
        let shard = noted?;
        // SAFETY: INV-16: the shard is this core's, which `self` borrows.
        Some(unsafe { shard.as_ref() })
    }

    /// Returns whether the calling thread has a note of this pool, or keeps no notes.
    #[inline]
    pub fn is_noted(&self) -> bool {
        self.nearby_shard().is_some()
    }

    /// Has the calling thread note its shard of this pool, and then does what [`Core::try_hit`] does.
    pub fn note_and_try_hit(self: &Arc<Self>) -> Option<Hit<E>> {
        self.own_shard();
        self.try_hit()
    }

    /// Returns the calling thread's shard, and has the thread note it.
    #[inline]
    pub(super) fn own_shard(&self) -> &Shard {
        self.nearby_shard().unwrap_or_else(|| self.note_own_shard())
    }

    /// Has the calling thread note its shard, and returns it.
    ///
    /// A signal handler or a subscriber may fork between any two steps of a check-out, and its child may go on with the
    /// check-out. So the look at whether the core is inherited comes after the note: a fork before the look is seen, and at
    /// a fork after it the child forgets the note.
    #[inline(never)]
    fn note_own_shard(&self) -> &Shard {
        let shard = self.shard(self.environment.shard_hint());
        self.environment.with_nearby(|note| {
            // The fences keep the compiler from changing the order that a signal handler sees.
            note.forget();
            compiler_fence(SignalOrdering::SeqCst);
            note.shard.set(NonNull::from(shard));
            compiler_fence(SignalOrdering::SeqCst);
            note.core.set(self.number);
            compiler_fence(SignalOrdering::SeqCst);
            if self.environment.is_inherited() {
                note.forget();
            }
        });
        shard
    }
}
