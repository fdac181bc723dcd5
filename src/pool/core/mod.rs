//! The core of the pool: no I/O, no clock, no tasks, no randomness.
//!
//! [`Core`] is generic over its connections and its surroundings ([`Environment`]). Work that the core leaves to its
//! caller, such as opening a connection, is returned as a token. A [`Permit`] is the right to open a connection. A
//! [`Pending`] is a connection that is being established, an [`Idle`] is an established connection without a user, a
//! [`Lease`] is a connection in use, and a [`Draining`] is a connection whose user left work unfinished. A [`Checking`]
//! is an idle connection that is being checked before use. [`Pool`](crate::Pool) is a core on tokio.
//!
//! # Shared state
//!
//! | word | holds | written by |
//! | --- | --- | --- |
//! | pool word (`state.rs`) | phase, generation | ready, clear, renew and close, under the registry's lock |
//! | capacity word (`capacity.rs`) | total, pending, waiting flag, draining flag, displacing flag, version | creating, establishing and closing a connection; the first and the last waiter; the first and the last drain; displacing a drain |
//! | sizes word (`sizes.rs`) | `maxPoolSize`, `minPoolSize`, `maxConnecting` | a resize, under the registry's lock and the wait list's |
//! | a shard's head (`shard.rs`), about one for each CPU core | top of the stack, flag, tag | check-out and check-in; the first and the last check-out to wait |
//! | wait list (`waitlist/`) | the check-outs that wait, in order | check-outs that wait, and the threads that serve them |
//! | a budget's books (`budget.rs`) | the places of its pools' connections, the pools that wait for a place | an opening and a close in a pool under the budget, the first and the last waiter there; under their own lock |
//! | registry (`registry.rs`) | free slots, detached stacks, services, drains; connection numbers are given out under its lock | all operations that are rare |
//!
//! A check-out that finds a connection in its thread's shard swaps the shard's head, and its check-in swaps the head
//! back. Apart from the head and the slot, which belongs to its owner, neither of them writes shared memory, and
//! neither takes a lock. The parts of the core that they read hardly ever change: the core's number, the reasons for
//! more work (`attention.rs`), and, for a push, the pool word. There is no counter of available connections: each slot
//! in a stack records the height of the stack up to that slot.
//!
//! # Invariants
//!
//! - INV-1 (one owner): a slot has one owner at a time, and only the owner touches its connection (`slab.rs`).
//! - INV-2 (a connection keeps its pool): each connection's slot holds an `Arc` to the core until the slot is released
//!   to the registry. So a token needs only a pointer, and check-out and check-in touch no reference count (`slab.rs`).
//! - INV-4 (access to a waiter's cell): `waitlist/cell.rs`.
//! - INV-5 (while check-outs wait): while a check-out is in the queue, all shards are flagged and empty. While the
//!   queue contains a waiter, and not only openers, the capacity word is flagged, and no other check-out is admitted
//!   (`acquire.rs`). So everything that becomes free goes through the wait list to the first check-out in the queue
//!   that can use it (`waitlist/mod.rs`).
//! - INV-6 (waker ownership): the waker of an owner that can be interrupted belongs to the thread that clears the mark
//!   `watched` (`slab.rs`). So leaving the waker and taking it back cost one locked instruction each.
//! - INV-8 (a drain delays a check-out by at most one close): see below.
//! - INV-9 (the address is lent): an event that is delivered inline holds an uncounted copy of the pool's pointer to
//!   its address. The copy is never dropped, and does not outlive the call that lends it (`Core::tell`).
//! - INV-11 (what a wait-list word says): `waitlist/mod.rs`; INV-12 (segments stay): `waitlist/segments.rs`.
//! - INV-13 (requests stay): a request to the holder of a brief lock stays in place until it is served
//!   (`pool/sync/brief.rs`).
//! - INV-14 (a handle's core is lent): `crate::pool::runtime`, in `pool.rs`.
//! - INV-16 (a note leads to a live shard in this process) and INV-17 (what a noted head says): `nearby.rs`.
//! - INV-18 (establishers stay): `crate::pool::runtime`, in `establishers.rs`.
//!
//! # Waiting
//!
//! The flags are bits in words that every check-out and check-in has to swap anyway. So the hot path learns of waiting
//! check-outs without a fence or a second cache line, and a newcomer cannot overtake the queue by failing to notice it.
//! The flags change only under the wait list's lock.
//!
//! A check-out in the queue is granted a connection, a permit or a refusal, all through the same queue. Connections and
//! permits are tokens: if a check-out is cancelled just as it is granted a token, the token is dropped, which passes it
//! on to the next check-out in the queue.
//!
//! A check-out that opens a connection keeps waiting as an opener ([`Core::acquire_as_opener`]). It takes its own
//! connection or a returned connection, whichever comes first. An opener is older than every waiter. So the
//! specification's "MUST NOT service any newer checkOut requests before fulfilling the original one" holds, and a slow
//! handshake does not keep its check-out from taking a free connection. If another connection comes first, the opener's
//! own connection serves the next check-out once it is open.
//!
//! A check-out that holds a permit waits as an opener from the start. The connection is opened only after the tasks
//! that are ready have run. If a connection is returned before that, no connection is opened, and the permit goes to
//! the next check-out in the queue. The opening task waits for the ready tasks, because the check-out itself might not
//! be polled in the meantime. As in any fair queue, a grant stays with its check-out until the check-out is polled or
//! dropped.
//!
//! A connection bypasses an opener in two cases. First, a new connection that no check-out claims is offered to the
//! waiters before the openers. Otherwise a waiter would open another connection, and the pool would hold more than it
//! needs. Second, a check-out that was granted a permit after waiting becomes an opener only when its task runs. Until
//! then, a returned connection goes to the check-outs in the queue, or to any other check-out.
//!
//! # Drains
//!
//! A connection that is checked in with unfinished work is drained: the environment completes that work. A check-out
//! does not wait for a drain to succeed. If it lacks only capacity under `maxPoolSize`, the pool *displaces* the oldest
//! drain, which is the least likely to succeed (`drain_queue.rs`). The holder of its [`Draining`] is notified and drops
//! the token, which closes the connection. The first waiter gets the capacity only after the close, because the
//! connection counts until then. While there is free capacity, drains are left alone.
//!
//! One drain is displaced at a time. When its capacity becomes free, the thread that passes it on displaces the next
//! drain, if another check-out is waiting. So the second of two check-outs may wait for two closes.
//!
//! INV-8 (a drain delays a check-out by at most one close): if a check-out is waiting while connections are being
//! drained, then at least one of these statements is true: a permit is free, `maxConnecting` or a budget does not admit
//! a connection, a drain was displaced and its connection is not closed yet, or a thread is about to displace a drain.
//! Four changes could break this: a check-out queues up, a drain begins, a connection stops being pending, or a
//! displaced connection is closed. Each of them changes the capacity word, and the thread that makes the change
//! inspects the word.
//!
//! A displaced connection is closed by the task that was draining it. That task may be unable to run: it may be on an
//! idle current-thread runtime, which cannot open connections either, or foreign code may block in the drain. The
//! waiter then waits for a returned connection or until its own time limit.
//!
//! # The orderings
//!
//! 1. `PoolReady` is emitted before any connection can be opened. `Core::ready` emits the event, then changes the word.
//!    A connection is created, and its event emitted, under the same lock, after the word is checked again
//!    (`Permit::create`).
//! 2. A connection that was opened in the background is available before it stops counting as pending: it is made
//!    available first, and then its [`Opening`] is dropped. A check-out that wants to open a connection reads the
//!    capacity word, searches the shards, and swaps the word that it read (`Core::seek`).
//! 3. Wake-ups and connections are never lost: a check-out that queues up raises each shard's flag in the same step in
//!    which it finds the shard empty (`Shard::pop_or_flag`).
//! 4. Each lane is served first come, first served, and check-outs never barge. This follows from INV-5 and from the
//!    single queue.
//! 5. Both limits hold at every instant: their counts are in one word. A resize changes that word as well, so no
//!    check-out is admitted under a limit that no longer applies (`SizesWord`).
//! 6. If a check-in races with a clear or a close, either its connection is detached with the others, or the check-in
//!    notices the change: see `Shard::push` and `Shard::put_back`.
//! 7. Connection ids are in the order of the `ConnectionCreated` events, because ids are assigned and events are
//!    emitted under the registry's lock.
//! 8. `PoolCleared` follows the change in generation, under the same lock. [`Core::renew`] changes the generation
//!    without an event: the connections no longer work, but not because of the server, so the pool continues to serve.
//! 9. Either the thread that closes the pool sees that no connection is left, or the thread that gives back the last
//!    capacity sees the close and announces it: `Capacity::order_releases`.
//! 10. If a drain begins while a check-out queues up, the later of the two notices the earlier:
//!     `Capacity::set_draining`.
//! 11. Pools under a budget never hold more connections than the budget has places, and no pool is forgotten in the
//!     budget's queue: `budget.rs`.
//!
//! `loom-tests/` contains a model of each ordering and, for each model, mutants of this code that the model must catch.
//!
//! # What is deliberately absent
//!
//! - No fairness between shards: a thread takes from its own shard first.
//! - No counter of available connections.
//! - No epoch-based reclamation: slots are never deallocated while the pool lives, and a waiter's cell is kept until
//!   its grant has been taken or its ticket has been skipped.
//! - No lock on the hot path. The waiting path does take locks. The work under the wait list's lock is bounded, however
//!   many check-outs wait or leave: it touches a few cache lines, and the heads of all shards when the first check-out
//!   queues up or the last check-out leaves. `pool/sync/brief.rs` says how long a thread may wait for that lock.
//! - No event-listener in the default wait list; BENCHMARKS.md has the measurements.
//! - No panics from foreign code: wakers run and are dropped outside all locks, and their panics are caught
//!   (`pool/sync/foreign.rs`).

