//! Tests of what the wait list does under its lock, and of its blocks.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;

use super::*;
use crate::sync::census;

type Nodes = Vec<Pin<Box<Node<u32>>>>;

fn nodes(count: usize) -> Nodes {
    (0..count).map(|_| Box::pin(Node::new())).collect()
}

fn enqueue(list: &WaitList<u32>, lane: Lane, node: &Pin<Box<Node<u32>>>) {
    list.lock_with_room(lane).enqueue(lane, node.as_ref(), Waker::noop().clone());
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

fn blocks(list: &WaitList<u32>) -> usize {
    let queue = list.lock();
    let mut count = 0;
    for mut next in [queue.waiters.first, queue.openers.first, queue.away.first, queue.spare] {
        while let Some(here) = next {
            next = block(here).next;
            count += 1;
        }
    }
    count
}

/// A step is one access to a block. A batch takes a few for each of its claims.
const MOST_STEPS: u32 = 8;
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
    let all_queue_up = || nodes.iter().for_each(|node| enqueue(&list, Lane::Waiters, node));
    // A stride that is coprime to the number of nodes reaches all of them, block by block or across all blocks.
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
        let mut away = list.lock().turn_away().expect("all wait");
        assert_eq!(refuse_all(&list, &mut away, 9), WAITERS);
    });
    assert!(nodes.iter().all(|node| node.take_grant() == Some(9)));
}

/// Waiting takes two locked sections (one to queue up, one of the granter) and one clone of the waker. Polling again
/// with the same waker, as a check-out with a time limit does at once, adds neither.
#[test]
fn poll_with_the_same_waker_takes_no_lock_and_clones_nothing() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let (task, other) = (Arc::new(Task), Arc::new(Task));
    let waker = Waker::from(task.clone());
    let (list, nodes) = (WaitList::new(), nodes(1));
    list.lock_with_room(Lane::Waiters).enqueue(Lane::Waiters, nodes[0].as_ref(), waker.clone());
    let wakers = Arc::strong_count(&task);
    let (census, polled) = census::of(|| list.poll(&nodes[0], &mut Context::from_waker(&waker)));
    assert_eq!((census.sections, polled, Arc::strong_count(&task)), (0, Poll::Pending, wakers));
    // Another waker takes the lock, and the old one is dropped.
    let renewed = Waker::from(other.clone());
    let (census, polled) = census::of(|| list.poll(&nodes[0], &mut Context::from_waker(&renewed)));
    assert_eq!((census.sections, polled, Arc::strong_count(&task)), (1, Poll::Pending, wakers - 1));
    // The granter gets the new waker. A poll between the claim and the grant takes no lock either.
    let claimed = list.lock().claim_first(Lane::Waiters).expect("one waits");
    let (census, polled) = census::of(|| list.poll(&nodes[0], &mut Context::from_waker(&renewed)));
    assert_eq!((census.sections, polled), (0, Poll::Pending));
    assert!(claimed.grant(7).will_wake(&renewed));
    assert_eq!(list.poll(&nodes[0], &mut Context::from_waker(&renewed)), Poll::Ready(7));
}

#[test]
fn waker_is_dropped_once_however_its_waiter_ends() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let task = Arc::new(Task);
    let (list, nodes) = (WaitList::new(), nodes(3));
    for node in &nodes {
        list.lock_with_room(Lane::Waiters).enqueue(Lane::Waiters, node.as_ref(), Waker::from(task.clone()));
    }
    assert_eq!(list.leave(&nodes[0], |_| {}), None);
    assert!(grant_first(&list, Lane::Waiters, 7));
    assert_eq!(Arc::strong_count(&task), 2, "one node has left, one was granted, one waits");
    assert_eq!(list.leave(&nodes[1], |_| {}), Some(7));
    assert_eq!(list.leave(&nodes[2], |_| {}), None);
    assert_eq!(Arc::strong_count(&task), 1);
}

