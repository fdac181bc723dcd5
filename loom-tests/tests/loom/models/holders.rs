//! Models of the holders' records: they are read, and reviewed for long uses, while their owners write them.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use wharf::unstable::pool::Idle;

use super::harness::model;
use super::world::*;

/// Returns two different call sites for check-outs.
fn sites() -> [&'static Location<'static>; 2] {
    [Location::caller(), here()]
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

/// Checks out a connection at a site.
fn check_out_at(pool: &Arc<Pool>, idle: Idle<World>, site: &'static Location<'static>) -> Leased {
    idle.note_holder(site);
    check_out(pool, idle)
}

/// Opens a connection and leaves it on its way to its caller: neither checked out nor made available.
fn on_its_way(pool: &Arc<Pool>) -> Idle<World> {
    let (idle, opening) = opened(pool);
    drop(opening);
    idle
}

/// Each site has its own task number, so a reader can tell whether a site and a task number belong to the same use.
#[test]
fn holder_is_read_from_one_use() {
    model("holder_is_read_from_one_use", Some(2), || {
        let pool = unheard(options(1, 1));
        let [first, second] = sites();
        pool.account_for_holders(true);
        run_as_task(1);
        let lease = check_out_at(&pool, on_its_way(&pool), first);
        let uses = thread::spawn({
            let pool = pool.clone();
            move || {
                check_in(lease);
                run_as_task(2);
                let idle = pool.try_take().expect("the connection is not available");
                check_in(check_out_at(&pool, idle, second));
            }
        });
        for holder in pool.holders() {
            let (site, task_id) = (holder.call_site.expect("the use was noted"), holder.task_id);
            assert_eq!(task_id, Some(if site == first { 1 } else { 2 }), "{holder:?}");
        }
        uses.join().unwrap();
        assert!(pool.holders().is_empty());
        wind_up(pool);
    });
}

#[test]
fn use_that_was_reported_as_long_is_reported_as_ended() {
    model("use_that_was_reported_as_long_is_reported_as_ended", None, || {
        let pool = unheard(options(1, 1));
        pool.account_for_holders(true);
        let lease = check_out_at(&pool, on_its_way(&pool), here());
        end_during_a_review(&pool, move || check_in(lease));
        wind_up(pool);
    });
}

#[test]
fn earlier_use_that_was_reported_as_long_is_reported_as_ended() {
    model("earlier_use_that_was_reported_as_long_is_reported_as_ended", Some(4), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        end_during_a_review(&pool, move || check_in(lease));
        wind_up(pool);
    });
}

#[test]
fn check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_is_noted() {
    model("check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_is_noted", Some(4), || {
        let pool = unheard(options(1, 1));
        let idle = on_its_way(&pool);
        let noted = pool.clone();
        check_in(end_during_a_review(&pool, move || check_out_at(&noted, idle, here())));
        wind_up(pool);
    });
}

#[test]
fn check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_gives_up() {
    model("check_out_that_was_reported_as_an_earlier_use_ends_it_when_it_gives_up", Some(4), || {
        let pool = unheard(options(1, 1));
        let idle = on_its_way(&pool);
        end_during_a_review(&pool, move || drop(idle));
        wind_up(pool);
    });
}

/// Ends a use with `ends` during a review. Asserts that the use is reported as ended if and only if it is reported as
/// long.
fn end_during_a_review<T: Send + 'static>(pool: &Pool, ends: impl FnOnce() -> T + Send + 'static) -> T {
    pool.report_holds_after(Some(Duration::from_nanos(1)));
    pool.environment().pass(Duration::from_secs(1));
    let ends = thread::spawn(ends);
    let during = pool.review_holds();
    let left = ends.join().unwrap();
    let after = pool.review_holds();
    assert!(after.long.is_empty(), "a use that has ended was reported as long");
    assert_eq!(during.long.len(), during.ended.len() + after.ended.len(), "{during:?} {after:?}");
    left
}
