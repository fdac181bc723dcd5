//! In-order delivery of events by the threads that emit them, with a limit on the work that each thread does for other
//! threads.
//!
//! No task or thread is dedicated to events. A [`Delivery`] delivers an event in one of two ways:
//!
//! - *Inline* ([`Delivery::deliver_inline`]): the caller calls the subscribers itself, at once and without a lock. This
//!   is for frequent events. Each caller delivers its own events, so two callers may be inside the subscribers at the
//!   same time, and a slow subscriber delays only its own caller.
//! - From the *queue* ([`Delivery::publish`], or [`Delivery::emit`] and [`Delivery::deliver`]): this is for all other
//!   events, which may be emitted under a lock, and for every event that is emitted by a call from inside a subscriber.
//!   These events are delivered one at a time, in order of emission.
//!
//! # The order
//!
//! Event A *precedes* event B in two cases: the call that emits A happens before the call that emits B, or B is emitted
//! inside the delivery of A. Then the delivery of A finishes before the delivery of B begins. Other events are
//! unordered, and may be delivered at the same time.
//!
//! This is the order that a pool needs. A check-out's events are emitted one after the other. So are a connection's
//! events, because a thread passes the connection on only after it has emitted its event. When an event of the pool
//! itself precedes another event, the later event is emitted by a thread that has seen the change to the pool.
//!
//! A single word, `busy`, keeps the two ways in order. It is true if and only if an event is queued or being delivered
//! from the queue. It changes only under the queue's lock. A caller delivers inline if `busy` is false. If it is true,
//! the caller first waits for the events that are queued at that time ([`Delivery::deliver_inline`]). So frequent
//! events never enter the queue, and the queue empties no matter how many callers emit such events. In the steady
//! state, callers do not deliver each other's events.
//!
//! The four cases in which A precedes B:
//!
//! - Both inline: the call that emits A returns only after A is delivered.
//! - A inline, B queued: the same holds. If B is emitted inside A's delivery, see "Embargoes" below.
//! - Both queued: the queue keeps the order of emission, and delivers one event at a time.
//! - A queued, B inline. This is the case that needs `busy`:
//!
//! | A's emitter, and its deliverer | B's caller |
//! | --- | --- |
//! | 1. queues A and raises `busy`, under the lock | |
//! | 2. passes on what A reports, for example by pushing the connection (Release) | a. takes it over (Acquire) |
//! | 3. delivers A | b. reads `busy` (Acquire) |
//! | 4. finds the queue empty, and lowers `busy` (Release), under the lock | c. delivers B |
//!
//! Step 1 happens before step b, because of steps 2 and a. So step b reads the value that step 1 stored, or a later
//! value (coherence; the store in step 1 can be relaxed). If step b reads true, the caller goes to the queue, where A
//! comes before it. If step b reads false, it reads the value that step 4 stored, or a later value. The Release in step
//! 4 and the Acquire in step b order the delivery of A before step c. With a weaker ordering at step 4 or at step b,
//! B's subscriber might not see the writes of A's subscriber.
//!
//! # Embargoes
//!
//! An event that is emitted inside an inline delivery is queued, and must not be delivered before that delivery has
//! finished. Another thread may hold the role of deliverer. So the queued event is placed under an *embargo*:
//!
//! | inline delivery | deliverer |
//! | --- | --- |
//! | 1. emits B inside the subscriber: queues it with an embargo | a. takes the next event; if its embargo is not lifted, reserves the role for its thread and leaves |
//! | 2. returns from the subscribers | b. delivers |
//! | 3. lifts the embargo, and takes the role if it is reserved | |
//!
//! - 1, a, 3: the role is reserved at step a. At step 3 the thread takes it, and B is the first event in the queue.
//! - 1, 3, a: the embargo has been lifted before step a, so the deliverer delivers B.
//!
//! The thread never waits between steps 1 and 3, because it is inside a subscriber. So the role stays reserved while
//! the subscriber runs, and any caller that waits is waiting for the subscriber.
//!
//! # The queue
//!
//! The queue has a *role*. A caller that emits an event queues it and then calls [`Delivery::deliver`]. If the role is
//! free, the caller becomes the *deliverer*; if it is held, the caller normally leaves its events to the deliverer. Two
//! limits bound the work:
//!
//! - `turn`: a deliverer that has delivered this many events is *tired*. The next caller that emits an event takes over
//!   the role, after the current event.
//! - `room`: callers may leave at most this many events behind. A caller whose last event is further back waits until
//!   the event is nearer to the front. A slow subscriber therefore slows down the emitting callers in proportion. A
//!   caller that is about to deliver inline leaves no events behind: it waits until all earlier events are delivered.
//!
//! # Invariants
//!
//! - D-1 (no event is stranded): while the role is free, the emitter of each queued event has yet to call `deliver` or
//!   to finish its inline delivery. The role becomes free only under the lock, with an empty queue. A caller that
//!   leaves its events behind has found the role held or reserved, under the same lock.
//! - D-2 (waiting callers are woken): while the role is free, no caller is waiting. A waiting caller stays in `waiting`
//!   until the deliverer removes it under the lock. The deliverer then gives it exactly one verdict.
//! - D-3 (the queue is bounded): each event that was left behind was at most `room` positions from the front when its
//!   caller left. The queue therefore holds at most `room` events, plus the events from the calls in progress.
//! - D-4 (a caller is delayed by a bounded number of events): a waiting caller is delayed by at most the events in
//!   front of its own, which D-3 bounds. A deliverer is delayed by `turn` events and then by at most the queued events,
//!   which D-3 also bounds, because the first caller that queues another event takes over the role. A caller that
//!   delivers inline while the queue is idle is delayed only by its own event.
//! - D-5 (the flag): at the end of each section under the lock, `busy` is false if and only if the queue is empty and
//!   the role is free.
//!
//! # Interleavings in the queue
//!
//! All steps are sections under one lock, so they have a total order. A caller (left) races with a deliverer (right):
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. takes the next event, or finds the queue empty and frees the role |
//! | 2. takes the role or, if it is already held, leaves or waits | b. delivers, outside the lock |
//!
//! - 1, a, 2: the deliverer sees the caller's event. If step a took an earlier event, the deliverer reaches this event
//!   later. If step a took this event, step 2 finds the role held while the event is being delivered, or an empty queue
//!   afterwards.
//! - a, 1, 2, where step a has freed the role: step 2 takes it.
//! - 1, 2, a: the event is in the queue at step a, so step a does not free the role.
//!
//! A tired deliverer races with the caller that relieves it:
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. has delivered the last event of its turn, and marks itself as tired |
//! | 2. finds the mark, and waits | b. delivers another event, outside the lock |
//! | 3. learns that it holds the role | c. finds a waiting caller, and gives it the role |
//! | 4. delivers | d. leaves, or waits like any caller |
//!
//! The queue is not empty at step c, because the caller's event was still queued at step 2 and only the deliverer takes
//! events. The role is held throughout, so no third caller can take it.
//!
//! # Race window
//!
//! A deliverer may end its turn, find no waiting caller and continue, just before a caller arrives. That caller finds
//! the deliverer marked as tired and waits for one event. Later callers leave, because one successor is enough.
//!
//! # What may wait
//!
//! A waiting caller blocks its thread, even a thread of an async runtime, because events are emitted where nothing can
//! be awaited, such as in a `Drop`. It waits for subscribers, not for a lock. A thread inside a subscriber never waits,
//! because it could be waiting for the very event that it is delivering, or for an event from another pool whose
//! deliverer is waiting for this thread. So a call from inside a subscriber puts all its events into the queue. These
//! events may exceed `room`; only the subscriber itself limits how many there are.

