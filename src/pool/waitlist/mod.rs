//! The wait list: who waits for a connection, first come, first served.
//!
//! There are two of them with one interface. [`ring`](self) is the one that ships: wharf's own nodes. The feature
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
