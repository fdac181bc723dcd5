//! Models of the primitives: the watch for a change, the brief lock, the wait list on its own, the stacks of slots, and
//! the front for one value.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use loom::sync::atomic::AtomicU32;
use loom::thread;
use wharf::Clear;
use wharf::unstable::pool::{ModelledList, ModelledWaiter};
use wharf::unstable::primitives::{BriefLock, Front, Placed, SlotStack, Slots, Watch, unexplored};

use super::harness::model;
use super::world::*;

/// Watches the pool as a drain does. If it misses a change, the model deadlocks, which loom reports.
#[test]
fn watch_never_misses_a_clear() {
    model("watch_never_misses_a_clear", Some(4), || {
        let pool = watched(options(1, 1));
        let mut draining = begin_drain(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let (_, revocation) = draining.revocable();
        let mut watch = Watch::new(pool.environment().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || revocation.is_stale())));
        drop(watch);
        clears.join().unwrap();
        end_drain(draining, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn watch_never_misses_a_close() {
    model("watch_never_misses_a_close", Some(4), || {
        let pool = watched(options(1, 1));
        let mut draining = begin_drain(&pool);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        let (_, revocation) = draining.revocable();
        let mut watch = Watch::new(pool.environment().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || revocation.is_stale())));
        drop(watch);
        closes.join().unwrap();
        end_drain(draining, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// The value is in a loom cell, so loom reports a race if the lock has two holders at once, or if a holder does not see
/// the last holder's writes.
#[test]
fn brief_lock_has_one_holder_that_sees_the_last_holders_writes() {
    model("brief_lock_has_one_holder_that_sees_the_last_holders_writes", Some(3), || {
        let lock = Arc::new(BriefLock::new(0_u32));
        let other = thread::spawn({
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

/// Each section takes a number. A section that ran twice would take two numbers, and waiting for a section that does
/// not run would never end.
#[test]
fn brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome() {
    model("brief_lock_runs_each_section_once_and_its_thread_sees_the_outcome", Some(3), || {
        let lock = Arc::new(BriefLock::new(0_u32));
        let other = thread::spawn({
            let lock = lock.clone();
            move || [next(&lock), next(&lock)]
        });
        let first = next(&lock);
        let others = other.join().unwrap();
        assert_eq!(*lock.lock(), 3);
        assert!(others[0] < others[1] && !others.contains(&first), "{first} and {others:?}");
    });
}

/// The granter may or may not find the waiter, and the waiter may or may not find its grant.
#[test]
fn waiter_and_granter_meet_in_either_order() {
    model("waiter_and_granter_meet_in_either_order", None, || {
        let list = Arc::new(ModelledList::new());
        let grants = thread::spawn({
            let list = list.clone();
            move || list.grant(7)
        });
        let (mut waiter, polled) = list.wait();
        if !grants.join().unwrap() {
            assert!(polled.is_pending() && list.grant(7));
        }
        assert_eq!(taken(&list, &mut waiter, polled), 7);
    });
}

fn taken(list: &ModelledList, waiter: &mut ModelledWaiter, polled: Poll<u32>) -> u32 {
    match polled {
        Poll::Ready(grant) => grant,
        Poll::Pending => list.take(waiter),
    }
}

/// Waits and takes the grant four times. That is enough to reuse the cells of the first segment, provided that their
/// tickets are finished.
fn use_cells_again(list: &ModelledList) {
    for grant in 3..7 {
        let (mut waiter, polled) = list.wait();
        assert!(polled.is_pending() && list.grant(grant));
        assert_eq!(list.take(&mut waiter), grant);
    }
}

#[test]
fn cell_is_used_again_only_when_its_ticket_is_over() {
    model("cell_is_used_again_only_when_its_ticket_is_over", Some(3), || {
        let list = Arc::new(ModelledList::new());
        let [mut first, mut second] = [(); 2].map(|()| list.wait().0);
        assert!(list.grant(1) && list.grant(2));
        assert_eq!(list.take(&mut first), 1);
        let takes = thread::spawn({
            let list = list.clone();
            move || assert_eq!(list.take(&mut second), 2)
        });
        use_cells_again(&list);
        takes.join().unwrap();
    });
}

/// The waiters fill three segments, two of which are kept as spares.
#[test]
fn segment_is_freed_only_when_its_tickets_are_over() {
    model("segment_is_freed_only_when_its_tickets_are_over", Some(3), || {
        let list = Arc::new(ModelledList::new());
        let mut waiters: Vec<_> = (0..6).map(|_| list.wait().0).collect();
        assert!((0..6).all(|grant| list.grant(grant)));
        let mut last = waiters.pop().expect("there are six");
        (0..).zip(&mut waiters).for_each(|(grant, waiter)| assert_eq!(list.take(waiter), grant));
        let takes = thread::spawn({
            let list = list.clone();
            move || assert_eq!(list.take(&mut last), 5)
        });
        list.maintain();
        takes.join().unwrap();
    });
}

#[test]
fn cell_is_used_again_only_when_its_granter_is_done() {
    model("cell_is_used_again_only_when_its_granter_is_done", Some(3), || {
        let list = Arc::new(ModelledList::new());
        let [mut first, mut second] = [(); 2].map(|()| list.wait().0);
        assert!(list.grant(1));
        assert_eq!(list.take(&mut first), 1);
        let grants = thread::spawn({
            let list = list.clone();
            move || assert!(list.grant(2))
        });
        assert_eq!(list.take(&mut second), 2);
        for grant in 3..7 {
            let (mut waiter, polled) = list.wait();
            assert!(polled.is_pending() && list.waits(&mut waiter));
            let wakes = list.wakes();
            assert!(list.grant(grant) && list.wakes() > wakes, "the last granter has used the cell's wake-up");
            assert_eq!(list.take(&mut waiter), grant);
        }
        grants.join().unwrap();
    });
}

/// Two newcomers behind a waiter need the next segment. One of them installs it.
#[test]
fn newcomers_find_the_cells_of_their_tickets() {
    model("newcomers_find_the_cells_of_their_tickets", Some(3), || {
        let list = Arc::new(ModelledList::new());
        let (mut first, _) = list.wait();
        let newcomer = thread::spawn({
            let list = list.clone();
            move || list.wait().0
        });
        let (mut second, _) = list.wait();
        let mut third = newcomer.join().unwrap();
        assert!((1..4).all(|grant| list.grant(grant)) && !list.grant(4));
        let taken = [&mut first, &mut second, &mut third].map(|waiter| list.take(waiter));
        assert!(taken == [1, 2, 3] || taken == [1, 3, 2], "{taken:?}");
    });
}

/// Takes the next number. loom sees the accesses to the cells that carry the section and its outcome.
fn next(lock: &BriefLock<u32>) -> u32 {
    let section = |next: &mut u32| {
        *next += 1;
        *next
    };
    lock.run(section, || section)
}

/// The holder does not release a lock that it has given to another thread.
#[test]
fn brief_lock_that_is_given_to_a_thread_is_held() {
    model("brief_lock_that_is_given_to_a_thread_is_held", Some(1), || {
        let lock = Arc::new(BriefLock::new(0_u32));
        let mut held = lock.lock();
        let [takes, runs] = [takes(&lock), runs(&lock)];
        *held += 1;
        drop(held);
        takes.join().unwrap();
        runs.join().unwrap();
        assert_eq!(*lock.lock(), 3);
    });
}

/// The models above explore how two requests enter the list. Here the requests enter in one fixed order, and loom
/// explores only what follows. Otherwise loom would switch between the two waiting threads forever.
#[test]
fn brief_lock_is_given_with_the_later_request() {
    model("brief_lock_is_given_with_the_later_request", Some(4), || {
        let lock = Arc::new(BriefLock::new(0_u32));
        let mut held = lock.lock();
        let [takes, runs] = unexplored(|| {
            // Each thread runs until it waits.
            let takes = takes(&lock);
            thread::yield_now();
            let runs = runs(&lock);
            thread::yield_now();
            [takes, runs]
        });
        *held += 1;
        drop(held);
        takes.join().unwrap();
        runs.join().unwrap();
        assert_eq!(*lock.lock(), 3);
    });
}

/// Increments the value under the lock, on a separate thread.
fn takes(lock: &Arc<BriefLock<u32>>) -> thread::JoinHandle<()> {
    let lock = lock.clone();
    thread::spawn(move || *lock.lock() += 1)
}

/// Increments the value in a section, on a separate thread.
fn runs(lock: &Arc<BriefLock<u32>>) -> thread::JoinHandle<()> {
    let lock = lock.clone();
    thread::spawn(move || lock.run(|value| *value += 1, || |value: &mut u32| *value += 1))
}

/// A stack of two slots. Each slot has a value that its owner stores.
struct Room {
    slots: Slots<AtomicU32>,
    stack: SlotStack,
    /// Whether a thread owns each slot. These are std's atomics, which do not order anything.
    is_owned: [AtomicBool; 2],
}

impl Room {
    /// Creates a stack of slot 0 and, above it, slot 1.
    fn full() -> Arc<Self> {
        let room = Self { slots: Slots::new(), stack: SlotStack::new(), is_owned: Default::default() };
        // This is done before the threads start, because only one thread in a model may call `grow`.
        for expected in 0..2 {
            assert_eq!(room.slots.grow(), Some(expected));
            room.stack.push(&room.slots, expected);
        }
        Arc::new(room)
    }

    fn pop(&self) -> Option<u32> {
        let slot = self.stack.pop(&self.slots)?;
        let was_owned = self.is_owned[slot as usize].swap(true, Ordering::Relaxed);
        assert!(!was_owned, "two threads own slot {slot}");
        Some(slot)
    }

    fn push(&self, slot: u32) {
        self.is_owned[slot as usize].store(false, Ordering::Relaxed);
        self.stack.push(&self.slots, slot);
    }

    /// Asserts that the stack contains all slots that no thread owns.
    fn check(&self) {
        while self.pop().is_some() {}
        assert!(self.is_owned.iter().all(|slot| slot.load(Ordering::Relaxed)), "a slot is lost");
    }
}

#[test]
fn slot_is_owned_by_one_thread_although_its_stack_looks_unchanged() {
    model("slot_is_owned_by_one_thread_although_its_stack_looks_unchanged", Some(4), || {
        let room = Room::full();
        let other = thread::spawn({
            let room = room.clone();
            move || {
                let (first, _second) = (room.pop(), room.pop());
                if let Some(first) = first {
                    room.push(first);
                }
            }
        });
        room.pop();
        other.join().unwrap();
        room.check();
    });
}

#[test]
fn taker_of_a_slot_sees_what_its_last_owner_stored() {
    model("taker_of_a_slot_sees_what_its_last_owner_stored", Some(4), || {
        let room = Room::full();
        let other = thread::spawn({
            let room = room.clone();
            move || {
                for slot in [room.pop(), room.pop()].into_iter().flatten() {
                    room.slots.value(slot).store(slot + 7, Ordering::Relaxed);
                    room.push(slot);
                }
            }
        });
        // This value was stored either before the threads started or by the other thread.
        let seen = room.pop().map(|slot| (slot, room.slots.value(slot).load(Ordering::Relaxed)));
        other.join().unwrap();
        if let Some((slot, value)) = seen {
            let stored = room.slots.value(slot).load(Ordering::Relaxed);
            assert_eq!(value, stored, "slot {slot} had a newer value");
        }
        room.check();
    });
}

#[test]
fn slots_pushed_while_others_are_detached_are_not_lost() {
    model("slots_pushed_while_others_are_detached_are_not_lost", Some(4), || {
        let room = Room::full();
        let other = thread::spawn({
            let room = room.clone();
            move || {
                if let Some(slot) = room.pop() {
                    room.push(slot);
                }
            }
        });
        if let Some(first) = room.stack.detach() {
            let last = SlotStack::below(&room.slots, first).unwrap_or(first);
            room.stack.push_chain(&room.slots, first, last);
        }
        other.join().unwrap();
        room.check();
    });
}

/// The two halves of a value, which are equal if the value is whole. Threads put values at the front and take them.
/// Every value that is taken or replaced must be whole, and must come out only once.
#[derive(Default)]
struct Pair([AtomicU32; 2]);

impl Pair {
    fn store(&self, value: u32) {
        self.0.iter().for_each(|half| half.store(value, Ordering::Relaxed));
    }

    fn load(&self) -> u32 {
        let [first, second] = self.0.each_ref().map(|half| half.load(Ordering::Relaxed));
        assert_eq!(first, second, "a value in halves");
        first
    }
}

fn put_in_front(front: &Front<Pair>, value: u32) -> Option<u32> {
    match front.put(|pair| pair.store(value), Pair::load) {
        Placed::Alone => None,
        Placed::Replaced(earlier) => Some(earlier),
        Placed::Refused => Some(value),
    }
}

#[test]
fn front_gives_each_value_once_and_whole() {
    model("front_gives_each_value_once_and_whole", Some(4), || {
        let front = Arc::new(Front::<Pair>::new());
        assert_eq!(put_in_front(&front, 1), None);
        let other = thread::spawn({
            let front = front.clone();
            move || [front.take(Pair::load), put_in_front(&front, 2)]
        });
        let here = [put_in_front(&front, 3), front.take(Pair::load)];
        let there = other.join().unwrap();
        let left = front.take(Pair::load);
        let mut all: Vec<_> = here.into_iter().chain(there).chain([left]).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "a value is lost or came twice");
    });
}