mod inside;
mod queue;
mod signal;

use std::task::{Context, Poll};

use event_listener::Event;

use crate::pool::sync::atomic::{AtomicBool, Ordering};
use crate::pool::sync::{BriefLock, Watch, contain, unless_mutant};
use inside::Inside;
use queue::{Caller, Next, Queue};
use signal::Verdict;

/// How many events a caller delivers for other callers, or leaves to them; see the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The number of events after which a deliverer is relieved.
    pub turn: u32,
    /// The number of events that callers may leave behind.
    pub room: u32,
}

/// No embargo: the event was not emitted inside an inline delivery.
const NO_EMBARGO: u64 = 0;

/// The delivery of a pool's events: inline, or from a queue by the caller that has the role of deliverer.
pub struct Delivery<T> {
    share: Share,
    /// Whether an event is queued or being delivered from the queue (D-5). It hardly ever changes, so every CPU core
    /// can keep a copy.
    busy: AtomicBool,
    queue: BriefLock<Queue<T>>,
    /// Notified when the delivery may have become idle after [`Delivery::end`] was called.
    change: Event,
}

impl<T> Delivery<T> {
    /// Creates an empty queue.
    pub fn new(share: Share) -> Self {
        let queue = BriefLock::new(Queue::new());
        Self { share, busy: AtomicBool::new(false), queue, change: Event::new() }
    }

