//! Models of the records of holders: reading them, and reporting long uses, while their owners write them.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::harness::model;
use super::world::*;

/// Two lines that check connections out.
fn sites() -> [&'static Location<'static>; 2] {
    [Location::caller(), here()]
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

/// Checks out the only connection at a site.
fn use_at(pool: &Arc<Pool>, site: &'static Location<'static>) {
    let lease = check_out(pool, pool.try_take().expect("the connection is not available"));
    lease.note_holder(site);
    check_in(lease);
}

/// The task's number belongs to the site, so a reader can tell whether both are of one use.
#[test]
fn holder_is_read_from_one_use() {
    model("holder_is_read_from_one_use", Some(2), || {
        let pool = unheard(options(1, 1));
        let [first, second] = sites();
        pool.account_for_holders(true);
        run_as_task(1);
        let lease = leased(&pool);
        lease.note_holder(first);
        let uses = thread::spawn({
            let pool = pool.clone();
            move || {
                check_in(lease);
                run_as_task(2);
                use_at(&pool, second);
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
        let lease = leased(&pool);
        lease.note_holder(here());
        end_during_a_review(pool, lease);
    });
}

#[test]
fn earlier_use_that_was_reported_as_long_is_reported_as_ended() {
    model("earlier_use_that_was_reported_as_long_is_reported_as_ended", Some(4), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        end_during_a_review(pool, lease);
    });
}

fn end_during_a_review(pool: Arc<Pool>, lease: Leased) {
    pool.report_holds_after(Some(Duration::from_nanos(1)));
    pool.environment().pass(Duration::from_secs(1));
    let ends = thread::spawn(move || check_in(lease));
    let during = pool.review_holds();
    ends.join().unwrap();
    let after = pool.review_holds();
    assert!(after.long.is_empty(), "a use that has ended was reported as long");
    assert_eq!(during.long.len(), during.ended.len() + after.ended.len(), "{during:?} {after:?}");
    wind_up(pool);
}