#[test]
fn claimed_node_is_not_found_in_a_reused_entry() {
    let (list, nodes) = (WaitList::new(), nodes(2));
    enqueue(&list, Lane::Waiters, &nodes[0]);
    let claimed = list.lock().claim_first(Lane::Waiters).expect("one waits");
    // The block is empty now, so the second node gets the first node's entry.
    enqueue(&list, Lane::Waiters, &nodes[1]);
    assert!(list.lock().find(&nodes[0]).is_none());
    assert!(list.lock().find(&nodes[1]).is_some());
    discard(claimed.grant(7));
    assert_eq!(list.leave(&nodes[0], |_| {}), Some(7));
    assert_eq!(list.leave(&nodes[1], |_| {}), None);
}

#[test]
fn blocks_are_reused_behind_a_waiter_that_stays() {
    let (list, nodes) = (WaitList::new(), nodes(101));
    enqueue(&list, Lane::Waiters, &nodes[100]);
    for _ in 0..1_000 {
        nodes[..100].iter().for_each(|node| enqueue(&list, Lane::Waiters, node));
        nodes[..100].iter().for_each(|node| assert_eq!(list.leave(node, |_| {}), None));
    }
    assert!(blocks(&list) <= 10, "{} blocks for 101 nodes", blocks(&list));
    assert!(grant_first(&list, Lane::Waiters, 7));
    assert_eq!(nodes[100].take_grant(), Some(7));
}

#[test]
fn eras_wrap_around() {
    let (list, nodes) = (WaitList::new(), nodes(3));
    list.lock().era = u32::MAX;
    enqueue(&list, Lane::Waiters, &nodes[0]);
    let mut first = list.lock().turn_away().expect("one waits");
    enqueue(&list, Lane::Waiters, &nodes[1]);
    let mut second = list.lock().turn_away().expect("one waits");
    enqueue(&list, Lane::Waiters, &nodes[2]);
    assert_eq!(refuse_all(&list, &mut first, 1), 1, "only nodes of its own era and before");
    assert_eq!(refuse_all(&list, &mut second, 2), 1);
    assert!(grant_first(&list, Lane::Waiters, 3));
    assert_eq!([0, 1, 2].map(|index: usize| nodes[index].take_grant()), [Some(1), Some(2), Some(3)]);
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Enqueue(Lane, usize),
    Leave(usize),
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
        2 => lane().prop_map(Operation::Claim),
        1 => Just(Operation::TurnAway),
        1 => Just(Operation::RefuseABatch),
    ]
}

proptest! {
    /// Compares the queue with a model made of two queues and a list of the nodes that were turned away.
    #[test]
    fn queue_behaves_like_its_model(operations in prop::collection::vec(operation(), 1..400)) {
        const REFUSED: u32 = u32::MAX;
        let (list, nodes) = (WaitList::new(), nodes(60));
        let (mut waiters, mut openers, mut away) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut turned_away: Option<TurnedAway<u32>> = None;
        let mut grants = 0;
        for operation in operations {
            match operation {
                Operation::Enqueue(lane, node) if !nodes[node].is_queued() => {
                    enqueue(&list, lane, &nodes[node]);
                    if lane == Lane::Waiters { waiters.push_back(node) } else { openers.push_back(node) }
                }
                Operation::Leave(node) if nodes[node].is_queued() => {
                    prop_assert_eq!(list.leave(&nodes[node], |_| {}), None);
                    for queue in [&mut waiters, &mut openers, &mut away] {
                        queue.retain(|waits| *waits != node);
                    }
                }
                Operation::Enqueue(..) | Operation::Leave(_) => {}
                Operation::Claim(lane) => {
                    let first = if lane == Lane::Waiters { waiters.pop_front() } else { openers.pop_front() };
                    prop_assert_eq!(grant_first(&list, lane, grants), first.is_some());
                    if let Some(first) = first {
                        prop_assert_eq!(nodes[first].take_grant(), Some(grants));
                    }
                    grants += 1;
                }
                Operation::TurnAway => {
                    let new = list.lock().turn_away();
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
        prop_assert!(blocks(&list) <= 60, "{} blocks for 60 nodes", blocks(&list));
    }
}
