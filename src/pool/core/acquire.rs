//! Acquiring a connection: the fast path, the search and the wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::check_out::Refusal;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::lease::Lease;
use super::perished::Perished;
use super::permit::Permit;
use super::shard::{Popped, Shard};
use super::slab::Slot;
use super::state::Phase;
use super::tokens::Idle;
use super::waitlist::{Lane, LockedWaitList, Seat, Waiter};
use crate::pool::sync::atomic::Ordering;
use crate::pool::sync::discard;

/// The outcome of [`Core::acquire`] for a check-out.
pub enum Grant<E: Environment> {
    /// An available connection.
    Connection(Idle<E>),
    /// A permit to open a connection.
    Permit(Permit<E>),
    /// Neither: the check-out is refused. The refusal is boxed because it is rare, and because without the box every
    /// grant would be larger than the two words that fit into registers.
    Refused(Box<Refusal>),
}

impl<E: Environment> Grant<E> {
    /// Returns the connection that an opener was granted.
    fn into_connection(self) -> Idle<E> {
        match self {
            Self::Connection(idle) => idle,
            other => unreachable!("BUG: {other:?} was granted to an opener"),
        }
    }
}

impl<E: Environment> fmt::Debug for Grant<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(idle) => f.debug_tuple("Connection").field(&idle.id()).finish(),
            Self::Permit(_) => f.write_str("Permit"),
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

/// A connection that was taken from the top of its thread's stack and is being checked out.
///
/// Call [`begin`](Self::begin) before dropping it. Otherwise, a timed use would end without having begun.
#[must_use = "its use is yet to begin"]
pub struct Hit<E: Environment> {
    lease: Lease<E>,
    is_timed: bool,
}

impl<E: Environment> Hit<E> {
    /// Returns whether the use is one of the timed uses, about one in 128. If so, [`begin`](Self::begin) reads the
    /// clock.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// Begins the use.
    #[inline]
    pub fn begin(self) -> Lease<E> {
        if self.is_timed {
            self.lease.begin_timed_use();
        }
        self.lease
    }
}

enum Sought<E: Environment> {
    Granted(Grant<E>),
    /// Other check-outs are waiting, or were until a moment ago.
    Behind,
    /// Nothing was found, and no waiter is in the queue.
    First,
}

enum Queued<E: Environment> {
    Waits {
        seat: Seat<Grant<E>>,
        /// Whether the caller must call `serve_permits`, because the check-out is waiting for the budget or for the
        /// capacity of a connection that is being drained.
        to_be_served: bool,
    },
    Granted(Grant<E>),
    NotReady,
    /// The queue is full, but the pool is now waiting for a place in the budget. The caller settles the budget, which
    /// may close an idle connection in another pool, and tries once more.
    Asks,
    /// The queue is full: the maximum number of check-outs is waiting.
    Full,
    /// The pool has changed in the meantime, so the caller must search again.
    Again,
}

impl<E: Environment> Core<E> {
    /// The maximum number of stale connections that a check-out closes per search. Maintenance closes the rest.
    const CLOSED_ON_THE_WAY: usize = 4;

    /// Takes an available connection from the calling thread's shard, if there is one and the shard is not flagged.
    ///
    /// This is lock-free: it takes one compare-and-swap.
    ///
    /// # Race window
    ///
    /// If a concurrent [`Core::clear`] has not reached this shard yet, the connection may belong to the generation that
    /// is being cleared. The check-out then counts as having happened before the clear. Once `clear` has returned, this
    /// can no longer happen.
    ///
    /// Never returns a connection that must be checked before use; [`Core::acquire`] does.
    pub fn try_take(self: &Arc<Self>) -> Option<Idle<E>> {
        let shard = self.own_shard();
        self.first_usable(|| shard.pop(&self.slab))
    }

    /// Takes an available connection from any shard, unless a check-out is waiting or the connection must be checked
    /// before use.
    ///
    /// # Race window
    ///
    /// The same as for [`Core::try_take`]. While another check-out is queuing up, this check-out may take a connection
    /// from a shard that the other has not searched yet. This check-out then counts as having arrived first.
    pub fn try_take_any(self: &Arc<Self>) -> Option<Idle<E>> {
        self.first_usable(|| self.take_any())
    }

