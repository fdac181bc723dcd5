//! Models of event delivery. If a waiting caller never gets a verdict, or a task that waits for the end is never woken,
//! the model deadlocks, which loom reports.

#![allow(clippy::arc_with_non_send_sync, reason = "loom runs all threads of a model on one thread")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as StatisticOrdering};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use wharf::unstable::delivery::{Delivery, Share};

use super::harness::model;

/// A delivery whose events are numbers, and its subscriber.
pub struct Events {
    pub delivery: Delivery<u32>,
    pub seen: Seen,
}

/// The events that the subscriber has received. loom reports a race if two deliveries are not ordered.
pub struct Seen {
    numbers: UnsafeCell<Vec<u32>>,
    /// A statistic, as in `world.rs`: loom does not see it, so it does not order anything.
    count: AtomicU32,
}

impl Seen {
    fn new() -> Self {
        Self { numbers: UnsafeCell::new(Vec::new()), count: AtomicU32::new(0) }
    }

    #[allow(unsafe_code)]
    pub fn add(&self, number: u32) {
        let abort = AbortOnPanic;
        // SAFETY: there is one deliverer at a time. The models check this: loom panics before it lets a race happen.
        self.numbers.with_mut(|numbers| unsafe { (*numbers).push(number) });
        std::mem::forget(abort);
        self.count.fetch_add(1, StatisticOrdering::Relaxed);
        // Lets loom switch threads while the event is delivered.
        thread::yield_now();
    }

    fn count(&self) -> u32 {
        self.count.load(StatisticOrdering::Relaxed)
    }

    #[allow(unsafe_code)]
    pub fn numbers(&self) -> Vec<u32> {
        // SAFETY: as in `add`.
        self.numbers.with(|numbers| unsafe { (*numbers).clone() })
    }
}

/// Aborts if loom finds a race inside a subscriber, because the delivery would catch loom's panic. By then, the panic
/// hook has reported the race.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Events {
    pub fn new(turn: u32, room: u32) -> Arc<Self> {
        Arc::new(Self { delivery: Delivery::new(Share { turn, room }), seen: Seen::new() })
    }

    /// Publishes a number. Returns how many events this call delivered.
    fn publish(&self, number: u32) -> u32 {
        let here = AtomicU32::new(0);
        self.delivery.publish(number, |number| {
            here.fetch_add(1, StatisticOrdering::Relaxed);
            self.seen.add(*number);
        });
        here.into_inner()
    }

    pub fn emit(&self, number: u32) {
        self.delivery.emit(number);
    }

    pub fn deliver(&self) {
        self.delivery.deliver(|number| self.seen.add(*number));
    }

    pub fn deliver_inline(&self, number: u32) {
        self.delivery.deliver_inline(&number, |number| self.seen.add(*number));
    }
}

/// Waits for the end, as `Pool::closed` does.
fn block_on_end(delivery: &Delivery<u32>, is_over: impl Fn() -> bool) {
    let mut change = delivery.watch();
    loom::future::block_on(poll_fn(|context| delivery.poll_ended(&mut change, context, &is_over)));
}

#[test]
fn events_arrive_one_at_a_time_in_the_order_of_emission() {
    model("events_arrive_one_at_a_time_in_the_order_of_emission", Some(3), || {
        let events = Events::new(1, 1);
        let first_is_emitted = Arc::new(AtomicBool::new(false));
        let emits = {
            let (events, first_is_emitted) = (events.clone(), first_is_emitted.clone());
            thread::spawn(move || {
                events.emit(1);
                first_is_emitted.store(true, Ordering::Release);
                events.deliver();
                events.publish(2);
            })
        };
        let after_the_first = first_is_emitted.load(Ordering::Acquire);
        events.publish(10);
        events.publish(11);
        emits.join().unwrap();
        let numbers = events.seen.numbers();
        let place = |number| numbers.iter().position(|seen| *seen == number).expect("an event was not delivered");
        assert_eq!(numbers.len(), 4, "not every event was delivered once");
        assert!(place(1) < place(2) && place(10) < place(11), "{numbers:?}");
        assert!(!after_the_first || place(1) < place(10), "{numbers:?}");
    });
}

