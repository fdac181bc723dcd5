//! Parts of the list alone, for models of them.

use std::ptr::NonNull;
use std::task::Waker;

use super::super::Lane;
use super::WaitList;
use super::books::hall;
use super::hall::Hall;
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

/// A lane that changes its hall, for a model of the threads that read it without the lock.
pub struct ModelledHalls(WaitList<u32>);

impl ModelledHalls {
    /// A list whose waiters have a hall.
    #[allow(clippy::new_without_default, reason = "only the model makes one")]
    pub fn new() -> Self {
        let list = WaitList::new();
        drop(list.lock_with_room(Lane::Waiters));
        Self(list)
    }

    /// Gives the waiters another hall.
    pub fn change(&self) {
        let new = NonNull::from(Box::leak(Hall::new(2)));
        self.0.lock().change_hall(Lane::Waiters, new);
    }

    /// Reads what a newcomer and a granter read before they change the word.
    pub fn read(&self) {
        let queue = &self.0.lanes.waiters;
        let seen = queue.tickets.load_to_change();
        let present = hall(queue.hall(seen));
        let number = present.number(seen.next);
        present.admits(seen, number);
        present.extend(number);
    }
}
