//! Passing events on in order, by the threads that emit them, with a bound on what each does for others.
//!
//! A [`Delivery`] is a queue and a *role*. A caller that emits an event queues it and then calls [`Delivery::deliver`]: a
//! caller that finds the role free becomes the *deliverer*, and one that finds it held normally leaves its events to the
//! deliverer. So events reach the subscribers one at a time, in the order of emission, without a task or a thread for
//! them. Two limits keep this bounded:
//!
//! - `turn`: a deliverer that has delivered this many events is *tired*. The next caller that comes with an event takes
//!   the role over from it, after the present event.
//! - `room`: callers may leave this many events behind. A caller whose last event has a place behind that waits until
//!   it has come nearer to the front, so a slow subscriber slows the callers that emit, in proportion.
//!
//! # Invariants
//!
//! - D-1 (nothing is stranded): while the role is free, each queued event is one whose emitter has yet to call
//!   `deliver`. The role becomes free only under the lock, with an empty queue; and a caller that leaves its events
//!   behind has found the role held, under the same lock.
//! - D-2 (waiting callers are told): while the role is free, no caller waits. A waiting caller is in `waiting` until the
//!   deliverer takes it out, under the lock, and then tells it once what to do.
//! - D-3 (the queue is bounded): each event that was left behind was at most `room` places from the front when its
//!   caller left. So the queue holds at most `room` events and those of the calls in progress.
//! - D-4 (a caller is held for a bounded number of events): a waiting caller, for at most the events in front of its
//!   own, which D-3 bounds; a deliverer, for `turn` events, and then for as many as are queued, for which D-3 holds,
//!   because the first caller that queues another one relieves it.
//!
//! # Interleavings
//!
//! All steps are sections under the one lock, so they have an order. A caller (left) against a deliverer (right):
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. takes the next event, or finds the queue empty and frees the role |
//! | 2. finds the role held, and leaves or waits; or takes it | b. delivers, outside of the lock |
//!
//! - 1, a, 2: the deliverer finds the event. If there was another one, it goes on; if it was this one, 2 finds either the
//!   role held, while the event is being delivered, or an empty queue.
//! - a, 1, 2, where a has freed the role: 2 takes it.
//! - 1, 2, a: the event is in the queue at a, so the role is not freed there.
//!
//! A tired deliverer against a caller that relieves it:
//!
//! | caller | deliverer |
//! | --- | --- |
//! | 1. queues its event | a. is done with the last event of its turn, and marks itself as tired |
//! | 2. finds the mark, and waits | b. delivers another event, outside of the lock |
//! | 3. is told that the role is its own | c. finds a caller that waits, and gives it the role |
//! | 4. delivers | d. leaves, or waits as any caller does |
//!
//! The queue is not empty at c: the caller's event was not taken at 2, and only the deliverer takes events. The role is
//! held all the time, so no third caller comes in between.
//!
//! # Race window
//!
//! A deliverer may end its turn, find no caller that waits and go on, an instant before a caller comes. That caller finds
//! the mark and waits for one event. Callers that come after it leave, because one relief is enough.
//!
//! # What may wait
//!
//! A caller that waits blocks its thread, also one of an async runtime: an event is emitted where nothing can be
//! awaited, as in a `Drop`. It waits for subscribers, and for no lock. A thread that is inside a subscriber never waits:
//! the event that it would wait for may be the one that it is delivering, or that of another pool whose deliverer waits
//! for it in turn. What it emits goes past `room`, and is limited by what the subscriber does.

mod signal;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::Event;

use crate::sync::{BriefLock, Watch, contain, thread_local};
use signal::{Signal, Verdict};

/// How much a caller does for others, in events; see the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// After how many events a deliverer is to be relieved.
    pub turn: u32,
    /// How many events callers may leave behind.
    pub room: u32,
}

/// A queue of events, and the role of their deliverer.
pub struct Delivery<T> {
    share: Share,
    state: BriefLock<State<T>>,
    /// Notified when an ended delivery may have become idle.
    change: Event,
}

struct State<T> {
    queue: VecDeque<T>,
    /// How many events were delivered. The event that is being delivered does not count.
    delivered: u64,
    role: Role,
    /// In the order of `until`.
    waiting: VecDeque<Waiting>,
    /// Whether nothing new is to come; see [`Delivery::end`].
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Free,
    Held,
    /// Held by a deliverer that has had its turn.
    Tired,
}

struct Waiting {
    /// How many events must have been delivered before this caller may leave.
    until: u64,
    signal: Arc<Signal>,
}

/// What a caller does next.
enum Turn<T> {
    Leave,
    Wait(Arc<Signal>),
    Deliver(T),
    /// There is nothing left. `ended`: and nothing new is to come.
    Done {
        ended: bool,
    },
}

thread_local! {
    /// Whether the thread is inside of a subscriber.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no const block")]
    static INSIDE: Cell<bool> = Cell::new(false);
}

impl<T> Delivery<T> {
    /// An empty queue.
    pub fn new(share: Share) -> Self {
        let state =
            State { queue: VecDeque::new(), delivered: 0, role: Role::Free, waiting: VecDeque::new(), ended: false };
        Self { share, state: BriefLock::new(state), change: Event::new() }
    }

