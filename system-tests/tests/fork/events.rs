//! The counts that a subscriber can derive from a forked child's events.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::runtime::Builder;
use wharf::{CheckOutError, Pool, PoolEvent, PoolOptions};

use super::{Mock, Wrong, in_child, is_pending, settle};

/// The counts that a subscriber derives from events alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    total: i64,
    in_use: i64,
    waiting: i64,
    ids: Vec<u64>,
    closed: Vec<u64>,
    cleared: u32,
}

impl Tally {
    fn of(events: &[PoolEvent]) -> Self {
        let mut tally = Self::default();
        for event in events {
            match event {
                PoolEvent::ConnectionCreated { connection_id, .. } => {
                    tally.total += 1;
                    tally.ids.push(*connection_id);
                }
                PoolEvent::ConnectionClosed { connection_id, reason, .. } => {
                    tally.total -= 1;
                    tally.closed.push(*connection_id);
                    assert_eq!(reason.as_str(), "stale");
                }
                PoolEvent::ConnectionCheckOutStarted { .. } => tally.waiting += 1,
                PoolEvent::ConnectionCheckOutFailed { .. } => tally.waiting -= 1,
                PoolEvent::ConnectionCheckedOut { .. } => {
                    tally.waiting -= 1;
                    tally.in_use += 1;
                }
                PoolEvent::ConnectionCheckedIn { .. } => tally.in_use -= 1,
                PoolEvent::PoolCleared { .. } => tally.cleared += 1,
                _ => {}
            }
        }
        tally
    }
}

/// Returns a subscriber that keeps all events, and the events. A mutex suffices, because the parents here have no other
/// threads that could hold it.
fn recorder() -> (Arc<Mutex<Vec<PoolEvent>>>, impl Fn(&PoolEvent) + Send + Sync + 'static) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let subscriber = {
        let events = events.clone();
        move |event: &PoolEvent| events.lock().unwrap().push(event.clone())
    };
    (events, subscriber)
}

/// The specification requires a forked pool to clear itself. To a subscriber, it remains the same pool, whose
/// connections are closed in the child.
pub fn counts_from_events_add_up_in_the_child() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mock = Mock::default();
    let (events, subscriber) = recorder();
    let options = PoolOptions::default().max_pool_size(3);
    let (pool, mut held) = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", mock.clone()).options(options).subscriber(subscriber).build().unwrap();
        pool.ready();
        let held = pool.check_out().await.unwrap();
        let other = pool.check_out().await.unwrap();
        settle().await;
        drop(other);
        (pool, Some(held))
    });
    // One connection in use, one available, one being established, and two waiting check-outs. One of these is opening
    // a connection.
    let again = runtime.block_on(pool.check_out()).unwrap();
    mock.0.opens_nothing.store(true, Ordering::SeqCst);
    let mut waits = [(); 2].map(|()| Some(Box::pin(pool.check_out())));
    runtime.block_on(async {
        for wait in waits.iter_mut().flatten() {
            assert!(is_pending(wait));
            settle().await;
        }
    });
    let mut again = Some(again);
    let tally = || Tally::of(&events.lock().unwrap());
    assert_eq!((tally().total, tally().in_use, tally().waiting), (3, 2, 2));
    for child in ["that looks at its pool first", "that drops first"] {
        in_child(child, || {
            let adds_up = || {
                let (status, tally) = (pool.status(), tally());
                (tally.total, tally.in_use) == (i64::from(status.total), i64::from(status.in_use))
            };
            let ensure = |holds: bool| if holds { Ok(()) } else { Err(Wrong::DoesNotAddUp) };
            if child == "that looks at its pool first" {
                ensure(adds_up())?;
            }
            drop((held.take(), again.take()));
            drop(waits[0].take());
            let failed = runtime.block_on(waits[1].take().unwrap());
            ensure(matches!(failed, Err(CheckOutError::PoolCleared(_))))?;
            ensure(adds_up())?;
            let present = tally();
            ensure((present.total, present.in_use, present.waiting, present.cleared) == (0, 0, 0, 1))?;
            ensure(present.closed == [1, 2, 3])?;
            mock.0.opens_nothing.store(false, Ordering::SeqCst);
            pool.ready();
            let connection = runtime.block_on(pool.check_out()).map_err(|_| Wrong::NotServed)?;
            ensure(connection.id() == 4 && adds_up())?;
            let present = tally();
            ensure((present.ids, present.waiting) == (vec![1, 2, 3, 4], 0))
        });
    }
    assert_eq!((tally().total, tally().in_use, tally().waiting), (3, 2, 2), "the parent's counts have changed");
}

/// A pool may hold more connections than the number of events that one call delivers.
pub fn child_reports_the_end_of_every_connection_of_a_large_pool() {
    const MANY: u32 = 500;
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mock = Mock::default();
    let (events, subscriber) = recorder();
    let options = PoolOptions::default().max_pool_size(MANY);
    let (pool, mut held) = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", mock.clone()).options(options).subscriber(subscriber).build().unwrap();
        pool.ready();
        let mut held = Vec::new();
        for _ in 0..MANY {
            held.push(pool.check_out().await.unwrap());
        }
        settle().await;
        (pool, held)
    });
    held.truncate(MANY as usize / 2);
    in_child("of a large pool", || {
        let _ = pool.status();
        let tally = Tally::of(&events.lock().unwrap());
        let ended = (tally.total, tally.in_use, tally.closed.len()) == (0, 0, MANY as usize);
        if ended && tally.closed.is_sorted() { Ok(()) } else { Err(Wrong::DoesNotAddUp) }
    });
}
