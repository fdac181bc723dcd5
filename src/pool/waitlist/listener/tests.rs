use super::super::tests::{grant, look, nodes, queue_up};
use super::*;

impl<G> WaitList<G> {
    /// A list whose first hall has served so many waiters already, fewer than there are tickets.
    fn after(waits: u32) -> Self {
        let list = Self::new();
        let hall = list.waiters.build(0);
        hall.open(Ticket::of(0_u32.wrapping_sub(waits)));
        for (place, index) in hall.places.iter().zip(0..) {
            let turns = waits.saturating_sub(index).div_ceil(hall.places.len() as u32);
            place.listened.store(turns, Ordering::Relaxed);
        }
        list
    }
}

#[test]
fn hall_outlasts_the_numbers_of_tickets() {
    // The numbers repeat themselves in the midst of these waiters.
    let (list, nodes) = (WaitList::after(Ticket::COUNT - PLACES as u32 - 7), nodes(4 * PLACES));
    let (first, last) = nodes.split_at(3 * PLACES);
    for nodes in first.chunks(PLACES / 2) {
        queue_up(&list, nodes);
        for (value, node) in (0..).zip(nodes) {
            assert!(grant(&list, value));
            assert_eq!(look(&list, node), Some(value));
        }
    }
    // The hall is known to be deserted, once its waiters are.
    queue_up(&list, last);
    assert!(list.lock_to_turn_away().turn_away().is_some());
    assert!(!list.waiters.hall(0).is_deserted());
    last.iter().for_each(|node| assert_eq!(list.leave(node, |_| {}), None));
    assert!(list.waiters.hall(0).is_deserted());
}
