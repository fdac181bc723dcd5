//! The core of the pool: no I/O, no clock, no tasks, no randomness.
//!
//! [`Core`] is generic over its connections and over the world around it ([`Environment`]). What has to happen outside, such
//! as opening a connection, comes back as a token: a [`Permit`] is the right to open one, a [`Pending`] one that is
//! being opened, an [`Idle`] one that nobody uses, a [`Lease`] one that somebody uses, an [`Draining`] one that its user
//! has left in the middle of something. [`Pool`](crate::Pool) is a core
//! on tokio.
//!
//! # The words
//!
//! | word | holds | written by |
//! | --- | --- | --- |
//! | pool word (`state.rs`) | phase, generation | ready, clear, renew and close, under the registry's lock |
//! | capacity word (`capacity.rs`) | total, pending, "somebody waits", "some are drained", version | creating, establishing and closing a connection; the first and the last who wait; the first and the last drain |
//! | a shard's head (`shard.rs`), one per core | top of the stack, "somebody waits", tag | check-out and check-in; the first and the last who wait |
//! | wait list (`waitlist/`) | who waits, in order | who waits, and who serves them |
//! | registry (`registry.rs`) | ids, free slots, stale stacks, services, drains | all that is rare |
//!
//! A check-out that finds a connection on top of its thread's shard swaps that head, and its check-in swaps it back.
//! Neither writes anything else that is shared, and neither takes a lock. The only other shared line that a check-in
//! reads is the pool word, which hardly ever changes. The number of available connections is not counted anywhere: each
//! slot in a stack knows the height of the stack up to itself.
//!
//! # Invariants
//!
//! - INV-1 (one owner): a slot has one owner at a time, and only the owner touches its connection (`slab.rs`).
//! - INV-2 (a connection keeps its pool): each connection's slot holds an `Arc` of the core until the slot is freed, so
//!   tokens can do with a pointer, and check-out and check-in touch no reference count (`slab.rs`).
//! - INV-3 (nodes stay), INV-4 (who touches a node) and INV-7 (blocks stay): `waitlist/blocks.rs`.
//! - INV-5 (while somebody waits): all shards are flagged and empty; and if not only openers wait, the capacity word is
//!   flagged and admits nobody (`acquire.rs`). So whatever comes free comes to the wait list's lock, and goes to the
//!   first of those whom it is for (`waitlist/mod.rs`).
//! - INV-6 (whose waker): the waker of who can be interrupted belongs to whoever takes the mark `watched` away
//!   (`slab.rs`), so leaving it and taking it back are one locked instruction each.
//!
//! # Who waits
//!
//! "Somebody waits" is a bit in the very words that a check-out and a check-in swap anyway. The hot path needs no fence
//! and no second line to learn of waiters, and a newcomer cannot take a connection past a queue that it has not
//! noticed. Flags change under the wait list's lock only.
//!
//! A waiter is granted a connection, the right to open one, or a refusal, all through the one queue. The first two are
//! tokens, so a waiter that goes away at the wrong moment drops them, and they go to the next.
//!
//! Whoever opens a connection waits on as an opener ([`Core::acquire_as_opener`]), for whichever comes first: its own, or
//! one that comes back. It is older than all others who wait, so the specification's "MUST NOT service any newer
//! checkOut requests before fulfilling the original one" holds, and a slow handshake keeps nobody from a connection that is
//! free. If another one came first, its own serves the next when it is open.
//!
//! Who has the right to open one waits as an opener already while the tasks run that are ready, and only then is it opened: a
//! connection that comes back first need not be. The right goes to the next in the queue then. It is the task that will
//! open which waits for them, because nobody may be polling the check-out. What is granted to who waits in the queue does
//! lie there until that is polled or dropped, as with any fair queue.
//!
//! Two things go past an opener. A new connection that nobody is there for goes to who would open one more, which keeps
//! the pool from opening more than it needs. And who was granted a permit after waiting is no opener before its task has
//! come to look; until then, what comes back is for those who wait, or for all.
//!
//! # DrainQueue
//!
//! A connection that comes back undrained is drained: the environment brings it to the end of what its user has left undone. A
//! drain costs nothing. Where a check-out would have to wait for nothing but capacity under `maxPoolSize`, the oldest drain
//! is closed, which is the most hopeless one, and the first in the queue gets its capacity (`Core::serve_permits`). So a pool
//! is never worse off than if it had closed the connection at once. The connection has left its slot for the
//! [`Draining`], so the capacity is free without the task that drains (`drain_queue.rs`). While there is capacity, drains count
//! for nothing.
//!
//! INV-8 (drains keep no check-out waiting): if a check-out waits and some connections are drained, then either a permit
//! is free, or `maxConnecting` admits none, or a thread is about to close a drain. Each change that could break this is a
//! change of the capacity word, and the thread that makes it looks at the word: a check-out that queues up, a drain that
//! begins, and a connection that is no longer pending.
//!
//! # The orderings
//!
//! 1. `PoolReady` is emitted before anybody can open a connection: `Core::ready` emits, then changes the word; and a
//!    connection is created, and its event emitted, under the same lock, after another look at the word
//!    (`Permit::create`).
//! 2. A connection that was opened in the background is available before it stops counting as pending: it is put first,
//!    then its [`Opening`] is dropped. Who wants to open one reads the capacity word, searches the shards, and swaps the
//!    word it has read (`Core::seek`).
//! 3. No wake-up and no connection is lost: who queues up raises the flags, then looks once more
//!    (`Core::look_for_the_first`).
//! 4. First come, first served in each lane, and nobody barges: INV-5, and one queue.
//! 5. Both limits hold at every instant: they are in one word.
//! 6. A check-in that races a clear or a close is either detached with the others or notices: `Shard::push`.
//! 7. Ids are in the order of the `ConnectionCreated` events: both under the registry's lock.
//! 8. `PoolCleared` follows the change of the generation, under the same lock. [`Core::renew`] changes the generation
//!    without an event: the connections became useless by no fault of the server, and the pool serves on.
//! 9. Whoever closes the pool sees that nothing is left, or whoever gives back the last capacity sees that the pool is
//!    closed and says so: `Capacity::order_releases`.
//! 10. Of a drain that begins and a check-out that queues up, the second notices the first: `Capacity::set_draining`.
//!
//! `loom-tests/` has a model of each, and for each model mutants of this code that it must catch.
//!
//! # What is deliberately absent
//!
//! No fairness between shards: a thread takes from its own first. No counter of available connections. No epoch-based
//! reclamation: slots are never freed. No lock in the hot path, and no claim that the waiting path has none. What happens
//! under the wait list's lock is bounded: a few cache lines, and all shards' heads when the first comes to wait or the last
//! goes, however many wait or leave. How long a thread may wait for that lock: `sync/brief.rs`. No event-listener in the
//! wait list that ships: see `waitlist/mod.rs` for the measured reason.
//!
//! No panic of others: wakers run and are dropped outside of all locks, and a panic of theirs is caught (`sync/foreign.rs`).

mod acquire;
mod capacity;
mod check_out;
mod core;
mod drain_queue;
mod draining;
mod environment;
mod fault;
mod held;
mod lease;
mod maintenance;
mod perished;
mod permit;
mod pinning;
mod registry;
mod services;
mod shard;
mod slab;
mod state;
mod status;
mod tokens;
mod waitlist;

pub use self::core::{Clear, Core};
pub use acquire::{Acquire, Grant, OpenerWait};
pub use check_out::{Refusal, Started};
pub use draining::{Draining, Revocation};
pub use environment::Environment;
pub use lease::{Interruption, Lease};
pub use permit::{Permit, SharedPermit};
pub use pinning::Purpose;
pub use state::{Phase, PoolState};
pub use status::PoolStatus;
pub use tokens::{Established, Idle, Interrupted, Opening, Pending};
