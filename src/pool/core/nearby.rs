//! A thread's note of the shard that it used last, and of the stack that it left there.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{Ordering as SignalOrdering, compiler_fence};

use super::acquire::Hit;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::shard::{PastHead, Shard};
use super::slab::{Link, Slot, Stamp};

/// A thread's note of the pool that it used last, and of its shard there.
///
/// A check-in starts from a slot. Without the note, it reaches the head of the thread's shard through three dependent
/// loads: the slot's core, the core's shards, the head. With the note, it knows the address of the head from the start.
/// The slot and its core are only compared with the note, and a processor that executes speculatively does not wait for
/// a comparison. Without the note, a check-out and its check-in took a fifth longer on a processor whose locked
/// instructions take 3 ns.
///
/// A thread that alternates between two pools always has a note of the wrong pool. Its check-outs and check-ins then
/// use the longer paths, which take 1.27 times as long.
///
/// INV-16 (a note leads to a live shard in this process): a core's number is never reused for another core, and the
/// core's shards stay in place while it lives. So a caller that borrows the core whose number is in the note may use
/// the note's shard. A forked child forgets its note. It may note one of the parent's cores inside
/// `Core::note_own_shard`, which forgets that note before it returns. So outside that function, a note never names one
/// of the parent's cores.
///
/// # The last slot
///
/// The thread also notes the slot that it last took from its shard or pushed there, and the head that it left behind.
/// If the shard still has that head, a check-out takes the noted slot, and a check-in puts it back. Both compare the
/// head with the note, and compute the new head only from the note and the noted slot. Without the noted slot, they
/// would look up the top and the height of the stack at addresses that depend on the head, and the load of the head has
/// to wait for the locked instruction that just wrote it. With the noted slot, a check-out and its check-in take 0.83
/// times as long, with one thread and with two.
///
/// INV-17 (what a noted head says): if the head of the noted shard is `with`, this thread made it by pushing `slot`,
/// and `slot` is on top. If the head is `without`, this thread made it by taking `slot`, the link of `slot` was `link`,
/// and the stack below is unchanged. No clear of the pool has reached this shard since then, because a clear changes
/// the head. Clearing a service does not change the heads, but then connections are vetted, and check-ins do not put
/// slots back. If another thread has pushed `slot` elsewhere in the meantime, its link differs, or nothing is below it
/// on either stack. The note says nothing about a head that the shard no longer has: its fields may then belong to
/// different slots, or to another core.
#[derive(Debug)]
pub struct Nearby {
    /// The number of the core, or [`Nearby::NO_CORE`].
    core: Cell<u64>,
    shard: Cell<NonNull<Shard>>,
    /// The slot that `with` and `without` refer to (INV-17). The note does not know the slot's type. While both heads
    /// are [`PastHead::OF_NO_SHARD`], this may be a slot of an earlier core that no longer exists.
    slot: Cell<*const ()>,
    link: Cell<Link>,
    with: Cell<PastHead>,
    without: Cell<PastHead>,
}

impl Nearby {
    const NO_CORE: u64 = 0;

    /// The number of the first core.
    pub(super) const FIRST_CORE: u64 = Self::NO_CORE + 1;

    /// Creates an empty note.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "thread-local statics alone need it, and `default` is not const")]
    pub const fn new() -> Self {
        Self {
            core: Cell::new(Self::NO_CORE),
            shard: Cell::new(NonNull::dangling()),
            slot: Cell::new(ptr::null()),
            link: Cell::new(Link { next: None, depth: 0 }),
            with: Cell::new(PastHead::OF_NO_SHARD),
            without: Cell::new(PastHead::OF_NO_SHARD),
        }
    }

    /// Notes a slot that the thread has taken from its shard or pushed onto it, and the slot's link. Does not follow
    /// the pointer: another thread may own a slot that was pushed, and its pool may be gone.
    #[inline]
    fn note<C>(&self, slot: *const Slot<C>, link: Link) {
        self.slot.set(slot.cast());
        self.link.set(link);
    }

    /// Forgets the shard. A forked child does this before it uses a pool.
    pub fn forget(&self) {
        self.core.set(Self::NO_CORE);
    }
}

impl<E: Environment> Core<E> {
    /// Returns the calling thread's shard. Returns `None` if threads keep notes and this thread has no note of this
    /// pool; in that case, call [`Core::own_shard`].
    ///
    /// A thread that has a note of this pool is not in a forked child that has inherited the pool (INV-16).
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn nearby_shard(&self) -> Option<&Shard> {
        let noted = E::with_nearby(|note| (note.core.get() == self.number).then(|| note.shard.get()));
        let Some(noted) = noted else { return Some(self.preferred_shard()) };
        let shard = noted?;
        // SAFETY: INV-16: the shard belongs to this core, which `self` borrows.
        Some(unsafe { shard.as_ref() })
    }

