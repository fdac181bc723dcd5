//! Busy polling: a task that is waiting for a reply keeps its thread awake for a short time.
//!
//! A thread that falls asleep and wakes up again spends 10 to 20 µs of CPU time, and its task receives the reply that
//! much later. If the reply comes sooner than that, staying awake costs nothing. Otherwise the whole wait is wasted, so
//! a connection whose replies come late stops trying: after each miss it lets twice as many commands pass before it
//! tries again. One command in 256 still tries, and notices when replies have become fast.

use std::pin::pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// The connection's estimate of how soon replies come.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// How long a wait may keep its thread awake. Zero means not at all.
    limit: Duration,
    /// The ID of the request whose reply is awaited.
    request: i32,
    /// When the current wait lets its thread sleep; `None` if the thread need not stay awake any longer.
    until: Option<Instant>,
    /// How many commands to let pass after the next miss.
    step: u8,
    /// How many commands to let pass now.
    to_pass: u8,
}

impl BusyPoll {
    pub const fn new(limit: Duration) -> Self {
        // The ID of the first request is 1.
        Self { limit, request: 0, until: None, step: 1, to_pass: 0 }
    }

    /// Called when the reply to `request` has not arrived yet. If this wait keeps its thread awake, schedules the task
    /// to run again as soon as the runtime has run other tasks and polled for events.
    #[inline]
    pub fn wait(&mut self, request: i32, context: &mut Context<'_>) {
        if !self.limit.is_zero() && self.stays_awake(request, Instant::now()) {
            // The first poll requests another poll, and returns `Pending`. Dropping the rest of the future loses
            // nothing.
            let _pending = Future::poll(pin!(yield_now()), context);
        }
    }

    fn stays_awake(&mut self, request: i32, now: Instant) -> bool {
        if self.request != request {
            self.begin(request, now);
        }
        match self.until {
            Some(until) if now < until => true,
            Some(_) => {
                self.until = None;
                self.to_pass = self.step;
                // Stops at 255.
                self.step = self.step.saturating_mul(2);
                false
            }
            None => false,
        }
    }

    /// Begins the wait for another reply.
    fn begin(&mut self, request: i32, now: Instant) {
        self.request = request;
        // The previous wait has not run out, so its reply arrived in time.
        if self.until.take().is_some() {
            self.step = 1;
        }
        match self.to_pass.checked_sub(1) {
            Some(left) => self.to_pass = left,
            // If the time is beyond the clock's range, there is no busy wait.
            None => self.until = now.checked_add(self.limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    /// Awaits the reply to `request`, which arrives after `delay`. Returns how long the thread was kept awake.
    fn awake(busy_poll: &mut BusyPoll, request: i32, delay: Duration) -> Duration {
        let start = Instant::now();
        let mut passed = Duration::ZERO;
        while passed < delay && busy_poll.stays_awake(request, start + passed) {
            passed += Duration::from_micros(1);
        }
        passed
    }

    #[test]
    fn a_wait_keeps_its_thread_awake_up_to_the_limit() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        assert_eq!(awake(&mut busy_poll, 1, LIMIT / 2), LIMIT / 2);
        assert_eq!(awake(&mut busy_poll, 2, LIMIT * 9), LIMIT);
        // If the task is polled once more for another reason, its thread stays asleep.
        assert_eq!(awake(&mut busy_poll, 2, LIMIT * 9), Duration::ZERO);
    }

    #[test]
    fn late_replies_end_the_tries_but_for_one_in_256() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        let tries: Vec<i32> =
            (1..=1600).filter(|&request| !awake(&mut busy_poll, request, LIMIT * 2).is_zero()).collect();
        assert_eq!(tries, [1, 3, 6, 11, 20, 37, 70, 135, 264, 520, 776, 1032, 1288, 1544]);
    }

    #[test]
    fn a_reply_in_time_brings_the_tries_back() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        let slow = (1..=300).filter(|&request| !awake(&mut busy_poll, request, LIMIT * 2).is_zero()).count();
        assert_eq!(slow, 9);
        let mut fast = (301..).filter(|&request| !awake(&mut busy_poll, request, LIMIT / 2).is_zero());
        assert_eq!([fast.next(), fast.next(), fast.next()], [Some(520), Some(521), Some(522)]);
        // The next miss counts as the first miss.
        let again: Vec<i32> =
            (523..530).filter(|&request| !awake(&mut busy_poll, request, LIMIT * 2).is_zero()).collect();
        assert_eq!(again, [523, 525, 528]);
    }

    #[test]
    fn without_a_limit_no_wait_keeps_its_thread_awake() {
        let mut busy_poll = BusyPoll::new(Duration::ZERO);
        let mut context = Context::from_waker(std::task::Waker::noop());
        busy_poll.wait(1, &mut context);
        assert_eq!((busy_poll.request, busy_poll.until), (0, None));
    }
}