    /// Takes connections until it finds one that has not perished. Returns that connection, unless the connection must
    /// be checked before use.
    #[inline]
    fn first_usable<'s>(&self, take: impl Fn() -> Popped<'s, E::Connection>) -> Option<Idle<E>>
    where
        E::Connection: 's,
    {
        loop {
            let Popped::Slot(slot) = take() else { return None };
            if let Ok(idle) = self.vet(Held::new(self, slot)) {
                // A connection that needs a check becomes available again when `idle` is dropped.
                return (!idle.needs_check()).then_some(idle);
            }
        }
    }

    /// Checks out a connection in the most common case: the caller only has to pop the top of its thread's stack. The
    /// caller then [begins](Hit::begin) the use.
    ///
    /// Returns `None` in all other cases: the thread last used another pool, the stack is empty, a subscriber is
    /// listening, the pool accounts for holders, connections must be vetted, or the connection on top must be checked
    /// before use. May also return `None` if another thread changes the stack at the same time, or if the top is
    /// neither the thread's last slot nor one of the slab's first slots. A hit does the work of [`Core::try_take`] and
    /// [`Idle::check_out`] in one step.
    ///
    /// In a forked child, this never returns a connection that belongs to the parent (INV-16). A fork during the call
    /// is treated as if it happened after the call.
    ///
    /// No path through this function contains a function call. So a caller whose only other calls are tail calls does
    /// not have to save registers.
    #[inline]
    pub fn try_hit(self: &Arc<Self>) -> Option<Hit<E>> {
        if self.attention.is_needed() {
            return None;
        }
        let slot = self.pop_nearby()?;
        if Held::new(self, slot).needs_check() {
            return Self::put_aside(Held::new(self, slot));
        }
        // The hit is counted first, while the slot's cache line is in the cache.
        let is_timed = E::METERED && slot.tally().count_hit();
        Some(Hit { lease: Lease::of(Held::new(self, slot)), is_timed })
    }

    /// Makes a connection available again.
    #[cold]
    #[inline(never)]
    fn put_aside(held: Held<E>) -> Option<Hit<E>> {
        drop(held.into_idle());
        None
    }

    /// Acquires a connection or a permit to open one, in order of arrival.
    ///
    /// The first poll searches all shards, then asks for a permit under `maxPoolSize` and `maxConnecting`, and queues
    /// up if it gets neither a connection nor a permit. Before it queues up, it takes a lock only if it closes a
    /// connection on the way or if the pool is not ready.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes the check-out from the queue. If the future has received a grant but not returned
    /// it, the grant goes to the next check-out in the queue, or back to the pool.
    pub fn acquire(self: &Arc<Self>) -> Acquire<'_, E> {
        Acquire { core: self, waiter: Waiter::new() }
    }

    /// Waits for a returned connection while the caller opens its own, or is about to.
    ///
    /// The caller stays ahead of all later check-outs. If a connection has become available in the meantime, the caller
    /// gets it.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Core::acquire`].
    pub fn acquire_as_opener(self: &Arc<Self>) -> OpenerWait<'_, E> {
        OpenerWait(self.acquire())
    }

    /// Acquires another connection or permit for a check-out whose granted connection cannot be used. The token
    /// `useless` is an [`Idle`] that has gone stale, or a [`Checking`](super::Checking) that has failed. Unless
    /// something is available at once, the check-out waits ahead of all waiters that were never granted anything.
    /// Dropping the token closes the connection. The token is dropped only after the check-out has joined the queue or
    /// been granted something, so that the connection's capacity can go to this check-out.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Core::acquire`].
    pub fn reacquire<T: Unpin>(self: &Arc<Self>, useless: T) -> Reacquire<'_, E, T> {
        Reacquire { acquire: self.acquire(), useless: Some(useless) }
    }

    /// Searches the shards, then asks for a permit. If it gets neither a connection nor a permit, the caller has to
    /// queue up.
    fn seek(self: &Arc<Self>) -> Sought<E> {
        // Waiting check-outs come first. If none is still waiting, `queue_up` repeats all the following steps.
        if self.own_shard().is_waited_for() {
            return Sought::Behind;
        }
        loop {
            if self.state.load().phase != Phase::Ready {
                return Sought::Granted(Grant::Refused(Box::new(self.refusal())));
            }
            self.close_stale(Self::CLOSED_ON_THE_WAY);
            // The word is read before the shards are searched, and the admission swaps the word only if it still equals
            // this reading. If a connection stops being pending after the reading, the swap fails. If the connection
            // stopped being pending before the reading, it was also pushed before the reading, and the search finds it
            // (ordering 2).
            let counts = self.capacity.load();
            match self.take_any() {
                Popped::Slot(slot) => match self.vet(Held::new(self, slot)) {
                    Ok(idle) => return Sought::Granted(Grant::Connection(idle)),
                    Err(Perished) => continue,
                },
                Popped::Waiting => return Sought::Behind,
                Popped::Empty => {}
            }
            if counts.waiting {
                return Sought::Behind;
            }
            if counts.admits(self.limits()) {
                match self.try_admit(counts) {
                    Ok(Some(permit)) => return Sought::Granted(Grant::Permit(permit)),
                    Ok(None) => {}
                    Err(()) => continue,
                }
            }
            // Relaxed: a hint to try again. The registry's lock orders the rest.
            if self.stale.load(Ordering::Relaxed) == 0 {
                return Sought::First;
            }
        }
    }

    /// Pops from the thread's own shard, or from another shard that is not empty.
    ///
    /// Looks at each shard at most once. Threads with different hints look at different shards at each step, and in
    /// different orders: 0, 1, 2, 3 … for the first thread, 1, 0, 3, 2 … for the second, 2, 3, 0, 1 … for the third. If
    /// each thread simply moved on to the neighbouring shard, all threads that pass the same empty shards would meet at
    /// the first shard with a connection.
    pub(super) fn take_any(&self) -> Popped<'_, E::Connection> {
        let first = self.environment.shard_hint();
        for distance in 0..self.shards.len() {
            // The number of shards is a power of two, so this visits each shard once.
            match self.shards.preferred(first ^ distance).pop(&self.slab) {
                Popped::Empty => {}
                found => return found,
            }
        }
        Popped::Empty
    }

    /// Queues up, unless the caller can be granted something at once.
    ///
    /// INV-5 (while check-outs wait): under the list's lock, if a check-out is in the queue, then all shards are
    /// flagged and empty. If the queue contains a waiter, and not only openers, then the capacity word is flagged as
    /// well. The word admitted no connection when the flag was raised, and capacity that has been released since then
    /// goes only to the first waiter, under the list's lock. Under a budget, the flag is always raised, and the caller
    /// then serves the first waiter.
    ///
    /// This function establishes the invariant for the first check-out in the queue. It raises the flags, so that every
    /// later push and release takes the list's lock. Each shard's flag is raised in the step that finds the shard
    /// empty.
    ///
    /// `may_ask` says whether the pool may wait for a place in the budget even if no check-out may wait.
    fn queue_up(self: &Arc<Self>, lane: Lane, may_ask: bool) -> Queued<E> {
        let mut queue = self.wait_list.lock_with_room(lane);
        // A clear changes the pool word before it takes the list's lock to fail the waiters. So either this check-out
        // sees the change, or the clear finds this check-out in the queue.
        if self.state.load().phase != Phase::Ready {
            if !may_ask && queue.first_waiting_lane().is_none() {
                self.leave_budget_queue();
            }
            return Queued::NotReady;
        }
        let (limits, mut to_be_served) = (self.limits_of_the_first(), false);
        if queue.first_waiting_lane().is_none() {
            let found = self.look_for_the_first(&queue);
            // Relaxed: a hint, as in `seek`.
            let stale = self.stale.load(Ordering::Relaxed) > 0;
            // If a connection is stale, `settle` lowers the flag that `admit_or_wait` may raise.
            let refused = found.is_none().then(|| self.capacity.admit_or_wait(limits).err()).flatten();
            let admitted = found.is_none() && refused.is_none();
            if found.is_some() || stale || admitted {
                self.settle(&queue);
                drop(queue);
                let queued = match found {
                    Some(slot) => match self.vet(Held::new(self, slot)) {
                        Ok(idle) => Queued::Granted(Grant::Connection(idle)),
                        Err(Perished) => Queued::Again,
                    },
                    None if admitted => Queued::Granted(Grant::Permit(Permit::new(self.clone()))),
                    None => Queued::Again,
                };
                // While an opener is waiting, `seek` returns before it closes stale connections, so they are closed
                // here.
                self.close_stale(Self::CLOSED_ON_THE_WAY);
                return queued;
            }
            to_be_served = self.is_budgeted() || refused.is_some_and(|counts| counts.wants_a_drain_displaced(limits));
        }
        // The first waiter displaces a drain (INV-8). The thread that releases the capacity of the drained connection
        // looks for the next waiter.
        match queue.enqueue(lane) {
            Some(seat) => {
                self.queue_begins();
                Queued::Waits { seat, to_be_served }
            }
            None if queue.is_full(lane) => {
                // If no check-out may wait, the first check-out asks for a place in the budget here.
                let is_first = self.is_budgeted() && queue.first_waiting_lane().is_none();
                if is_first && self.admit_first(self.limits()).is_ok() {
                    self.settle(&queue);
                    drop(queue);
                    return Queued::Granted(Grant::Permit(Permit::new(self.clone())));
                }
                if is_first && may_ask {
                    self.lower_flags(&queue);
                    return Queued::Asks;
                }
                self.settle(&queue);
                drop(queue);
                if is_first {
                    self.settle_budget();
                }
                Queued::Full
            }
            // Other check-outs have joined without the lock and taken the cells.
            None => Queued::Again,
        }
    }

    /// Queues up, unless the caller can be granted something at once. Returns `None` if the pool has changed in the
    /// meantime.
    fn enter(
        self: &Arc<Self>,
        lane: Lane,
        waiter: &mut Waiter<Grant<E>>,
        context: &mut Context<'_>,
    ) -> Option<Poll<Grant<E>>> {
        // Cloned before there is a ticket, because cloning a waker runs foreign code.
        let waker = context.waker().clone();
        let mut queued = self.queue_up(lane, true);
        if let Queued::Asks = queued {
            self.settle_budget();
            queued = self.queue_up(lane, false);
        }
        let Queued::Waits { seat, to_be_served } = queued else {
            discard(waker);
            return match queued {
                Queued::Granted(grant) => Some(Poll::Ready(grant)),
                Queued::NotReady => Some(Poll::Ready(Grant::Refused(Box::new(self.refusal())))),
                Queued::Full => Some(Poll::Ready(Grant::Refused(Box::new(Refusal::Full)))),
                Queued::Waits { .. } | Queued::Asks | Queued::Again => None,
            };
        };
        let polled = self.wait_list.sit_down(waiter, seat, waker);
        if to_be_served {
            self.serve_permits();
        }
        Some(polled)
    }

    /// Queues up as an opener, unless a connection turns out to be available. Establishes INV-5 as `queue_up` does.
    ///
    /// Does not check the phase, for three reasons. A clear does not fail a check-out whose own connection is being
    /// opened. If that connection has not been created yet, `Permit::create` refuses to create it unless the pool is
    /// ready again. Finally, a pool that is not ready has nothing to hand over.
    fn queue_up_as_opener(self: &Arc<Self>) -> Result<Seat<Grant<E>>, Idle<E>> {
        loop {
            let mut queue = self.wait_list.lock_with_room(Lane::Openers);
            let Some(slot) = self.look_for_the_first(&queue) else {
                // Only the holder of the lock can join this lane.
                return Ok(queue.enqueue(Lane::Openers).expect("BUG: the room for an opener is gone"));
            };
            self.settle(&queue);
            drop(queue);
            if let Ok(idle) = self.vet(Held::new(self, slot)) {
                return Err(idle);
            }
        }
    }

    /// If no check-out is waiting yet, takes an available connection. If no connection is available, raises the flags
    /// of all shards for the caller, which is about to queue up. If this returns a connection, the caller must call
    /// [`Core::settle`].
    fn look_for_the_first(&self, queue: &LockedWaitList<Grant<E>>) -> Option<&Slot<E::Connection>> {
        if !queue.is_empty(Lane::Openers) || queue.first_waiting_lane().is_some() {
            // INV-5: the flags are already raised, so there is no connection to find.
            return None;
        }
        self.shards.iter().find_map(|shard| shard.pop_or_flag(&self.slab))
    }

    /// Returns the shard that the environment prefers for the calling thread.
    #[inline]
    pub(super) fn preferred_shard(&self) -> &Shard {
        self.shards.preferred(self.environment.shard_hint())
    }
}

