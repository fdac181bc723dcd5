//! The contents of errors and events.

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use wharf::{
    CheckOutError, Clear, Connection, Labels, OptionValue, Phase, Pool, PoolClearedError, PoolEvent, PoolOptions,
    Purpose, Stage, TimeLimit,
};

use super::mock::{Attempt, Log, Mock, builder, counts, poll_once, pool, service, settle};

/// A result of two words fits into registers.
#[test]
fn result_of_a_check_out_has_two_words() {
    assert_eq!(size_of::<Result<Connection<Mock>, CheckOutError>>(), 2 * size_of::<usize>());
}

/// Prose test 5.
#[tokio::test(start_paused = true)]
async fn failed_set_up_fails_the_check_out_with_connection_error() {
    let (pool, log) = pool(PoolOptions::default(), &Mock::new([Attempt::Fails]));
    let error = pool.check_out().await.unwrap_err();
    assert_eq!(
        log.take(),
        [
            "ConnectionCheckOutStarted",
            "ConnectionCreated 1",
            "ConnectionClosed 1 error",
            "ConnectionCheckOutFailed connectionError"
        ]
    );
    let CheckOutError::Establish(error) = error else { panic!("{error:?}") };
    assert_eq!((error.connection_id(), error.generation(), error.address()), (Some(1), Some(0), Some("mock:27017")));
    assert_eq!((error.stage(), error.labels()), (Stage::Hello, Labels::NONE));
    assert_eq!(error.source().unwrap().to_string(), "the mock was told to fail");
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
}

/// Prose test 4.
#[tokio::test(start_paused = true)]
async fn every_subscriber_gets_the_events() {
    let (first, second, late) = (Log::default(), Log::default(), Log::default());
    let options = Arc::new(Mutex::new(None));
    let pool = builder(&Mock::new([]))
        .options(PoolOptions::default().max_pool_size(9))
        .subscriber(|_: &PoolEvent| panic!("the subscriber was told to panic"))
        .subscriber(first.subscriber())
        .subscriber(second.subscriber())
        .subscriber({
            let options = options.clone();
            move |event: &PoolEvent| {
                if let PoolEvent::PoolCreated { options: of_event, .. } = event {
                    *options.lock().unwrap() = Some(of_event.non_default());
                }
            }
        })
        .build()
        .unwrap();
    pool.subscribe(late.subscriber());
    pool.ready();
    drop(pool.check_out().await.unwrap());
    let all = [
        "PoolCreated",
        "PoolReady",
        "ConnectionCheckOutStarted",
        "ConnectionCreated 1",
        "ConnectionReady 1",
        "ConnectionCheckedOut 1",
        "ConnectionCheckedIn 1",
    ];
    assert_eq!(first.lines(), all);
    assert_eq!(second.lines(), all);
    assert_eq!(late.lines(), all[1..]);
    assert_eq!(*options.lock().unwrap(), Some(vec![("maxPoolSize", OptionValue::Number(9))]));
}

#[tokio::test(start_paused = true)]
async fn subscriber_may_use_the_pool() {
    let log = Log::default();
    let pool = builder(&Mock::new([])).subscriber(log.subscriber()).build().unwrap();
    pool.subscribe({
        let pool = pool.clone();
        move |event: &PoolEvent| match event.name() {
            "ConnectionCheckedIn" => drop(pool.clear(Clear::new())),
            "PoolCleared" => pool.close(),
            _ => {}
        }
    });
    pool.ready();
    drop(pool.check_out().await.unwrap());
    let lines = log.take();
    let tail = &lines[lines.len() - 3..];
    assert_eq!(tail[0], "PoolCleared");
    assert!(tail.contains(&"PoolClosed".to_owned()) && tail.iter().any(|line| line.starts_with("ConnectionClosed 1")));
}

