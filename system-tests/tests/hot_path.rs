//! The usual paths allocate nothing, except for the reply to a command.

#![cfg(not(loom))]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bson::rawdoc;
use wharf::{CheckOutError, Connection, Endpoint, Establish, EstablishError, Establishing, Pool, PoolOptions};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

use wharf_testbed::counting::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

use counting::{allocations, so_far};

struct Numbers;

impl Establish for Numbers {
    type Connection = u64;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        Ok(connecting.connection_id())
    }
}

/// Runs a test on a current-thread runtime, with a pool that has an available connection.
fn with_pool(options: PoolOptions, test: impl AsyncFnOnce(Pool<Numbers>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = Pool::builder("mock:27017", Numbers).options(options).build().unwrap();
        pool.ready();
        drop(pool.check_out().await.unwrap());
        test(pool).await;
    });
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a check-out that finds an available connection, and its check-in.
fn hit(pool: &Pool<Numbers>) {
    let check_out = std::pin::pin!(pool.check_out());
    let Poll::Ready(connection) = poll(check_out) else { panic!("no connection is available") };
    drop(connection.unwrap());
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))).0, 1);
    assert_eq!(allocations(|| std::hint::black_box(1_u64)).0, 0);
}

/// Serving a waiter moves the waiter's cache lines from core to core, so the waiter should be small.
#[test]
fn waiting_check_out_is_small() {
    with_pool(PoolOptions::default(), async |pool| {
        assert!(size_of_val(&pool.check_out()) <= 96, "{}", size_of_val(&pool.check_out()));
    });
}

#[test]
fn hit_and_its_check_in_allocate_nothing() {
    let idle = PoolOptions::default().max_idle_time(Duration::from_secs(60));
    let timeout = PoolOptions::default().wait_queue_timeout(Duration::from_secs(60));
    for options in [PoolOptions::default(), idle, timeout] {
        with_pool(options.clone(), async |pool| {
            hit(&pool);
            let (count, ()) = allocations(|| (0..10_000).for_each(|_| hit(&pool)));
            assert_eq!(count, 0, "{options:?}");
        });
    }
}

#[test]
fn hit_on_another_threads_shard_allocates_nothing() {
    with_pool(PoolOptions::default(), async |pool| {
        // Checks each connection in on another thread, which leaves it in that thread's shard.
        let held: Vec<Connection<Numbers>> = {
            let mut held = Vec::new();
            for _ in 0..8 {
                held.push(pool.check_out().await.unwrap());
            }
            held
        };
        for connection in held {
            std::thread::spawn(move || drop(connection)).join().unwrap();
        }
        let (count, all) = allocations(|| {
            [(); 8].map(|()| {
                let check_out = std::pin::pin!(pool.check_out());
                let Poll::Ready(connection) = poll(check_out) else { panic!("no connection is available") };
                connection.unwrap()
            })
        });
        assert_eq!(count, 0);
        drop(all);
    });
}

#[test]
#[cfg_attr(feature = "event-listener-queue", ignore = "each listener of event-listener is an allocation")]
fn waiting_allocates_at_most_once_per_waiter() {
    const WAITERS: usize = 100;
    type CheckOut<'p> = Pin<Box<dyn Future<Output = Result<Connection<Numbers>, CheckOutError>> + 'p>>;
    let forever = PoolOptions::default().max_pool_size(1);
    let timed = forever.clone().wait_queue_timeout(Duration::from_secs(60));
    for options in [forever, timed] {
        with_pool(options.clone(), async |pool| {
            // In the second round, the queue already has its full size.
            for round in 0..2 {
                let mut held = Some(pool.check_out().await.unwrap());
                let mut waiters: Vec<CheckOut<'_>> = (0..WAITERS).map(|_| Box::pin(pool.check_out()) as _).collect();
                let (queueing, ()) = allocations(|| {
                    waiters.iter_mut().for_each(|waiter| assert!(poll(waiter.as_mut()).is_pending()));
                });
                let (serving, ()) = allocations(|| {
                    for waiter in &mut waiters {
                        drop(held.take());
                        let Poll::Ready(connection) = poll(waiter.as_mut()) else {
                            panic!("the first waiter in the queue was not served")
                        };
                        held = Some(connection.unwrap());
                    }
                });
                let most = if round == 0 { 2 * WAITERS } else { WAITERS };
                assert!(queueing + serving <= most, "round {round}: {queueing} + {serving}, {options:?}");
            }
        });
    }
}

#[test]
fn command_allocates_only_its_reply() {
    // The server runs on its own thread, so that only the client is counted.
    let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = serving.block_on(EmbeddedServer::start(EmbeddedOptions::default())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = Endpoint::new(&server.address()).unwrap().pool().build().unwrap();
        pool.ready();
        let ping = rawdoc! { "ping": 1 };
        const COMMANDS: usize = 500;
        // The first command lets the buffers grow.
        pool.run_command("admin", &ping).await.unwrap();
        let before = so_far();
        for _ in 0..COMMANDS {
            let mut connection = pool.check_out().await.unwrap();
            connection.run_command("admin", &ping).await.unwrap();
        }
        assert_eq!(so_far() - before, COMMANDS, "commands on a connection");

        let before = so_far();
        for _ in 0..COMMANDS {
            pool.run_command("admin", &ping).await.unwrap();
        }
        assert_eq!(so_far() - before, COMMANDS, "commands on the pool");

        let mut connection = pool.check_out().await.unwrap();
        let before = so_far();
        for _ in 0..COMMANDS {
            connection.reply_to("admin", &ping).await.unwrap();
        }
        assert_eq!(so_far() - before, 0, "commands whose reply is borrowed");
    });
}
