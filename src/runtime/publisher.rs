//! Events on their way from the core to their subscribers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use arc_swap::ArcSwap;
use crossbeam::queue::SegQueue;

use crate::event::PoolEvent;

/// Receives the events of a pool.
///
/// Events come one at a time and in order, on whichever thread has just done something with the pool, never under a
/// lock of the pool. A subscriber may use the pool; the events that this brings about come after the present one. It
/// should be quick, because whoever delivers goes on for as long as others emit. A panic in a subscriber is caught and
/// the event counts as delivered.
///
/// Every `Fn(&PoolEvent)` is a subscriber.
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

/// A queue of events, and whom they are for. Whoever emits an event also delivers, unless somebody is at it already.
pub(super) struct Publisher {
    subscribers: ArcSwap<Subscribers>,
    listened_to: AtomicBool,
    queue: SegQueue<PoolEvent>,
    /// How many events were emitted and not yet delivered. Below zero for an instant when an event is delivered between
    /// its being queued and its being counted.
    undelivered: AtomicIsize,
    delivering: AtomicBool,
}

impl Publisher {
    pub(super) fn new(subscribers: Subscribers) -> Self {
        Self {
            listened_to: AtomicBool::new(!subscribers.is_empty()),
            subscribers: ArcSwap::from_pointee(subscribers),
            queue: SegQueue::new(),
            undelivered: AtomicIsize::new(0),
            delivering: AtomicBool::new(false),
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

    pub(super) fn emit(&self, event: PoolEvent) {
        self.queue.push(event);
        // ORD: Release; pairs with the Acquire in `deliver`: whoever sees the count finds the event in the queue.
        self.undelivered.fetch_add(1, Ordering::Release);
    }

    /// Whether all events emitted so far have been delivered, and nobody is at it.
    pub(super) fn is_idle(&self) -> bool {
        // ORD: Acquire; pairs with the AcqRel in `deliver`. `delivering` first: while it is set there may be an event
        // that is not counted any more and not delivered yet.
        !self.delivering.load(Ordering::Acquire) && self.undelivered.load(Ordering::Acquire) <= 0
    }

    /// Orders what the caller has stored before with the deliveries of others: whoever ends one from now on sees it, and
    /// the caller sees the end of every earlier one.
    pub(super) fn order_deliveries(&self) {
        // ORD: AcqRel; meets the swap that ends a delivery in the order of the flag's changes, and whichever comes second
        // acquires what the first has released. A store and a load would not do: each side could miss the other's.
        self.delivering.fetch_or(false, Ordering::AcqRel);
    }

    /// Delivers what is there, unless somebody is at it already, who then delivers ours too:
    ///
    /// | we | they |
    /// | --- | --- |
    /// | 1. push, and count | a. find the queue empty |
    /// | 2. swap `delivering` to true; it was true: leave | b. swap `delivering` to false |
    /// | | c. read the count |
    ///
    /// As 2 found true, it came before b, and b reads what 2 has written. So c sees 1.
    pub(super) fn deliver(&self) {
        // ORD: Acquire; pairs with the Release in `emit`.
        while self.undelivered.load(Ordering::Acquire) > 0 {
            // ORD: AcqRel; as above.
            if self.delivering.swap(true, Ordering::AcqRel) {
                return;
            }
            while let Some(event) = self.queue.pop() {
                for subscriber in self.subscribers.load().iter() {
                    // A subscriber's panic is not the pool's; swallowing it keeps the events going.
                    let _ = catch_unwind(AssertUnwindSafe(|| subscriber.on_event(&event)));
                }
                // Relaxed: only counts down what this thread has seen.
                self.undelivered.fetch_sub(1, Ordering::Relaxed);
            }
            // ORD: AcqRel; as above.
            self.delivering.swap(false, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