#[tokio::test(start_paused = true)]
async fn wait_queue_timeout_in_load_balanced_mode_names_the_holders() {
    let options = PoolOptions::default().load_balanced(true).max_pool_size(4);
    let (pool, _log) = pool(options.wait_queue_timeout(Duration::from_millis(20)), &Mock::new([]));
    let mut held = Vec::new();
    for purpose in [Purpose::Cursor, Purpose::Transaction, Purpose::Transaction, Purpose::Operation] {
        let mut connection = pool.check_out().await.unwrap();
        assert_eq!((connection.service_id(), connection.generation()), (Some(service()), 0));
        connection.pin_to(purpose);
        held.push(connection);
    }
    let message = async || pool.check_out().await.unwrap_err().to_string();
    assert_eq!(
        message().await,
        "Timeout waiting for connection from the connection pool. maxPoolSize: 4, connections in use by cursors: 1, \
         connections in use by transactions: 2, connections in use by other operations: 1, connections being opened: 0, \
         other check-outs waiting: 0, waited for mock:27017: 20.0ms (waitQueueTimeoutMS), available: 0, being drained: \
         0; to see where connections were checked out, call account_for_holders(true)"
    );
    // A cursor or transaction is no longer counted once its connection is unpinned or checked in.
    held[1].pin_to(Purpose::Operation);
    drop(held.remove(0));
    held.push(pool.check_out().await.unwrap());
    let CheckOutError::WaitQueueTimeout(error) = pool.check_out().await.unwrap_err() else {
        panic!("unexpected error")
    };
    let holders = error.holders.unwrap();
    assert_eq!((holders.cursors, holders.transactions, holders.other_operations), (0, 1, 3));
    assert_eq!((error.max_pool_size, &*error.address), (4, "mock:27017"));
}

#[tokio::test(start_paused = true)]
async fn wait_queue_timeout_reports_address_sizes_and_time() {
    let options = PoolOptions::default().max_pool_size(2).wait_queue_timeout(Duration::from_millis(1500));
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(options, &mock);
    let (opening, held) = (background_check_out(&pool), pool.check_out());
    settle().await;
    let held = held.await.unwrap();
    let patient = background_check_out(&pool);
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let late = background_check_out(&pool);
    let CheckOutError::WaitQueueTimeout(error) = patient.await.unwrap().unwrap_err() else {
        panic!("unexpected error")
    };
    assert_eq!(
        error.to_string(),
        "Timed out while checking out a connection from connection pool for mock:27017 after 1.5s (waitQueueTimeoutMS): \
         connections in use: 1, being opened: 1, maxPoolSize: 2, other check-outs waiting: 1, available: 0, being drained: \
         0; to see where connections were checked out, call account_for_holders(true)"
    );
    assert_eq!((&*error.address, error.max_pool_size, error.total), ("mock:27017", 2, 2));
    assert_eq!((error.in_use, error.pending, error.waiting), (1, 1, 1));
    assert_eq!((error.available, error.draining, &error.longest_held), (0, 0, &None));
    assert_eq!((error.waited, error.limit), (Duration::from_millis(1500), TimeLimit::WaitQueueTimeout));
    drop(held);
    late.await.unwrap().unwrap();
    mock.let_one_in();
    opening.await.unwrap().unwrap();
}

fn background_check_out(pool: &Pool<Mock>) -> tokio::task::JoinHandle<Result<(), CheckOutError>> {
    let pool = pool.clone();
    tokio::spawn(async move { pool.check_out().await.map(drop) })
}

#[tokio::test(start_paused = true)]
async fn pool_that_was_never_ready_says_so() {
    let pool = builder(&Mock::new([])).build().unwrap();
    let refusal = async || match pool.check_out().await.unwrap_err() {
        CheckOutError::PoolCleared(error) => *error,
        other => panic!("unexpected error: {other}"),
    };
    pool.renew();
    let error = refusal().await;
    assert!(error.never_ready);
    assert_eq!(
        error.to_string(),
        "Connection pool for mock:27017 is paused: it has not been marked ready yet; call Pool::ready once the \
         server is known to be reachable"
    );
    pool.ready();
    pool.clear(Clear::new()).unwrap();
    let error = refusal().await;
    assert!(!error.never_ready);
    assert_eq!(
        error.to_string(),
        "Connection pool for mock:27017 was cleared and is paused until Pool::ready is called"
    );
}

