//! Models of the primitives: the watch for a change, and the brief lock.

use std::future::poll_fn;
use std::sync::Arc;

use loom::thread;
use wharf::Clear;
use wharf::unstable::primitives::{BriefLock, Watch};

use super::harness::model;
use super::world::*;

/// Watches the pool as a drain does. A missed change is a deadlock, which loom reports.
#[test]
fn watch_never_misses_a_clear() {
    model("watch_never_misses_a_clear", Some(4), || {
        let pool = watched(options(1, 1));
        let mut draining = begin_drain(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let (_, revocation) = draining.revocable();
        let mut watch = Watch::new(pool.environment().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || revocation.is_stale())));
        drop(watch);
        clears.join().unwrap();
        end_drain(draining, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn watch_never_misses_a_close() {
    model("watch_never_misses_a_close", Some(4), || {
        let pool = watched(options(1, 1));
        let mut draining = begin_drain(&pool);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        let (_, revocation) = draining.revocable();
        let mut watch = Watch::new(pool.environment().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || revocation.is_stale())));
        drop(watch);
        closes.join().unwrap();
        end_drain(draining, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// The value is in a loom cell. Two holders at the same time are a race, and so is a holder that does not see the last
/// holder's writes.
#[test]
fn brief_lock_has_one_holder_that_sees_the_last_holders_writes() {
    model("brief_lock_has_one_holder_that_sees_the_last_holders_writes", Some(3), || {
        let lock = Arc::new(BriefLock::new(0_u32));
        let other = thread::spawn({
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}
