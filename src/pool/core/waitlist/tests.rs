//! Tests of the wait list, for both ways of parking.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;

use proptest::prelude::*;

use super::segments::SIZE;
use super::*;
use crate::pool::sync::census;

fn wait_with(list: &WaitList<u32>, lane: Lane, waiter: &mut Waiter<u32>, waker: Waker) {
    let seat = list.lock_with_room(lane).enqueue(lane).expect("room");
    assert!(list.sit_down(waiter, seat, waker).is_pending());
}

fn wait(list: &WaitList<u32>, lane: Lane, waiter: &mut Waiter<u32>) {
    wait_with(list, lane, waiter, Waker::noop().clone());
}

fn all_wait<'w>(list: &WaitList<u32>, waiters: impl IntoIterator<Item = &'w mut Waiter<u32>>) {
    for waiter in waiters {
        wait(list, Lane::Waiters, waiter);
    }
}

fn waiters(count: usize) -> Vec<Waiter<u32>> {
    (0..count).map(|_| Waiter::new()).collect()
}

fn grant_in(list: &WaitList<u32>, lane: Lane, value: u32) -> bool {
    let claimed = list.lock().claim_first(lane);
    claimed.map(|claimed| keep(claimed, value)).is_some()
}

fn keep(claimed: Claimed<u32>, value: u32) {
    crate::pool::sync::wake(claimed.grant(value));
}

fn grant(list: &WaitList<u32>, value: u32) -> bool {
    grant_in(list, Lane::Waiters, value)
}

fn look(list: &WaitList<u32>, waiter: &mut Waiter<u32>) -> Option<u32> {
    match list.poll(waiter, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn leave(list: &WaitList<u32>, waiter: &mut Waiter<u32>) {
    assert_eq!(list.leave(waiter, |_| {}), None);
}

fn refuse_all(list: &WaitList<u32>, away: &TurnedAway, value: u32) -> usize {
    let (mut claimed, mut refused) = (Vec::with_capacity(WaitList::<u32>::BATCH), 0);
    loop {
        list.claim_turned_away(away, &mut claimed);
        if claimed.is_empty() {
            return refused;
        }
        refused += claimed.len();
        claimed.drain(..).for_each(|claimed| keep(claimed, value));
    }
}

fn segments(list: &WaitList<u32>, lane: Lane) -> usize {
    list.lock().segments(lane) as usize
}

const FEW: usize = LaneQueue::<u32>::FEW as usize;

#[test]
fn first_come_first_served() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(3));
    all_wait(&list, &mut waiters);
    for (value, waiter) in (0..).zip(&mut waiters) {
        assert_eq!(look(&list, waiter), None);
        assert!(grant(&list, value));
        assert_eq!(look(&list, waiter), Some(value));
    }
    assert!(!grant(&list, 9), "no waiter is left");
}

#[test]
fn waiter_that_leaves_is_passed_over_or_returns_its_grant() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(3));
    all_wait(&list, &mut waiters);
    leave(&list, &mut waiters[1]);
    assert!(grant(&list, 1));
    assert_eq!(list.leave(&mut waiters[0], |_| {}), Some(1), "granted before it left");
    assert!(grant(&list, 2));
    assert_eq!(look(&list, &mut waiters[2]), Some(2));
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

#[test]
fn leaving_reports_how_many_remain() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(2));
    all_wait(&list, &mut waiters);
    let mut left = Vec::new();
    for waiter in &mut waiters {
        assert_eq!(list.leave(waiter, |queue| left.push(queue.len(Lane::Waiters))), None);
    }
    assert_eq!(left, [1, 0]);
}

