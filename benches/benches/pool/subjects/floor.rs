//! The floor: the cost of sharded stacks of connections with nothing around them.
//!
//! A pool that takes a connection from a shared structure cannot do less than this: one CAS to take the connection and
//! one to give it back, both on a cache line that only the calling thread writes while its shard is not empty. A pool
//! can save a step only by remembering more. For example, a thread that remembers the heads that it has left behind
//! does not have to wait for the load of a head. There are no capacities, generations, waiters or events, and not even
//! connections: the floor hands out an index. The floor shows how much of a pool's cost comes from the pool itself.
//!
//! It has no queue, so a caller that finds nothing yields and tries again. It opens nothing, so it is left out of
//! `create-and-close`. In the saturated cases, [`Turns`] takes its place.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use crossbeam::utils::CachePadded;

use super::{Clear, Source, Subject};

/// Sharded Treiber stacks over a slab of indices. A tag in each head prevents ABA.
pub struct Floor {
    heads: Box<[CachePadded<AtomicU64>]>,
    /// For each index, the index below it in its stack. Padded, because different threads may own neighbouring indices.
    below: Box<[CachePadded<AtomicU32>]>,
}

/// An index taken from the floor.
pub struct Taken<'a> {
    floor: &'a Floor,
    index: u32,
}

impl Subject for Floor {
    const NAME: &'static str = "floor";
    type Guard<'a> = Taken<'a>;

    async fn open(size: usize) -> Self {
        let shards = thread::available_parallelism().map_or(1, usize::from);
        let floor = Self {
            heads: (0..shards).map(|_| CachePadded::new(AtomicU64::new(Head::EMPTY.0))).collect(),
            below: (0..size).map(|_| CachePadded::new(AtomicU32::new(NOTHING))).collect(),
        };
        floor.fill();
        floor
    }

