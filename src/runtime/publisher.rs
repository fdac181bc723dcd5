//! Events on their way from the core to their subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::delivery::{Delivery, Share};
use crate::event::PoolEvent;
use crate::sync::contain;

/// Receives the events of a pool.
///
/// Events come one at a time and in order, on a thread that has just done something with the pool, never under a lock
/// of the pool. A panic in a subscriber is caught, and the event counts as delivered. Every `Fn(&PoolEvent)` is a
/// subscriber.
///
/// # What a slow subscriber costs
///
/// The callers of the pool deliver the events in turns. A call that brings about an event delivers at most 32 events
/// before the next such call takes over, or what is queued then if there is no other. Up to 32 events are left behind
/// for another call to deliver; a call whose event comes behind these waits until there is room. So a slow subscriber
/// slows the calls in proportion, but it holds no call for longer than the events take that were queued before its own,
/// and a turn; and the queue does not grow with time. A connection that is checked in is available to others before the
/// subscribers are called.
///
/// A call that waits or delivers blocks its thread, also in an asynchronous runtime. A subscriber that may take long
/// therefore passes the event on, for example through an unbounded channel.
///
/// # What a subscriber must not do
///
/// A subscriber may use the pool, and other pools; the events that this brings about come after the present one. It
/// must not wait for another thread or task that uses the same pool, for example by sending to a full channel whose
/// receiver uses it: that other call may be waiting for the subscriber.
///
/// A child that was forked inside of a subscriber must not return from it. The call that delivers the event is the
/// parent's, and may wait forever for a lock that a thread of the parent held. Such a child executes another program or
/// exits.
pub trait Subscriber: Send + Sync + 'static {
    /// Takes note of an event.
    fn on_event(&self, event: &PoolEvent);
}

impl<F: Fn(&PoolEvent) + Send + Sync + 'static> Subscriber for F {
    fn on_event(&self, event: &PoolEvent) {
        self(event);
    }
}

pub(super) type Subscribers = Vec<Arc<dyn Subscriber>>;

/// Where `Subscriber` gives these numbers, it has them from here.
///
/// A subscriber of 20 µs then holds a caller for at most about a millisecond, and one that only counts is called often
/// enough in a row to make up for a change of threads.
const SHARE: Share = Share { turn: 32, room: 32 };

/// The events of a pool, and whom they are for.
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
        // ORD: Release; whoever sees it finds the subscriber, too.
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

    /// The queue of events; see [`Publisher::pass_on`].
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
            // A subscriber's panic is not the pool's, and keeps no other subscriber from the event.
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
    fn events_arrive_in_order_also_from_within_a_subscriber() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Arc::new(Publisher::new(Vec::new()));
        assert!(!publisher.is_listened_to());
        publisher.subscribe(Arc::new({
            let (seen, publisher) = (seen.clone(), Arc::downgrade(&publisher));
            move |event: &PoolEvent| {
                if event.address() == "first" {
                    let publisher = publisher.upgrade().unwrap();
                    publisher.emit(ready("brought about by the first"));
                    publisher.deliver();
                }
                seen.lock().unwrap().push(event.address().to_owned());
            }
        }));
        publisher.emit(ready("first"));
        publisher.emit(ready("second"));
        publisher.deliver();
        assert_eq!(*seen.lock().unwrap(), ["first", "second", "brought about by the first"]);
    }

    #[test]
    fn a_panic_of_one_subscriber_stops_nothing() {
        let seen = Arc::new(Mutex::new(0));
        let publisher = Publisher::new(vec![
            Arc::new(|_: &PoolEvent| panic!("a subscriber's own")),
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
    fn panicking_drop_of_an_events_error_stops_nothing() {
        #[derive(Debug, thiserror::Error)]
        #[error("an error whose drop panics")]
        struct Brittle;
        impl Drop for Brittle {
            fn drop(&mut self) {
                panic!("an error's own");
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
    fn nothing_is_lost_or_reordered_between_threads() {
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
