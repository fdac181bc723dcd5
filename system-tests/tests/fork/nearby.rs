//! Forks by a thread that has a note of the pool (`src/pool/core/nearby.rs`). A hit and its check-in do not check
//! whether the process has forked, so the child must forget the note.

use std::sync::atomic::{AtomicI32, Ordering};

use tokio::runtime::{Builder, Runtime};
use wharf::{CheckOutError, Connection, Pool, PoolEvent, PoolOptions};

use super::{DEADLINE, Mock, Wrong, ended_well, in_child, read};

/// Returns a pool with one connection in use and one available, and the mock. The thread has just used the pool.
fn pool(subscriber: Option<fn(&PoolEvent)>) -> (Runtime, Pool<Mock>, Connection<Mock>, Mock) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mock = Mock::default();
    let (pool, held) = runtime.block_on(async {
        let mut builder = Pool::builder("mock:27017", mock.clone()).options(PoolOptions::default().max_pool_size(2));
        if let Some(subscriber) = subscriber {
            builder = builder.subscriber(subscriber);
        }
        let pool = builder.build().unwrap();
        pool.ready();
        let (held, other) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
        drop(other);
        drop(pool.check_out().await.unwrap());
        (pool, held)
    });
    (runtime, pool, held, mock)
}

/// Checks that the child abandons the parent's connection, and that its pool is cleared.
fn gives_up(runtime: &Runtime, pool: &Pool<Mock>, held: Connection<Mock>, mock: &Mock) -> Result<(), Wrong> {
    drop(held);
    if (read(&mock.0.abandoned), read(&mock.0.closed), read(&mock.0.violated)) != (1, 0, 0) {
        return Err(Wrong::GuardNotAbandoned);
    }
    match runtime.block_on(pool.check_out()) {
        Err(CheckOutError::PoolCleared(_)) => Ok(()),
        Err(_) => Err(Wrong::NotServed),
        Ok(connection) => {
            std::mem::forget(connection);
            Err(Wrong::AParentsConnection)
        }
    }
}

/// The child's first use of the pool is a check-out or a check-in.
pub fn child_of_a_thread_with_a_note_gets_no_connection_of_the_parent() {
    let (runtime, pool, held, mock) = pool(None);
    let mut held = Some(held);
    in_child("whose check-out comes first", || match runtime.block_on(pool.check_out()) {
        Err(CheckOutError::PoolCleared(_)) => Ok(()),
        _ => Err(Wrong::AParentsConnection),
    });
    in_child("whose check-in comes first", || gives_up(&runtime, &pool, held.take().expect("it is held"), &mock));
    assert_eq!((pool.status().in_use, pool.status().available), (1, 1));
}

/// The result of `fork` in the subscriber. Before the fork, the value is 1 if the subscriber may fork, and -1
/// otherwise.
static FORKED: AtomicI32 = AtomicI32::new(-1);
const MAY_FORK: i32 = 1;

#[allow(unsafe_code)]
fn forks(event: &PoolEvent) {
    if matches!(event, PoolEvent::ConnectionCheckOutStarted { .. }) && FORKED.load(Ordering::SeqCst) == MAY_FORK {
        // SAFETY: as in `in_child`: the child runs the parent's code, without locks, and exits with `_exit`.
        FORKED.store(unsafe { libc::fork() }, Ordering::SeqCst);
    }
}

/// A subscriber forks in the middle of a check-out, after the check-out has checked for a fork. The child continues
/// this check-out.
#[allow(unsafe_code)]
pub fn child_that_goes_on_with_a_check_out_keeps_no_note_of_the_parents_pool() {
    let (runtime, pool, held, mock) = pool(Some(forks));
    FORKED.store(MAY_FORK, Ordering::SeqCst);
    let outcome = runtime.block_on(pool.check_out());
    let pid = FORKED.load(Ordering::SeqCst);
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it terminates the process.
        unsafe { libc::alarm(DEADLINE) };
        // The connection may belong to the parent.
        std::mem::forget(outcome);
        let wrong = gives_up(&runtime, &pool, held, &mock).err().unwrap_or(Wrong::Nothing);
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(wrong as i32) };
    }
    ended_well(pid, "that a subscriber forked");
    assert!(outcome.is_ok());
}
