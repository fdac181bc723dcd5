//! The wait list: check-outs that wait for a connection, served in the order of their arrival.
//!
//! The list has two [lanes](Lane). A check-out that opens a connection was first in the queue when it received its
//! permit. Until its own connection is open, it stays in front of all later check-outs, and takes a connection that
//! comes back sooner.
//!
//! There are two wait lists with one interface. Both give out tickets with one compare-and-swap of a [`word`]. `places`
//! ships: it has a place of its own for each ticket, where the waiter and its granter meet. The feature
//! `event-listener-queue` replaces it with `listener`, in which each waiter waits at an event of event-listener. Both pass the
//! same tests and models. But with the public interface of event-listener, each wait takes an allocation and five sections
//! under an event's lock. These alone take longer than a hand-over may on few cores; BENCHMARKS.md has the figures.
//!
//! The interface, in the order of a waiter's life:
//!
//! - [`WaitList::run`]: runs a section under the lock, perhaps on the thread that holds the lock.
//! - [`WaitList::try_join`], without the lock: appends the node to the waiters, if there are others.
//! - [`LockedWaitList::enqueue`], under the lock: appends the node to a lane. Its owner is waiting from here on, and
//!   calls [`WaitList::begin`] as soon as it has released the lock.
//! - [`WaitList::try_claim`], without the lock: claims the first waiter, if others wait behind it.
//! - [`LockedWaitList::claim_first`], under the lock: claims the first node of a lane, which promises it a grant.
//! - [`LockedWaitList::turn_away`], under the lock: takes all nodes of [`Lane::Waiters`] out of the queue.
//!   [`WaitList::claim_turned_away`] then claims a few of them at a time, which promises each a refusal.
//! - `Claimed::grant`, outside of the lock: keeps the promise.
//! - [`WaitList::poll`]: the owner takes the grant if it has come.
//! - [`WaitList::leave`]: the owner leaves the queue, and takes along the grant if it was promised one.

/// The lanes of the wait list. A connection that comes back goes to the first opener, or else to the first waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Check-outs that open a connection of their own, or are about to.
    Openers,
    /// Check-outs that have no connection on the way. They take a connection or a permit to open one.
    Waiters,
}

impl Lane {
    /// The order of lanes for a connection that comes back: the earliest check-out first.
    pub(super) const OF_RETURNED: [Self; 2] = [Self::Openers, Self::Waiters];
    /// The order of lanes for a new connection that no check-out asked for, or whose check-out has left or has another
    /// connection. A check-out that would open one more comes first.
    pub(super) const OF_NEW: [Self; 2] = [Self::Waiters, Self::Openers];
}

#[cfg(feature = "event-listener-queue")]
mod listener;
#[cfg(not(feature = "event-listener-queue"))]
mod places;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod word;

#[cfg(feature = "event-listener-queue")]
pub(super) use listener::{Claimed, LockedWaitList, Node, TurnedAway, WaitList};
#[cfg(not(feature = "event-listener-queue"))]
pub(super) use places::{Claimed, LockedWaitList, Node, TurnedAway, WaitList};
#[cfg(all(loom, not(feature = "event-listener-queue")))]
pub use places::{ModelledHalls, ModelledPlace};
