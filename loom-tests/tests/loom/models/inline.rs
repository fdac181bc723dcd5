//! Models of the inline delivery of events, and of their order relative to queued events.
//!
//! Inline deliveries may overlap, and panics in subscribers are caught. The subscribers here therefore do not assert
//! anything. They note faults, and each model asserts at the end that no fault was noted.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool as NotedBool, AtomicU32, Ordering as StatisticOrdering};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::mpsc::channel;
use loom::thread;

use super::delivery::Events;
use super::harness::model;

/// The event that the subscriber emits when it receives event 1.
const INNER: u32 = 101;

/// The subscribers' notes, in std's atomics, which do not order anything.
#[derive(Default)]
struct Noted {
    delivered: AtomicU32,
    first_has_ended: NotedBool,
    is_wrong: NotedBool,
}

impl Noted {
    fn note(&self, number: u32) {
        self.delivered.fetch_add(1, StatisticOrdering::Relaxed);
        if number == INNER && !self.first_has_ended.load(StatisticOrdering::Relaxed) {
            self.is_wrong.store(true, StatisticOrdering::Relaxed);
        }
        thread::yield_now();
    }

    fn assert_delivered(&self, count: u32) {
        let is_wrong = self.is_wrong.load(StatisticOrdering::Relaxed);
        assert!(!is_wrong, "an event was delivered inside of another delivery, or a panic has left a delivery");
        assert_eq!(self.delivered.load(StatisticOrdering::Relaxed), count, "not every event was delivered once");
    }
}

#[test]
fn inline_event_follows_the_queued_event_before_it() {
    model("inline_event_follows_the_queued_event_before_it", Some(3), || {
        let events = Events::new(1, 1);
        // This flag stands for a connection that is handed over: the thread that takes the connection knows that the
        // event was emitted.
        let is_handed_over = Arc::new(AtomicBool::new(false));
        let emits = {
            let (events, is_handed_over) = (events.clone(), is_handed_over.clone());
            thread::spawn(move || {
                events.emit(1);
                is_handed_over.store(true, Ordering::Release);
                events.deliver();
            })
        };
        // This is a swap rather than a load, because loom tries all orders of a swap and the store.
        let takes_over = is_handed_over.swap(false, Ordering::Acquire);
        if takes_over {
            events.deliver_inline(2);
        }
        emits.join().unwrap();
        let expected: &[u32] = if takes_over { &[1, 2] } else { &[1] };
        assert_eq!(events.seen.numbers(), expected);
    });
}

#[test]
fn inline_event_is_delivered_before_its_caller_goes_on() {
    model("inline_event_is_delivered_before_its_caller_goes_on", Some(3), || {
        let events = Events::new(1, 1);
        let on_event = {
            let events = events.clone();
            move |number: &u32| match number {
                10 => thread::yield_now(),
                own => events.seen.add(*own),
            }
        };
        let (hands_over, takes_over) = channel();
        let emits = {
            let (events, on_event) = (events.clone(), on_event.clone());
            thread::spawn(move || {
                events.deliver_inline(1);
                assert_eq!(events.seen.numbers(), [1], "the event is not delivered yet");
                hands_over.send(()).unwrap();
                // Publishes another event, whose deliverer may also deliver the next event.
                events.delivery.publish(10, on_event);
            })
        };
        takes_over.recv().unwrap();
        events.delivery.publish(2, on_event);
        emits.join().unwrap();
        assert_eq!(events.seen.numbers(), [1, 2]);
    });
}

#[test]
fn inline_event_waits_for_the_event_that_its_caller_left_behind() {
    model("inline_event_waits_for_the_event_that_its_caller_left_behind", Some(3), || {
        let events = Events::new(2, 2);
        // The other caller's event may be delivered at the same time as an inline event.
        let on_event = {
            let events = events.clone();
            move |number: &u32| match number {
                10 => thread::yield_now(),
                own => events.seen.add(*own),
            }
        };
        let other = {
            let (events, on_event) = (events.clone(), on_event.clone());
            thread::spawn(move || events.delivery.publish(10, on_event))
        };
        events.delivery.publish(1, on_event.clone());
        events.delivery.deliver_inline(&2, on_event);
        assert_eq!(events.seen.numbers(), [1, 2]);
        other.join().unwrap();
    });
}