#[test]
fn turning_away_refuses_all_waiters_but_later_ones() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(40));
    all_wait(&list, &mut waiters[..39]);
    leave(&list, &mut waiters[0]);
    leave(&list, &mut waiters[20]);
    let away = list.lock_to_turn_away().turn_away().expect("all wait");
    assert_eq!(list.lock().len(Lane::Waiters), 0);
    assert!(list.lock_to_turn_away().turn_away().is_none(), "no waiter is left");
    all_wait(&list, &mut waiters[39..]);
    leave(&list, &mut waiters[1]);
    leave(&list, &mut waiters[21]);
    assert_eq!(refuse_all(&list, &away, 7), 35);
    let refused = (2..39).filter(|index| ![20, 21].contains(index));
    assert!(refused.into_iter().all(|index| look(&list, &mut waiters[index]) == Some(7)));
    assert_eq!(list.lock().len(Lane::Waiters), 1);
    assert_eq!(look(&list, &mut waiters[39]), None);
    assert!(grant(&list, 8));
    assert_eq!(look(&list, &mut waiters[39]), Some(8));
}

#[test]
fn turnings_away_that_overlap_are_each_refused() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(20));
    let mut away = Vec::new();
    for pair in waiters.chunks_mut(2) {
        all_wait(&list, pair);
        away.push(list.lock_to_turn_away().turn_away().expect("two wait"));
    }
    // Refusing a group also refuses the waiters of all earlier groups.
    assert_eq!(refuse_all(&list, &away[3], 1), 8);
    leave(&list, &mut waiters[11]);
    assert_eq!(away.iter().map(|away| refuse_all(&list, away, 2)).sum::<usize>(), 11);
    let seen: Vec<_> = (0..20).filter(|index| *index != 11).map(|index| look(&list, &mut waiters[index])).collect();
    assert!(seen.iter().enumerate().all(|(index, seen)| *seen == Some(if index < 8 { 1 } else { 2 })), "{seen:?}");
}

#[test]
fn storm_of_cancellations_keeps_the_order() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(1_000));
    all_wait(&list, &mut waiters);
    let stays = |index: &usize| index.is_multiple_of(100);
    for index in (0..1_000).filter(|index| !stays(index)) {
        leave(&list, &mut waiters[index]);
    }
    assert_eq!(list.lock().len(Lane::Waiters), 10);
    for index in (0..1_000).filter(stays) {
        assert!(grant(&list, index as u32));
        assert_eq!(look(&list, &mut waiters[index]), Some(index as u32));
    }
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

#[test]
fn waiter_can_queue_up_again() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(1));
    for round in 0..3 * SIZE {
        all_wait(&list, &mut waiters);
        assert!(grant(&list, round));
        assert_eq!(look(&list, &mut waiters[0]), Some(round));
    }
}

#[test]
fn lanes_are_independent() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(4));
    for (lane, waiter) in [Lane::Waiters, Lane::Openers, Lane::Waiters, Lane::Openers].into_iter().zip(&mut waiters) {
        wait(&list, lane, waiter);
    }
    assert_eq!([Lane::Openers, Lane::Waiters].map(|lane| list.lock().len(lane)), [2, 2]);
    assert!(list.try_claim(|| true).is_none(), "openers come first");
    assert!(grant_in(&list, Lane::Openers, 7));
    assert_eq!(
        [0, 1, 2, 3].map(|index: usize| look_if_queued(&list, &mut waiters[index])),
        [None, Some(7), None, None]
    );
    let mut left = Vec::new();
    for index in [0, 3, 2] {
        let lengths = |queue: &LockedWaitList<u32>| left.push((queue.len(Lane::Openers), queue.len(Lane::Waiters)));
        assert_eq!(list.leave(&mut waiters[index], lengths), None);
    }
    assert_eq!(left, [(1, 1), (0, 1), (0, 0)]);
}

fn look_if_queued(list: &WaitList<u32>, waiter: &mut Waiter<u32>) -> Option<u32> {
    waiter.is_queued().then(|| look(list, waiter)).flatten()
}

/// The largest number of steps in a section. A step is one access to another ticket's cell or to a segment's links. A
/// section removes at most two segments. A batch takes a few steps for each of its claims.
const MOST_STEPS: u32 = 4 * SIZE;
const MOST_STEPS_OF_A_BATCH: u32 = MOST_STEPS * (WaitList::<u32>::BATCH as u32 + 1);

