//! The publisher, which passes events from the core on to the subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::delivery::{Delivery, Share};
use crate::event::PoolEvent;
use crate::sync::contain;

/// Receives the events of a pool.
///
/// Events arrive one at a time and in order, on a thread that has just called the pool, and never under a lock of the
/// pool. If a subscriber panics, the pool catches the panic and the event counts as delivered. Every `Fn(&PoolEvent)`
/// is a subscriber.
///
/// # What a slow subscriber costs
///
/// The callers of the pool take turns to deliver events. A call that emits an event delivers at most 32 events before
/// the next such call takes over. If there is no other call, it delivers the events that are queued at that time. A
/// call may leave up to 32 events behind for another call to deliver. A call whose event comes after these waits until
/// there is room.
///
/// So a slow subscriber slows the calls down in proportion, but the queue does not grow with time. A call is delayed at
/// most by the events that were queued before its own, and by one turn. A connection that is checked in is available to
/// others before the subscribers are called.
///
/// A call that waits or delivers blocks its thread, even in an asynchronous runtime. A subscriber that may take long
/// should therefore pass the event on, for example through an unbounded channel.
///
/// # What a subscriber must not do
///
/// A subscriber may use the pool, and other pools. The events of these calls come after the present event.
///
/// It must not wait for another thread or task that uses the same pool, for example by sending to a full channel whose
/// receiver uses the pool. That other call may be waiting for the subscriber.
///
/// A child that is forked inside of a subscriber must not return from it. The call that delivers the event belongs to
/// the parent, and may wait forever for a lock that a thread of the parent held. Such a child must execute another
/// program or exit.
pub trait Subscriber: Send + Sync + 'static {
    /// Receives an event.
    fn on_event(&self, event: &PoolEvent);
}

impl<F: Fn(&PoolEvent) + Send + Sync + 'static> Subscriber for F {
    fn on_event(&self, event: &PoolEvent) {
        self(event);
    }
}

pub(super) type Subscribers = Vec<Arc<dyn Subscriber>>;

/// How callers share the delivery. The documentation of `Subscriber` states these numbers.
///
/// With them, a subscriber that takes 20 µs delays a caller by about a millisecond at most. A subscriber that only
/// counts is called often enough in a row to outweigh the cost of a change of threads.
const SHARE: Share = Share { turn: 32, room: 32 };

/// The event queue of a pool, and its subscribers.
pub(super) struct Publisher {
    subscribers: ArcSwap<Subscribers>,
    listened_to: AtomicBool,
    delivery: Delivery<PoolEvent>,
}

impl Publisher {
    pub(super) fn new(subscribers: Subscribers) -> Self {
        Self {
            listened_to: AtomicBool::new(!subscribers.is_empty()),
            subscribers: ArcSwap::from_pointee(subscribers),
            delivery: Delivery::new(SHARE),
        }
    }

    pub(super) fn subscribe(&self, subscriber: Arc<dyn Subscriber>) {
        self.subscribers.rcu(|present| {
            let mut more = Subscribers::clone(present);
            more.push(subscriber.clone());
            more
        });
        // ORD: Release; a thread that sees the flag also finds the subscriber.
        self.listened_to.store(true, Ordering::Release);
    }

    pub(super) fn subscribers(&self) -> Subscribers {
        Subscribers::clone(&self.subscribers.load())
    }

    #[inline]
    pub(super) fn is_listened_to(&self) -> bool {
        // Relaxed: an event emitted around the time of the subscription may be missed either way.
        self.listened_to.load(Ordering::Relaxed)
    }

    /// Returns the queue of events; see [`Publisher::pass_on`].
    pub(super) fn delivery(&self) -> &Delivery<PoolEvent> {
        &self.delivery
    }

    pub(super) fn emit(&self, event: PoolEvent) {
        self.delivery.emit(event);
    }

    pub(super) fn deliver(&self) {
        self.delivery.deliver(|event| self.pass_on(event));
    }

    pub(super) fn publish(&self, event: PoolEvent) {
        self.delivery.publish(event, |event| self.pass_on(event));
    }

    fn pass_on(&self, event: &PoolEvent) {
        for subscriber in self.subscribers.load().iter() {
            // If a subscriber panics, the others still receive the event.
            contain(|| subscriber.on_event(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ConnectionClosedReason, EventError};
    use std::sync::Mutex;

    fn ready(address: &str) -> PoolEvent {
        PoolEvent::PoolReady { address: address.into() }
    }

    #[test]
    fn events_emitted_by_a_subscriber_arrive_in_order() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Arc::new(Publisher::new(Vec::new()));
        assert!(!publisher.is_listened_to());
        publisher.subscribe(Arc::new({
            let (seen, publisher) = (seen.clone(), Arc::downgrade(&publisher));
            move |event: &PoolEvent| {
                if event.address() == "first" {
                    let publisher = publisher.upgrade().unwrap();
                    publisher.emit(ready("emitted during the first"));
                    publisher.deliver();
                }
                seen.lock().unwrap().push(event.address().to_owned());
            }
        }));
        publisher.emit(ready("first"));
        publisher.emit(ready("second"));
        publisher.deliver();
        assert_eq!(*seen.lock().unwrap(), ["first", "second", "emitted during the first"]);
    }

    #[test]
    fn panicking_subscriber_stops_no_other_delivery() {
        let seen = Arc::new(Mutex::new(0));
        let publisher = Publisher::new(vec![
            Arc::new(|_: &PoolEvent| panic!("the subscriber's panic")),
            Arc::new({
                let seen = seen.clone();
                move |_: &PoolEvent| *seen.lock().unwrap() += 1
            }),
        ]);
        for _ in 0..2 {
            publisher.emit(ready("here"));
            publisher.deliver();
        }
        assert_eq!(*seen.lock().unwrap(), 2);
    }

    #[test]
    fn panicking_drop_of_an_events_error_stops_no_other_delivery() {
        #[derive(Debug, thiserror::Error)]
        #[error("an error whose drop panics")]
        struct Brittle;
        impl Drop for Brittle {
            fn drop(&mut self) {
                panic!("the error's panic");
            }
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Publisher::new(vec![Arc::new({
            let seen = seen.clone();
            move |event: &PoolEvent| seen.lock().unwrap().push(event.name())
        })]);
        publisher.publish(PoolEvent::ConnectionClosed {
            address: "here".into(),
            connection_id: 1,
            reason: ConnectionClosedReason::Error,
            error: Some(EventError::new(Brittle)),
        });
        publisher.publish(ready("here"));
        assert_eq!(*seen.lock().unwrap(), ["ConnectionClosed", "PoolReady"]);
    }

    #[test]
    fn threads_lose_and_reorder_no_events() {
        const EACH: usize = 2_000;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Publisher::new(vec![Arc::new({
            let seen = seen.clone();
            move |event: &PoolEvent| seen.lock().unwrap().push(event.address().to_owned())
        })]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let publisher = &publisher;
                scope.spawn(move || {
                    for number in 0..EACH {
                        publisher.emit(ready(&format!("{thread} {number:06}")));
                        publisher.deliver();
                    }
                });
            }
        });
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 4 * EACH);
        for thread in 0..4 {
            let own: Vec<_> = seen.iter().filter(|address| address.starts_with(&format!("{thread} "))).collect();
            assert!(own.is_sorted(), "thread {thread}");
        }
    }
}
