//! What the rest is built of: the watch for a change.

use std::future::poll_fn;

use loom::thread;
use wharf::Clear;
use wharf::primitives::Watch;

use super::harness::model;
use super::world::*;

/// What a recovery does while it goes on. A missed change is a deadlock, which loom reports.
#[test]
fn a_clear_against_a_watch_is_never_missed() {
    model("a_clear_against_a_watch_is_never_missed", Some(4), || {
        let pool = watched(options(1, 1));
        let mut patient = unfinished(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let (_, staleness) = patient.recoverable();
        let mut watch = Watch::new(pool.host().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || staleness.is_stale())));
        drop(watch);
        clears.join().unwrap();
        recover(patient, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn a_close_against_a_watch_is_never_missed() {
    model("a_close_against_a_watch_is_never_missed", Some(4), || {
        let pool = watched(options(1, 1));
        let mut patient = unfinished(&pool);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        let (_, staleness) = patient.recoverable();
        let mut watch = Watch::new(pool.host().changed());
        loom::future::block_on(poll_fn(|context| watch.poll(context, || staleness.is_stale())));
        drop(watch);
        closes.join().unwrap();
        recover(patient, true);
        assert_empty(&pool);
        wind_up(pool);
    });
}
