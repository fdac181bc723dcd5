//! The wait list on event-listener, in the order of tickets.
//!
//! event-listener's lists are fair and intrusive, and let a waiter leave from the middle. But a list is as slow as its
//! lock: with one list for all waiters, each newcomer and each granter meets all others there, five times for each
//! hand-over. So this wait list takes the order out of the lists, and uses many of them.
//!
//! A word has the ticket of the first waiter and the ticket of the next newcomer ([`word`](super::word)). A newcomer takes
//! its ticket with one compare-and-swap, and listens to the event at its place in a hall: `ticket % PLACES`. A granter takes
//! the first ticket with one compare-and-swap, and notifies the event at that place. The grant is the notification's tag.
//! Neighbours in the queue use different events, so they hardly ever meet at a lock. While there is another waiter, neither
//! takes a lock of this list.
//!
//! # The lock
//!
//! All else is done by the holder of the list's lock ([`LockedWaitList`]), whose other half is the word itself:
//!
//! - The first waiter joins, and the last one is claimed. The pool's flags change in the same section.
//! - A waiter leaves that is not claimed yet. Its ticket becomes a gap ([`gaps`]), and the mark `by_lock` in the word
//!   sends all granters to the lock until no gap is left. Newcomers are not affected.
//! - Openers wait. They have a word and a hall of their own, and the same mark.
//! - All waiters are turned away.
//!
//! Newcomers and granters change the word with or without the lock, so the holder changes it by compare-and-swap, too.
//! INV-11 (what a word says): an empty lane becomes non-empty only under the lock, and non-empty to empty likewise. The
//! first ticket of a lane is never a gap, except in a section that is about to skip it. So a word that is not empty has
//! a waiter.
//!
//! # The places
//!
//! INV-12 (the order at a place): the listeners at a place are in the order of their tickets. A newcomer waits until the
//! one before it at this place listens (`listened`). With as many places, that one must have been preempted in the few
//! instructions since it took its ticket. The newcomer waits before it takes a ticket of its own, if it can. Otherwise it
//! would hold up the next one at this place, and so on, long after the first one goes on: with twice as many threads as
//! cores, this took a third of a saturated pool's time.
//!
//! Each claim notifies the event at its place exactly once, and reaches the first listener there that is not notified
//! yet. This is the claimed waiter, with two exceptions. If an earlier claim at this place is late, its waiter gets this
//! grant, and the claimed waiter gets the late one: the older of the two is served first. If the claimed waiter does not
//! listen yet, nothing is notified. The granter then waits for it, as a newcomer does for the one before it.
//!
//! A refusal must not go to a waiter that came after it, and such a waiter's grant not to one that is refused. So when
//! waiters are turned away, later tickets get another hall.
//!
//! # A waiter that leaves
//!
//! - Not claimed: it is taken out under the lock, and no granter has had its ticket. It waits for no other thread.
//! - Turned away and not claimed since: the same.
//! - Claimed: a granter is between its claim and its notification, or has passed both. The waiter receives the grant, for
//!   which it waits as long as a granter needs for a few instructions. The caller drops the grant, and so passes it on.
//!
//! A listener that is notified is never dropped, so event-listener never passes a grant on by itself.
//!
//! # What it costs
//!
//! With the public interface of event-listener, a wait takes an allocation and five sections under an event's lock: it
//! listens, registers its waker, is notified, takes the notification, and is dropped. None of them is contended.

mod carried;
mod gaps;
mod hall;

use std::future::Future;
use std::marker::{PhantomData, PhantomPinned};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use crossbeam::utils::CachePadded;
use event_listener::IntoNotification;

use super::Lane;
use super::word::{Ticket, Tickets, Word};
use crate::sync::atomic::Ordering;
use crate::sync::{EventListener, Mutex, MutexGuard, OnceLock, Patience, UnsafeCell, discard, made_progress};
use carried::Carrier;
use gaps::Gaps;
use hall::Hall;

