//! The publisher, which passes events on from the core to the subscribers.

use std::sync::{Arc, OnceLock};

use super::interest;
use crate::pool::delivery::{Delivery, Share};
use crate::pool::event::PoolEvent;
use crate::pool::sync::contain;

/// Receives the events of a pool.
///
/// A subscriber is called on a thread that is inside a call to the pool, and never under one of the pool's locks. If it
/// panics, the pool catches the panic, and considers the event delivered. Every `Fn(&PoolEvent)` is a subscriber.
///
/// # Order
///
/// A subscriber may be called by several threads at the same time, with events for different check-outs and
/// connections. One event is fully delivered before another in these cases:
///
/// - both events belong to the same check-out, or to the same connection;
/// - one of the events is about the pool itself (created, ready, cleared, closed), and the call that emitted the first
///   event had returned before the second event was emitted;
/// - the subscriber itself made the call that emitted the second event.
///
/// # What a slow subscriber costs
///
/// The frequent events are check-outs (started, failed, checked out) and check-ins. Each call delivers its own events
/// of these kinds. So a slow subscriber slows down each call in proportion to the call's own events. It also holds up
/// the connection that an event is about: a connection that is checked in becomes available to others only after the
/// subscribers have received the event.
///
/// All other events go through a queue, one at a time, and the callers of the pool take turns delivering them. A call
/// that emits a queued event delivers at most 32 events before the next such call takes over. If there is no other
/// call, it delivers all events that are queued. A call may leave up to 32 events behind for another call to deliver.
/// If it would leave more events, it waits until there is room. Before a call delivers a frequent event, it waits for
/// the events that are already queued, because they may have to be delivered first. So the queue does not grow over
/// time. A call is delayed at most by the events that were queued before its own, by one turn of 32, and by any
/// subscriber call in progress that has caused an event to be queued.
///
/// A call that waits or delivers blocks its thread, even in an asynchronous runtime. A subscriber that may take a long
/// time should therefore pass the event on, for example through an unbounded channel.
///
/// # What a subscriber must not do
///
/// A subscriber may use this pool and other pools. The events that these calls emit are delivered after the current
/// event.
///
/// A subscriber must not wait for another thread or task that uses the same pool, for example by sending to a full
/// channel whose receiver uses the pool. That other call may be waiting for the subscriber.
///
/// A child that is forked inside a subscriber must not return from it. The call that is delivering the event belongs to
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

/// How callers share the delivery of queued events. The documentation of `Subscriber` states these numbers.
///
/// With these numbers, a subscriber that takes 20 µs delays a caller by at most about a millisecond. A subscriber that
/// only increments a counter is called so many times in a row that the cost of switching threads does not matter.
const SHARE: Share = Share { turn: 32, room: 32 };

/// The events of a pool, its subscribers, and its log.
pub(super) struct Publisher {
    subscribers: List<Arc<dyn Subscriber>>,
    /// Receives each event before the subscribers do, but only while something reads the log.
    log: Option<Arc<dyn Subscriber>>,
    delivery: Delivery<PoolEvent>,
}

impl Publisher {
    pub(super) fn new(subscribers: Subscribers) -> Self {
        let subscribers = subscribers.into_iter().collect();
        Self { subscribers, log: None, delivery: Delivery::new(SHARE) }
    }

    pub(super) fn logged_by(mut self, log: Option<Arc<dyn Subscriber>>) -> Self {
        if log.is_some() {
            interest::watch();
        }
        self.log = log;
        self
    }

    /// Returns a publisher for the pool of a forked child, with the same subscribers and the same log.
    pub(super) fn successor(&self) -> Self {
        Self::new(self.subscribers.iter().cloned().collect()).logged_by(self.log.clone())
    }

    pub(super) fn subscribe(&self, subscriber: Arc<dyn Subscriber>) {
        self.subscribers.add(subscriber);
    }

    /// Returns whether a subscriber or the log receives events. If neither does, events are not built.
    #[inline]
    pub(super) fn is_listened_to(&self) -> bool {
        self.has_subscribers() || self.is_logged()
    }

