//! The wait list that ships: tickets, and a place for each.
//!
//! A word has the ticket of the first waiter and the ticket of the next newcomer ([`word`](super::word)). A newcomer takes
//! its ticket with one compare-and-swap, and puts its node at the ticket's place in a hall ([`hall`](mod@hall)). A granter
//! takes the first ticket with one compare-and-swap, takes the node from the ticket's place, and writes the grant into it.
//! Whichever of the two comes later at the place does the rest ([`place`]): if the grant comes first, it waits there for its
//! waiter. So neither waits for the other, and while there is another waiter, neither takes a lock. The design follows CQS
//! (Koval, Khalanskiy, Alistarh, PLDI 2023) in that; but the places are used again and again, and one word holds both ends
//! of the queue, so that a granter never takes a ticket that no waiter has.
//!
//! A node is part of the future that waits. Nothing is allocated for a wait, except a hall when all places are taken.
//!
//! # The lock
//!
//! All else takes the list's lock ([`LockedWaitList`]). The lock does not protect the words: newcomers and granters change
//! them with or without it, so the holder changes them by compare-and-swap, too. It is needed when
//!
//! - the first waiter joins, or the last one is claimed: the pool's flags change in the same section;
//! - a waiter leaves that is not claimed yet: its ticket becomes part of a gap, and the mark `by_lock` in the word sends all
//!   granters to the lock until no gap is left, but no newcomer;
//! - a waiter changes its waker: the mark keeps granters away meanwhile;
//! - openers wait: they have a word and halls of their own, and the same mark;
//! - all waiters are turned away;
//! - a hall is full: the tickets in the word become a run of *elders* in the books ([`books`]), and the word begins anew with
//!   another hall. While there are elders, granters go to the lock, and so do newcomers while the word is empty.
//!
//! INV-11 (what a word says): a lane without waiters gets one only under the lock, and the last one goes likewise. The
//! first ticket of a word is never a gap, except in a section that is about to skip it. So a word that is not empty has
//! a waiter, and a lane without elders and with an empty word has none.
//!
//! No section's work depends on how many wait or have left, and none allocates: a missing hall is built outside of the lock
//! ([`WaitList::lock_with_room`]).
//!
//! # The places
//!
//! INV-12 (the turns at a place): no newcomer takes a ticket whose place is not free for it. So a ticket's waiter and its granter
//! meet no other thread at their place. To look at the place between the load of the word and its swap would give others the
//! time to change the word: with 64 cores, hardly a swap would succeed. So the places are looked at ahead of time, a stretch
//! of them at once, by the newcomer with the first ticket of a stretch ([`Hall::look_ahead`]). If a place is not free although
//! the hall is not full, the waiter or the granter of an earlier ticket there was preempted between two of its steps, while
//! as many tickets as half of the hall were given out. The newcomers that come to this limit yield until that one goes on.
//! They have no tickets yet, so they hold up no waiter.
//!
//! Nothing between a claim and its grant may panic, wait, or call foreign code: the place would never be free again.
//!
//! A hall is full when half of its places have tickets that wait or have left. The next one has eight places for each of those
//! that still wait, rounded up to a power of two, and is never small. The newcomer that needs it builds it within its poll, which
//! takes about 40 ns for each place. A lane without waiters goes back to the smallest hall.
//!
//! A hall has 64 bytes for each place. Halls are kept until the list is dropped, because a newcomer may still read what an old
//! word leads to. A hall stays in use until its last waiter has gone. So the worst case is a waiter that stays for each 256 that
//! leave: it has a smallest hall alone, of 32 KiB.
//!
//! # A waiter that leaves
//!
//! - Not claimed: it is taken out under the lock, and no granter has had its ticket. It waits for no other thread.
//! - Turned away and not claimed since: the same.
//! - Claimed: a granter is between its claim and its grant, or has passed both. The waiter receives the grant, for which it
//!   waits as long as a granter needs for a bounded number of steps. The caller drops the grant, and so passes it on.

mod books;
mod hall;
mod locked;
#[cfg(loom)]
mod modelled;
mod node;
mod place;

use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam::utils::CachePadded;

use super::Lane;
use super::word::{Tickets, Word};
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{BriefGuard, BriefLock, Mutex, Patience, discard, unless_mutant};
use books::{Books, hall};
use hall::{Hall, Spot};
#[cfg(loom)]
pub use modelled::{ModelledHalls, ModelledPlace};
pub(in crate::pool) use node::Node;
use node::Seat;