#[tokio::test(start_paused = true)]
async fn main_prints_errors_as_sentences() {
    async fn main(pool: &Pool<Mock>) -> Result<(), Box<dyn Error>> {
        drop(pool.check_out().await?);
        Ok(())
    }
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([Attempt::Fails]));
    assert_eq!(
        format!("{:?}", main(&pool).await.unwrap_err()),
        "connection 1 to mock:27017 could not be established: MongoDB handshake: the mock was told to fail"
    );
    pool.close();
    let closed = main(&pool).await.unwrap_err();
    assert_eq!(format!("{closed:?}"), closed.to_string());
}

#[tokio::test(start_paused = true)]
async fn cleared_pool_reports_the_cause() {
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.map(drop) }
    });
    settle().await;
    let cause = Arc::new(io::Error::other("the server hung up"));
    assert_eq!(pool.clear(Clear::new().because(cause)), Ok(true));
    for error in [waiting.await.unwrap().unwrap_err(), pool.check_out().await.unwrap_err()] {
        assert!(error.is_retryable());
        assert_eq!(
            error.to_string(),
            "Connection pool for mock:27017 was cleared because another operation failed with: the server hung up"
        );
        let CheckOutError::PoolCleared(refused) = &error else { panic!("{error:?}") };
        let PoolClearedError { cause, interrupted, .. } = &**refused;
        assert!(!interrupted);
        assert!(cause.as_ref().unwrap().is::<io::Error>());
        assert_eq!(error.source().unwrap().to_string(), "the server hung up");
    }
    drop(held);
    pool.ready();
    pool.clear(Clear::new()).unwrap();
    let CheckOutError::PoolCleared(error) = pool.check_out().await.unwrap_err() else { panic!("unexpected error") };
    assert!(error.cause.is_none(), "a clear without a cause forgets the previous cause");
}

