//! The tickets whose waiters have left from the middle of the queue.

use std::collections::HashMap;

use super::super::word::Ticket;

/// A set of tickets, kept as runs of neighbours. All operations take constant time, however many tickets a run has, and
/// there are never more runs than tickets that wait, and one.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The end of each run, by its first ticket. The end is the ticket after the last.
    ends: HashMap<Ticket, Ticket>,
    /// The first ticket of each run, by its end.
    starts: HashMap<Ticket, Ticket>,
    len: u32,
}

impl Gaps {
    /// Returns the number of tickets.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn insert(&mut self, ticket: Ticket) {
        let after = ticket.after();
        let start = self.starts.remove(&ticket).unwrap_or(ticket);
        let end = self.ends.remove(&after).unwrap_or(after);
        self.ends.insert(start, end);
        self.starts.insert(end, start);
        self.len += 1;
    }

    /// Returns the first ticket from `ticket` on that is not in the set.
    pub(super) fn beyond(&self, ticket: Ticket) -> Ticket {
        self.ends.get(&ticket).copied().unwrap_or(ticket)
    }

    /// Removes the run that begins with `first`, if there is one.
    pub(super) fn remove_run(&mut self, first: Ticket) {
        if let Some(end) = self.ends.remove(&first) {
            self.starts.remove(&end);
            self.len -= end.since(first);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_run_in_any_order() {
        for order in [[3, 4, 5], [5, 4, 3], [3, 5, 4], [4, 3, 5], [4, 5, 3], [5, 3, 4]] {
            let mut gaps = Gaps::default();
            order.into_iter().for_each(|number| gaps.insert(Ticket::of(number)));
            assert_eq!((gaps.len(), gaps.ends.len(), gaps.starts.len()), (3, 1, 1), "{order:?}");
            assert_eq!([2, 3, 6].map(|number| gaps.beyond(Ticket::of(number)).number()), [2, 6, 6], "{order:?}");
            gaps.remove_run(Ticket::of(3));
            assert_eq!((gaps.len(), gaps.ends.len(), gaps.starts.len()), (0, 0, 0), "{order:?}");
        }
    }

    #[test]
    fn run_crosses_the_last_number() {
        let mut gaps = Gaps::default();
        let last = Ticket::of(u32::MAX);
        gaps.insert(last);
        gaps.insert(last.after());
        assert_eq!((last.after().number(), gaps.beyond(last).number(), gaps.len()), (0, 1, 2));
    }
}