#[test]
fn no_section_depends_on_how_many_wait_or_leave() {
    const WAITERS: usize = 30_000;
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(WAITERS));
    let assert_short = |what: &str, most: u32, run: &mut dyn FnMut()| {
        let (census, ()) = census::of(run);
        println!("{what}: {census:?}");
        assert!(census.sections > 0 && census.longest <= most, "{what}: {census:?}");
        assert_eq!(census.allocations, 0, "{what}: {census:?}");
        list.maintain();
    };
    // Each stride is coprime to the number of waiters, so it reaches all of them: in either direction, or in jumps
    // across the segments.
    for (order, stride) in [("in order", 1), ("from the last", WAITERS - 1), ("across", 7_919)] {
        assert_short("queueing up", MOST_STEPS, &mut || all_wait(&list, &mut waiters));
        assert_short(&format!("leaving {order}"), MOST_STEPS, &mut || {
            (0..WAITERS).for_each(|step| leave(&list, &mut waiters[step * stride % WAITERS]));
        });
        assert!(segments(&list, Lane::Waiters) <= FEW, "after leaving {order}: {}", segments(&list, Lane::Waiters));
    }
    // All waiters leave except the first and the last, which are then served.
    assert_short("queueing up", MOST_STEPS, &mut || all_wait(&list, &mut waiters));
    assert_short("leaving the ends", MOST_STEPS, &mut || {
        waiters[1..WAITERS - 1].iter_mut().for_each(|waiter| leave(&list, waiter));
    });
    assert!(segments(&list, Lane::Waiters) <= FEW, "the first one and the last one have segments of their own");
    assert_short("serving the ends", MOST_STEPS, &mut || assert!([7, 8].iter().all(|value| grant(&list, *value))));
    assert_eq!([0, WAITERS - 1].map(|index| waiters[index].take()), [Some(7), Some(8)]);
    // All waiters are turned away.
    assert_short("queueing up", MOST_STEPS, &mut || all_wait(&list, &mut waiters));
    assert_short("turning away", MOST_STEPS_OF_A_BATCH, &mut || {
        let away = list.lock_to_turn_away().turn_away().expect("all wait");
        assert_eq!(refuse_all(&list, &away, 9), WAITERS);
    });
    assert!(waiters.iter_mut().all(|waiter| look(&list, waiter) == Some(9)));
    list.maintain();
    assert!(segments(&list, Lane::Waiters) <= FEW);
}

/// Grants, cancellations and refusals remove the segments that are no longer needed, so maintenance does not have to.
#[test]
fn segments_are_given_back_on_the_way() {
    const WAITERS: usize = 10_000;
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(WAITERS));
    for round in 0..4 {
        all_wait(&list, &mut waiters);
        assert!(segments(&list, Lane::Waiters) >= WAITERS / SIZE as usize);
        let mut away = None;
        for index in 0..WAITERS {
            match round {
                0 => assert!(grant(&list, 1) && look(&list, &mut waiters[index]) == Some(1)),
                1 => leave(&list, &mut waiters[index]),
                2 => leave(&list, &mut waiters[WAITERS - 1 - index]),
                _ => {
                    let away = away.get_or_insert_with(|| list.lock_to_turn_away().turn_away().expect("all wait"));
                    refuse_all(&list, away, 2);
                    assert_eq!(look(&list, &mut waiters[index]), Some(2));
                }
            }
        }
        assert!(segments(&list, Lane::Waiters) <= FEW, "round {round}: {}", segments(&list, Lane::Waiters));
    }
}

/// Segments with untaken grants stay. All other segments are removed, by maintenance or by later waits.
#[test]
fn grants_that_are_not_taken_keep_their_own_segments_only() {
    const KEPT: usize = 3;
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(KEPT + 1));
    let (kept, rest) = waiters.split_at_mut(KEPT);
    let passes = &mut rest[0];
    let mut pass = |times: u32| {
        for _ in 0..times {
            wait(&list, Lane::Waiters, passes);
            assert!(grant(&list, 1));
            assert_eq!(look(&list, passes), Some(1));
        }
    };
    for waiter in &mut *kept {
        wait(&list, Lane::Waiters, waiter);
        assert!(grant(&list, 2));
        pass(2 * SIZE);
    }
    pass(1_000 * SIZE);
    assert!(segments(&list, Lane::Waiters) <= 2 * (KEPT + 1) + FEW, "{}", segments(&list, Lane::Waiters));
    list.maintain();
    assert!(segments(&list, Lane::Waiters) <= KEPT + 3, "{}", segments(&list, Lane::Waiters));
    assert!(kept.iter_mut().all(|waiter| look(&list, waiter) == Some(2)));
    list.maintain();
    assert!(segments(&list, Lane::Waiters) <= FEW);
}

