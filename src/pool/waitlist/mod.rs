//! The wait list: who waits for a connection, first come, first served.
//!
//! It has two [lanes](Lane). A check-out that opens a connection was first in the queue when it got the right to; until
//! its own is there it stays in front of all who came later, and takes one that comes back sooner.
//!
//! There are two wait lists with one interface. [`ring`](self) is the one that ships: wharf's own nodes. The feature
//! `event-listener-queue` puts the queue of event-listener in its place, as the measured alternative. It passes the same
//! tests, and a saturated pool takes 2.5 times as long with it: each hand-over takes the lock of the list four times
//! (listen, poll, notify, poll) where the ring needs two, and wakers run under that lock. The README has the figures.
//!
//! The interface, in the order of a waiter's life:
//!
//! - [`WaitQueue::enqueue`], under the lock: the node's owner waits from here on.
//! - [`WaitQueue::claim_first`], under the lock: the first in the queue is promised a grant.
//! - [`Claimed::grant`], outside of the lock: keeps the promise.
//! - [`WaitList::poll`]: the owner looks for the grant.
//! - [`WaitList::leave`]: the owner goes away, with the grant if it was promised one.

/// The lanes of the wait list. Whatever comes back goes to the first of the openers, or else of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Those who open a connection of their own, or are about to.
    Openers,
    /// Those who have nothing yet, and take a connection or the right to open one.
    Others,
}

impl Lane {
    /// Who gets a connection that comes back: the first to come.
    pub(super) const OF_RETURNED: [Self; 2] = [Self::Openers, Self::Others];
    /// Who gets a new one that nobody has asked for, or whose check-out has gone or has another: who would open one more.
    pub(super) const OF_NEW: [Self; 2] = [Self::Others, Self::Openers];
}

#[cfg(feature = "event-listener-queue")]
mod listener;
#[cfg(not(feature = "event-listener-queue"))]
mod ring;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

#[cfg(feature = "event-listener-queue")]
pub(super) use listener::{Claimed, Node, WaitList, WaitQueue};
#[cfg(not(feature = "event-listener-queue"))]
pub(super) use ring::{Claimed, Node, WaitList, WaitQueue};
