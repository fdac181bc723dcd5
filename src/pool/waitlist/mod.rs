//! The wait list: who waits for a connection, first come, first served.
//!
//! It has two [lanes](Lane). A check-out that opens a connection was first in the queue when it got the right to; until
//! its own is there it stays in front of all who came later, and takes one that comes back sooner.
//!
//! There are two wait lists with one interface. `blocks` is the one that ships: wharf's own nodes. The feature
//! `event-listener-queue` puts the queue of event-listener in its capacity, as the measured alternative. It passes the same
//! tests, and a saturated pool takes 2.5 times as long with it: each hand-over takes the lock of the list four times
//! (listen, poll, notify, poll) where wharf's own needs two. Wakers run under that lock, so each is wrapped: a panic of one
//! would spoil the event's counts. BENCHMARKS.md has the figures, which are from before the wrapping.
//!
//! The interface, in the order of a waiter's life:
//!
//! - [`WaitQueue::enqueue`], under the lock: the node's owner waits from here on.
//! - [`WaitQueue::claim_first`], under the lock: the first in the queue is promised a grant.
//! - [`WaitQueue::turn_away`], under the lock: all of a lane are out of the queue, and [`WaitList::claim_turned_away`]
//!   promises a refusal to a few of them at a time.
//! - [`Claimed::grant`], outside of the lock: keeps the promise.
//! - [`WaitList::poll`]: the owner looks for the grant.
//! - [`WaitList::leave`]: the owner goes away, with the grant if it was promised one.

/// The lanes of the wait list. Whatever comes back goes to the first of the openers, or else of the waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Check-outs that open a connection of their own, or are about to.
    Openers,
    /// Check-outs that have nothing yet, and take a connection or a permit to open one.
    Waiters,
}

impl Lane {
    /// Who gets a connection that comes back: the first to come.
    pub(super) const OF_RETURNED: [Self; 2] = [Self::Openers, Self::Waiters];
    /// Who gets a new one that nobody has asked for, or whose check-out has gone or has another: who would open one more.
    pub(super) const OF_NEW: [Self; 2] = [Self::Waiters, Self::Openers];
}

#[cfg(not(feature = "event-listener-queue"))]
mod blocks;
#[cfg(feature = "event-listener-queue")]
mod listener;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

#[cfg(not(feature = "event-listener-queue"))]
pub(super) use blocks::{Node, TurnedAway, WaitList, WaitQueue};
#[cfg(feature = "event-listener-queue")]
pub(super) use listener::{Node, TurnedAway, WaitList, WaitQueue};