/// The number of places for waiters. A power of two. The more there are, the longer may a newcomer be preempted before
/// others have to wait for it: with 16 places and twice as many threads as cores, a saturated pool takes twice the time.
#[cfg(not(any(loom, shuttle)))]
const PLACES: usize = 256;
/// Small, so that the model checkers explore places that several waiters share.
#[cfg(any(loom, shuttle))]
const PLACES: usize = 2;

/// The most halls of a lane. If waiters are turned away and all halls have waiters of earlier times that have not been
/// refused yet, later waiters share the hall of those that are turned away. One of them may then be refused with them.
#[cfg(not(any(loom, shuttle)))]
const HALLS: usize = 16;
#[cfg(any(loom, shuttle))]
const HALLS: usize = 3;

/// A waiter's place in the queue.
///
/// INV-3 (nodes stay): from when it is enqueued until it is granted or has left the queue, a node does not move. Its
/// owner alone touches it, except for the carrier (INV-10).
pub(in crate::pool) struct Node<G> {
    seat: UnsafeCell<Option<Seat<G>>>,
    waker: Carrier,
    _pinned: PhantomPinned,
}

/// What a node that is enqueued has.
struct Seat<G> {
    lane: Lane,
    ticket: Ticket,
    hall: u8,
    /// `None` only from `enqueue` to `begin`.
    listener: Option<EventListener<G>>,
}

// SAFETY: only the owner touches `seat`. INV-10 for `waker`. A grant moves from the granter's thread to the owner's.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}

#[allow(unsafe_code)]
impl<G> Node<G> {
    pub(in crate::pool) fn new() -> Self {
        Self { seat: UnsafeCell::new(None), waker: Carrier::new(), _pinned: PhantomPinned }
    }

    /// Returns whether the node was enqueued and its grant not yet taken. Called by the owner of a node that has not
    /// left.
    #[inline]
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // SAFETY: the caller is the owner.
        self.seat.with(|seat| unsafe { (*seat).is_some() })
    }

    /// Calls `f` with the seat. Called by the owner of an enqueued node.
    #[inline]
    fn with_seat<R>(&self, f: impl FnOnce(&mut Seat<G>) -> R) -> R {
        // SAFETY: the caller is the owner, and no `f` comes back here.
        self.seat.with_mut(|seat| f(unsafe { (*seat).as_mut() }.expect("BUG: a node waits without a seat")))
    }

    /// Ends the wait. Called by the owner, whose listener is notified or was removed.
    #[inline]
    fn rise(&self) {
        // SAFETY: the caller is the owner.
        self.seat.with_mut(|seat| unsafe { *seat = None });
    }

    /// Polls the listener with a waker that does nothing. If it is not notified, no waker of the carrier is registered
    /// from here on.
    #[inline]
    fn try_take(&self) -> Option<G> {
        match self.poll_with(Waker::noop()) {
            Poll::Ready(grant) => Some(grant),
            Poll::Pending => None,
        }
    }

    #[inline]
    fn poll_with(&self, waker: &Waker) -> Poll<G> {
        let polled = self.with_seat(|seat| {
            let listener = seat.listener.as_mut().expect("BUG: a waiter does not listen");
            Pin::new(listener).poll(&mut Context::from_waker(waker))
        });
        if polled.is_ready() {
            self.rise();
        }
        polled
    }

    /// Polls the listener with the carrier's waker.
    #[inline]
    fn poll_with_carrier(self: Pin<&Self>) -> Poll<G> {
        // SAFETY: INV-3, and the owner takes the listener away before it goes (INV-10).
        let waker = unsafe { self.map_unchecked(|node| &node.waker).as_waker() };
        self.get_ref().poll_with(&waker)
    }

    /// Waits for the grant of a claimed node, while its granter executes a few instructions.
    #[cold]
    fn await_grant(&self) -> G {
        let mut patience = Patience::new();
        loop {
            if let Some(grant) = self.try_take() {
                return grant;
            }
            patience.pause();
        }
    }
}

/// One lane.
struct Queue<G> {
    tickets: Tickets,
    /// Each is built when it is needed for the first time, under the list's lock.
    halls: [OnceLock<Hall<G>>; HALLS],
    places: usize,
}