#[test]
fn all_events_of_three_callers_are_delivered_when_the_last_returns() {
    model("all_events_of_three_callers_are_delivered_when_the_last_returns", Some(2), || {
        let events = Events::new(1, 1);
        let callers: Vec<_> = [1, 2]
            .map(|number| {
                let events = events.clone();
                thread::spawn(move || {
                    events.publish(number);
                })
            })
            .into();
        events.publish(3);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(events.seen.numbers().len(), 3, "an event was not delivered");
    });
}

#[test]
fn call_delivers_at_most_its_turn_and_the_events_left_behind() {
    model("call_delivers_at_most_its_turn_and_the_events_left_behind", Some(4), || {
        let events = Events::new(1, 2);
        let others = {
            let events = events.clone();
            thread::spawn(move || (1..=3).for_each(|number| _ = events.publish(number)))
        };
        let delivered = events.publish(10);
        // A turn is one event: here, the caller's own event. The call may also deliver the two events that the other
        // caller left behind before that caller saw the turn end.
        assert!(delivered <= 3, "one call has delivered {delivered} events");
        others.join().unwrap();
        assert_eq!(events.seen.numbers().len(), 4);
    });
}

#[test]
fn callers_leave_no_more_events_behind_than_the_room_allows() {
    model("callers_leave_no_more_events_behind_than_the_room_allows", Some(4), || {
        const ROOM: u32 = 2;
        let events = Events::new(10, ROOM);
        let other = {
            let events = events.clone();
            thread::spawn(move || _ = events.publish(10))
        };
        for number in 1..=4 {
            events.publish(number);
            // The count of delivered events may already include the other caller's event.
            let left_behind = number.saturating_sub(events.seen.count());
            assert!(left_behind <= ROOM, "{left_behind} events were left behind");
        }
        other.join().unwrap();
        assert_eq!(events.seen.numbers().len(), 5);
    });
}

#[test]
fn waiting_callers_are_told_to_leave_or_to_deliver() {
    model("waiting_callers_are_told_to_leave_or_to_deliver", Some(3), || {
        // There is no room, so each caller waits unless it delivers.
        let events = Events::new(2, 0);
        let other = {
            let events = events.clone();
            thread::spawn(move || [1, 2].into_iter().for_each(|number| _ = events.publish(number)))
        };
        events.publish(10);
        assert!(events.seen.count() >= 1);
        other.join().unwrap();
        assert_eq!(events.seen.numbers().len(), 3);
    });
}

#[test]
fn subscribers_that_publish_do_not_wait_for_themselves() {
    model("subscribers_that_publish_do_not_wait_for_themselves", Some(3), || {
        let events = Events::new(1, 0);
        let on_event = {
            let events = events.clone();
            move |number: &u32| {
                events.seen.add(*number);
                if *number < 100 {
                    let events = events.clone();
                    // This call's subscriber only notes the events, and publishes no others.
                    events.delivery.publish(*number + 100, |number| events.seen.add(*number));
                }
            }
        };
        let other = {
            let (events, on_event) = (events.clone(), on_event.clone());
            thread::spawn(move || events.delivery.publish(1, on_event))
        };
        events.delivery.publish(2, on_event);
        other.join().unwrap();
        let numbers = events.seen.numbers();
        let place = |number| numbers.iter().position(|seen| *seen == number).expect("an event was not delivered");
        assert_eq!(numbers.len(), 4, "{numbers:?}");
        assert!(place(1) < place(101) && place(2) < place(102), "{numbers:?}");
    });
}