#[test]
fn segments_come_and_go_behind_a_waiter_that_stays() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(101));
    wait(&list, Lane::Waiters, &mut waiters[100]);
    for _ in 0..1_000 {
        all_wait(&list, &mut waiters[..100]);
        waiters[..100].iter_mut().for_each(|waiter| leave(&list, waiter));
        assert!(segments(&list, Lane::Waiters) <= FEW);
    }
    assert!(grant(&list, 7));
    assert_eq!(waiters[100].take(), Some(7));
}

/// By the time the waiters are served, each remaining waiter has its own segment.
#[test]
fn waiters_that_stay_are_served_in_order_from_the_segments_of_all_that_left() {
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(5 + 4 * SIZE as usize));
    let (stay, left) = waiters.split_at_mut(5);
    for waiter in &mut *stay {
        wait(&list, Lane::Waiters, waiter);
        all_wait(&list, &mut *left);
        left.iter_mut().rev().for_each(|waiter| leave(&list, waiter));
    }
    assert!(segments(&list, Lane::Waiters) <= 2 * stay.len() + FEW, "{}", segments(&list, Lane::Waiters));
    leave(&list, &mut stay[2]);
    for index in [0, 1, 3, 4] {
        assert!(grant(&list, index as u32));
        assert_eq!(look(&list, &mut stay[index]), Some(index as u32));
    }
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

/// A waiter that queues up behind another waiter takes no lock, and clones its waker once. A check-out with a time
/// limit immediately polls again with the same waker, which takes no lock and clones nothing.
#[test]
fn hand_over_between_waiters_takes_no_lock_and_clones_one_waker() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let (task, other) = (Arc::new(Task), Arc::new(Task));
    let waker = Waker::from(task.clone());
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(3));
    let [first, second, third] = &mut waiters[..] else { unreachable!() };
    // `first` must not get the first ticket of a segment, because the waiter with that ticket also removes earlier
    // segments.
    wait(&list, Lane::Waiters, first);
    leave(&list, first);
    wait(&list, Lane::Waiters, first);
    let (census, ()) = census::of(|| {
        assert_eq!(list.try_join(second, &waker), Some(Poll::Pending));
        assert_eq!(list.try_join(third, Waker::noop()), Some(Poll::Pending));
    });
    assert_eq!((census.sections, Arc::strong_count(&task)), (0, 3), "the task, its waker, and the cell's");
    let mut poll = |waker: &Waker| list.poll(second, &mut Context::from_waker(waker));
    let (census, polled) = census::of(|| poll(&waker));
    assert_eq!((census.sections, polled, Arc::strong_count(&task)), (0, Poll::Pending, 3));
    // The old waker is dropped.
    let renewed = Waker::from(other.clone());
    assert_eq!((poll(&renewed), Arc::strong_count(&task)), (Poll::Pending, 2));
    // The granter receives the new waker. A poll between the claim and the grant does not take a lock either.
    let (census, ()) = census::of(|| {
        keep(list.try_claim(|| true).expect("two wait behind the first"), 6);
        let claimed = list.try_claim(|| true).expect("one waits behind the first");
        assert_eq!(poll(&renewed), Poll::Pending);
        keep(claimed, 7);
    });
    assert_eq!((census.sections, poll(&renewed)), (0, Poll::Ready(7)));
    assert_eq!(Arc::strong_count(&other), 2, "the task and its waker");
    assert!(list.try_claim(|| true).is_none(), "the last waiter is claimed under the lock");
    leave(&list, third);
    assert_eq!(look(&list, first), Some(6));
}

