//! In-order delivery of events by the threads that emit them, with a limit on each thread's work for others.
//!
//! A [`Delivery`] is a queue and a *role*. A caller that emits an event queues it and then calls [`Delivery::deliver`].
//! If the role is free, the caller becomes the *deliverer*; if it is held, the caller normally leaves its events to the
//! deliverer. Events thus reach the subscribers one at a time, in the order of emission, without a task or a thread of
//! their own. Two limits bound the work:
//!
//! - `turn`: a deliverer that has delivered this many events is *tired*. The next caller that emits an event takes over
//!   the role, after the current event.
//! - `room`: callers may leave at most this many events behind. A caller whose last event is further back waits until
//!   it is nearer to the front. A slow subscriber therefore slows down the callers that emit, in proportion.
//!
//! # Invariants
//!
//! - D-1 (no event is stranded): while the role is free, each queued event is one whose emitter has yet to call
//!   `deliver`. The role becomes free only under the lock, with an empty queue. A caller that leaves its events behind
//!   has found the role held, under the same lock.
//! - D-2 (waiting callers are woken): while the role is free, no caller waits. A waiting caller is in `waiting` until
//!   the deliverer removes it, under the lock, and then gives it exactly one verdict.
//! - D-3 (the queue is bounded): each event that was left behind was at most `room` places from the front when its
//!   caller left. The queue therefore holds at most `room` events and those of the calls in progress.
//! - D-4 (a caller is held up for a bounded number of events): a waiting caller, for at most the events in front of its
//!   own, which D-3 bounds. A deliverer, for `turn` events and then for those in the queue, which D-3 bounds too: the
//!   first caller that queues another event takes over the role.
//!
//! # Interleavings
//!
//! All steps are sections under one lock, so they have a total order. A caller (left) against a deliverer (right):
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. takes the next event, or finds the queue empty and frees the role |
//! | 2. finds the role held and leaves or waits; or takes it | b. delivers, outside the lock |
//!
//! - 1, a, 2: the deliverer sees the caller's event. If a took an earlier event, the deliverer continues with this one
//!   later. If a took this event, 2 finds the role held during its delivery, or else an empty queue.
//! - a, 1, 2, where a has freed the role: 2 takes it.
//! - 1, 2, a: the event is in the queue at a, so a does not free the role.
//!
//! A tired deliverer against the caller that relieves it:
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. has delivered the last event of its turn, and marks itself as tired |
//! | 2. finds the mark, and waits | b. delivers another event, outside the lock |
//! | 3. learns that it holds the role | c. finds a waiting caller, and gives it the role |
//! | 4. delivers | d. leaves, or waits like any caller |
//!
//! The queue is not empty at c: the caller's event was still queued at 2, and only the deliverer takes events. The role
//! is held throughout, so no third caller can take it in between.
//!
//! # Race window
//!
//! A deliverer may end its turn, find no waiting caller and continue, just before a caller arrives. That caller finds
//! the mark and waits for one event. Later callers leave, because one relief is enough.
//!
//! # What may wait
//!
//! A waiting caller blocks its thread, even a thread of an async runtime, because events are emitted where nothing can
//! be awaited, such as in a `Drop`. It waits for subscribers, and for no lock. A thread inside a subscriber never
//! waits. The event that it would wait for may be the one that it is delivering, or that of another pool whose
//! deliverer waits for this thread in turn. The events that it emits may exceed `room`; only the subscriber's own
//! behaviour limits them.

mod signal;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::Event;

use crate::sync::{BriefLock, Watch, contain, thread_local};
use signal::{Signal, Verdict};

/// How many events a caller delivers or tolerates for others; see the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The number of events after which a deliverer is relieved.
    pub turn: u32,
    /// The number of events that callers may leave behind.
    pub room: u32,
}

/// A queue of events, and the role of the deliverer.
pub struct Delivery<T> {
    share: Share,
    state: BriefLock<State<T>>,
    /// Notified when a delivery that has ended may have become idle.
    change: Event,
}

struct State<T> {
    queue: VecDeque<T>,
    /// The number of delivered events, without the one that is being delivered.
    delivered: u64,
    role: Role,
    /// Ordered by `until`.
    waiting: VecDeque<Waiting>,
    /// Whether no new events are expected; see [`Delivery::end`].
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Free,
    Held,
    /// Held by a deliverer whose turn is over.
    Tired,
}

