//! Tests of what the wait list does under its lock, of its halls and of its places.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;

use proptest::prelude::*;

use super::super::tests::{grant, look, nodes, queue_up};
use super::super::word::Ticket;
use super::*;
use crate::sync::census;

fn enqueue(list: &WaitList<u32>, lane: Lane, node: &Pin<Box<Node<u32>>>, waker: Waker) {
    assert!(list.lock_with_room(lane).enqueue(lane, node.as_ref(), waker).is_ok());
    assert!(list.begin(node.as_ref()).is_pending());
}

fn wait(list: &WaitList<u32>, lane: Lane, node: &Pin<Box<Node<u32>>>) {
    enqueue(list, lane, node, Waker::noop().clone());
}

fn grant_first(list: &WaitList<u32>, lane: Lane, grant: u32) -> bool {
    let claimed = list.lock().claim_first(lane);
    claimed.map(|claimed| discard(claimed.grant(grant))).is_some()
}

fn refuse_all(list: &WaitList<u32>, away: &mut TurnedAway<u32>, grant: u32) -> usize {
    let (mut claimed, mut refused) = (Vec::with_capacity(WaitList::<u32>::BATCH), 0);
    loop {
        list.claim_turned_away(away, &mut claimed);
        if claimed.is_empty() {
            return refused;
        }
        refused += claimed.len();
        claimed.drain(..).for_each(|claimed| discard(claimed.grant(grant)));
    }
}

/// Returns the number of places of each hall.
fn halls(list: &WaitList<u32>) -> Vec<u32> {
    let locked = list.lock();
    let present = [Lane::Waiters, Lane::Openers].map(|lane| list.lanes.queue(lane).built(locked.word(lane)));
    let all = locked.books.halls().into_iter().chain(present.into_iter().flatten());
    all.map(|of| hall(of).places()).collect()
}

const FEWEST: usize = WaitList::<u32>::FEWEST.0 as usize;

/// A step is one access to a place of another ticket, or to a hall. A batch takes a few for each of its claims.
const MOST_STEPS: u32 = 32;
const MOST_STEPS_OF_A_BATCH: u32 = MOST_STEPS * (WaitList::<u32>::BATCH as u32 + 1);

#[test]
fn no_section_depends_on_how_many_wait_or_leave() {
    const WAITERS: usize = 1_000_000;
    let (list, nodes) = (WaitList::new(), nodes(WAITERS));
    let assert_short = |what: &str, most: u32, run: &dyn Fn()| {
        let (census, ()) = census::of(run);
        println!("{what}: {census:?}");
        assert!(census.sections > 0 && census.longest <= most, "{what}: {census:?}");
        assert_eq!(census.allocations, 0, "{what}: {census:?}");
    };
    let all_queue_up = || nodes.iter().for_each(|node| wait(&list, Lane::Waiters, node));
    // A stride that is coprime to the number of nodes reaches all of them, one after the other or across all halls.
    let all_leave = |stride: usize| {
        for step in 0..WAITERS {
            assert_eq!(list.leave(&nodes[step * stride % WAITERS], |_| {}), None);
        }
    };
    for (order, stride) in [("in order", 1), ("from the last", WAITERS - 1), ("across", 7_919)] {
        assert_short("queueing up", MOST_STEPS, &all_queue_up);
        assert_short(&format!("leaving {order}"), MOST_STEPS, &|| all_leave(stride));
    }
    // All nodes but the first and the last leave, and then these two are served.
    assert_short("queueing up", MOST_STEPS, &all_queue_up);
    assert_short("leaving the ends", MOST_STEPS, &|| {
        nodes[1..WAITERS - 1].iter().for_each(|node| assert_eq!(list.leave(node, |_| {}), None));
    });
    assert_short("serving the ends", MOST_STEPS, &|| {
        assert!([7, 8].iter().all(|g| grant_first(&list, Lane::Waiters, *g)))
    });
    assert_eq!([0, WAITERS - 1].map(|index| nodes[index].take_grant()), [Some(7), Some(8)]);
    // All nodes are turned away.
    assert_short("queueing up", MOST_STEPS, &all_queue_up);
    assert_short("turning away", MOST_STEPS_OF_A_BATCH, &|| {
        let mut away = list.lock_to_turn_away().turn_away().expect("all wait");
        assert_eq!(refuse_all(&list, &mut away, 9), WAITERS);
    });
    assert!(nodes.iter().all(|node| node.take_grant() == Some(9)));
}