#[test]
fn waker_is_dropped_once_however_its_waiter_ends() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let task = Arc::new(Task);
    let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(4));
    for waiter in &mut waiters[..3] {
        wait_with(&list, Lane::Waiters, waiter, Waker::from(task.clone()));
    }
    leave(&list, &mut waiters[0]);
    assert!(grant(&list, 7));
    // A listener keeps its waker until the waiter polls.
    let kept = usize::from(cfg!(feature = "event-listener-queue"));
    assert_eq!(Arc::strong_count(&task), 2 + kept, "one waiter has left, one was granted, one waits");
    assert_eq!(list.leave(&mut waiters[1], |_| {}), Some(7));
    leave(&list, &mut waiters[2]);
    // The grant comes before the waiter parks.
    let seat = list.lock_with_room(Lane::Waiters).enqueue(Lane::Waiters).expect("room");
    assert!(grant(&list, 8));
    assert_eq!(list.sit_down(&mut waiters[3], seat, Waker::from(task.clone())), Poll::Ready(8));
    assert_eq!(Arc::strong_count(&task), 1);
    // The list is dropped.
    wait_with(&list, Lane::Waiters, &mut waiters[0], Waker::from(task.clone()));
    leave(&list, &mut waiters[0]);
    drop(list);
    assert_eq!(Arc::strong_count(&task), 1);
}