#[tokio::test(start_paused = true)]
async fn clearing_an_older_generation_does_nothing() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let connection = pool.check_out().await.unwrap();
    assert_eq!(pool.clear(Clear::new().only_at_generation(connection.generation())), Ok(true));
    assert!(connection.is_stale());
    pool.ready();
    assert_eq!(
        pool.clear(Clear::new().only_at_generation(connection.generation())),
        Ok(false),
        "that generation has been cleared already"
    );
    assert_eq!(pool.status().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn interrupted_operation_reports_whether_it_had_started() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let mut connection = pool.check_out().await.unwrap();
    let done = connection.interruptible(async |connection| connection.broken).await.unwrap();
    assert!(!done, "a completed operation counts as interrupted");
    let operation = tokio::spawn(async move {
        let outcome = connection.interruptible(async |_| std::future::pending::<()>().await).await;
        (outcome, connection)
    });
    settle().await;
    log.take();
    let cause = Arc::new(io::Error::other("the monitor timed out"));
    pool.clear(Clear::new().interrupt_in_use_connections(true).because(cause)).unwrap();
    let operation = tokio::time::timeout(Duration::from_millis(10), operation).await;
    let (outcome, mut connection) = operation.expect("the operation is not interrupted at once").unwrap();
    let error = outcome.unwrap_err();
    assert!(error.interrupted && error.sent && error.cause.is_none());
    let error = CheckOutError::from(error);
    assert!(!error.is_retryable(), "only the caller knows what the operation had done");
    assert_eq!(error.to_string(), "Connection to mock:27017 interrupted due to server monitor timeout");
    let again = connection.interruptible(async |_| unreachable!("the connection stays interrupted")).await;
    let error: PoolClearedError = again.map(|never: ()| never).unwrap_err();
    assert!(error.interrupted && !error.sent && CheckOutError::from(error).is_retryable());
    drop(connection);
    assert_eq!(log.take(), ["PoolCleared", "ConnectionCheckedIn 1", "ConnectionClosed 1 stale"]);
    assert_eq!((counts(&pool), mock.live()), ((0, 0, 0, 0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn clear_just_before_the_close_interrupts_operations() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let mut connection = pool.check_out().await.unwrap();
    let mut operation = pin!(connection.interruptible(async |_| std::future::pending::<()>().await));
    assert!(poll_once(operation.as_mut()).await.is_none());
    // The background task runs after the close.
    pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
    pool.close();
    let interrupted = tokio::time::timeout(Duration::from_millis(10), operation).await;
    assert!(interrupted.expect("the operation is not interrupted").unwrap_err().interrupted);
}

struct IdleTask;

impl Wake for IdleTask {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test(start_paused = true)]
async fn finished_operation_leaves_no_waker_behind() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let mut connection = pool.check_out().await.unwrap();
    let task = Arc::new(IdleTask);
    let waker = Waker::from(task.clone());
    let mut context = Context::from_waker(&waker);
    // The references that `task` and `waker` hold are not counted.
    let left = || Arc::strong_count(&task) - 2;

    let mut cancelled = Box::pin(connection.interruptible(async |_| std::future::pending::<()>().await));
    assert!(cancelled.as_mut().poll(&mut context).is_pending());
    assert_eq!(left(), 1, "the waker that an interruption would wake");
    drop(cancelled);
    assert_eq!(left(), 0, "the connection keeps a finished task's waker");

    let mut completed = Box::pin(connection.interruptible(async |_| {
        let mut polls = 0..2;
        std::future::poll_fn(|_| if polls.next() == Some(0) { Poll::Pending } else { Poll::Ready(()) }).await;
    }));
    assert!(completed.as_mut().poll(&mut context).is_pending());
    assert_eq!(left(), 1);
    assert!(completed.as_mut().poll(&mut context).is_ready());
    drop(completed);
    assert_eq!(left(), 0);
}

#[tokio::test(start_paused = true)]
async fn failure_sink_is_told_of_background_failures_and_can_clear() {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let log = Log::default();
    let pool = builder(&Mock::new([Attempt::Fails]))
        .options(PoolOptions::default().min_pool_size(1))
        .subscriber(log.subscriber())
        .on_failure({
            let failures = failures.clone();
            move |failure| {
                assert!(failure.clears_pool());
                let ids = (failure.error().connection_id(), failure.service_id());
                failures.lock().unwrap().push((ids, failure.clear_pool(), failure.clear_pool()));
            }
        })
        .build()
        .unwrap();
    pool.ready();
    settle().await;
    assert_eq!(
        *failures.lock().unwrap(),
        [((Some(1), None), true, false)],
        "the second clear names an older generation"
    );
    let CheckOutError::PoolCleared(error) = pool.check_out().await.unwrap_err() else { panic!("unexpected error") };
    assert_eq!(error.cause.unwrap().to_string(), "the mock was told to fail");
}

#[tokio::test(start_paused = true)]
async fn failure_sink_clears_the_service_of_a_failed_connection_once_for_each_generation() {
    let mock = Mock::new([Attempt::HeldToFail, Attempt::HeldToFail, Attempt::HeldToFail]);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let pool = builder(&mock)
        .options(PoolOptions::default().load_balanced(true))
        .on_failure({
            let failures = failures.clone();
            move |failure| {
                assert!(failure.clears_pool());
                failures.lock().unwrap().push((failure.service_id(), failure.clear_pool()));
            }
        })
        .build()
        .unwrap();
    pool.ready();
    let both = [(); 2].map(|()| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.check_out().await })
    });
    settle().await;
    for _ in &both {
        mock.let_one_in();
    }
    for opened in both {
        opened.await.unwrap().unwrap_err();
    }
    let of_the_service = |cleared| (Some(service()), cleared);
    assert_eq!(
        *failures.lock().unwrap(),
        [true, false].map(of_the_service),
        "the second one is of an older generation"
    );
    mock.let_one_in();
    pool.check_out().await.unwrap_err();
    assert_eq!(*failures.lock().unwrap(), [true, false, true].map(of_the_service));
    assert_eq!(pool.status().phase, Phase::Ready);
}