/// A promise to grant something to the owner of a ticket.
#[must_use = "a waiter waits for the grant"]
pub(in crate::pool) struct Claimed<G>(Spot<G>);

// SAFETY: a place is `Sync`, and a grant may move to another thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

impl<G> Claimed<G> {
    /// Grants. Returns the waker of the waiter.
    #[inline]
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        let Self(spot) = self;
        // A waiter that has not come yet is about to look.
        spot.place().grant(spot.next, grant).unwrap_or_else(|| Waker::noop().clone())
    }
}

/// Promises that [`LockedWaitList::turn_away`] made and that are not kept yet: to all waiters up to this era.
#[must_use = "waiters wait for a refusal"]
pub(in crate::pool) struct TurnedAway<G> {
    era: u64,
    of: PhantomData<fn() -> G>,
}

/// One lane.
struct Queue<G> {
    tickets: CachePadded<Tickets>,
    /// The hall of the run in the word is at the index of its parity. The other one is that of the run before, which a
    /// thread may still take for the present one. It then fails to change the word.
    halls: [AtomicPtr<Hall<G>>; 2],
    /// The number of places of the smallest halls.
    fewest: u32,
}

impl<G> Queue<G> {
    fn new(fewest: u32) -> Self {
        let none = || AtomicPtr::new(ptr::null_mut());
        Self { tickets: CachePadded::new(Tickets::new()), halls: [none(), none()], fewest }
    }

    #[inline]
    fn entry(&self, hall: u8) -> &AtomicPtr<Hall<G>> {
        &self.halls[usize::from(hall % 2)]
    }

    /// Returns the hall of the run in a word, if there was one yet.
    #[inline]
    fn built(&self, word: Word) -> Option<NonNull<Hall<G>>> {
        // ORD: Acquire; pairs with the Release in `change_hall`: the hall is whole. If the word has changed since it was loaded,
        // this may be a hall that the word read by the caller does not publish.
        let order = unless_mutant("hall_is_not_acquired", Ordering::Acquire);
        NonNull::new(self.entry(word.hall).load(order))
    }

    /// Returns the hall of the run in a word that is or was not empty.
    #[inline]
    fn hall(&self, word: Word) -> NonNull<Hall<G>> {
        self.built(word).expect("BUG: tickets without a hall")
    }
}

struct Lanes<G> {
    waiters: Queue<G>,
    openers: Queue<G>,
}

impl<G> Lanes<G> {
    #[inline]
    fn queue(&self, lane: Lane) -> &Queue<G> {
        match lane {
            Lane::Openers => &self.openers,
            Lane::Waiters => &self.waiters,
        }
    }
}

pub(in crate::pool) struct WaitList<G> {
    lanes: Arc<Lanes<G>>,
    /// Apart from `lanes`, which those without the lock read.
    locked: CachePadded<BriefLock<LockedWaitList<G>>>,
    /// Held by a thread that builds a large hall. The others that need it wait: many at a time would fill the memory.
    builder: Mutex<()>,
}

/// The list, locked.
pub(in crate::pool) struct LockedWaitList<G> {
    books: Books<G>,
    lanes: Arc<Lanes<G>>,
}

/// What a lane lacks to give out one more ticket.
enum Lack<G> {
    /// A spare hall with this number of places.
    Hall(u32),
    /// A look at the places from this number on, or the end of an earlier turn there.
    Limit(NonNull<Hall<G>>, u32),
}

impl<G> WaitList<G> {
    /// The most promises that [`claim_turned_away`](Self::claim_turned_away) takes at a time. It is small, so that the
    /// section under the lock is short, and so is the time during which the waiters cannot leave.
    pub(in crate::pool) const BATCH: usize = 16;

    /// The number of places of the smallest halls of each lane. More openers than this need a large `maxConnecting`.
    #[cfg(not(any(loom, shuttle)))]
    const FEWEST: (u32, u32) = (512, 16);
    /// Small, so that the model checkers explore places that several waiters share, and halls that are full.
    #[cfg(any(loom, shuttle))]
    const FEWEST: (u32, u32) = (2, 2);

    pub(in crate::pool) fn new() -> Self {
        Self::with_halls_of(Self::FEWEST)
    }

    fn with_halls_of((waiters, openers): (u32, u32)) -> Self {
        let lanes = Arc::new(Lanes { waiters: Queue::new(waiters), openers: Queue::new(openers) });
        Self {
            lanes: lanes.clone(),
            locked: CachePadded::new(BriefLock::new(LockedWaitList { books: Books::new(), lanes })),
            builder: Mutex::new(()),
        }
    }