#[test]
fn subscribers_that_publish_to_each_other_do_not_wait_for_each_other() {
    model("subscribers_that_publish_to_each_other_do_not_wait_for_each_other", Some(3), || {
        let pools = [Events::new(1, 0), Events::new(1, 0)];
        let publishes = |own: usize| {
            let (own, other) = (pools[own].clone(), pools[1 - own].clone());
            move || {
                own.delivery.publish(1, |number| {
                    own.seen.add(*number);
                    if *number == 1 {
                        other.publish(2);
                    }
                });
            }
        };
        let thread = thread::spawn(publishes(0));
        publishes(1)();
        thread.join().unwrap();
        for pool in pools {
            assert_eq!(pool.seen.numbers().len(), 2, "a pool lacks its own event or that of the other's subscriber");
        }
    });
}

#[test]
fn panicking_subscriber_keeps_no_role_and_loses_no_event() {
    model("panicking_subscriber_keeps_no_role_and_loses_no_event", Some(3), || {
        let events = Events::new(2, 1);
        let on_event = |events: &Events, number: &u32| {
            events.seen.add(*number);
            if *number == 1 {
                // Bypasses the panic hook, because the harness would mistake its message for the model's failure.
                std::panic::resume_unwind(Box::new(()));
            }
        };
        let other = {
            let events = events.clone();
            thread::spawn(move || events.delivery.publish(1, |number| on_event(&events, number)))
        };
        events.delivery.publish(2, |number| on_event(&events, number));
        other.join().unwrap();
        events.delivery.publish(3, |number| on_event(&events, number));
        assert_eq!(events.seen.numbers().len(), 3);
    });
}

/// Runs the code of `Pool::closed`.
#[test]
fn closed_completes_after_the_last_event() {
    model("closed_completes_after_the_last_event", Some(2), || {
        // There is room, so the closing thread may leave its event to the other caller.
        let delivery = Arc::new(Delivery::new(Share { turn: 1, room: 2 }));
        let last = Arc::new(Seen::new());
        let on_event = {
            let last = last.clone();
            move |number: &u32| match number {
                1 => last.add(1),
                // This is the other caller's event, which may be delivered at any time.
                _ => thread::yield_now(),
            }
        };
        let closes = {
            let (delivery, on_event) = (delivery.clone(), on_event.clone());
            thread::spawn(move || {
                delivery.publish(1, on_event);
                delivery.end();
            })
        };
        let other = {
            let delivery = delivery.clone();
            thread::spawn(move || delivery.publish(2, on_event))
        };
        block_on_end(&delivery, || true);
        assert_eq!(last.numbers(), [1], "closed completed before the subscriber was done with the last event");
        closes.join().unwrap();
        other.join().unwrap();
    });
}

/// As above, but the last event is about the pool's last connection.
#[test]
fn closed_completes_after_the_event_of_the_last_connection() {
    model("closed_completes_after_the_event_of_the_last_connection", Some(3), || {
        let events = Events::new(1, 1);
        events.delivery.end();
        let is_gone = Arc::new(AtomicBool::new(false));
        let gives_back = {
            let (events, is_gone) = (events.clone(), is_gone.clone());
            thread::spawn(move || {
                // These steps are in the same order as in `Held::retire`.
                events.emit(1);
                is_gone.store(true, Ordering::Release);
                events.delivery.look_again();
                events.deliver();
            })
        };
        block_on_end(&events.delivery, || is_gone.load(Ordering::Acquire));
        assert_eq!(events.seen.numbers(), [1], "closed completed before the subscriber was done with the last event");
        gives_back.join().unwrap();
    });
}

/// As above, but no event is left whose delivery would wake the task again.
#[test]
fn closed_completes_when_the_last_connection_is_gone() {
    model("closed_completes_when_the_last_connection_is_gone", None, || {
        let events = Events::new(1, 1);
        events.delivery.end();
        let is_gone = Arc::new(AtomicBool::new(false));
        let gives_back = {
            let (events, is_gone) = (events.clone(), is_gone.clone());
            thread::spawn(move || {
                is_gone.store(true, Ordering::Release);
                events.delivery.look_again();
            })
        };
        block_on_end(&events.delivery, || is_gone.load(Ordering::Acquire));
        gives_back.join().unwrap();
    });
}