mod acquire;
mod attention;
mod budget;
mod capacity;
mod check_out;
mod checking;
mod close_error;
mod control;
#[allow(clippy::module_inception, reason = "the core, in the room of its parts")]
mod core;
mod drain_queue;
mod draining;
mod environment;
mod held;
mod hold;
mod holding;
mod late;
mod lease;
mod leaving;
mod maintenance;
mod measures;
mod nearby;
mod pace;
mod perished;
mod permit;
mod phases;
mod pinning;
mod registry;
mod services;
mod shard;
mod sharing;
mod sizes;
mod slab;
mod state;
mod status;
mod tally;
mod tokens;
mod waitlist;

pub use self::core::Core;
pub use acquire::{Acquire, Grant, Hit, OpenerWait, Reacquire};
pub use budget::Budget;
pub use check_out::{Refusal, Started};
pub use checking::Checking;
pub use draining::{Draining, Revocation};
pub use environment::{COARSE_TICK, Environment, WentStale};
pub use holding::HoldReview;
pub use lease::{Interruption, Lease};
pub use leaving::Usage;
pub use maintenance::WarmUp;
pub use nearby::Nearby;
pub use permit::{Permit, SharedPermit};
pub use phases::{Change, Clear};
pub use pinning::Purpose;
pub use state::{Phase, PoolState};
pub use status::{PoolStatus, ServiceStatus};
pub use tokens::{Closing, Established, Idle, Interrupted, Opening, Pending, SharedOpening};
#[cfg(loom)]
pub use waitlist::{ModelledList, ModelledWaiter};
