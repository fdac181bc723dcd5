//! What is done under the list's lock.

use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::Waker;

use super::super::Lane;
use super::super::word::Word;
use super::books::hall;
use super::hall::{Hall, Spot, Stage};
use super::node::{Node, Seat};
use super::{Claimed, Lack, LockedWaitList, TurnedAway};
use crate::sync::atomic::Ordering;
use crate::sync::unless_mutant;

impl<G> LockedWaitList<G> {
    /// While the elders of a lane have more places than this for each of them, later halls are small.
    const PLACES_OF_AN_ELDER: u64 = 64;

    /// Returns the word of a lane. Only the holder of the lock changes that of openers.
    pub(super) fn word(&self, lane: Lane) -> Word {
        match lane {
            Lane::Openers => self.lanes.openers.tickets.load_under_lock(),
            Lane::Waiters => self.lanes.waiters.tickets.load(),
        }
    }

    /// Returns the number of waiters in a lane that are not promised anything.
    pub(in crate::pool) fn len(&self, lane: Lane) -> u32 {
        let queue = self.lanes.queue(lane);
        let seen = self.word(lane);
        let gaps = if seen.span() == 0 { 0 } else { hall(queue.hall(seen)).with_run(|run| run.gaps) };
        seen.span() - gaps + self.books.elders(lane).len
    }

    /// Returns whether a lane has no waiters that are not promised anything.
    pub(in crate::pool) fn is_empty(&self, lane: Lane) -> bool {
        // The elders first: newcomers change the word all the time.
        self.books.elders(lane).len == 0 && self.word(lane).span() == 0
    }

    /// Returns whether a claim in a lane needs the lock, if the run in its word has no gaps.
    pub(super) fn is_by_lock(&self, lane: Lane) -> bool {
        self.books.elders(lane).len > 0 || lane == Lane::Waiters && !self.is_empty(Lane::Openers)
    }

    /// Makes room for one more ticket of a lane, in another hall if need be.
    pub(super) fn make_room(&mut self, lane: Lane) -> Result<(), Lack<G>> {
        let queue = self.lanes.queue(lane);
        let seen = self.word(lane);
        let wanted = match queue.built(seen) {
            None => queue.fewest,
            Some(present) if seen.span() < hall(present).most() => {
                // A hall larger than needed would spread the places over more memory than needed.
                let is_large = self.is_empty(lane) && hall(present).places() > queue.fewest;
                if !(is_large && self.books.has_spare(queue.fewest)) {
                    let number = hall(present).number(seen.next);
                    return if hall(present).admits(seen, number) { Ok(()) } else { Err(Lack::Limit(present, number)) };
                }
                queue.fewest
            }
            Some(present) => {
                let waiters = seen.span() - hall(present).with_run(|run| run.gaps);
                let elders = self.books.elders(lane);
                // A few waiters that stay for ever, each behind many that leave, must not keep large halls.
                match elders.places > Self::PLACES_OF_AN_ELDER * u64::from(elders.len.max(queue.fewest)) {
                    true => queue.fewest,
                    false => (8 * waiters).next_power_of_two().clamp(queue.fewest, Hall::<G>::MOST_PLACES),
                }
            }
        };
        let spare = self.books.take_spare(wanted).ok_or(Lack::Hall(wanted))?;
        self.change_hall(lane, spare);
        self.make_room(lane)
    }

    /// Begins a new run in the word of a lane, in a spare hall. If the present run has waiters, they become elders.
    pub(super) fn change_hall(&mut self, lane: Lane, spare: NonNull<Hall<G>>) {
        let queue = self.lanes.queue(lane);
        hall(spare).with_run(|run| (run.stage, run.lane, run.gaps) = (Stage::Present, lane, 0));
        let (seen, _) = queue.tickets.change(|seen| {
            let next = seen.in_next_hall();
            hall(spare).open(seen.next);
            // ORD: Release; pairs with the Acquire in `built`; publishes the hall.
            let order = unless_mutant("hall_is_not_published", Ordering::Release);
            queue.entry(next.hall).store(spare.as_ptr(), order);
            next
        });
        let Some(closed) = queue.built(seen) else { return };
        hall(closed).with_run(|run| (run.first, run.end) = (seen.first, seen.next));
        if seen.span() > 0 {
            self.books.add(closed);
        } else {
            self.books.keep(closed);
        }
    }