    /// Queues an event. The order of these calls is the order of delivery. The caller must call [`Delivery::deliver`]
    /// soon, where it holds no lock.
    pub fn emit(&self, event: T) {
        self.state.lock().queue.push_back(event);
    }

    /// Passes queued events to `on_event`, or makes sure that another caller does; see the [module](self). A panic of
    /// `on_event` is caught, and the event counts as delivered.
    pub fn deliver(&self, on_event: impl Fn(&T)) {
        let (turn, mine) = self.arrive();
        self.take_turns(turn, mine, on_event);
    }

    /// Queues an event and delivers: [`Delivery::emit`] and [`Delivery::deliver`] in one.
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

    /// Does what the caller is to do, until it is to leave. `mine`: the number of the caller's last event.
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

    /// Delivers as the deliverer, beginning with `event`.
    fn deliver_from(&self, mut event: T, mine: u64, on_event: &impl Fn(&T)) -> Turn<T> {
        let inside = Inside::enter();
        let mut deliverer = Deliverer { left: self.share.turn, mine, may_wait: !inside.before };
        loop {
            // A subscriber's panic is not the pool's; swallowing it keeps the events going.
            contain(|| on_event(&event));
            // Outside of the lock: an event may own what takes long to drop. It may also own an error of others, whose drop
            // may panic as well.
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

    /// Notes that nothing new is to come, so that [`Delivery::ended`] may complete. What is emitted in spite of that is
    /// delivered.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.change.notify(usize::MAX);
    }

    /// Makes the tasks that wait for the end look again at what else they wait for.
    pub fn look_again(&self) {
        self.change.notify(usize::MAX);
    }

    /// A watch for [`Delivery::poll_ended`].
    pub fn watch(&self) -> Watch<'_> {
        Watch::new(&self.change)
    }

    /// Completes when [`Delivery::end`] was called, all events so far were delivered, and `is_over` says that what else
    /// the caller waits for has come; [`Delivery::look_again`] asks it once more.
    pub fn poll_ended(
        &self,
        change: &mut Watch<'_>,
        context: &mut Context<'_>,
        is_over: impl Fn() -> bool,
    ) -> Poll<()> {
        // What else there is comes first: events that were emitted before it came are delivered before the end.
        change.poll(context, || is_over() && self.has_ended())
    }

    fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.ended && state.queue.is_empty() && state.role == Role::Free
    }
}

impl<T> State<T> {
    /// Decides for a caller that may have queued events, and tells the number of the last event in the queue.
    fn arrive(&mut self, share: Share) -> (Turn<T>, u64) {
        if self.role == Role::Free {
            let Some(event) = self.queue.pop_front() else { return (Turn::Leave, self.delivered) };
            self.role = Role::Held;
            return (Turn::Deliver(event), self.delivered + 1 + self.queue.len() as u64);
        }
        // The one that is being delivered, and those in the queue.
        let ahead = 1 + self.queue.len() as u64;
        let mine = self.delivered + ahead;
        let relieves = self.role == Role::Tired && self.waiting.is_empty() && !self.queue.is_empty();
        let too_many = ahead > share.room.into();
        // A thread inside of a subscriber may not wait for any: it may be the one that is waited for.
        let may_wait = !Inside::is_entered();
        if !(relieves || too_many) || !may_wait {
            return (Turn::Leave, mine);
        }
        (self.wait(mine, share), mine)
    }

    /// Lets the caller whose last event is number `mine` wait, behind those whose events are in front of that one.
    fn wait(&mut self, mine: u64, share: Share) -> Turn<T> {
        let signal = Arc::new(Signal::new());
        // With half of the room free, so that a caller does not come to wait again with its next event.
        let until = mine.saturating_sub(u64::from(share.room / 2));
        let place = self.waiting.partition_point(|waiting| waiting.until <= until);
        self.waiting.insert(place, Waiting { until, signal: signal.clone() });
        Turn::Wait(signal)
    }

    /// Decides for a deliverer that has delivered an event, and what other callers are to be told, outside of the lock.
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

    /// Takes the first waiting callers out, to be told that they may leave. Most often there are none.
    #[inline]
    fn let_go(&mut self, count: usize) -> Told {
        if count == 0 {
            return Told::new();
        }
        self.waiting.drain(..count).map(|waiting| (waiting.signal, Verdict::Leave)).collect()
    }

    /// The next event, for the deliverer, which knows that there is one.
    fn next(&mut self) -> T {
        self.queue.pop_front().expect("BUG: the deliverer goes on without an event")
    }
}

/// The callers that a deliverer has taken out of `waiting`, and what to tell them.
type Told = Vec<(Arc<Signal>, Verdict)>;

/// Where a deliverer stands.
#[derive(Clone, Copy)]
struct Deliverer {
    /// How many events its turn still has.
    left: u32,
    /// The number of its last event.
    mine: u64,
    /// Not while it is inside of another delivery's subscriber.
    may_wait: bool,
}

/// Marks the thread as inside of a subscriber. May be nested.
struct Inside {
    before: bool,
}

impl Inside {
    fn enter() -> Self {
        Self { before: INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) }
    }

    /// A thread that is ending has no locals any more, and counts as inside: it does not wait.
    fn is_entered() -> bool {
        INSIDE.try_with(Cell::get).unwrap_or(true)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.before));
    }
}