/// A waiter that has been claimed but not yet granted is not mistaken for a later waiter, even when the ticket numbers
/// wrap around.
#[test]
fn claimed_waiter_does_not_leave_in_the_place_of_another() {
    for rounds in [1, 2 * SIZE] {
        let (list, mut waiters) = (WaitList::new(u32::MAX), waiters(2));
        let [early, late] = &mut waiters[..] else { unreachable!() };
        wait(&list, Lane::Waiters, early);
        let claimed = list.lock().claim_first(Lane::Waiters).expect("one waits");
        for _ in 1..rounds {
            wait(&list, Lane::Waiters, late);
            leave(&list, late);
        }
        wait(&list, Lane::Waiters, late);
        let Waiter { seat, parked } = early;
        assert!(list.lock().remove(seat.as_ref().expect("it waits"), parked).is_none());
        assert_eq!(list.lock().len(Lane::Waiters), 1);
        keep(claimed, 7);
        assert_eq!(list.leave(early, |_| {}), Some(7));
        leave(&list, late);
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Enqueue(Lane, usize),
    EnqueueMany,
    Leave(usize),
    LeaveMany(usize, usize),
    Renew(usize),
    Claim(Lane),
    ClaimMany,
    TurnAway,
    RefuseABatch,
    Maintain,
}

const WAITERS: usize = 200;

fn operation() -> impl Strategy<Value = Operation> {
    let lane = || prop_oneof![6 => Just(Lane::Waiters), 1 => Just(Lane::Requeued), 2 => Just(Lane::Openers)];
    prop_oneof![
        8 => (lane(), 0..WAITERS).prop_map(|(lane, waiter)| Operation::Enqueue(lane, waiter)),
        2 => Just(Operation::EnqueueMany),
        4 => (0..WAITERS).prop_map(Operation::Leave),
        1 => (0..WAITERS, 0..WAITERS).prop_map(|(from, most)| Operation::LeaveMany(from, most)),
        1 => (0..WAITERS).prop_map(Operation::Renew),
        2 => lane().prop_map(Operation::Claim),
        1 => Just(Operation::ClaimMany),
        1 => Just(Operation::TurnAway),
        1 => Just(Operation::RefuseABatch),
        1 => Just(Operation::Maintain),
    ]
}

/// The list and its expected contents.
struct Compared {
    list: WaitList<u32>,
    waiters: Vec<Waiter<u32>>,
    queues: [VecDeque<usize>; 3],
    away: VecDeque<usize>,
    turned_away: Option<TurnedAway>,
    grants: u32,
}

impl Compared {
    fn enqueue(&mut self, lane: Lane, index: usize) {
        let waiter = &mut self.waiters[index];
        if waiter.is_queued() {
            return;
        }
        let joined = (lane == Lane::Waiters).then(|| self.list.try_join(waiter, Waker::noop())).flatten();
        match joined {
            Some(joined) => assert_eq!(joined, Poll::Pending),
            None => wait(&self.list, lane, waiter),
        }
        self.queues[lane as usize].push_back(index);
    }

    fn leave(&mut self, index: usize) {
        if self.waiters[index].is_queued() {
            leave(&self.list, &mut self.waiters[index]);
            for queue in self.queues.iter_mut().chain([&mut self.away]) {
                queue.retain(|waits| *waits != index);
            }
        }
    }

    fn claim(&mut self, lane: Lane) {
        let first = self.queues[lane as usize].pop_front();
        let without_the_lock = (lane == Lane::Waiters).then(|| self.list.try_claim(|| true)).flatten();
        let is_preceded = [Lane::Openers, Lane::Requeued].iter().any(|lane| !self.queues[*lane as usize].is_empty());
        assert!(without_the_lock.is_none() || !is_preceded);
        let claimed = without_the_lock.or_else(|| self.list.lock().claim_first(lane));
        assert_eq!(claimed.map(|claimed| keep(claimed, self.grants)).is_some(), first.is_some());
        if let Some(first) = first {
            assert_eq!(look(&self.list, &mut self.waiters[first]), Some(self.grants));
        }
        self.grants += 1;
    }

    fn run(&mut self, operation: Operation) {
        const REFUSED: u32 = u32::MAX;
        match operation {
            Operation::Enqueue(lane, index) => self.enqueue(lane, index),
            Operation::EnqueueMany => (0..WAITERS).for_each(|index| self.enqueue(Lane::Waiters, index)),
            Operation::Leave(index) => self.leave(index),
            Operation::LeaveMany(from, most) => {
                (from..WAITERS.min(from + most)).for_each(|index| self.leave(index * 7 % WAITERS));
            }
            Operation::Renew(index) if self.waiters[index].is_queued() => {
                assert!(self.list.renew(&mut self.waiters[index], Waker::noop()).is_none());
            }
            Operation::Renew(_) => {}
            Operation::Claim(lane) => self.claim(lane),
            Operation::ClaimMany => (0..2 * SIZE).for_each(|_| self.claim(Lane::Waiters)),
            Operation::TurnAway => {
                let new = self.list.lock_to_turn_away().turn_away();
                let [_, waiting @ ..] = &mut self.queues;
                assert_eq!(new.is_some(), waiting.iter().any(|queue| !queue.is_empty()));
                waiting.iter_mut().for_each(|queue| self.away.append(queue));
                self.turned_away = new.or(self.turned_away.take());
            }
            Operation::RefuseABatch => {
                let Some(turned_away) = &self.turned_away else { return };
                let mut claimed = Vec::with_capacity(WaitList::<u32>::BATCH);
                self.list.claim_turned_away(turned_away, &mut claimed);
                assert_eq!(claimed.len(), self.away.len().min(WaitList::<u32>::BATCH));
                for claimed in claimed {
                    keep(claimed, REFUSED);
                    let first = self.away.pop_front().expect("as many as were claimed");
                    assert_eq!(look(&self.list, &mut self.waiters[first]), Some(REFUSED));
                }
            }
            Operation::Maintain => self.list.maintain(),
        }
        let lengths = Lane::OF_RETURNED.map(|lane| self.list.lock().len(lane) as usize);
        assert_eq!(lengths, [0, 1, 2].map(|lane: usize| self.queues[lane].len()));
    }
}

proptest! {
    /// Compares the list with a model made of three queues and a list of the waiters that were turned away.
    #[test]
    fn list_behaves_like_its_model(operations in prop::collection::vec(operation(), 1..300)) {
        let mut compared = Compared {
            list: WaitList::new(u32::MAX),
            waiters: waiters(WAITERS),
            queues: [(); 3].map(|()| VecDeque::new()),
            away: VecDeque::new(),
            turned_away: None,
            grants: 0,
        };
        operations.into_iter().for_each(|operation| compared.run(operation));
        (0..WAITERS).for_each(|index| compared.leave(index));
        compared.list.maintain();
        for lane in Lane::OF_RETURNED {
            prop_assert!(compared.list.lock().is_empty(lane));
            prop_assert!(segments(&compared.list, lane) <= 2);
        }
        prop_assert_eq!(compared.list.lock().turnings_away(), 0);
    }
}
