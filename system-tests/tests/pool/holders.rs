//! The holders of connections: the accounting, the error that lists the longest holders, and the reports of long holds.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf::{
    BackgroundInterval, CheckOutError, Clear, Connection, Holder, LongHold, Pool, PoolEvent, PoolOptions, Purpose,
    WaitQueueTimeoutError,
};

use super::mock::{Attempt, Mock, builder, poll_once, service, settle};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a ready pool that accounts for holders.
fn accounting(options: PoolOptions, mock: &Mock) -> Pool<Mock> {
    let pool = builder(mock).options(options).account_for_holders(true).build().unwrap();
    pool.ready();
    pool
}

/// Returns the lines of this file at which the connections were checked out, longest in use first.
fn lines(pool: &Pool<Mock>) -> Vec<Option<u32>> {
    pool.holders().iter().map(line).collect()
}

fn line(holder: &Holder) -> Option<u32> {
    let site = holder.call_site?;
    assert_eq!(site.file(), file!());
    Some(site.line())
}

#[tokio::test(start_paused = true)]
async fn pool_does_not_account_for_holders_unless_told() {
    let pool = builder(&Mock::new([])).build().unwrap();
    pool.ready();
    let _held = pool.check_out().await.unwrap();
    assert!(!pool.accounts_for_holders());
    assert_eq!(pool.holders(), []);
}

#[tokio::test(start_paused = true)]
async fn holders_are_listed_with_all_that_is_known_longest_first() {
    let pool = accounting(PoolOptions::default(), &Mock::new([]));
    let here = line!() + 1;
    let mut first = pool.check_out().await.unwrap();
    first.pin_to(Purpose::Cursor);
    tokio::time::sleep(2 * SECOND).await;
    let task = tokio::spawn({
        let pool = pool.clone();
        async move { (tokio::task::id(), line!(), pool.check_out().await.unwrap()) }
    });
    let (task_id, there, second) = task.await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    let [one, two] = &pool.holders()[..] else { panic!("{:?}", pool.holders()) };
    assert_eq!((one.connection_id, line(one), one.held_for), (first.id(), Some(here), 5 * SECOND));
    assert_eq!((one.task_id, one.purpose, one.generation), (None, Some(Purpose::Cursor), 0));
    assert_eq!((two.connection_id, line(two), two.held_for), (second.id(), Some(there), 3 * SECOND));
    assert_eq!(two.task_id.map(|id| id.to_string()), Some(task_id.to_string()));
    assert_eq!((two.purpose, two.service_id), (Some(Purpose::Operation), None));
    let file = file!();
    assert_eq!(
        one.to_string(),
        format!(
            "connection 1 for 5.0s, checked out at {file}:{here}:{}, pinned to a cursor",
            one.call_site.unwrap().column()
        )
    );
    assert!(two.to_string().ends_with(&format!(" (task {task_id})")), "{two}");
    drop(first);
    assert_eq!(lines(&pool), [Some(there)]);
    drop(second);
    assert_eq!(pool.holders(), []);
}

#[tokio::test(start_paused = true)]
async fn every_way_to_check_out_notes_its_caller() {
    let mock = Mock::new([]);
    let pool = accounting(PoolOptions::default().max_pool_size(1), &mock);
    let far = tokio::time::Instant::now() + 100 * SECOND;
    // The first check-out opens the connection, and the second is a hit.
    for _ in 0..2 {
        let here = line!() + 1;
        let held = pool.check_out().await.unwrap();
        assert_eq!(lines(&pool), [Some(here)]);
        drop(held);
    }
    let here = line!() + 1;
    let held = pool.check_out_until(far).await.unwrap();
    assert_eq!(lines(&pool), [Some(here)]);
    // The next check-out waits.
    let mut waits = pin!(pool.check_out());
    let here = line!() - 1;
    assert!(poll_once(waits.as_mut()).await.is_none());
    drop(held);
    assert_eq!(pool.holders(), [], "a connection that was granted has no holder before its check-out knows");
    let held = waits.await.unwrap();
    assert_eq!(lines(&pool), [Some(here)]);
    let mut waits = pin!(pool.check_out_until(far));
    let here = line!() - 1;
    assert!(poll_once(waits.as_mut()).await.is_none());
    drop(held);
    let _held = waits.await.unwrap();
    assert_eq!(lines(&pool), [Some(here)]);
}