    /// Queues an event. Queued events are delivered in the order of these calls. The caller must then call
    /// [`Delivery::deliver`] as soon as it no longer holds a lock.
    pub fn emit(&self, event: T) {
        self.locked(|queue| queue.push(event, self.address()));
    }

    /// Passes queued events to `on_event`, or leaves them to another caller; see the [module](self). A panic in
    /// `on_event` is caught, and the event counts as delivered.
    ///
    /// Inside an inline delivery, leaves the events in the queue until that delivery finishes, so that a subscriber is
    /// not called recursively.
    pub fn deliver(&self, on_event: impl Fn(&T)) {
        if !inside::is_inline_in(self.address()) {
            let (next, caller) = self.locked(|queue| queue.arrive(self.share.room));
            self.take_steps(next, caller, &on_event);
        }
    }

    /// Queues an event and delivers: [`Delivery::emit`] and [`Delivery::deliver`] in one call.
    pub fn publish(&self, event: T, on_event: impl Fn(&T)) {
        if inside::is_inline_in(self.address()) {
            return self.emit(event);
        }
        let (next, caller) = self.locked(|queue| {
            queue.push(event, self.address());
            queue.arrive(self.share.room)
        });
        self.take_steps(next, caller, &on_event);
    }

    /// Passes an event to `on_event` after all events that precede it, and before this call returns. A panic in
    /// `on_event` is caught. The caller must not hold a lock.
    ///
    /// Lock-free while no event is queued: one load of a word that hardly ever changes. Otherwise, waits until the
    /// events that are already queued are delivered, and may deliver them itself, like [`Delivery::deliver`].
    ///
    /// Inside a subscriber, it instead queues a clone of the event, which is delivered after the current event.
    #[inline]
    pub fn deliver_inline(&self, event: &T, on_event: impl Fn(&T))
    where
        T: Clone,
    {
        // ORD: Acquire; pairs with the Release in `note`: the deliveries of all preceding events have finished.
        if self.busy.load(unless_mutant("idle_acquires_nothing", Ordering::Acquire)) {
            self.catch_up(&on_event);
        }
        // A subscriber's panic must not affect the pool.
        match inside::inline(self.address(), || _ = contain(|| on_event(event))) {
            Some(NO_EMBARGO) => {}
            Some(embargo) => self.lift(embargo, on_event),
            None => self.publish_inside(event, on_event),
        }
    }

    /// Waits until the events that are already queued are delivered. This call may deliver them itself. Returns at once
    /// inside a subscriber.
    #[cold]
    fn catch_up(&self, on_event: &impl Fn(&T)) {
        if !inside::is_inside() {
            let (next, caller) = self.locked(|queue| queue.arrive(0));
            self.take_steps(next, caller, on_event);
        }
    }

    #[cold]
    fn publish_inside(&self, event: &T, on_event: impl Fn(&T))
    where
        T: Clone,
    {
        self.publish(event.clone(), on_event);
    }