/// Behind another waiter, a wait takes no lock, and one clone of the waker. Polling again with the same waker, as a
/// check-out with a time limit does at once, adds neither.
#[test]
fn hand_over_between_waiters_takes_no_lock_and_clones_one_waker() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let (task, other) = (Arc::new(Task), Arc::new(Task));
    let waker = Waker::from(task.clone());
    let (list, nodes) = (WaitList::new(), nodes(3));
    wait(&list, Lane::Waiters, &nodes[0]);
    let (census, ()) = census::of(|| {
        assert_eq!(list.try_join(nodes[1].as_ref(), &waker), Some(Poll::Pending));
        assert_eq!(list.try_join(nodes[2].as_ref(), Waker::noop()), Some(Poll::Pending));
    });
    assert_eq!((census.sections, Arc::strong_count(&task)), (0, 3), "the task, its waker, and the node's");
    let poll = |waker: &Waker| list.poll(&nodes[1], &mut Context::from_waker(waker));
    let (census, polled) = census::of(|| poll(&waker));
    assert_eq!((census.sections, polled, Arc::strong_count(&task)), (0, Poll::Pending, 3));
    // Another waker takes the lock, and the old one is dropped.
    let renewed = Waker::from(other.clone());
    let (census, polled) = census::of(|| poll(&renewed));
    assert_eq!((census.sections, polled, Arc::strong_count(&task)), (1, Poll::Pending, 2));
    // The granter gets the new waker. A poll between the claim and the grant takes no lock either.
    let (census, woken) = census::of(|| {
        drop(list.try_claim(|| true).expect("two wait behind the first").grant(6));
        let claimed = list.try_claim(|| true).expect("one waits behind the first");
        assert_eq!(poll(&renewed), Poll::Pending);
        claimed.grant(7)
    });
    assert!(woken.will_wake(&renewed));
    assert_eq!((census.sections, poll(&renewed)), (0, Poll::Ready(7)));
    assert!(list.try_claim(|| true).is_none(), "the last waiter is claimed under the lock");
    assert_eq!(list.leave(&nodes[2], |_| {}), None);
    assert_eq!(look(&list, &nodes[0]), Some(6));
}

#[test]
fn waker_is_dropped_once_however_its_waiter_ends() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let task = Arc::new(Task);
    let (list, nodes) = (WaitList::new(), nodes(4));
    for node in &nodes[..3] {
        enqueue(&list, Lane::Waiters, node, Waker::from(task.clone()));
    }
    assert_eq!(list.leave(&nodes[0], |_| {}), None);
    assert!(grant_first(&list, Lane::Waiters, 7));
    assert_eq!(Arc::strong_count(&task), 2, "one node has left, one was granted, one waits");
    assert_eq!(list.leave(&nodes[1], |_| {}), Some(7));
    assert_eq!(list.leave(&nodes[2], |_| {}), None);
    // The grant comes first.
    let mut locked = list.lock_with_room(Lane::Waiters);
    assert!(locked.enqueue(Lane::Waiters, nodes[3].as_ref(), Waker::from(task.clone())).is_ok());
    drop(locked);
    assert!(grant_first(&list, Lane::Waiters, 8));
    assert_eq!(list.begin(nodes[3].as_ref()), Poll::Ready(8));
    assert_eq!(Arc::strong_count(&task), 1);
}

/// A node that was claimed and not granted yet is not mistaken for a later one at its place, or for one in the hall's next
/// run.
#[test]
fn claimed_node_does_not_leave_in_the_place_of_another() {
    for rounds in [0, 1, 2 * FEWEST] {
        let (list, nodes) = (WaitList::new(), nodes(2));
        wait(&list, Lane::Waiters, &nodes[0]);
        let claimed = list.lock().claim_first(Lane::Waiters).expect("one waits");
        if rounds > 0 {
            // The hall becomes a spare one, and serves another run.
            wait(&list, Lane::Waiters, &nodes[1]);
            let mut away = list.lock_to_turn_away().turn_away().expect("one waits");
            assert_eq!(refuse_all(&list, &mut away, 5), 1);
            assert_eq!(look(&list, &nodes[1]), Some(5));
        }
        for _ in 1..rounds.min(FEWEST) {
            wait(&list, Lane::Waiters, &nodes[1]);
            assert_eq!(list.leave(&nodes[1], |_| {}), None);
        }
        wait(&list, Lane::Waiters, &nodes[1]);
        assert!(!list.lock().remove(&nodes[0]));
        assert_eq!(list.lock().len(Lane::Waiters), 1);
        discard(claimed.grant(7));
        assert_eq!(list.leave(&nodes[0], |_| {}), Some(7));
        assert_eq!(list.leave(&nodes[1], |_| {}), None);
    }
}

