//! The server sessions that no operation is using.

use std::thread;
use std::time::Duration;

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use crossbeam_utils::CachePadded;

use super::moment::Moment;
use super::server_session::{ServerSession, SessionId};
use crate::pool::runtime::{Process, thread_number, watch_forks};
use crate::pool::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::pool::sync::{Front, Placed, SlotStack, Slots};

/// The maximum number of sessions in one `endSessions` command (Driver Sessions, "endSessions").
pub const MOST_ENDED_AT_ONCE: usize = 10_000;
/// The greatest number of shards.
const MOST_SHARDS: usize = 256;
/// How often a shard discards the sessions that expire soon. If such a session is on top of the stack, it is also
/// discarded when an operation takes it.
const PRUNING: Duration = Duration::from_secs(60);

/// The server sessions that no operation is using, kept for reuse (Driver Sessions, "Server Session Pool").
///
/// Each thread prefers one shard. A shard is a stack, so the thread takes the session that was given back last. If its
/// shard is empty, it takes a session from another shard, so new sessions are created only if all shards are empty.
/// There is no order across shards.
///
/// The top session of a shard is not on the stack of slots, but in a separate place, the front. Taking a session from
/// the front, or putting it there, needs one compare-and-swap instead of two. Most operations finish on the thread that
/// begins the next operation, and touch only the front.
///
/// Taking a session and giving it back are lock-free. Memory is allocated only when a shard holds more sessions than
/// ever before. Each session takes 48 bytes, which are never freed. About once a minute, a release to a shard discards
/// the expired sessions in it.
///
/// # Race window
///
/// While a shard is being pruned, or a session is moving from the front to the stack, the affected sessions are neither
/// in the front nor on the stack. A thread that searches at that moment may create a new session although an idle
/// session exists. If two threads give sessions back at the same time, the earlier session may end up above the later
/// session. Each case costs a few bytes on the server until the session expires.
#[derive(Debug)]
pub struct ServerSessionPool {
    /// The number of shards is a power of two.
    shards: Box<[CachePadded<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    /// The top of the stack.
    front: Front<Record>,
    /// The rest of the stack.
    idle: SlotStack,
    /// The slots without a session.
    free: SlotStack,
    /// When the shard was last pruned, as the nanoseconds of a [`Moment`].
    pruned: AtomicU64,
    slots: Slots<Record>,
}

impl ServerSessionPool {
    /// Creates an empty pool with a shard for each core.
    pub fn new(now: Moment) -> Self {
        Self::with_shards(now, thread::available_parallelism().map_or(1, usize::from))
    }

    fn with_shards(now: Moment, threads: usize) -> Self {
        watch_forks();
        let shards = (0..threads.clamp(1, MOST_SHARDS).next_power_of_two()).map(|_| CachePadded::new(Shard::new(now)));
        Self { shards: shards.collect() }
    }

    /// Takes a session that was used before, or creates a new session.
    ///
    /// `timeout` is the deployment's `logicalSessionTimeoutMinutes`, or `None` in load-balanced mode, where sessions do
    /// not expire (Load Balancers, "Session Expiration"). A session with less than a minute left is discarded. Call
    /// this only once the connection of an operation is known to support sessions.
    pub fn acquire(&self, now: Moment, timeout: Option<Duration>) -> ServerSession {
        self.take(thread_number(), now, timeout).unwrap_or_else(|| ServerSession::new(now))
    }

    #[inline]
    fn take(&self, hint: usize, now: Moment, timeout: Option<Duration>) -> Option<ServerSession> {
        let front = self.shard(hint).take_from_front(now, timeout);
        front.or_else(|| self.search(hint, now, timeout))
    }

    /// Takes a session from any shard.
    fn search(&self, hint: usize, now: Moment, timeout: Option<Duration>) -> Option<ServerSession> {
        (0..self.shards.len()).find_map(|offset| self.shard(hint.wrapping_add(offset)).take(now, timeout))
    }

    /// Takes a session back. Discards the session if the network failed during one of its commands, if it has less than
    /// a minute left, or if it belongs to a parent process.
    pub fn release(&self, session: ServerSession, now: Moment, timeout: Option<Duration>) {
        self.put(thread_number(), session, now, timeout);
    }

    fn put(&self, hint: usize, session: ServerSession, now: Moment, timeout: Option<Duration>) {
        let shard = self.shard(hint);
        shard.prune_at_times(now, timeout);
        if session.is_reusable(now, timeout) {
            shard.put(&session);
        }
    }

    /// Takes out all sessions, and returns their identifiers, so that the caller can end them: see
    /// [`end_sessions`](Self::end_sessions).
    ///
    /// Sessions in use return to the pool later. Dirty and inherited sessions are not included.
    pub fn drain(&self, now: Moment, timeout: Option<Duration>) -> Vec<SessionId> {
        let sessions = std::iter::from_fn(|| self.take(0, now, timeout));
        sessions.map(|session| session.id).collect()
    }

