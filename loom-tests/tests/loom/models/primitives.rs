//! What the rest is built of: the watch for a change, and the lock for short sections.

use std::future::poll_fn;
use std::sync::Arc;

use loom::thread;
use wharf::Clear;
use wharf::unstable::primitives::{BriefLock, Watch};

use super::harness::model;
use super::world::*;

/// What a drain does while it goes on. A missed change is a deadlock, which loom reports.
#[test]
fn a_clear_against_a_watch_is_never_missed() {
    model("a_clear_against_a_watch_is_never_missed", Some(4), || {
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
fn a_close_against_a_watch_is_never_missed() {
    model("a_close_against_a_watch_is_never_missed", Some(4), || {
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

/// The value lies in a loom cell: two holders at a time, or one that does not see what the last one did, are a race.
#[test]
fn a_brief_lock_has_one_holder_that_sees_what_the_last_one_did() {
    model("a_brief_lock_has_one_holder_that_sees_what_the_last_one_did", Some(3), || {
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