struct Waiting {
    /// The number of delivered events from which this caller may leave.
    until: u64,
    signal: Arc<Signal>,
}

/// A caller's next step.
enum Turn<T> {
    Leave,
    Wait(Arc<Signal>),
    Deliver(T),
    /// The queue is empty. `ended`: and no new events are expected.
    Done {
        ended: bool,
    },
}

thread_local! {
    /// Whether this thread is inside a subscriber.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no const block")]
    static INSIDE: Cell<bool> = Cell::new(false);
}

impl<T> Delivery<T> {
    /// Creates an empty queue.
    pub fn new(share: Share) -> Self {
        let state =
            State { queue: VecDeque::new(), delivered: 0, role: Role::Free, waiting: VecDeque::new(), ended: false };
        Self { share, state: BriefLock::new(state), change: Event::new() }
    }

    /// Queues an event. Events are delivered in the order of these calls. The caller must then call
    /// [`Delivery::deliver`] as soon as it holds no lock.
    pub fn emit(&self, event: T) {
        self.state.lock().queue.push_back(event);
    }

    /// Passes queued events to `on_event`, or leaves them to another caller; see the [module](self). A panic of
    /// `on_event` is caught, and the event counts as delivered.
    pub fn deliver(&self, on_event: impl Fn(&T)) {
        let (turn, mine) = self.arrive();
        self.take_turns(turn, mine, on_event);
    }

    /// Queues an event and delivers: [`Delivery::emit`] and [`Delivery::deliver`] in one call.
    pub fn publish(&self, event: T, on_event: impl Fn(&T)) {
        let (turn, mine) = {
            let mut state = self.state.lock();
            if state.role == Role::Free && state.queue.is_empty() {
                state.role = Role::Held;
                (Turn::Deliver(event), state.delivered + 1)
            } else {
                state.queue.push_back(event);
                state.arrive(self.share)
            }
        };
        self.take_turns(turn, mine, on_event);
    }

    fn arrive(&self) -> (Turn<T>, u64) {
        self.state.lock().arrive(self.share)
    }

    /// Performs the caller's steps until it may leave. `mine` is the number of the caller's last event.
    fn take_turns(&self, mut turn: Turn<T>, mine: u64, on_event: impl Fn(&T)) {
        loop {
            turn = match turn {
                Turn::Leave | Turn::Done { ended: false } => return,
                Turn::Done { ended: true } => {
                    self.change.notify(usize::MAX);
                    return;
                }
                Turn::Wait(signal) => match signal.wait() {
                    Verdict::Leave => return,
                    Verdict::Deliver => Turn::Deliver(self.state.lock().next()),
                },
                Turn::Deliver(event) => self.deliver_from(event, mine, &on_event),
            };
        }
    }

    /// Delivers as the deliverer, starting with `event`.
    fn deliver_from(&self, mut event: T, mine: u64, on_event: &impl Fn(&T)) -> Turn<T> {
        let inside = Inside::enter();
        let mut deliverer = Deliverer { left: self.share.turn, mine, may_wait: !inside.before };
        loop {
            // A subscriber's panic must not affect the pool: it is caught, and delivery continues.
            contain(|| on_event(&event));
            // Outside the lock, because an event may own values that are slow to drop, or an error whose drop panics.
            contain(|| drop(event));
            deliverer.left = deliverer.left.saturating_sub(1);
            let (turn, told) = self.state.lock().delivered_one(deliverer, self.share);
            for (signal, verdict) in told {
                signal.give(verdict);
            }
            match turn {
                Turn::Deliver(next) => event = next,
                other => return other,
            }
        }
    }

    /// Records that no new events are expected, so that [`Delivery::poll_ended`] may complete. Later events are still
    /// delivered.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.change.notify(usize::MAX);
    }

    /// Makes the tasks in [`Delivery::poll_ended`] check their condition again.
    pub fn look_again(&self) {
        self.change.notify(usize::MAX);
    }

    /// Returns a watch for [`Delivery::poll_ended`].
    pub fn watch(&self) -> Watch<'_> {
        Watch::new(&self.change)
    }

    /// Completes when [`Delivery::end`] was called, all events so far are delivered, and `is_over` returns true.
    /// [`Delivery::look_again`] makes it call `is_over` again.
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
        let state = self.state.lock();
        state.ended && state.queue.is_empty() && state.role == Role::Free
    }
}