#[test]
fn full_hall_is_followed_by_a_larger_one_and_the_order_stays() {
    let (list, nodes) = (WaitList::new(), nodes(5 * FEWEST));
    queue_up(&list, &nodes);
    let mut sizes = halls(&list);
    sizes.sort_unstable();
    let fewest = FEWEST as u32;
    assert_eq!(sizes, [fewest, 4 * fewest, 16 * fewest]);
    assert_eq!(list.lock().len(Lane::Waiters), nodes.len() as u32);
    assert!(list.try_claim(|| true).is_none(), "elders are claimed under the lock");
    for (value, node) in (0..).zip(&nodes) {
        assert!(grant(&list, value));
        assert_eq!(look(&list, node), Some(value));
    }
    // Now that no waiter is left, the smallest hall serves again.
    wait(&list, Lane::Waiters, &nodes[0]);
    wait(&list, Lane::Waiters, &nodes[1]);
    assert_eq!(hall(list.lanes.waiters.hall(list.lock().word(Lane::Waiters))).places(), fewest);
    assert!(list.try_claim(|| true).map(|claimed| discard(claimed.grant(3))).is_some());
    assert_eq!(halls(&list).len(), 3);
    assert_eq!([0, 1].map(|index: usize| list.leave(&nodes[index], |_| {})), [Some(3), None]);
}

#[test]
fn halls_are_used_again_behind_a_waiter_that_stays() {
    let (list, nodes) = (WaitList::new(), nodes(101));
    wait(&list, Lane::Waiters, &nodes[100]);
    for _ in 0..1_000 {
        nodes[..100].iter().for_each(|node| wait(&list, Lane::Waiters, node));
        nodes[..100].iter().for_each(|node| assert_eq!(list.leave(node, |_| {}), None));
    }
    assert_eq!(halls(&list), [FEWEST as u32; 2]);
    assert!(grant_first(&list, Lane::Waiters, 7));
    assert_eq!(nodes[100].take_grant(), Some(7));
}