/// The future returned by [`Core::acquire`].
pub struct Acquire<'p, E: Environment> {
    core: &'p Arc<Core<E>>,
    waiter: Waiter<Grant<E>>,
}

impl<E: Environment> Acquire<'_, E> {
    /// Returns whether this check-out has entered the queue.
    pub fn is_queued(&self) -> bool {
        self.waiter.is_queued()
    }

    /// Polls like [`Future::poll`]. For a check-out that has entered the queue, this takes only a few steps.
    #[inline]
    pub fn poll_again(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Grant<E>> {
        if self.is_queued() { self.core.wait_list.poll(&mut self.waiter, context) } else { self.poll(context) }
    }
}

impl<E: Environment> Future for Acquire<'_, E> {
    type Output = Grant<E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { core, waiter } = self.get_mut();
        if waiter.is_queued() {
            return core.wait_list.poll(waiter, context);
        }
        loop {
            match core.seek() {
                Sought::Granted(grant) => return Poll::Ready(grant),
                // If a clear has changed the phase and there are still waiters in the queue, the clear has not failed
                // them yet. It will fail this check-out along with them.
                Sought::Behind => {
                    if let Some(polled) = core.wait_list.try_join(waiter, context.waker()) {
                        return polled;
                    }
                }
                Sought::First => {}
            }
            if let Some(polled) = core.enter(Lane::Waiters, waiter, context) {
                return polled;
            }
        }
    }
}