impl<T> State<T> {
    /// Decides for a caller that may have queued events. Also returns the number of the last event in the queue.
    fn arrive(&mut self, share: Share) -> (Turn<T>, u64) {
        if self.role == Role::Free {
            let Some(event) = self.queue.pop_front() else { return (Turn::Leave, self.delivered) };
            self.role = Role::Held;
            return (Turn::Deliver(event), self.delivered + 1 + self.queue.len() as u64);
        }
        // The event in delivery, and those in the queue.
        let ahead = 1 + self.queue.len() as u64;
        let mine = self.delivered + ahead;
        let relieves = self.role == Role::Tired && self.waiting.is_empty() && !self.queue.is_empty();
        let too_many = ahead > share.room.into();
        // A thread inside a subscriber must not wait: another caller, or its own delivery, may be waiting for it.
        let may_wait = !Inside::is_entered();
        if !(relieves || too_many) || !may_wait {
            return (Turn::Leave, mine);
        }
        (self.wait(mine, share), mine)
    }

    /// Makes the caller whose last event has the number `mine` wait, behind callers with earlier events.
    fn wait(&mut self, mine: u64, share: Share) -> Turn<T> {
        let signal = Arc::new(Signal::new());
        // Until half of the room is free, so that the caller does not wait again with its next event.
        let until = mine.saturating_sub(u64::from(share.room / 2));
        let place = self.waiting.partition_point(|waiting| waiting.until <= until);
        self.waiting.insert(place, Waiting { until, signal: signal.clone() });
        Turn::Wait(signal)
    }

    /// Decides for a deliverer that has delivered an event. Also returns the verdicts to give outside the lock.
    fn delivered_one(&mut self, deliverer: Deliverer, share: Share) -> (Turn<T>, Told) {
        self.delivered += 1;
        if self.queue.is_empty() {
            return (Turn::Done { ended: self.ended }, self.free_the_role());
        }
        if deliverer.left == 0 {
            if let Some(successor) = self.waiting.pop_front() {
                self.role = Role::Held;
                let stays = deliverer.may_wait && self.delivered + u64::from(share.room) < deliverer.mine;
                let turn = if stays { self.wait(deliverer.mine, share) } else { Turn::Leave };
                return (turn, vec![(successor.signal, Verdict::Deliver)]);
            }
            self.role = Role::Tired;
        }
        let near = self.waiting.iter().take_while(|waiting| waiting.until <= self.delivered).count();
        let told = self.let_go(near);
        (Turn::Deliver(self.next()), told)
    }

    fn free_the_role(&mut self) -> Told {
        self.role = Role::Free;
        self.let_go(self.waiting.len())
    }

    /// Removes the first waiting callers, which may leave. Usually there are none.
    #[inline]
    fn let_go(&mut self, count: usize) -> Told {
        if count == 0 {
            return Told::new();
        }
        self.waiting.drain(..count).map(|waiting| (waiting.signal, Verdict::Leave)).collect()
    }

    /// Returns the next event for the deliverer, which knows that there is one.
    fn next(&mut self) -> T {
        self.queue.pop_front().expect("BUG: the deliverer continues without an event")
    }
}

/// Verdicts for the callers that a deliverer has removed from `waiting`.
type Told = Vec<(Arc<Signal>, Verdict)>;

/// The state of a deliverer.
#[derive(Clone, Copy)]
struct Deliverer {
    /// The number of events left in its turn.
    left: u32,
    /// The number of its last event.
    mine: u64,
    /// False inside another delivery's subscriber.
    may_wait: bool,
}

/// Marks the thread as inside a subscriber. May be nested.
struct Inside {
    before: bool,
}

impl Inside {
    fn enter() -> Self {
        Self { before: INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) }
    }

    /// Returns whether the thread is inside a subscriber. A thread that is ending has no locals any more and counts as
    /// inside, so that it does not wait.
    fn is_entered() -> bool {
        INSIDE.try_with(Cell::get).unwrap_or(true)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.before));
    }
}