    /// Returns the commands that end these sessions, at most 10,000 in each command. The commands run on the database
    /// `admin`, and their replies do not matter.
    pub fn end_sessions(ids: &[SessionId]) -> impl Iterator<Item = RawDocumentBuf> {
        ids.chunks(MOST_ENDED_AT_ONCE).map(|ids| {
            let mut array = RawArrayBuf::new();
            ids.iter().for_each(|id| array.push(id.document()));
            rawdoc! { "endSessions": array }
        })
    }

    fn shard(&self, hint: usize) -> &Shard {
        &self.shards[hint & (self.shards.len() - 1)]
    }
}

impl Shard {
    fn new(now: Moment) -> Self {
        let pruned = AtomicU64::new(now.nanos());
        let (idle, free) = (SlotStack::new(), SlotStack::new());
        Self { front: Front::new(), idle, free, pruned, slots: Slots::new() }
    }

    #[inline]
    fn take_from_front(&self, now: Moment, timeout: Option<Duration>) -> Option<ServerSession> {
        self.front.take(Record::load).filter(|session| session.is_reusable(now, timeout))
    }

    fn take(&self, now: Moment, timeout: Option<Duration>) -> Option<ServerSession> {
        if let Some(session) = self.take_from_front(now, timeout) {
            return Some(session);
        }
        loop {
            let slot = self.idle.pop(&self.slots)?;
            let session = self.slots.value(slot).load();
            self.free.push(&self.slots, slot);
            if session.is_reusable(now, timeout) {
                return Some(session);
            }
        }
    }

    #[inline]
    fn put(&self, session: &ServerSession) {
        match self.front.put(|front| front.store(session), Record::load) {
            Placed::Alone => {}
            Placed::Replaced(session) => self.put_on_stack(&session),
            Placed::Refused => self.put_on_stack(session),
        }
    }

    fn put_on_stack(&self, session: &ServerSession) {
        // Beyond 16 million idle sessions, a released session is dropped.
        let Some(slot) = self.free.pop(&self.slots).or_else(|| self.slots.grow()) else { return };
        self.slots.value(slot).store(session);
        self.idle.push(&self.slots, slot);
    }

    /// Prunes the shard unless it was pruned within the last minute. If several threads try, only one of them prunes
    /// it.
    #[inline]
    fn prune_at_times(&self, now: Moment, timeout: Option<Duration>) {
        // ORD: Relaxed, here and in the exchange: they only choose the thread that prunes, and publish nothing.
        let pruned = self.pruned.load(Ordering::Relaxed);
        let is_due = now.is_past(Moment::from_nanos(pruned), PRUNING) && !self.idle.is_empty();
        if is_due && self.pruned.compare_exchange(pruned, now.nanos(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.prune(now, timeout);
        }
    }

    /// Discards the sessions that expire soon, and keeps the order of the rest.
    #[cold]
    fn prune(&self, now: Moment, timeout: Option<Duration>) {
        let mut next = self.idle.detach();
        // The first and the last slot of the chain of remaining sessions.
        let mut kept: Option<(u32, u32)> = None;
        while let Some(slot) = next {
            next = SlotStack::below(&self.slots, slot);
            if !self.slots.value(slot).load().is_reusable(now, timeout) {
                self.free.push(&self.slots, slot);
                continue;
            }
            kept = Some(match kept {
                None => (slot, slot),
                Some((first, last)) => {
                    SlotStack::link(&self.slots, last, slot);
                    (first, slot)
                }
            });
        }
        if let Some((first, last)) = kept {
            self.idle.push_chain(&self.slots, first, last);
        }
    }
}

/// An idle session, as stored in its slot or in the front. Only the owner of the slot, or the holder of the front,
/// reads and writes it.
#[derive(Debug, Default)]
struct Record {
    id: [AtomicU64; 2],
    /// The nanoseconds of a [`Moment`].
    last_use: AtomicU64,
    transaction_number: AtomicU64,
    /// The number of a [`Process`].
    process: AtomicU32,
}

impl Record {
    fn store(&self, session: &ServerSession) {
        let id = u128::from_le_bytes(session.id.bytes());
        // ORD: Relaxed, for all fields: pushing the slot, or releasing the front, publishes them.
        self.id[0].store(id as u64, Ordering::Relaxed);
        self.id[1].store((id >> 64) as u64, Ordering::Relaxed);
        self.last_use.store(session.last_use.nanos(), Ordering::Relaxed);
        self.transaction_number.store(session.transaction_number.cast_unsigned(), Ordering::Relaxed);
        self.process.store(session.process.number(), Ordering::Relaxed);
    }

    fn load(&self) -> ServerSession {
        // ORD: Relaxed, for all fields: popping the slot, or acquiring the front, made them visible.
        let [low, high] = [0, 1].map(|half| u128::from(self.id[half].load(Ordering::Relaxed)));
        ServerSession {
            id: SessionId::from_bytes((high << 64 | low).to_le_bytes()),
            last_use: Moment::from_nanos(self.last_use.load(Ordering::Relaxed)),
            transaction_number: self.transaction_number.load(Ordering::Relaxed).cast_signed(),
            is_dirty: false,
            is_cut_off: false,
            process: Process::numbered(self.process.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests;