impl<G> Queue<G> {
    fn new(places: usize) -> Self {
        Self { tickets: Tickets::new(), halls: std::array::from_fn(|_| OnceLock::new()), places }
    }

    /// Returns a hall, which is built if need be. Called by the holder of the list's lock.
    fn build(&self, hall: u8) -> &Hall<G> {
        let place = &self.halls[usize::from(hall)];
        if place.get().is_none() {
            let _ = place.set(Hall::new(self.places));
        }
        self.hall(hall)
    }

    #[inline]
    fn hall(&self, hall: u8) -> &Hall<G> {
        self.halls[usize::from(hall)].get().expect("BUG: tickets in a hall that does not exist")
    }

    /// Returns whether the next ticket of a word could be followed by a listener at its place at once.
    #[inline]
    fn is_next_place_free(&self, word: Word) -> bool {
        let (place, turn) = self.hall(word.hall).place(word.next);
        // Relaxed: it only shortens the wait in `begin`, which looks again.
        place.listened.load(Ordering::Relaxed) == turn
    }

    #[inline]
    fn claimed(&self, word: Word) -> Claimed<G> {
        Claimed { hall: NonNull::from(self.hall(word.hall)), ticket: word.first }
    }
}

/// A promise to grant something to the owner of a ticket.
#[must_use = "a waiter waits for the grant"]
pub(in crate::pool) struct Claimed<G> {
    hall: NonNull<Hall<G>>,
    ticket: Ticket,
}

// SAFETY: a hall is `Sync`, and a grant may move to another thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

impl<G> Claimed<G> {
    /// Grants. Returns the waker of the waiter.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        // SAFETY: the hall is part of the list, and so of the core. The grant keeps the core alive until it is taken, or
        // the waiter's borrow of the core does. When it is taken, event-listener has unlocked the event, and nothing
        // here touches the hall after that.
        let event = &unsafe { self.hall.as_ref() }.place(self.ticket).0.event;
        let mut grant = Some(grant);
        let mut patience = Patience::new();
        loop {
            let take = || grant.take().expect("BUG: one grant was taken twice");
            let (notified, waker) = carried::collect(|| event.notify(1.additional().relaxed().tag_with(take)));
            if notified == 1 {
                made_progress();
                // A waiter that has just begun to listen has no waker yet, and is about to look.
                return waker.unwrap_or_else(|| Waker::noop().clone());
            }
            // The waiter has its ticket and does not listen yet.
            patience.pause();
        }
    }
}

/// Promises that [`LockedWaitList::turn_away`] made and that are not kept yet.
#[must_use = "waiters wait for a refusal"]
pub(in crate::pool) struct TurnedAway<G> {
    serial: u64,
    of: PhantomData<fn() -> G>,
}

/// Waiters that were turned away and are not claimed yet.
struct Away {
    serial: u64,
    hall: u8,
    next: Ticket,
    end: Ticket,
    gaps: Gaps,
}

/// What only the holder of the lock uses.
struct Books {
    /// The gaps among the tickets of each lane that wait.
    waiters: Gaps,
    openers: Gaps,
    /// One entry for each turning-away that is not over.
    away: Vec<Away>,
    turned_away: u64,
}

pub(in crate::pool) struct WaitList<G> {
    waiters: CachePadded<Queue<G>>,
    openers: Queue<G>,
    books: Mutex<Books>,
}

/// The list, locked.
pub(in crate::pool) struct LockedWaitList<'l, G> {
    list: &'l WaitList<G>,
    books: MutexGuard<'l, Books>,
}

impl<G> WaitList<G> {
    /// The most promises that [`claim_turned_away`](Self::claim_turned_away) takes at a time.
    pub(in crate::pool) const BATCH: usize = 16;

    pub(in crate::pool) fn new() -> Self {
        let books = Books { waiters: Gaps::default(), openers: Gaps::default(), away: Vec::new(), turned_away: 0 };
        Self { waiters: CachePadded::new(Queue::new(PLACES)), openers: Queue::new(1), books: Mutex::new(books) }
    }