    /// Returns whether a subscriber other than the log receives events.
    #[inline]
    pub(super) fn has_subscribers(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Returns whether the queue may contain events. They stay there even if the log has stopped listening.
    pub(super) fn may_have_events(&self) -> bool {
        self.has_subscribers() || self.log.is_some()
    }

    #[inline]
    pub(super) fn is_logged(&self) -> bool {
        self.log.is_some() && interest::is_there()
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

    #[inline]
    pub(super) fn publish_inline(&self, event: &PoolEvent) {
        self.delivery.deliver_inline(event, |event| self.pass_on(event));
    }

    #[inline]
    fn pass_on(&self, event: &PoolEvent) {
        if let Some(log) = &self.log
            && interest::is_there()
        {
            contain(|| log.on_event(event));
        }
        for subscriber in self.subscribers.iter() {
            // If a subscriber panics, the others still receive the event.
            contain(|| subscriber.on_event(event));
        }
    }
}

/// Subscribers or sinks, in the order in which they were added. No item is ever removed, so reading the list takes one
/// load per item and one load for the end, from cache lines that do not change.
pub(super) struct List<T>(OnceLock<Box<Entry<T>>>);

struct Entry<T> {
    item: T,
    others: List<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let list = Self::default();
        items.into_iter().for_each(|item| list.add(item));
        list
    }
}

impl<T> List<T> {
    pub(super) fn add(&self, item: T) {
        let (mut end, mut entry) = (self, Box::new(Entry { item, others: Self::default() }));
        // Fails if another thread has just added an entry here.
        while let Err(refused) = end.0.set(entry) {
            entry = refused;
            end = &end.0.get().expect("BUG: a list has neither an end nor an entry").others;
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::successors(self.0.get(), |entry| entry.others.0.get()).map(|entry| &entry.item)
    }
}

impl<T> Drop for List<T> {
    /// Drops the entries one by one, so that a long list does not exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(mut entry) = next {
            next = entry.others.0.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::event::{ConnectionClosedReason, EventError};
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
    fn subscribers_added_by_several_threads_are_all_told_in_one_order() {
        const THREADS: u64 = 4;
        const EACH: u64 = 250;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Publisher::new(Vec::new());
        let subscriber = |number: u64| {
            let seen = seen.clone();
            Arc::new(move |_: &PoolEvent| seen.lock().unwrap().push(number))
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (publisher, subscriber) = (&publisher, &subscriber);
                scope.spawn(move || {
                    for number in 0..EACH {
                        publisher.subscribe(subscriber(thread * EACH + number));
                    }
                });
            }
        });
        publisher.publish_inline(&ready("first"));
        let first = std::mem::take(&mut *seen.lock().unwrap());
        publisher.publish(ready("second"));
        assert_eq!(first, *seen.lock().unwrap(), "the order has changed");
        for thread in 0..THREADS {
            let own: Vec<_> = first.iter().copied().filter(|number| number / EACH == thread).collect();
            let expected: Vec<_> = (thread * EACH..(thread + 1) * EACH).collect();
            assert_eq!(own, expected, "thread {thread}");
        }
    }

    #[test]
    fn subscriber_of_an_inline_event_may_keep_it() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Arc::new(Publisher::new(Vec::new()));
        publisher.subscribe(Arc::new({
            let (seen, publisher) = (seen.clone(), Arc::downgrade(&publisher));
            move |event: &PoolEvent| {
                if event.address() == "first" {
                    let publisher = publisher.upgrade().unwrap();
                    publisher.publish_inline(&ready("emitted during the first"));
                    publisher.publish(ready("emitted then"));
                    publisher.deliver();
                }
                seen.lock().unwrap().push(event.clone());
            }
        }));
        publisher.publish_inline(&ready("first"));
        publisher.publish_inline(&ready("second"));
        let seen: Vec<_> = seen.lock().unwrap().iter().map(|event| event.address().to_owned()).collect();
        assert_eq!(seen, ["first", "emitted during the first", "emitted then", "second"]);
    }

    #[test]
    fn panic_in_an_inline_delivery_ends_it() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let publisher = Publisher::new(vec![
            Arc::new(|_: &PoolEvent| panic!("the subscriber's panic")),
            Arc::new({
                let seen = seen.clone();
                move |event: &PoolEvent| seen.lock().unwrap().push(event.address().to_owned())
            }),
        ]);
        publisher.publish_inline(&ready("first"));
        publisher.publish(ready("second"));
        publisher.publish_inline(&ready("third"));
        assert_eq!(*seen.lock().unwrap(), ["first", "second", "third"]);
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