    async fn check_out(&self) -> Taken<'_> {
        loop {
            if let Some(index) = self.take() {
                return Taken { floor: self, index };
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Detaches every stack with one swap, and walks the detached stacks, as any pool must.
impl Clear for Floor {
    fn clear(&self) {
        for head in &self.heads {
            // ORD: Acquire; pairs with the Release in `push`; makes the links of the detached stack visible.
            let mut top = Head(head.swap(Head::EMPTY.0, Ordering::Acquire)).top();
            while let Some(index) = top {
                // ORD: Relaxed; the stack is detached, and its links were acquired together with its head.
                top = some_index(self.below[index as usize].load(Ordering::Relaxed));
            }
        }
    }

    async fn refill(&self, _size: usize) {
        self.fill();
    }
}

/// A saturated case without a pool: turns circulate among tasks.
///
/// There are as many circles as connections. The task that has the turn passes it on to the next task in the circle and
/// waits for it to come round again. So each operation wakes one task, in a fixed order, and the circles share nothing:
/// there is no queue, no counter and no search. The two tasks in a hand-over meet at one word, which each of them
/// changes once. Any cost beyond this exchange is the pool's own.
pub struct Turns {
    circles: usize,
    seats: Box<[CachePadded<Seat>]>,
}

/// The number of tasks in each circle.
pub const TASKS_IN_A_CIRCLE: usize = 100;

/// The place where a task waits for its turn.
struct Seat {
    state: AtomicU8,
    /// The task's waker, which stays the same.
    waker: OnceLock<Waker>,
}

/// The states of a [`Seat`].
const AWAY: u8 = 0;
const WAITING: u8 = 1;
const GRANTED: u8 = 2;

/// A task's turn. Dropping it passes the turn on.
pub struct Turn<'a>(&'a Seat);

impl Source for Turns {
    type Guard<'a> = Turn<'a>;

    async fn open(size: usize) -> Self {
        let seat =
            |task| Seat { state: AtomicU8::new(if task < size { GRANTED } else { AWAY }), waker: OnceLock::new() };
        Self { circles: size, seats: (0..size * TASKS_IN_A_CIRCLE).map(|task| CachePadded::new(seat(task))).collect() }
    }

    /// All turns are granted from the beginning.
    async fn warm(&self, _size: usize) {}

    async fn check_out_for(&self, task: usize) -> Turn<'_> {
        let seat = &*self.seats[task];
        poll_fn(|context| seat.poll(context)).await;
        Turn(&self.seats[(task + self.circles) % self.seats.len()])
    }
}

impl Seat {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let waker = self.waker.get_or_init(|| context.waker().clone());
        debug_assert!(waker.will_wake(context.waker()), "BUG: the task has another waker than before");
        // ORD: AcqRel; pairs with the AcqRel in `grant`. Release publishes the waker, and Acquire makes the previous
        // task's work visible.
        if self.state.swap(WAITING, Ordering::AcqRel) == GRANTED {
            // ORD: Relaxed; the next grant comes only after a full circle of grants, which starts with this task's
            // grant.
            self.state.store(AWAY, Ordering::Relaxed);
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn grant(&self) {
        // ORD: AcqRel; as in `poll`.
        if self.state.swap(GRANTED, Ordering::AcqRel) == WAITING {
            self.waker.get().expect("a task that waits has left its waker").wake_by_ref();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

impl Floor {
    fn fill(&self) {
        for index in 0..self.below.len() {
            self.push(index % self.heads.len(), u32::try_from(index).expect("more indices than a u32 can hold"));
        }
    }

    #[inline]
    fn take(&self) -> Option<u32> {
        let own = own_shard(self.heads.len());
        self.pop(own).or_else(|| (0..self.heads.len()).filter(|&shard| shard != own).find_map(|shard| self.pop(shard)))
    }

    #[inline]
    fn pop(&self, shard: usize) -> Option<u32> {
        let head = &self.heads[shard];
        // ORD: Acquire; pairs with the Release in `push`; makes the top's link visible.
        let mut seen = Head(head.load(Ordering::Acquire));
        loop {
            let top = seen.top()?;
            // ORD: Relaxed; acquired with the head. If the link is stale, the tag is also stale, and the CAS fails.
            let below = self.below[top as usize].load(Ordering::Relaxed);
            // ORD: Acquire in both outcomes, as for the load. A pop does not publish anything, but continues the
            // release sequences of the pushes below it.
            match head.compare_exchange_weak(seen.0, seen.next(below).0, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => seen = Head(now),
            }
        }
    }

    #[inline]
    fn push(&self, shard: usize, index: u32) {
        let head = &self.heads[shard];
        // ORD: Relaxed; nothing but the value itself is used.
        let mut seen = Head(head.load(Ordering::Relaxed));
        loop {
            // ORD: Relaxed; published by the CAS below.
            self.below[index as usize].store(seen.top_or_nothing(), Ordering::Relaxed);
            // ORD: Release; pairs with the Acquire in `pop` and `clear`; publishes the link.
            match head.compare_exchange_weak(seen.0, seen.next(index).0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = Head(now),
            }
        }
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.floor.push(own_shard(self.floor.heads.len()), self.index);
    }
}

/// Marks the end of a stack, in place of an index.
const NOTHING: u32 = u32::MAX;

/// A stack's head: the index on top in the low half and, in the high half, a tag that increases with every change.
#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    const EMPTY: Self = Self(NOTHING as u64);

    #[inline]
    fn top_or_nothing(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }

    #[inline]
    fn top(self) -> Option<u32> {
        some_index(self.top_or_nothing())
    }

    /// Returns the head that follows this one, with `top` on top.
    #[inline]
    fn next(self, top: u32) -> Self {
        let tag = (self.0 >> 32) as u32;
        Self(u64::from(tag.wrapping_add(1)) << 32 | u64::from(top))
    }
}

#[inline]
fn some_index(index: u32) -> Option<u32> {
    (index != NOTHING).then_some(index)
}

/// Returns the calling thread's shard. Threads are numbered in the order of their first call.
#[inline]
fn own_shard(shards: usize) -> usize {
    const UNNUMBERED: usize = usize::MAX;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    }
    NUMBER.with(|number| {
        if number.get() == UNNUMBERED {
            // ORD: Relaxed; the numbers only have to differ.
            number.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        number.get() % shards
    })
}