    pub(in crate::pool) fn lock(&self) -> LockedWaitList<'_, G> {
        LockedWaitList { list: self, books: self.books.lock() }
    }

    /// Takes the lock, with what [`LockedWaitList::turn_away`] needs.
    pub(in crate::pool) fn lock_to_turn_away(&self) -> LockedWaitList<'_, G> {
        self.lock()
    }

    /// Runs a section under the lock, on this thread.
    #[inline]
    pub(in crate::pool) fn run<R, F: FnOnce(&mut LockedWaitList<'_, G>) -> R + Send>(
        &self,
        now: impl FnOnce(&mut LockedWaitList<'_, G>) -> R,
        _: impl FnOnce() -> F,
    ) -> R {
        now(&mut self.lock())
    }

    /// Takes the lock. There is always room.
    pub(in crate::pool) fn lock_with_room(&self, _: Lane) -> LockedWaitList<'_, G> {
        self.lock()
    }

    #[inline]
    fn queue(&self, lane: Lane) -> &Queue<G> {
        match lane {
            Lane::Openers => &self.openers,
            Lane::Waiters => &self.waiters,
        }
    }

    /// Joins the waiters without the lock, if there are any. Returns `None` if there are none, or what
    /// [`begin`](Self::begin) returns.
    #[inline]
    pub(in crate::pool) fn try_join(&self, node: Pin<&Node<G>>, waker: &Waker) -> Option<Poll<G>> {
        let waker = waker.clone();
        let mut patience = Patience::new();
        loop {
            let seen = self.waiters.tickets.load_to_change();
            if seen.span() == 0 {
                discard(waker);
                return None;
            }
            // A newcomer that waits for its place without a ticket holds up no other newcomer and no granter.
            if !self.waiters.is_next_place_free(seen) {
                patience.pause();
                continue;
            }
            if self.waiters.tickets.swap(seen, seen.joined()) {
                self.sit_down(Lane::Waiters, node, seen, waker);
                return Some(self.begin(node));
            }
        }
    }

    /// Gives a node the next ticket of a word. Called by its owner.
    #[inline]
    #[allow(unsafe_code)]
    fn sit_down(&self, lane: Lane, node: Pin<&Node<G>>, word: Word, waker: Waker) {
        let seat = Seat { lane, ticket: word.next, hall: word.hall, listener: None };
        // SAFETY: the caller is the owner, and has not listened yet (INV-10). The carrier has no other waker: the owner
        // took it, or the event did.
        let before = unsafe {
            node.seat.with_mut(|present| *present = Some(seat));
            node.waker.replace(Some(waker))
        };
        discard(before);
    }

    /// Begins the wait of a node that was enqueued. Called by its owner at once, and without the lock. Returns the grant if
    /// it has come already.
    #[inline]
    pub(in crate::pool) fn begin(&self, node: Pin<&Node<G>>) -> Poll<G> {
        node.with_seat(|seat| {
            let hall = self.queue(seat.lane).hall(seat.hall);
            let (place, turn) = hall.place(seat.ticket);
            let mut patience = Patience::new();
            // Relaxed: the event's lock orders the two listeners. If the second one took it first, its load would come
            // before the first one's store, whose value it could not have read.
            while place.listened.load(Ordering::Relaxed) != turn {
                patience.pause();
            }
            seat.listener = Some(place.event.listen());
            made_progress();
            // ORD: Release; pairs with the Acquire in `Hall::is_deserted`.
            place.listened.store((turn + 1) % hall.turns(), Ordering::Release);
            made_progress();
        });
        node.poll_with_carrier()
    }

    /// Claims the first waiter without the lock, if another one waits behind it, and if `is_current` returns `true` between
    /// the reading of the word and its change. Returns `None` if the caller has to take the lock.
    ///
    /// A clear changes the pool word first and the list's word after it, if check-outs wait. So the claim notices one of
    /// the two changes, as a push does (`Shard::push`).
    #[inline]
    pub(in crate::pool) fn try_claim(&self, is_current: impl Fn() -> bool) -> Option<Claimed<G>> {
        let queue = &self.waiters;
        loop {
            let seen = queue.tickets.load_to_change();
            if seen.by_lock || seen.span() < 2 || !is_current() {
                return None;
            }
            if queue.tickets.swap(seen, seen.claimed()) {
                return Some(queue.claimed(seen));
            }
        }
    }

    /// Takes up to [`BATCH`](Self::BATCH) promises to the waiters that were turned away and have not left. If it takes
    /// none, no more are left.
    pub(in crate::pool) fn claim_turned_away(&self, away: &mut TurnedAway<G>, claimed: &mut Vec<Claimed<G>>) {
        let mut locked = self.lock();
        let entries = &mut locked.books.away;
        let Some(index) = entries.iter().position(|entry| entry.serial == away.serial) else { return };
        let entry = &mut entries[index];
        let hall = NonNull::from(self.waiters.hall(entry.hall));
        while claimed.len() < Self::BATCH {
            let first = entry.next;
            entry.next = entry.gaps.beyond(first);
            entry.gaps.remove_run(first);
            if entry.next == entry.end {
                entries.swap_remove(index);
                break;
            }
            claimed.push(Claimed { hall, ticket: entry.next });
            entry.next = entry.next.after();
        }
    }

    /// Takes the grant if it has come; otherwise replaces the waker. Called by the owner of a node that was enqueued and
    /// whose grant was not taken since then.
    #[inline]
    #[allow(unsafe_code)]
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        // SAFETY: INV-3.
        let node = unsafe { Pin::new_unchecked(node) };
        if let Poll::Ready(grant) = node.poll_with_carrier() {
            return Poll::Ready(grant);
        }
        // To clone a waker is foreign code, which may panic. Until there is a clone, the present waker stays registered.
        let waker = context.waker().clone();
        if let Some(grant) = node.try_take() {
            discard(waker);
            return Poll::Ready(grant);
        }
        // SAFETY: the caller is the owner, and `try_take` has ended the registration (INV-10).
        discard(unsafe { node.waker.replace(Some(waker)) });
        node.poll_with_carrier()
    }

    /// Leaves the queue, and calls `settle` while the lock is held. Returns the grant if one was promised. Called by
    /// the owner of a node that was enqueued and whose grant was not taken since then.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&LockedWaitList<'_, G>)) -> Option<G> {
        if let Some(grant) = node.try_take() {
            return Some(grant);
        }
        let mut locked = self.lock();
        if !locked.remove(node) {
            drop(locked);
            return Some(node.await_grant());
        }
        settle(&locked);
        drop(locked);
        // SAFETY: the caller is the owner, and the listener is gone (INV-10).
        discard(unsafe { node.waker.replace(None) });
        None
    }
}

