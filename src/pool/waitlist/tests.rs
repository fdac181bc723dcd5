//! Tests that both wait lists must pass.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{Lane, Node, WaitList};

pub(super) fn queue_up<'n>(list: &WaitList<u32>, nodes: impl IntoIterator<Item = &'n Pin<Box<Node<u32>>>>) {
    for node in nodes {
        queue_up_in(list, Lane::Waiters, node);
    }
}

fn queue_up_in(list: &WaitList<u32>, lane: Lane, node: &Pin<Box<Node<u32>>>) {
    list.lock_with_room(lane).enqueue(lane, node.as_ref(), Waker::noop().clone()).expect("room");
    assert!(list.begin(node.as_ref()).is_pending());
}

pub(super) fn nodes(count: usize) -> Vec<Pin<Box<Node<u32>>>> {
    (0..count).map(|_| Box::pin(Node::new())).collect()
}

pub(super) fn grant(list: &WaitList<u32>, value: u32) -> bool {
    let claimed = list.lock().claim_first(Lane::Waiters);
    claimed.map(|claimed| claimed.grant(value)).is_some()
}

pub(super) fn look(list: &WaitList<u32>, node: &Node<u32>) -> Option<u32> {
    match list.poll(node, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn first_come_first_served() {
    let (list, nodes) = (WaitList::new(), nodes(3));
    queue_up(&list, &nodes);
    for (value, node) in nodes.iter().enumerate() {
        assert_eq!(look(&list, node), None);
        assert!(grant(&list, value as u32));
        assert_eq!(look(&list, node), Some(value as u32));
    }
    assert!(!grant(&list, 9), "no waiter is left");
}

#[test]
fn waiter_that_leaves_is_passed_over_or_returns_its_grant() {
    let (list, nodes) = (WaitList::new(), nodes(3));
    queue_up(&list, &nodes);
    assert_eq!(list.leave(&nodes[1], |_| {}), None);
    assert!(grant(&list, 1));
    assert_eq!(list.leave(&nodes[0], |_| {}), Some(1), "granted before it left");
    assert!(grant(&list, 2));
    assert_eq!(look(&list, &nodes[2]), Some(2));
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

#[test]
fn leaving_reports_how_many_remain() {
    let (list, nodes) = (WaitList::new(), nodes(2));
    queue_up(&list, &nodes);
    let mut left = Vec::new();
    for node in &nodes {
        assert_eq!(list.leave(node, |queue| left.push(queue.len(Lane::Waiters))), None);
    }
    assert_eq!(left, [1, 0]);
}

#[test]
fn turning_away_refuses_all_waiters_but_later_ones() {
    let (list, nodes) = (WaitList::new(), nodes(40));
    queue_up(&list, &nodes[..39]);
    let mut away = list.lock_to_turn_away().turn_away().expect("all wait");
    assert_eq!(list.lock().len(Lane::Waiters), 0);
    assert!(list.lock_to_turn_away().turn_away().is_none(), "no waiter is left");
    queue_up(&list, &nodes[39..]);
    let (mut claimed, mut refused) = (Vec::with_capacity(WaitList::<u32>::BATCH), 0);
    loop {
        list.claim_turned_away(&mut away, &mut claimed);
        if claimed.is_empty() {
            break;
        }
        for claimed in claimed.drain(..) {
            drop(claimed.grant(refused));
            refused += 1;
        }
    }
    assert_eq!(refused, 39);
    assert!((0..39).all(|index| look(&list, &nodes[index]) == Some(index as u32)));
    assert_eq!(list.lock().len(Lane::Waiters), 1);
    assert_eq!(look(&list, &nodes[39]), None);
    assert!(grant(&list, 7));
    assert_eq!(look(&list, &nodes[39]), Some(7));
}

#[test]
fn storm_of_cancellations_keeps_the_order() {
    let (list, nodes) = (WaitList::new(), nodes(1_000));
    queue_up(&list, &nodes);
    let stays = |index: &usize| index.is_multiple_of(100);
    for index in (0..1_000).filter(|index| !stays(index)) {
        assert_eq!(list.leave(&nodes[index], |_| {}), None);
    }
    assert_eq!(list.lock().len(Lane::Waiters), 10);
    for index in (0..1_000).filter(stays) {
        assert!(grant(&list, index as u32));
        assert_eq!(look(&list, &nodes[index]), Some(index as u32));
    }
    assert_eq!(list.lock().len(Lane::Waiters), 0);
}

#[test]
fn node_can_queue_up_again() {
    let (list, nodes) = (WaitList::new(), nodes(1));
    for round in 0..3 {
        queue_up(&list, &nodes);
        assert!(grant(&list, round));
        assert_eq!(look(&list, &nodes[0]), Some(round));
    }
}

#[test]
fn lanes_are_independent() {
    let (list, nodes) = (WaitList::new(), nodes(4));
    for (lane, node) in [Lane::Waiters, Lane::Openers, Lane::Waiters, Lane::Openers].into_iter().zip(&nodes) {
        queue_up_in(&list, lane, node);
    }
    assert_eq!([Lane::Openers, Lane::Waiters].map(|lane| list.lock().len(lane)), [2, 2]);
    drop(list.lock().claim_first(Lane::Openers).map(|claimed| claimed.grant(7)));
    assert_eq!([0, 1, 2, 3].map(|index: usize| look(&list, &nodes[index])), [None, Some(7), None, None]);
    let mut left = Vec::new();
    for index in [0, 3, 2] {
        assert_eq!(
            list.leave(&nodes[index], |queue| left.push((queue.len(Lane::Openers), queue.len(Lane::Waiters)))),
            None
        );
    }
    assert_eq!(left, [(1, 1), (0, 1), (0, 0)]);
}