/// Each waiter that stays has a hall of its own by then.
#[test]
fn those_who_stay_are_served_in_order_from_the_halls_of_all_who_left() {
    let (list, nodes) = (WaitList::new(), nodes(FEWEST));
    let (stay, leave) = nodes.split_at(5);
    for node in stay {
        wait(&list, Lane::Waiters, node);
        leave.iter().for_each(|node| wait(&list, Lane::Waiters, node));
        leave.iter().rev().for_each(|node| assert_eq!(list.leave(node, |_| {}), None));
    }
    assert!(halls(&list).len() <= 6, "{:?}", halls(&list));
    assert_eq!(list.leave(&stay[2], |_| {}), None);
    for index in [0, 1, 3, 4] {
        assert!(grant(&list, index as u32));
        assert_eq!(look(&list, &stay[index]), Some(index as u32));
    }
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

impl<G> WaitList<G> {
    /// A list whose first hall has served so many waiters already, fewer than there are tickets.
    fn after(waits: u32) -> Self {
        let list = Self::new();
        drop(list.lock_with_room(Lane::Waiters));
        let present = hall(list.lanes.waiters.hall(list.lanes.waiters.tickets.load()));
        present.begin_after(waits);
        list
    }
}

#[test]
fn hall_outlasts_the_numbers_of_tickets() {
    // The numbers repeat themselves in the midst of these waiters.
    let (list, nodes) = (WaitList::after(Ticket::COUNT - FEWEST as u32 - 7), nodes(FEWEST / 2));
    for _ in 0..8 {
        queue_up(&list, &nodes);
        // Some leave, across the last number as well.
        for node in nodes.iter().skip(1).step_by(3) {
            assert_eq!(list.leave(node, |_| {}), None);
        }
        for (index, node) in nodes.iter().enumerate().filter(|(index, _)| index % 3 != 1) {
            assert!(grant(&list, index as u32));
            assert_eq!(look(&list, node), Some(index as u32));
        }
    }
    assert_eq!(halls(&list), [FEWEST as u32]);
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Enqueue(Lane, usize),
    Leave(usize),
    Renew(usize),
    Claim(Lane),
    TurnAway,
    RefuseABatch,
}

fn operation() -> impl Strategy<Value = Operation> {
    const NODES: usize = 60;
    let lane = || prop_oneof![3 => Just(Lane::Waiters), 1 => Just(Lane::Openers)];
    prop_oneof![
        8 => (lane(), 0..NODES).prop_map(|(lane, node)| Operation::Enqueue(lane, node)),
        4 => (0..NODES).prop_map(Operation::Leave),
        1 => (0..NODES).prop_map(Operation::Renew),
        2 => lane().prop_map(Operation::Claim),
        1 => Just(Operation::TurnAway),
        1 => Just(Operation::RefuseABatch),
    ]
}

proptest! {
    /// Compares the queue with a model made of two queues and a list of the nodes that were turned away. Halls are small,
    /// so that many are full.
    #[test]
    fn queue_behaves_like_its_model(operations in prop::collection::vec(operation(), 1..400)) {
        const REFUSED: u32 = u32::MAX;
        let (list, nodes) = (WaitList::with_halls_of((4, 2)), nodes(60));
        let (mut waiters, mut openers, mut away) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut turned_away: Option<TurnedAway<u32>> = None;
        let mut grants = 0;
        for operation in operations {
            match operation {
                Operation::Enqueue(lane, node) if !nodes[node].is_queued() => {
                    if lane == Lane::Waiters {
                        match list.try_join(nodes[node].as_ref(), Waker::noop()) {
                            Some(joined) => prop_assert_eq!(joined, Poll::Pending),
                            None => wait(&list, lane, &nodes[node]),
                        }
                        waiters.push_back(node);
                    } else {
                        wait(&list, lane, &nodes[node]);
                        openers.push_back(node);
                    }
                }
                Operation::Leave(node) if nodes[node].is_queued() => {
                    prop_assert_eq!(list.leave(&nodes[node], |_| {}), None);
                    for queue in [&mut waiters, &mut openers, &mut away] {
                        queue.retain(|waits| *waits != node);
                    }
                }
                Operation::Renew(node) if nodes[node].is_queued() => {
                    prop_assert!(list.renew(&nodes[node], Waker::noop()).is_none());
                }
                Operation::Enqueue(..) | Operation::Leave(_) | Operation::Renew(_) => {}
                Operation::Claim(lane) => {
                    let first = if lane == Lane::Waiters { waiters.pop_front() } else { openers.pop_front() };
                    let without_the_lock = (lane == Lane::Waiters).then(|| list.try_claim(|| true)).flatten();
                    prop_assert!(without_the_lock.is_none() || openers.is_empty());
                    let claimed = without_the_lock.or_else(|| list.lock().claim_first(lane));
                    prop_assert_eq!(claimed.map(|claimed| discard(claimed.grant(grants))).is_some(), first.is_some());
                    if let Some(first) = first {
                        prop_assert_eq!(nodes[first].take_grant(), Some(grants));
                    }
                    grants += 1;
                }
                Operation::TurnAway => {
                    let new = list.lock_to_turn_away().turn_away();
                    prop_assert_eq!(new.is_some(), !waiters.is_empty());
                    away.append(&mut waiters);
                    turned_away = new.or(turned_away);
                }
                Operation::RefuseABatch => if let Some(turned_away) = &mut turned_away {
                    let mut claimed = Vec::with_capacity(WaitList::<u32>::BATCH);
                    list.claim_turned_away(turned_away, &mut claimed);
                    prop_assert_eq!(claimed.len(), away.len().min(WaitList::<u32>::BATCH));
                    for claimed in claimed {
                        discard(claimed.grant(REFUSED));
                        let first: usize = away.pop_front().expect("as many as were claimed");
                        prop_assert_eq!(nodes[first].take_grant(), Some(REFUSED));
                    }
                },
            }
            let lengths = [Lane::Waiters, Lane::Openers].map(|lane| list.lock().len(lane) as usize);
            prop_assert_eq!(lengths, [waiters.len(), openers.len()]);
        }
        for node in &nodes {
            if node.is_queued() {
                prop_assert_eq!(list.leave(node, |_| {}), None);
            }
        }
        let locked = list.lock();
        prop_assert_eq!([Lane::Waiters, Lane::Openers].map(|lane| locked.word(lane).span()), [0, 0]);
        prop_assert!([Lane::Waiters, Lane::Openers].iter().all(|&lane| locked.books.elders(lane).first.is_none()));
        prop_assert!(locked.books.away.first.is_none());
    }
}