#[tokio::test(start_paused = true)]
async fn switch_in_use_lists_earlier_check_outs_without_their_call_site() {
    let mock = Mock::new([]);
    let pool = builder(&mock).build().unwrap();
    pool.ready();
    let [idle, early] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    drop(idle);
    tokio::time::sleep(SECOND).await;
    pool.account_for_holders(true);
    tokio::time::sleep(SECOND).await;
    mock.instruct([Attempt::Held]);
    let [late, mut opening] = [pool.check_out(), pool.check_out()].map(Box::pin);
    let late = late.await.unwrap();
    assert!(poll_once(opening.as_mut()).await.is_none(), "the connection is not held in establishment");
    settle().await;
    let holders = pool.holders();
    assert_eq!(holders.iter().map(|holder| holder.connection_id).collect::<Vec<_>>(), [early.id(), late.id()]);
    let (first, second) = (&holders[0], &holders[1]);
    assert_eq!((first.call_site, first.task_id, first.purpose), (None, None, None));
    assert!(first.held_for > SECOND && second.held_for < SECOND, "{holders:?}");
    assert!(first.to_string().contains("checked out before holders were accounted for"), "{first}");
    drop(early);
    let again = pool.check_out().await.unwrap();
    assert_eq!(pool.holders().iter().filter(|holder| holder.call_site.is_none()).count(), 0);
    drop((late, again));
    assert_eq!(pool.holders(), []);
}