#[test]
fn event_emitted_inside_an_inline_delivery_follows_it() {
    model("event_emitted_inside_an_inline_delivery_follows_it", Some(3), || {
        let (events, noted) = (Events::new(1, 1), Arc::new(Noted::default()));
        let uses_the_pool = {
            let (events, noted) = (events.clone(), noted.clone());
            thread::spawn(move || {
                events.delivery.deliver_inline(&1, |number| {
                    noted.note(*number);
                    if *number == 1 {
                        events.delivery.deliver_inline(&INNER, |number| noted.note(*number));
                        thread::yield_now();
                        noted.first_has_ended.store(true, StatisticOrdering::Relaxed);
                    }
                });
            })
        };
        events.delivery.publish(2, |number| noted.note(*number));
        uses_the_pool.join().unwrap();
        noted.assert_delivered(3);
    });
}

#[test]
fn subscriber_of_an_inline_event_is_not_called_inside_of_its_own_call() {
    model("subscriber_of_an_inline_event_is_not_called_inside_of_its_own_call", Some(3), || {
        let (events, noted) = (Events::new(1, 1), Arc::new(Noted::default()));
        let uses_the_pool = {
            let (events, noted) = (events.clone(), noted.clone());
            thread::spawn(move || {
                let is_inside = NotedBool::new(false);
                let enter = |number: &u32| {
                    if is_inside.swap(true, StatisticOrdering::Relaxed) {
                        noted.is_wrong.store(true, StatisticOrdering::Relaxed);
                    }
                    noted.note(*number);
                };
                let leave = || is_inside.store(false, StatisticOrdering::Relaxed);
                events.delivery.deliver_inline(&1, |number| {
                    enter(number);
                    if *number == 1 {
                        events.delivery.publish(3, |number| {
                            enter(number);
                            leave();
                        });
                    }
                    leave();
                });
            })
        };
        events.emit(2);
        events.delivery.deliver(|number| noted.note(*number));
        uses_the_pool.join().unwrap();
        noted.assert_delivered(3);
    });
}

#[test]
fn panicking_subscriber_ends_its_inline_delivery() {
    model("panicking_subscriber_ends_its_inline_delivery", Some(3), || {
        let (events, noted) = (Events::new(2, 1), Arc::new(Noted::default()));
        let panics = |noted: &Noted, number: u32| {
            noted.note(number);
            // Bypasses the panic hook, because the harness would mistake its message for the model's failure.
            resume_unwind(Box::new(()));
        };
        let other = {
            let (events, noted) = (events.clone(), noted.clone());
            thread::spawn(move || {
                let call = AssertUnwindSafe(|| events.delivery.deliver_inline(&1, |number| panics(&noted, *number)));
                noted.is_wrong.fetch_or(catch_unwind(call).is_err(), StatisticOrdering::Relaxed);
                // This event is delivered inline again, and not from the queue.
                events.delivery.deliver_inline(&2, |number| noted.note(*number));
            })
        };
        events.delivery.publish(3, |number| panics(&noted, *number));
        other.join().unwrap();
        events.delivery.deliver_inline(&4, |number| noted.note(*number));
        noted.assert_delivered(4);
    });
}

#[test]
fn caller_that_delivers_inline_is_held_for_a_bounded_number_of_events() {
    model("caller_that_delivers_inline_is_held_for_a_bounded_number_of_events", Some(4), || {
        let (events, noted) = (Events::new(1, 1), Arc::new(Noted::default()));
        let others = {
            let (events, noted) = (events.clone(), noted.clone());
            thread::spawn(move || {
                (1..=3).for_each(|number| events.delivery.publish(number, |number| noted.note(*number)));
            })
        };
        let here = AtomicU32::new(0);
        // This stands for an event that was emitted earlier, for example under a lock. Because of it, this caller
        // begins as the deliverer.
        events.emit(9);
        events.delivery.deliver_inline(&10, |number| {
            here.fetch_add(1, StatisticOrdering::Relaxed);
            noted.note(*number);
        });
        // The call delivers its own event, and one more for its turn. The other events are further back in the queue
        // than the room allows, so their caller relieves this call.
        let here = here.into_inner();
        assert!(here <= 2, "one call has delivered {here} events");
        others.join().unwrap();
        noted.assert_delivered(5);
    });
}
