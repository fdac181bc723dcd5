//! A place alone, for a model of it.

use std::ptr::NonNull;
use std::task::Waker;

use super::node::{Node, Seat};
use super::place::Place;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Patience, made_progress};

/// A place with its waiters and granters, for a model of it alone.
pub struct ModelledPlace {
    place: Place<u32>,
    /// The number of tickets that were taken.
    tickets: AtomicU32,
}

impl ModelledPlace {
    /// A place that is free for the first turn.
    #[allow(clippy::new_without_default, reason = "only the model makes one")]
    pub fn new() -> Self {
        Self { place: Place::new(), tickets: AtomicU32::new(0) }
    }

    /// Takes the ticket of a turn as soon as the place is free for it, and waits for the grant.
    pub fn wait(&self, turn: u32) -> u32 {
        let mut patience = Patience::new();
        while !self.place.is_free(turn) {
            patience.pause();
        }
        // ORD: Release; pairs with the Acquire in `grant`, as in a lane's word.
        self.tickets.fetch_add(1, Ordering::Release);
        made_progress();
        let node = Node::new();
        node.prepare(Seat { number: turn, hall: NonNull::dangling() }, Waker::noop().clone());
        match self.place.take(turn + 1, &node) {
            Ok(()) => node.await_grant(),
            Err(grant) => grant,
        }
    }

    /// Grants something to the waiter of a turn, as soon as the ticket is taken.
    pub fn grant(&self, turn: u32, grant: u32) {
        let mut patience = Patience::new();
        while self.tickets.load(Ordering::Acquire) <= turn {
            patience.pause();
        }
        drop(self.place.grant(turn + 1, grant));
    }
}