impl<G> LockedWaitList<'_, G> {
    /// Returns the number of waiters in a lane that are not promised anything.
    pub(in crate::pool) fn len(&self, lane: Lane) -> u32 {
        let span = self.list.queue(lane).tickets.load().span();
        span.checked_sub(self.gaps(lane).len()).expect("BUG: more waiters have left than there were")
    }

    /// Returns whether a lane has no waiters that are not promised anything.
    pub(in crate::pool) fn is_empty(&self, lane: Lane) -> bool {
        self.len(lane) == 0
    }

    fn gaps(&self, lane: Lane) -> &Gaps {
        match lane {
            Lane::Openers => &self.books.openers,
            Lane::Waiters => &self.books.waiters,
        }
    }

    fn gaps_mut(&mut self, lane: Lane) -> &mut Gaps {
        match lane {
            Lane::Openers => &mut self.books.openers,
            Lane::Waiters => &mut self.books.waiters,
        }
    }

    /// Gives a node the next ticket of a lane. Its owner has to call [`WaitList::begin`] at once, without the lock. Never
    /// gives the waker back.
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) -> Result<(), Waker> {
        let queue = self.list.queue(lane);
        queue.build(queue.tickets.load().hall);
        let (seen, _) = queue.tickets.change(Word::joined);
        self.list.sit_down(lane, node, seen, waker);
        if lane == Lane::Openers {
            self.tidy(Lane::Waiters);
        }
        Ok(())
    }

    /// Promises something to the first waiter of a lane, if the lane has one.
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let queue = self.list.queue(lane);
        loop {
            let seen = queue.tickets.load();
            if seen.span() == 0 {
                return None;
            }
            if queue.tickets.swap(seen, seen.claimed()) {
                self.tidy(lane);
                return Some(queue.claimed(seen));
            }
        }
    }

    /// Takes all waiters of [`Lane::Waiters`] out of the queue at once, to be claimed one by one and refused.
    pub(in crate::pool) fn turn_away(&mut self) -> Option<TurnedAway<G>> {
        let queue = &self.list.waiters;
        if self.len(Lane::Waiters) == 0 {
            return None;
        }
        let present = queue.tickets.load().hall;
        let other = self.other_hall(present);
        let by_lock = self.len(Lane::Openers) > 0;
        let (seen, _) = queue.tickets.change(|seen| {
            let hall = other.map_or(present, |(hall, deserted)| {
                deserted.open(seen.next);
                hall
            });
            Word { first: seen.next, next: seen.next, hall, by_lock }
        });
        if other.is_some() {
            // Relaxed: the lock orders it.
            queue.hall(present).end.store(seen.next.number(), Ordering::Relaxed);
        }
        let gaps = std::mem::take(&mut self.books.waiters);
        let serial = self.books.turned_away;
        self.books.turned_away += 1;
        self.books.away.push(Away { serial, hall: present, next: seen.first, end: seen.next, gaps });
        Some(TurnedAway { serial, of: PhantomData })
    }

    /// Returns a hall other than `present` that has no waiters, if there is one.
    fn other_hall(&self, present: u8) -> Option<(u8, &Hall<G>)> {
        let waiters = &self.list.waiters;
        let mut others = (0_u8..).zip(&waiters.halls).filter(|&(hall, _)| hall != present);
        others.find_map(|(hall, built)| match built.get() {
            Some(old) => old.is_deserted().then_some((hall, old)),
            None => Some((hall, waiters.build(hall))),
        })
    }

    /// Takes a node out of the queue. Returns `false` if it has been claimed. Called by its owner.
    fn remove(&mut self, node: &Node<G>) -> bool {
        let (lane, ticket, hall) = node.with_seat(|seat| (seat.lane, seat.ticket, seat.hall));
        // From here on, no granter without the lock claims.
        let keep = |word: Word| Word { by_lock: word.by_lock || word.holds(ticket), ..word };
        let (seen, _) = self.list.queue(lane).tickets.change(keep);
        if seen.hall == hall && seen.holds(ticket) {
            self.gaps_mut(lane).insert(ticket);
            // Before the ticket is skipped: the next claim at this place must not find the listener.
            node.rise();
            self.tidy(lane);
            return true;
        }
        let waits = |away: &&mut Away| away.hall == hall && ticket.since(away.next) < away.end.since(away.next);
        let Some(away) = self.books.away.iter_mut().find(waits).filter(|_| lane == Lane::Waiters) else { return false };
        away.gaps.insert(ticket);
        node.rise();
        true
    }

    /// Skips the gap at the front of a lane, if there is one, and corrects the mark `by_lock`.
    fn tidy(&mut self, lane: Lane) {
        let queue = self.list.queue(lane);
        let openers_wait = self.len(Lane::Openers) > 0;
        let gaps = self.gaps_mut(lane);
        let (seen, _) = queue.tickets.change(|seen| {
            let first = gaps.beyond(seen.first);
            let by_lock = gaps.len() > first.since(seen.first) || openers_wait;
            Word { first, by_lock, ..seen }
        });
        gaps.remove_run(seen.first);
        if lane == Lane::Openers {
            self.tidy(Lane::Waiters);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