impl<E: Environment> Drop for Acquire<'_, E> {
    #[inline]
    fn drop(&mut self) {
        if self.waiter.is_queued() {
            self.leave();
        }
    }
}

impl<E: Environment> Acquire<'_, E> {
    #[cold]
    #[inline(never)]
    fn leave(&mut self) {
        let grant = self.core.wait_list.leave(&mut self.waiter, |queue| self.core.settle(queue));
        // The grant is dropped outside the lock. It then goes to the next check-out in the queue.
        drop(grant);
        // If the pool has left the budget's queue, the others' fair share has grown.
        self.core.settle_budget();
    }
}

/// The future returned by [`Core::reacquire`].
pub struct Reacquire<'p, E: Environment, T> {
    acquire: Acquire<'p, E>,
    useless: Option<T>,
}

impl<E: Environment, T: Unpin> Future for Reacquire<'_, E, T> {
    type Output = Grant<E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { acquire, useless } = self.get_mut();
        if acquire.is_queued() {
            return Pin::new(acquire).poll_again(context);
        }
        let polled = loop {
            if let Some(polled) = acquire.core.enter(Lane::Requeued, &mut acquire.waiter, context) {
                break polled;
            }
        };
        // Closes the connection. Its capacity goes to the first waiter, which may be this check-out.
        drop(useless.take());
        polled
    }
}

/// The future returned by [`Core::acquire_as_opener`].
pub struct OpenerWait<'p, E: Environment>(Acquire<'p, E>);

impl<E: Environment> Future for OpenerWait<'_, E> {
    type Output = Idle<E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Acquire { core, waiter } = &mut self.get_mut().0;
        if waiter.is_queued() {
            return core.wait_list.poll(waiter, context).map(Grant::into_connection);
        }
        // Cloned before there is a ticket, because cloning a waker runs foreign code.
        let waker = context.waker().clone();
        match core.queue_up_as_opener() {
            Ok(seat) => core.wait_list.sit_down(waiter, seat, waker).map(Grant::into_connection),
            Err(idle) => {
                discard(waker);
                Poll::Ready(idle)
            }
        }
    }
}
