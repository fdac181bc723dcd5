//! The books: what only the holder of the list's lock knows.

use std::ptr::NonNull;

use super::super::Lane;
use super::hall::{Hall, Spot, Stage};

/// The books of a list.
///
/// INV-7 (halls stay): a hall exists until its list is dropped, and only the holder of the list's lock touches its
/// [`Run`](super::hall::Run). It is the present one of a lane, in one of the chains here, or a spare one.
pub(super) struct Books<G> {
    /// The runs of each lane before the one in its word.
    elders: [Chain<G>; 2],
    /// The runs that were turned away and have waiters.
    pub(super) away: Chain<G>,
    /// Halls without a run, linked by `next`, by the logarithm of their size.
    spare: [Option<NonNull<Hall<G>>>; SIZES],
    /// The number of turnings-away.
    pub(super) era: u64,
}

const SIZES: usize = Hall::<()>::MOST_PLACES.trailing_zeros() as usize + 1;

// SAFETY: the books own their halls, whose runs only the holder of the lock touches (INV-7). The rest of a hall is `Sync`.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Books<G> {}

/// Halls with waiters, from the earliest run on.
pub(super) struct Chain<G> {
    pub(super) first: Option<NonNull<Hall<G>>>,
    last: Option<NonNull<Hall<G>>>,
    /// The number of waiters.
    pub(super) len: u32,
    /// The number of places of these halls.
    pub(super) places: u64,
}

/// Returns a hall of a list.
#[allow(unsafe_code)]
pub(super) fn hall<'l, G>(pointer: NonNull<Hall<G>>) -> &'l Hall<G> {
    // SAFETY: INV-7. The list exists: the caller uses it.
    unsafe { pointer.as_ref() }
}

impl<G> Books<G> {
    pub(super) fn new() -> Self {
        Self { elders: [Chain::new(), Chain::new()], away: Chain::new(), spare: [None; SIZES], era: 0 }
    }

    pub(super) fn elders(&self, lane: Lane) -> &Chain<G> {
        &self.elders[lane as usize]
    }

    /// Returns the chain with the run of a hall. Waiters are turned away all at once, so the era tells which were.
    fn chain_of(&mut self, closed: NonNull<Hall<G>>) -> &mut Chain<G> {
        let (lane, era) = hall(closed).with_run(|run| (run.lane, run.era));
        if lane == Lane::Waiters && era != self.era { &mut self.away } else { &mut self.elders[lane as usize] }
    }

    /// Appends a run that was in the word of its lane to the elders there.
    pub(super) fn add(&mut self, closed: NonNull<Hall<G>>) {
        let era = self.era;
        let (lane, len) = hall(closed).with_run(|run| {
            (run.stage, run.era) = (Stage::Closed, era);
            (run.lane, run.len())
        });
        self.elders[lane as usize].append(closed, len);
    }

    /// Turns all elders away. Returns their era.
    pub(super) fn turn_away(&mut self) -> u64 {
        let elders = std::mem::replace(&mut self.elders[Lane::Waiters as usize], Chain::new());
        self.away.append_all(elders);
        self.era += 1;
        self.era - 1
    }

    /// Takes the first waiter out of a run in a chain. Returns its place.
    pub(super) fn claim_first(&mut self, of: NonNull<Hall<G>>) -> Spot<G> {
        let first = hall(of).with_run(|run| run.first);
        let spot = hall(of).spot(hall(of).number(first));
        self.skip(of, 1);
        spot
    }

    /// Takes the waiter with this number, which is not claimed, out of the run of a hall in a chain.
    pub(super) fn remove(&mut self, of: NonNull<Hall<G>>, number: u32) {
        let (first, end) = hall(of).with_run(|run| (run.first, run.end));
        hall(of).leave(number, first, end);
        hall(of).with_run(|run| run.gaps += 1);
        self.chain_of(of).len -= 1;
        self.skip(of, 0);
    }

    /// Takes this number of waiters, and then a gap, away from the front of a run in a chain. A run without
    /// waiters leaves the chain, and its hall becomes a spare one.
    fn skip(&mut self, of: NonNull<Hall<G>>, claimed: u32) {
        let (first, end) = hall(of).with_run(|run| (run.first, run.end));
        let from = if claimed == 0 { first } else { first.after() };
        let beyond = hall(of).beyond(from, end);
        let is_over = hall(of).with_run(|run| {
            run.gaps -= beyond.since(from);
            run.first = beyond;
            run.len() == 0
        });
        let chain = self.chain_of(of);
        chain.len -= claimed;
        if is_over {
            chain.unlink(of);
            self.keep(of);
        }
    }

    /// Keeps a hall without a run as a spare one.
    pub(super) fn keep(&mut self, spare: NonNull<Hall<G>>) {
        let size = hall(spare).places().trailing_zeros() as usize;
        let next = self.spare[size].replace(spare);
        hall(spare).with_run(|run| (run.stage, run.next) = (Stage::Spare, next));
    }

    /// Takes a spare hall with this number of places, if there is one.
    pub(super) fn take_spare(&mut self, places: u32) -> Option<NonNull<Hall<G>>> {
        let size = places.trailing_zeros() as usize;
        let spare = self.spare[size]?;
        self.spare[size] = hall(spare).with_run(|run| run.next.take());
        Some(spare)
    }

    /// Returns whether there is a spare hall with this number of places.
    pub(super) fn has_spare(&self, places: u32) -> bool {
        self.spare[places.trailing_zeros() as usize].is_some()
    }

    /// Returns all halls but those in the words.
    pub(super) fn halls(&self) -> Vec<NonNull<Hall<G>>> {
        let chains = [self.elders[0].first, self.elders[1].first, self.away.first];
        let mut halls = Vec::new();
        for mut next in chains.into_iter().chain(self.spare) {
            while let Some(here) = next {
                halls.push(here);
                next = hall(here).with_run(|run| run.next);
            }
        }
        halls
    }
}

impl<G> Chain<G> {
    fn new() -> Self {
        Self { first: None, last: None, len: 0, places: 0 }
    }

    fn append(&mut self, new: NonNull<Hall<G>>, len: u32) {
        hall(new).with_run(|run| (run.previous, run.next) = (self.last, None));
        match self.last.replace(new) {
            Some(last) => hall(last).with_run(|run| run.next = Some(new)),
            None => self.first = Some(new),
        }
        self.len += len;
        self.places += u64::from(hall(new).places());
    }

    fn append_all(&mut self, other: Self) {
        let Some(first) = other.first else { return };
        hall(first).with_run(|run| run.previous = self.last);
        match self.last {
            Some(last) => hall(last).with_run(|run| run.next = other.first),
            None => self.first = other.first,
        }
        self.last = other.last;
        self.len += other.len;
        self.places += other.places;
    }

    fn unlink(&mut self, of: NonNull<Hall<G>>) {
        self.places -= u64::from(hall(of).places());
        let (previous, next) = hall(of).with_run(|run| (run.previous.take(), run.next.take()));
        match previous {
            Some(previous) => hall(previous).with_run(|run| run.next = next),
            None => self.first = next,
        }
        match next {
            Some(next) => hall(next).with_run(|run| run.previous = previous),
            None => self.last = previous,
        }
    }
}