    /// Lifts an embargo, and delivers the events that were emitted inside the inline delivery.
    #[cold]
    fn lift(&self, embargo: u64, on_event: impl Fn(&T)) {
        let (next, caller) = self.locked(|queue| queue.lift(embargo, self.share.room));
        self.take_steps(next, caller, &on_event);
    }

    /// Performs the caller's steps until it may leave.
    fn take_steps(&self, mut next: Next<T>, caller: Caller, on_event: &impl Fn(&T)) {
        loop {
            next = match next {
                Next::Leave | Next::Done { ended: false } => return,
                Next::Done { ended: true } => {
                    self.change.notify(usize::MAX);
                    return;
                }
                Next::Wait(signal) => match signal.wait() {
                    Verdict::Leave => return,
                    Verdict::Deliver => self.locked(|queue| queue.succeed(caller)),
                },
                Next::Deliver(event) => self.deliver_from(event, caller, on_event),
            };
        }
    }

    /// Delivers as the deliverer, starting with `event`.
    fn deliver_from(&self, mut event: T, caller: Caller, on_event: &impl Fn(&T)) -> Next<T> {
        let inside = Inside::enter();
        let mut deliverer = caller.with_turn(self.share.turn, inside.is_outermost());
        loop {
            // A subscriber's panic must not affect the pool: it is caught, and delivery continues.
            contain(|| on_event(&event));
            // Dropped outside the lock, because an event may own values that are slow to drop, or an error whose drop
            // panics.
            contain(|| drop(event));
            deliverer.left = deliverer.left.saturating_sub(1);
            let (next, told) = self.locked(|queue| queue.delivered_one(deliverer));
            for (signal, verdict) in told {
                signal.give(verdict);
            }
            match next {
                Next::Deliver(following) => event = following,
                other => return other,
            }
        }
    }

    /// Runs a section under the lock.
    fn locked<R>(&self, section: impl FnOnce(&mut Queue<T>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = section(&mut queue);
        self.note(&queue);
        result
    }

    /// Sets the flag at the end of a section (D-5). The caller holds the lock.
    fn note(&self, queue: &Queue<T>) {
        // Relaxed: it changes only under the lock.
        let was_idle = !self.busy.load(Ordering::Relaxed);
        if queue.is_idle() == was_idle {
            return;
        }
        if was_idle {
            // Relaxed: nothing is published. A caller that knows of the event reads this value or a later one.
            self.busy.store(true, Ordering::Relaxed);
        } else {
            // ORD: Release; pairs with the Acquire in `deliver_inline`; publishes the end of all deliveries so far.
            self.busy.store(false, unless_mutant("idle_publishes_nothing", Ordering::Release));
        }
    }

    /// Returns the address that identifies this delivery.
    #[inline]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Notes that no new events are expected, so that [`Delivery::poll_ended`] may complete. Later events are still
    /// delivered.
    pub fn end(&self) {
        self.queue.lock().ended = true;
        self.change.notify(usize::MAX);
    }

    /// Makes the tasks that are waiting in [`Delivery::poll_ended`] check their condition again.
    pub fn look_again(&self) {
        self.change.notify(usize::MAX);
    }

    /// Returns a watch for [`Delivery::poll_ended`].
    pub fn watch(&self) -> Watch<'_> {
        Watch::new(&self.change)
    }

    /// Completes once [`Delivery::end`] has been called, all events queued so far have been delivered, and `is_over`
    /// returns true. [`Delivery::look_again`] makes it call `is_over` again.
    ///
    /// `is_over` must not become true until all inline deliveries that should precede the end have finished.
    pub fn poll_ended(
        &self,
        change: &mut Watch<'_>,
        context: &mut Context<'_>,
        is_over: impl Fn() -> bool,
    ) -> Poll<()> {
        // `is_over` comes first: events that were emitted before it became true are delivered before the end.
        change.poll(context, || is_over() && self.has_ended())
    }

    fn has_ended(&self) -> bool {
        self.queue.lock().has_ended()
    }
}