    /// Gives a node the next ticket of a lane. Its owner has to call [`WaitList::begin`](super::WaitList::begin) at once,
    /// without the lock. Gives the waker back if others have taken the room meanwhile, which happens only in a lane that has
    /// waiters.
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) -> Result<(), Waker> {
        let queue = self.lanes.queue(lane);
        loop {
            let seen = self.word(lane);
            let present = queue.hall(seen);
            let number = hall(present).number(seen.next);
            if !hall(present).admits(seen, number) {
                return Err(waker);
            }
            if queue.tickets.swap(seen, seen.joined()) {
                node.prepare(Seat { number, hall: present }, waker);
                break;
            }
        }
        if lane == Lane::Openers {
            self.tidy(Lane::Waiters);
        }
        Ok(())
    }

    /// Promises something to the first waiter of a lane, if the lane has one.
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let spot = match self.books.elders(lane).first {
            Some(eldest) => {
                let spot = self.books.claim_first(eldest);
                if self.books.elders(lane).len == 0 {
                    self.tidy(lane);
                }
                spot
            }
            None => self.claim_in_word(lane)?,
        };
        if lane == Lane::Openers {
            self.tidy(Lane::Waiters);
        }
        Some(Claimed(spot))
    }

    pub(super) fn claim_in_word(&mut self, lane: Lane) -> Option<Spot<G>> {
        let queue = self.lanes.queue(lane);
        let is_by_lock = self.is_by_lock(lane);
        loop {
            let seen = self.word(lane);
            if seen.span() == 0 {
                return None;
            }
            let present = hall(queue.hall(seen));
            let gaps = present.with_run(|run| run.gaps);
            let first = present.beyond(seen.first.after(), seen.next);
            let skipped = first.since(seen.first) - 1;
            if queue.tickets.swap(seen, Word { first, by_lock: is_by_lock || gaps > skipped, ..seen }) {
                if skipped > 0 {
                    present.with_run(|run| run.gaps -= skipped);
                }
                return Some(present.spot(present.number(seen.first)));
            }
        }
    }

    /// Takes all waiters of [`Lane::Waiters`] out of the queue at once, to be claimed one by one and refused. The lock was
    /// taken by [`WaitList::lock_to_turn_away`](super::WaitList::lock_to_turn_away).
    pub(in crate::pool) fn turn_away(&mut self) -> Option<TurnedAway<G>> {
        let queue = &self.lanes.waiters;
        if self.is_empty(Lane::Waiters) {
            return None;
        }
        // Newcomers have another hall from here on. They need not wait for the waiters that are refused.
        if self.word(Lane::Waiters).span() > 0 {
            let spare = self.books.take_spare(queue.fewest).expect("BUG: a lock without a spare hall");
            self.change_hall(Lane::Waiters, spare);
        }
        let era = self.books.turn_away();
        self.tidy(Lane::Waiters);
        Some(TurnedAway { era, of: PhantomData })
    }

    /// Keeps granters without the lock from claiming a node, until [`tidy`](Self::tidy) is called. Returns its lane, or
    /// `None` if it has been claimed already. Called by its owner.
    pub(super) fn withhold(&mut self, node: &Node<G>) -> Option<Lane> {
        let Seat { number, hall: of } = node.seat();
        // If the node was claimed, its hall may have another run by now. Its number is less than those of that run.
        let (stage, lane) = hall(of).with_run(|run| (run.stage, run.lane));
        let waits = match stage {
            Stage::Present => {
                let holds = self.lanes.queue(lane).tickets.go_by_lock().holds(hall(of).ticket(number));
                if !holds {
                    self.tidy(lane);
                }
                holds
            }
            Stage::Closed => hall(of).with_run(|run| run.holds(hall(of).ticket(number))),
            Stage::Spare => false,
        };
        waits.then_some(lane)
    }

    /// Takes a node out of the queue. Returns `false` if it has been claimed. Called by its owner.
    pub(super) fn remove(&mut self, node: &Node<G>) -> bool {
        let Some(lane) = self.withhold(node) else { return false };
        let Seat { number, hall: of } = node.seat();
        if hall(of).with_run(|run| run.stage == Stage::Present) {
            let word = self.word(lane);
            hall(of).leave(number, word.first, word.next);
            hall(of).with_run(|run| run.gaps += 1);
        } else {
            self.books.remove(of, number);
        }
        self.tidy(lane);
        true
    }

    /// Skips the gap at the front of a word, if there is one, and corrects the mark `by_lock`.
    pub(super) fn tidy(&mut self, lane: Lane) {
        let queue = self.lanes.queue(lane);
        let is_by_lock = self.is_by_lock(lane);
        loop {
            let seen = self.word(lane);
            let (mut first, mut gaps) = (seen.first, 0);
            if seen.span() > 0 {
                let present = hall(queue.hall(seen));
                first = present.beyond(seen.first, seen.next);
                gaps = present.with_run(|run| run.gaps) - first.since(seen.first);
            }
            let new = Word { first, by_lock: is_by_lock || gaps > 0, ..seen };
            if new == seen {
                break;
            }
            if queue.tickets.swap(seen, new) {
                if first != seen.first {
                    hall(queue.hall(seen)).with_run(|run| run.gaps = gaps);
                }
                break;
            }
        }
        if lane == Lane::Openers {
            self.tidy(Lane::Waiters);
        }
    }
}
