//! A clock that is read with one load, and has a resolution of a tenth of a second.
//!
//! Linux's coarse clock took 6 to 8 ns on a loaded Xeon. This clock is a word in memory that a thread advances while a
//! pool uses it. A task might advance it too late, because a check-out may be the first thing that a current-thread
//! runtime runs after a pause.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pool::core::COARSE_TICK;

/// The current tick, or [`STOPPED`].
static TICK: AtomicU32 = AtomicU32::new(STOPPED);
/// The value of [`TICK`] while the thread is not running.
const STOPPED: u32 = 0;
/// The number of [`Users`].
static USERS: AtomicUsize = AtomicUsize::new(0);
static HAS_THREAD: AtomicBool = AtomicBool::new(false);

/// The coarse clock of a pool. It counts from 1, in [`COARSE_TICK`]s.
pub(super) enum Coarse {
    /// Never advances, for a pool that does not need the clock.
    Still,
    /// Reads the word that a thread advances or, if that thread is not running, the system clock.
    Shared { _users: Users },
    /// Follows tokio's clock, which tests can pause.
    Tokio { start: tokio::time::Instant },
}

/// Keeps the thread running.
pub(super) struct Users(());

impl Coarse {
    /// Returns the clock that all pools share, and starts its thread if there is none. In a forked child of a process
    /// that uses it, the clock works without a thread until this is called in the child.
    pub(super) fn shared() -> Self {
        // SeqCst, here and below: see `run`.
        USERS.fetch_add(1, Ordering::SeqCst);
        if !HAS_THREAD.swap(true, Ordering::SeqCst) {
            // The word can be read even before the thread first runs, which may take a while on a busy machine.
            TICK.store(tick_after(started().elapsed()), Ordering::Relaxed);
            if thread::Builder::new().name("wharf-clock".into()).spawn(run).is_err() {
                TICK.store(STOPPED, Ordering::Relaxed);
                HAS_THREAD.store(false, Ordering::SeqCst);
            }
        }
        Self::Shared { _users: Users(()) }
    }

    pub(super) fn tokio() -> Self {
        Self::Tokio { start: tokio::time::Instant::now() }
    }

    /// Returns the clock of the pool's successor in a forked child. It does not start a thread, because starting one
    /// could hang in the child.
    pub(super) fn successor(&self) -> Self {
        match self {
            Self::Still => Self::Still,
            Self::Shared { .. } => {
                USERS.fetch_add(1, Ordering::SeqCst);
                Self::Shared { _users: Users(()) }
            }
            Self::Tokio { start } => Self::Tokio { start: *start },
        }
    }

    #[inline]
    pub(super) fn read(&self) -> u32 {
        // Relaxed: the tick publishes nothing.
        match (self, TICK.load(Ordering::Relaxed)) {
            (Self::Shared { .. }, tick) if tick != STOPPED => tick,
            _ => self.read_slowly(),
        }
    }

    #[cold]
    fn read_slowly(&self) -> u32 {
        match self {
            Self::Still => STOPPED,
            Self::Shared { .. } => tick_after(started().elapsed()),
            Self::Tokio { start } => tick_after(start.elapsed()),
        }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the instant that the shared clock counts from.
fn started() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn tick_after(elapsed: Duration) -> u32 {
    u32::try_from(elapsed.as_millis() / COARSE_TICK.as_millis()).map_or(u32::MAX, |ticks| ticks.saturating_add(1))
}

/// Advances the shared clock while it has users.
///
/// | the last user leaves, and the thread ends | a new user arrives |
/// | --- | --- |
/// | 1. finds no users | a. increments `USERS` |
/// | 2. `HAS_THREAD` becomes false | b. sets `HAS_THREAD`, and starts a thread if it was false |
/// | 3. looks for users again, and continues if there are any, unless step b has started a thread | |
///
/// All accesses are sequentially consistent: if step b finds a thread that is about to exit, step 3 finds the user.
fn run() {
    loop {
        while USERS.load(Ordering::SeqCst) > 0 {
            let elapsed = started().elapsed();
            TICK.store(tick_after(elapsed), Ordering::Relaxed);
            let since_tick = Duration::from_nanos((elapsed.as_nanos() % COARSE_TICK.as_nanos()) as u64);
            thread::sleep(COARSE_TICK - since_tick);
        }
        TICK.store(STOPPED, Ordering::Relaxed);
        HAS_THREAD.store(false, Ordering::SeqCst);
        if USERS.load(Ordering::SeqCst) == 0 || HAS_THREAD.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

/// Records in a forked child that the thread does not exist there. Called by the fork handler.
#[cfg(unix)]
pub(super) fn stop_in_child() {
    TICK.store(STOPPED, Ordering::Relaxed);
    HAS_THREAD.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_clock_advances_with_and_without_its_thread() {
        let clock = Coarse::shared();
        for without_thread in [false, true] {
            let begun = (clock.read(), Instant::now());
            let read = || if without_thread { clock.read_slowly() } else { clock.read() };
            while read() < begun.0 + 3 {
                thread::yield_now();
            }
            // The first tick may have been almost complete when the clock was first read.
            assert!(begun.1.elapsed() > 2 * COARSE_TICK - Duration::from_millis(20), "{:?}", begun.1.elapsed());
        }
    }

    #[test]
    fn clock_that_no_pool_needs_stands_still() {
        assert_eq!(Coarse::Still.read(), STOPPED);
    }
}