#[tokio::test(start_paused = true)]
async fn record_of_an_earlier_switch_counts_for_nothing() {
    let pool = accounting(PoolOptions::default(), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    pool.account_for_holders(false);
    assert_eq!(pool.holders(), []);
    // This check-in is not recorded, because the accounting is off.
    drop(held);
    pool.account_for_holders(true);
    assert_eq!(pool.holders(), [], "an available connection is listed");
    pool.account_for_holders(false);
    let held = pool.check_out().await.unwrap();
    pool.account_for_holders(true);
    assert_eq!(lines(&pool), [None]);
    drop(held);
    assert_eq!(pool.holders(), []);
}

#[tokio::test(start_paused = true)]
async fn connection_in_use_has_its_holder_through_a_clear_and_a_close() {
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    pool.ready();
    let [idle, early] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    drop(idle);
    pool.account_for_holders(true);
    let held = pool.check_out().await.unwrap();
    drop(held);
    let held = pool.check_out().await.unwrap();
    let third = pool.check_out().await.unwrap();
    drop(third);
    // The available connection is stale by now, but not yet closed: no background task closes it.
    pool.clear(Clear::new()).unwrap();
    let ids = |pool: &Pool<Mock>| pool.holders().iter().map(|holder| holder.connection_id).collect::<Vec<_>>();
    assert_eq!(ids(&pool), [held.id(), early.id()]);
    pool.close();
    assert_eq!(ids(&pool), [held.id(), early.id()]);
    drop(held);
    assert_eq!(ids(&pool), [early.id()]);
    drop(early);
    assert_eq!(ids(&pool), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn connection_that_was_available_at_the_switch_is_not_listed_as_held_since() {
    let pool = builder(&Mock::new([])).build().unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    pool.account_for_holders(true);
    tokio::time::sleep(SECOND).await;
    let listed = Arc::new(Mutex::new(Vec::new()));
    pool.subscribe({
        let (pool, listed) = (pool.clone(), listed.clone());
        move |event: &PoolEvent| {
            if matches!(event, PoolEvent::ConnectionCheckedOut { .. }) {
                listed.lock().unwrap().push(pool.holders().iter().any(|holder| holder.held_for >= SECOND));
            }
        }
    });
    drop(pool.check_out().await.unwrap());
    assert_eq!(*listed.lock().unwrap(), [false]);
}

#[tokio::test(start_paused = true)]
async fn holder_is_noted_before_subscribers_are_told_of_the_check_out() {
    let pool = accounting(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let told = Arc::new(Mutex::new(Vec::new()));
    pool.subscribe({
        let (pool, told) = (pool.clone(), told.clone());
        move |event: &PoolEvent| {
            if matches!(event, PoolEvent::ConnectionCheckedOut { .. }) {
                told.lock().unwrap().extend(lines(&pool));
            }
        }
    });
    let opened = pool.check_out().await.unwrap();
    let first = line!() - 1;
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    drop(opened);
    drop(waits.await.unwrap());
    drop(pool.check_out().await.unwrap());
    assert_eq!(*told.lock().unwrap(), [Some(first), Some(first + 2), Some(first + 6)]);
}

#[tokio::test(start_paused = true)]
async fn stale_connection_that_is_not_closed_yet_has_no_holder() {
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    pool.account_for_holders(true);
    pool.clear(Clear::new()).unwrap();
    assert_eq!((pool.status().stale, pool.status().total), (1, 1));
    assert_eq!(pool.holders(), []);
}

#[tokio::test(start_paused = true)]
async fn holder_behind_a_load_balancer_names_its_service() {
    let pool = accounting(PoolOptions::default().load_balanced(true), &Mock::new([]));
    drop(pool.check_out().await.unwrap());
    let keep = pool.check_out().await.unwrap();
    pool.clear_service(service(), Clear::new()).unwrap();
    drop(keep);
    let keep = pool.check_out().await.unwrap();
    let other = pool.check_out().await.unwrap();
    drop(keep);
    let holders = pool.holders();
    let [holder] = &holders[..] else { panic!("{holders:?}") };
    assert_eq!((holder.service_id, holder.generation), (Some(service()), other.generation()));
    assert!(holder.to_string().ends_with(", of service 0123456789abcdef01234567"), "{holder}");
}

async fn timed_out(pool: &Pool<Mock>) -> WaitQueueTimeoutError {
    match pool.check_out().await.unwrap_err() {
        CheckOutError::WaitQueueTimeout(error) => *error,
        other => panic!("unexpected error: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn wait_queue_timeout_lists_the_five_longest_holders() {
    let options = PoolOptions::default().max_pool_size(6).wait_queue_timeout(SECOND);
    let pool = accounting(options, &Mock::new([]));
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.check_out().await.unwrap());
        tokio::time::sleep(SECOND).await;
    }
    let error = timed_out(&pool).await;
    let longest = error.longest_held.as_ref().unwrap();
    assert_eq!(longest.iter().map(|holder| holder.connection_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(longest[0].held_for, 7 * SECOND);
    let message = error.to_string();
    let at = longest[0].call_site.unwrap();
    assert!(
        message.contains(&format!(
            ", available: 0, being drained: 0; longest in use: connection 1 for 7.0s, checked out at {at}; connection 2 for \
             6.0s, checked out at {at}; "
        )),
        "{message}"
    );
    assert!(message.len() < 1_000 && !message.contains("account_for_holders"), "{message}");
}

/// A pool's reports, as one short line each.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    fn sink(&self) -> impl Fn(&LongHold) + Send + Sync + 'static {
        let reports = self.clone();
        move |report| {
            let LongHold { holder, has_ended, address, .. } = report;
            assert_eq!(&**address, "mock:27017");
            let what = if *has_ended { "back" } else { "long" };
            let from = if holder.call_site.is_some() { "" } else { " unknown" };
            let line = format!("{what} {} {:?}{from}", holder.connection_id, holder.held_for);
            reports.0.lock().unwrap().push(line);
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn reporting(mock: &Mock, reports: &Reports) -> Pool<Mock> {
    let pool = builder(mock).report_holds_after(Some(10 * SECOND)).on_long_hold(reports.sink()).build().unwrap();
    pool.ready();
    pool
}

#[tokio::test(start_paused = true)]
async fn long_hold_is_reported_once_at_its_time_and_so_is_its_end() {
    let reports = Reports::default();
    let pool = reporting(&Mock::new([]), &reports);
    assert!(pool.accounts_for_holders(), "a threshold implies the accounting");
    let first = pool.check_out().await.unwrap();
    tokio::time::sleep(3 * SECOND).await;
    let second = pool.check_out().await.unwrap();
    // A use that ends in time is not reported.
    drop(pool.check_out().await.unwrap());
    tokio::time::sleep(7 * SECOND - Duration::from_millis(1)).await;
    assert_eq!(reports.take(), [""; 0]);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(reports.take(), ["long 1 10s"]);
    tokio::time::sleep(90 * SECOND).await;
    assert_eq!(reports.take(), ["long 2 10s"]);
    drop(second);
    settle().await;
    assert_eq!(reports.take(), ["back 2 97.001s"]);
    drop(first);
    settle().await;
    assert_eq!(reports.take().len(), 1);
    // The next use of the same connection is a new use.
    let again = pool.check_out().await.unwrap();
    tokio::time::sleep(11 * SECOND).await;
    drop(again);
    settle().await;
    assert_eq!(reports.take().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn threshold_that_is_set_in_use_applies_to_connections_in_use() {
    let reports = Reports::default();
    let pool = builder(&Mock::new([])).build().unwrap();
    pool.ready();
    pool.on_long_hold(reports.sink());
    let [early, idle] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    drop(idle);
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(reports.take(), [""; 0]);
    pool.report_holds_after(Some(10 * SECOND));
    assert_eq!(pool.holds_are_reported_after(), Some(10 * SECOND));
    let late = pool.check_out().await.unwrap();
    tokio::time::sleep(9 * SECOND).await;
    assert_eq!(reports.take(), [""; 0]);
    tokio::time::sleep(50 * SECOND).await;
    assert_eq!(reports.take(), ["long 1 10s unknown", "long 2 10s"]);
    drop(early);
    settle().await;
    assert_eq!(reports.take(), ["back 1 59s unknown"]);
    // Changing the threshold does not cause a use to be reported again.
    pool.report_holds_after(Some(20 * SECOND));
    settle().await;
    assert_eq!(reports.take(), [""; 0]);
    pool.report_holds_after(None);
    assert!(!pool.accounts_for_holders());
    let _more = pool.check_out().await.unwrap();
    tokio::time::sleep(100 * SECOND).await;
    drop(late);
    settle().await;
    assert_eq!(reports.take(), [""; 0]);
}

/// For the accounting, a connection that is granted to a check-out already counts as in use before the check-out takes
/// it.
#[tokio::test(start_paused = true)]
async fn connection_on_its_way_at_the_switch_that_is_reported_as_long_is_reported_as_ended() {
    for gives_up in [false, true] {
        let reports = Reports::default();
        let pool = builder(&Mock::new([])).options(PoolOptions::default().max_pool_size(1)).build().unwrap();
        pool.ready();
        pool.on_long_hold(reports.sink());
        let held = pool.check_out().await.unwrap();
        let mut waits = Box::pin(pool.check_out());
        assert!(poll_once(waits.as_mut()).await.is_none());
        drop(held);
        pool.report_holds_after(Some(10 * SECOND));
        tokio::time::sleep(11 * SECOND).await;
        assert_eq!(reports.take(), ["long 1 10s unknown"]);
        let held = if gives_up { None } else { Some(waits.as_mut().await.unwrap()) };
        drop(waits);
        settle().await;
        assert_eq!(reports.take(), ["back 1 11s unknown"], "gives up: {gives_up}");
        assert_eq!(pool.holders().len(), usize::from(!gives_up));
        let Some(held) = held else { continue };
        // The use that is now recorded is a new one, which began when the waiter took the connection.
        tokio::time::sleep(11 * SECOND).await;
        drop(held);
        settle().await;
        assert_eq!(reports.take(), ["long 1 10s", "back 1 11.001s"]);
    }
}

#[tokio::test(start_paused = true)]
async fn long_holds_of_a_closed_pool_are_reported_until_they_end() {
    let reports = Reports::default();
    let pool = reporting(&Mock::new([]), &reports);
    let [first, second] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    pool.close();
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(reports.take(), ["long 1 10s", "long 2 10s"]);
    drop(first);
    settle().await;
    assert_eq!(reports.take().len(), 1);
    drop(second);
    pool.closed().await;
    assert!(pool.holders().is_empty());
}

/// The background task has two reasons to wake up at the last check-in, and handles them in random order.
#[tokio::test(start_paused = true)]
async fn last_long_hold_of_a_closed_pool_is_reported_as_ended() {
    for round in 0..64 {
        let reports = Reports::default();
        let pool = reporting(&Mock::new([]), &reports);
        let held = pool.check_out().await.unwrap();
        tokio::time::sleep(11 * SECOND).await;
        assert_eq!(reports.take(), ["long 1 10s"]);
        pool.close();
        settle().await;
        drop(held);
        settle().await;
        assert_eq!(reports.take(), ["back 1 11.001s"], "in round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_sink_keeps_no_report_from_the_others() {
    let reports = Reports::default();
    let pool = builder(&Mock::new([])).on_long_hold(|_: &LongHold| panic!("a sink panics")).build().unwrap();
    pool.on_long_hold(reports.sink());
    pool.ready();
    pool.report_holds_after(Some(SECOND));
    let held: Vec<Connection<Mock>> = vec![pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(reports.take().len(), 2);
    drop(held);
}
