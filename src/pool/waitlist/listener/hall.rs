//! Halls: the events of a run of tickets.

use super::super::word::Ticket;
use crate::sync::Event;
use crate::sync::atomic::{AtomicU32, Ordering};

/// An event, and the number of waiters that have listened to it, modulo [`Hall::turns`].
#[repr(align(64))]
pub(super) struct Place<G> {
    pub(super) event: Event<G>,
    pub(super) listened: AtomicU32,
}

/// The places of a lane's tickets from `start` up to `end`.
pub(super) struct Hall<G> {
    start: AtomicU32,
    /// Set when the waiters are turned away.
    pub(super) end: AtomicU32,
    /// Their number is a power of two.
    pub(super) places: Box<[Place<G>]>,
}

impl<G> Hall<G> {
    /// Returns the hall of the first tickets.
    pub(super) fn new(places: usize) -> Self {
        let place = |_| Place { event: Event::with_tag(), listened: AtomicU32::new(0) };
        let start = AtomicU32::new(Ticket::FIRST.number());
        Self { start, end: AtomicU32::new(0), places: (0..places).map(place).collect() }
    }

    /// Returns the place of a ticket, and how many tickets had it before.
    #[inline]
    pub(super) fn place(&self, ticket: Ticket) -> (&Place<G>, u32) {
        // Relaxed: the word that names this hall publishes it.
        let number = ticket.since(Ticket::of(self.start.load(Ordering::Relaxed)));
        let most = self.places.len() as u32;
        (&self.places[(number & (most - 1)) as usize], number >> most.trailing_zeros())
    }

    /// Returns how many tickets in succession have the same place before the numbers of tickets repeat themselves.
    pub(super) fn turns(&self) -> u32 {
        // Both are powers of two.
        Ticket::COUNT / self.places.len() as u32
    }

    /// Returns whether all waiters have gone that were here when they were turned away. Called by the holder of the
    /// list's lock.
    pub(super) fn is_deserted(&self) -> bool {
        // Relaxed: the lock orders both.
        let [end, start] = [&self.end, &self.start].map(|number| Ticket::of(number.load(Ordering::Relaxed)));
        let given = end.since(start);
        self.places.iter().zip(0_u32..).all(|(place, index)| {
            let turns = given.saturating_sub(index).div_ceil(self.places.len() as u32);
            // ORD: Acquire; pairs with the Release in `begin`; shows that the event has a list, which its first listener
            // made. Without a list, the event counts no listeners and takes no lock. With it, its lock orders the rest.
            // No model has it: two clears and a waiter that comes before them are too many steps.
            place.listened.load(Ordering::Acquire) == turns % self.turns() && place.event.total_listeners() == 0
        })
    }

    /// Starts anew with the ticket `start`. Called by the holder of the list's lock, if the hall is deserted.
    pub(super) fn open(&self, start: Ticket) {
        // Relaxed: the next change of the word publishes both.
        self.start.store(start.number(), Ordering::Relaxed);
        self.places.iter().for_each(|place| place.listened.store(0, Ordering::Relaxed));
    }
}