    /// Takes the top of the shard that [`Core::nearby_shard`] returns. Makes one attempt with the noted slot, and then
    /// one attempt without the note.
    #[inline]
    pub(super) fn pop_nearby(&self) -> Option<&Slot<E::Connection>> {
        let shard = self.nearby_shard()?;
        if let Some(slot) = self.pop_noted(shard) {
            return Some(slot);
        }
        let (slot, without) = shard.try_pop(&self.slab)?;
        E::with_nearby(|note| {
            note.note(slot, slot.link());
            note.without.set(without);
        });
        Some(slot)
    }

    /// Takes the noted slot, if it is on top of the noted shard.
    #[inline]
    #[allow(unsafe_code)]
    fn pop_noted(&self, shard: &Shard) -> Option<&Slot<E::Connection>> {
        E::with_nearby(|note| {
            let with = note.with.get();
            if !shard.is_at(with) {
                return None;
            }
            // SAFETY: INV-17: the slot belongs to this core, which `self` borrows.
            let slot = unsafe { &*note.slot.get().cast::<Slot<E::Connection>>() };
            note.without.set(shard.pop_from(with, slot)?);
            Some(slot)
        })?
    }

    /// Returns whether the calling thread has a note of this pool. Also returns `true` if threads do not keep notes.
    #[inline]
    pub fn is_noted(&self) -> bool {
        self.nearby_shard().is_some()
    }

    /// Makes the calling thread note its shard of this pool, and then calls [`Core::try_hit`].
    pub fn note_and_try_hit(self: &Arc<Self>) -> Option<Hit<E>> {
        self.own_shard();
        self.try_hit()
    }

    /// Returns the calling thread's shard, and makes the thread note it.
    #[inline]
    pub(super) fn own_shard(&self) -> &Shard {
        self.nearby_shard().unwrap_or_else(|| self.note_own_shard())
    }

    /// Makes the calling thread note its shard, and returns the shard.
    ///
    /// A signal handler or a subscriber may fork between any two steps of a check-out, and its child may continue the
    /// check-out. So the core is checked for inheritance only after the note is made: the check sees an earlier fork,
    /// and after a later fork the child forgets the note.
    #[inline(never)]
    fn note_own_shard(&self) -> &Shard {
        let shard = self.preferred_shard();
        E::with_nearby(|note| {
            // The fences preserve the order that a signal handler sees.
            note.forget();
            compiler_fence(SignalOrdering::SeqCst);
            note.shard.set(NonNull::from(shard));
            note.with.set(PastHead::OF_NO_SHARD);
            note.without.set(PastHead::OF_NO_SHARD);
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

/// Once it is pushed, the connection belongs to other threads, which may close it and the pool, and free the core. So
/// the connection and the core are not touched after the push, here or in the callers, and no parameter is a reference
/// to them: see [`Shard`].
#[allow(unsafe_code)]
impl<E: Environment> Held<E> {
    /// Puts the slot back if the calling thread took it from this shard and the shard has not changed since. Returns
    /// whether the slot was put back.
    #[inline]
    pub(super) fn put_back(self, shard: &Shard) -> bool {
        debug_assert!(!self.core().vetting, "BUG: a connection that may be stale is put back");
        let put_back = E::with_nearby(|note| {
            let without = note.without.get();
            let is_noted = note.slot.get() == self.slot_pointer().cast() && self.slot().link() == note.link.get();
            if !is_noted || !shard.is_at(without) {
                return None;
            }
            // SAFETY: INV-1: we own the slot. The slot and the shard belong to the same core.
            note.with.set(unsafe { shard.put_back(without, self.slot_pointer()) }?);
            Some(())
        });
        put_back.flatten().is_some()
    }

    /// Makes available a connection that was not put back, in a pool that neither vets connections nor emits events.
    /// Tries to push it onto this shard, which is usually the shard of the calling thread.
    ///
    /// This is a separate function, so that a check-in that puts the connection back does not have to save registers.
    #[inline(never)]
    pub(super) fn push(self, shard: &Shard) {
        let Stamp { generation, interrupted, .. } = self.slot().stamp();
        if interrupted {
            return self.retire_stale();
        }
        let slab = &raw const self.core().slab;
        let is_current = || self.core().state.load().generation == generation;
        let pushed = E::with_nearby(|note| {
            // The code that judges the connection's condition may have used another pool in the meantime.
            let is_noted = ptr::eq(note.shard.get().as_ptr(), shard);
            // SAFETY: INV-1: we own the slot. The slot, the shard and the slab belong to the same core.
            let (link, with) = unsafe { shard.try_push(slab, self.slot_pointer(), is_current) }.ok()?;
            if is_noted {
                note.note(self.slot_pointer(), link);
                note.with.set(with);
            }
            Some(())
        });
        // SAFETY: as above. Called only where threads keep no notes.
        let try_push = || unsafe { shard.try_push(slab, self.slot_pointer(), is_current) }.is_ok();
        if !pushed.map_or_else(try_push, |pushed| pushed.is_some()) {
            self.make_available(shard);
        }
    }
}