    #[inline]
    pub(in crate::pool) fn lock(&self) -> BriefGuard<'_, LockedWaitList<G>> {
        self.locked.lock()
    }

    /// Takes the lock, with room for one more node in `lane`. If there is no room, builds a hall outside of the lock.
    #[inline]
    pub(in crate::pool) fn lock_with_room(&self, lane: Lane) -> BriefGuard<'_, LockedWaitList<G>> {
        let mut patience = Patience::new();
        loop {
            let mut locked = self.lock();
            let Err(lack) = locked.make_room(lane) else { return locked };
            drop(locked);
            match lack {
                Lack::Hall(places) => self.build(lane, places),
                Lack::Limit(of, number) => {
                    if !hall(of).extend(number) {
                        patience.pause();
                    }
                }
            }
        }
    }

    /// Takes the lock, with what [`LockedWaitList::turn_away`] needs.
    pub(in crate::pool) fn lock_to_turn_away(&self) -> BriefGuard<'_, LockedWaitList<G>> {
        loop {
            let locked = self.lock();
            let Queue { tickets, fewest, .. } = &self.lanes.waiters;
            if tickets.load().span() == 0 || locked.books.has_spare(*fewest) {
                return locked;
            }
            drop(locked);
            self.build(Lane::Waiters, *fewest);
        }
    }

    /// Builds a hall that a lane lacks, as a spare one. Outside of the lock, because it takes long.
    #[cold]
    fn build(&self, lane: Lane, places: u32) {
        let is_large = places > self.lanes.waiters.fewest;
        let _builder = is_large.then(|| self.builder.lock());
        if is_large && !matches!(self.lock().make_room(lane), Err(Lack::Hall(wanted)) if wanted == places) {
            return;
        }
        let new = Hall::new(places);
        let mut locked = self.lock();
        if locked.books.has_spare(places) {
            // Others have built one meanwhile. Freed outside of the lock.
            drop(locked);
            return drop(new);
        }
        locked.books.keep(NonNull::from(Box::leak(new)));
    }

    /// Runs a section under the lock, on this thread or on the one that holds the lock.
    #[inline(always)]
    pub(in crate::pool) fn run<R: Send, F: FnOnce(&mut LockedWaitList<G>) -> R + Send>(
        &self,
        now: impl FnOnce(&mut LockedWaitList<G>) -> R,
        later: impl FnOnce() -> F,
    ) -> R {
        self.locked.run(now, later)
    }

    /// Joins the waiters without the lock, if the word has any. Returns `None` if it has none, or what
    /// [`begin`](Self::begin) returns.
    #[inline]
    pub(in crate::pool) fn try_join(&self, node: Pin<&Node<G>>, waker: &Waker) -> Option<Poll<G>> {
        let queue = &self.lanes.waiters;
        let mut waker = waker.clone();
        loop {
            let seen = queue.tickets.load_to_change();
            if seen.span() == 0 {
                discard(waker);
                return None;
            }
            let present = queue.hall(seen);
            let number = hall(present).number(seen.next);
            if !hall(present).admits(seen, number) {
                match self.join_with_room(node, waker) {
                    Ok(joined) => return Some(joined),
                    Err(back) => waker = back,
                }
            } else if queue.tickets.swap(seen, seen.joined()) {
                node.prepare(Seat { number, hall: present }, waker);
                let joined = Self::sit_down(node, &hall(present).spot(number));
                hall(present).look_ahead(number);
                return Some(joined);
            }
        }
    }

    /// As [`try_join`](Self::try_join), with room. Gives the waker back if the word has no waiters any more, or if others have
    /// taken the room meanwhile.
    #[cold]
    fn join_with_room(&self, node: Pin<&Node<G>>, waker: Waker) -> Result<Poll<G>, Waker> {
        let mut locked = self.lock_with_room(Lane::Waiters);
        // Stays so under the lock (INV-11).
        if locked.word(Lane::Waiters).span() == 0 {
            return Err(waker);
        }
        locked.enqueue(Lane::Waiters, node, waker)?;
        drop(locked);
        Ok(self.begin(node))
    }

    /// Begins the wait of a node that was enqueued. Called by its owner at once, and without the lock. Returns the grant if
    /// it has come already.
    #[inline]
    pub(in crate::pool) fn begin(&self, node: Pin<&Node<G>>) -> Poll<G> {
        let Seat { number, hall: of } = node.seat();
        let joined = Self::sit_down(node, &hall(of).spot(number));
        hall(of).look_ahead(number);
        joined
    }

    /// Puts a node at its place.
    #[inline]
    #[allow(unsafe_code)]
    fn sit_down(node: Pin<&Node<G>>, spot: &Spot<G>) -> Poll<G> {
        let Err(grant) = spot.place().take(spot.next, node.get_ref()) else { return Poll::Pending };
        node.end_wait();
        // SAFETY: INV-4: at no place, so it is the owner's, and no granter has moved the waker out.
        discard(unsafe { node.move_waker_out() });
        Poll::Ready(grant)
    }

    /// Claims the first waiter without the lock, if another one waits behind it, and if `is_current` returns `true` between
    /// the reading of the word and its change. Returns `None` if the caller has to take the lock.
    ///
    /// A clear changes the pool word first and the list's word after it, if check-outs wait. So the claim notices one of
    /// the two changes, as a push does (`Shard::push`).
    #[inline]
    pub(in crate::pool) fn try_claim(&self, is_current: impl Fn() -> bool) -> Option<Claimed<G>> {
        let queue = &self.lanes.waiters;
        loop {
            let seen = queue.tickets.load_to_change();
            if seen.by_lock || seen.span() < 2 || !is_current() {
                return None;
            }
            // Before the change: as long as the word stays, so does what the hall says.
            let present = hall(queue.hall(seen));
            let spot = present.spot(present.number(seen.first));
            if queue.tickets.swap(seen, seen.claimed()) {
                return Some(Claimed(spot));
            }
        }
    }

    /// Takes up to [`BATCH`](Self::BATCH) promises to the waiters that were turned away and have not left. If it takes
    /// none, no more are left.
    ///
    /// `claimed` must be empty and have room for a batch.
    pub(in crate::pool) fn claim_turned_away(&self, away: &mut TurnedAway<G>, claimed: &mut Vec<Claimed<G>>) {
        debug_assert!(claimed.is_empty() && claimed.capacity() >= Self::BATCH, "BUG: no room for a batch");
        let mut locked = self.lock();
        while claimed.len() < Self::BATCH
            && let Some(first) =
                locked.books.away.first.filter(|&first| hall(first).with_run(|run| run.era <= away.era))
        {
            claimed.push(Claimed(locked.books.claim_first(first)));
        }
    }

    /// Takes the grant if it has come; otherwise replaces the waker if it changed. Called by the owner of a node that
    /// was enqueued and whose grant was not taken since then.
    #[inline]
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        let granted = match node.take_grant() {
            None if node.would_wake(context.waker()) => None,
            None => self.renew(node, context.waker()),
            granted => granted,
        };
        granted.map_or(Poll::Pending, Poll::Ready)
    }

    /// Replaces the waker. Returns the grant if one came first.
    #[cold]
    #[allow(unsafe_code)]
    fn renew(&self, node: &Node<G>, waker: &Waker) -> Option<G> {
        // Cloned before the lock is taken, and the old waker is dropped after its release: both run foreign code.
        let new = waker.clone();
        let mut locked = self.lock();
        let Some(lane) = locked.withhold(node) else {
            drop(locked);
            discard(new);
            return Some(node.await_grant());
        };
        // SAFETY: INV-4: no granter claims the node before `tidy` or, of a run in the books, under the lock.
        let old = unsafe {
            let old = node.move_waker_out();
            node.waker.with_mut(|present| (*present).write(new));
            old
        };
        locked.tidy(lane);
        drop(locked);
        discard(old);
        None
    }

    /// Leaves the queue, and calls `settle` while the lock is held. Returns the grant if one was promised. Called by
    /// the owner of a node that was enqueued and whose grant was not taken since then.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&LockedWaitList<G>)) -> Option<G> {
        if let Some(grant) = node.take_grant() {
            return Some(grant);
        }
        let mut locked = self.lock();
        if !locked.remove(node) {
            drop(locked);
            return Some(node.await_grant());
        }
        settle(&locked);
        drop(locked);
        node.end_wait();
        // SAFETY: INV-4: the node has left, so it is the owner's. No granter has had it.
        discard(unsafe { node.move_waker_out() });
        None
    }
}

impl<G> Drop for WaitList<G> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let present = [&self.lanes.waiters, &self.lanes.openers].map(|queue| queue.built(queue.tickets.load()));
        let others = self.locked.lock().books.halls();
        for hall in others.into_iter().chain(present.into_iter().flatten()) {
            // SAFETY: INV-7: the list is being dropped, and each hall is in one place only. It came from a `Box`.
            drop(unsafe { Box::from_raw(hall.as_ptr()) });
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
