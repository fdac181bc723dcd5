//! The queue of events, and each caller's next step. Everything here runs under the delivery's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use super::NO_EMBARGO;
use super::inside;
use super::signal::{Signal, Verdict};

pub(super) struct Queue<T> {
    pub(super) events: VecDeque<QueuedEvent<T>>,
    /// The number of events queued so far.
    emitted: u64,
    /// The number of delivered events, not counting the event that is being delivered.
    delivered: u64,
    role: Role,
    /// Ordered by `until`.
    waiting: VecDeque<WaitingCaller>,
    /// The embargoes that have not been lifted yet.
    embargoes: Vec<u64>,
    last_embargo: u64,
    /// Whether no new events are expected; see [`Delivery::end`](super::Delivery::end).
    pub(super) ended: bool,
}

pub(super) struct QueuedEvent<T> {
    event: T,
    /// The inline delivery that must finish before this event is delivered, or [`NO_EMBARGO`].
    embargo: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Free,
    Held,
    /// Held by a deliverer whose turn has ended.
    Tired,
    /// Reserved for the thread whose inline delivery has this embargo. The thread takes the role when its delivery has
    /// finished.
    Reserved(u64),
}

struct WaitingCaller {
    /// The number of delivered events at which this caller may leave.
    until: u64,
    signal: Arc<Signal>,
}

pub(super) enum Next<T> {
    Leave,
    Wait(Arc<Signal>),
    Deliver(T),
    /// The queue is empty. `ended` says whether no new events are expected.
    Done {
        ended: bool,
    },
}

/// A caller in the queue, and its share of the work.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    /// The number of the last event that the caller waits for.
    mine: u64,
    /// The number of events that the caller may leave behind.
    room: u32,
    /// The number of events left in its turn as a deliverer.
    pub(super) left: u32,
    /// False inside a subscriber.
    may_wait: bool,
}

impl Caller {
    /// Begins the caller's turn as a deliverer. `may_wait` is false inside another delivery's subscriber.
    pub(super) fn with_turn(self, turn: u32, may_wait: bool) -> Self {
        Self { left: turn, may_wait, ..self }
    }

    fn is_behind(self, delivered: u64) -> bool {
        delivered + u64::from(self.room) < self.mine
    }
}

/// Verdicts for the callers that a deliverer has removed from `waiting`.
pub(super) type Told = Vec<(Arc<Signal>, Verdict)>;

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::new(),
            emitted: 0,
            delivered: 0,
            role: Role::Free,
            waiting: VecDeque::new(),
            embargoes: Vec::new(),
            last_embargo: NO_EMBARGO,
            ended: false,
        }
    }

    /// Returns whether no event is queued or being delivered.
    pub(super) fn is_idle(&self) -> bool {
        self.events.is_empty() && self.role == Role::Free
    }

    /// Returns whether no new events are expected and none are left.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.events.is_empty() && self.role == Role::Free
    }

    /// Queues an event emitted by the calling thread, which may be delivering inline for the `Delivery` at this
    /// address.
    pub(super) fn push(&mut self, event: T, address: usize) {
        let embargo = inside::embargo_of(address, || {
            self.last_embargo += 1;
            self.embargoes.push(self.last_embargo);
            self.last_embargo
        });
        self.events.push_back(QueuedEvent { event, embargo });
        self.emitted += 1;
    }

    /// Decides the next step of a caller that waits for all events so far except the last `room`.
    pub(super) fn arrive(&mut self, room: u32) -> (Next<T>, Caller) {
        // A thread inside a subscriber must not wait, because another caller, or its own delivery, may be waiting for
        // it.
        let caller = Caller { mine: self.emitted, room, left: 0, may_wait: !inside::is_inside() };
        if self.role == Role::Free {
            return (if self.events.is_empty() { Next::Leave } else { self.go_on(caller) }, caller);
        }
        let relieves = self.role == Role::Tired && self.waiting.is_empty() && !self.events.is_empty();
        let waits = caller.may_wait && (relieves || caller.is_behind(self.delivered));
        (if waits { self.wait(caller) } else { Next::Leave }, caller)
    }

    /// Lifts an embargo, and decides the next step of the thread whose inline delivery has finished.
    pub(super) fn lift(&mut self, embargo: u64, room: u32) -> (Next<T>, Caller) {
        self.embargoes.retain(|present| *present != embargo);
        if self.role == Role::Reserved(embargo) {
            self.role = Role::Free;
        }
        self.arrive(room)
    }

    /// Adds the caller to `waiting`, behind the callers with earlier events.
    fn wait(&mut self, caller: Caller) -> Next<T> {
        let signal = Arc::new(Signal::new());
        // Waits until half of the room is free, so that the caller does not have to wait again after its next event.
        let until = caller.mine.saturating_sub(u64::from(caller.room / 2));
        let place = self.waiting.partition_point(|waiting| waiting.until <= until);
        self.waiting.insert(place, WaitingCaller { until, signal: signal.clone() });
        Next::Wait(signal)
    }

    fn leave_or_wait(&mut self, caller: Caller) -> Next<T> {
        if caller.may_wait && caller.is_behind(self.delivered) { self.wait(caller) } else { Next::Leave }
    }

    /// Decides the next step of a caller that has the role, or finds it free while there is an event in the queue. The
    /// caller delivers the event, unless it must reserve the role for the thread that emitted it.
    fn go_on(&mut self, caller: Caller) -> Next<T> {
        let embargo = self.events.front().expect("BUG: the deliverer continues without an event").embargo;
        if self.embargoes.contains(&embargo) {
            self.role = Role::Reserved(embargo);
            return self.leave_or_wait(caller);
        }
        if self.role == Role::Free {
            self.role = Role::Held;
        }
        Next::Deliver(self.next())
    }

    /// Decides the next step of a deliverer that has delivered an event. Also returns the verdicts to give outside the
    /// lock.
    pub(super) fn delivered_one(&mut self, deliverer: Caller) -> (Next<T>, Told) {
        self.delivered += 1;
        if self.events.is_empty() {
            return (Next::Done { ended: self.ended }, self.free_the_role());
        }
        if deliverer.left == 0 {
            if let Some(successor) = self.waiting.pop_front() {
                self.role = Role::Held;
                return (self.leave_or_wait(deliverer), vec![(successor.signal, Verdict::Deliver)]);
            }
            self.role = Role::Tired;
        }
        let near = self.waiting.iter().take_while(|waiting| waiting.until <= self.delivered).count();
        let told = self.let_go(near);
        (self.go_on(deliverer), told)
    }

    /// Decides the next step of a caller that was waiting and was given the role.
    pub(super) fn succeed(&mut self, caller: Caller) -> Next<T> {
        self.go_on(caller)
    }

    pub(super) fn free_the_role(&mut self) -> Told {
        self.role = Role::Free;
        self.let_go(self.waiting.len())
    }

    /// Removes the first `count` waiting callers, and returns the verdicts that let them leave. Usually `count` is 0.
    #[inline]
    fn let_go(&mut self, count: usize) -> Told {
        if count == 0 {
            return Told::new();
        }
        self.waiting.drain(..count).map(|waiting| (waiting.signal, Verdict::Leave)).collect()
    }

    /// Returns the next event for the deliverer. The queue must not be empty.
    fn next(&mut self) -> T {
        self.events.pop_front().expect("BUG: the deliverer continues without an event").event
    }
}
