//! sqlx: a crossbeam `ArrayQueue` of connections behind a fair semaphore, with a database that does nothing.

mod nothing;

use log::LevelFilter;
use sqlx_core::pool::{Pool, PoolConnection, PoolOptions};

use super::{Create, Dummy, Queue, Subject};
use nothing::{Nothing, Options};

/// sqlx's pool without tests at check-out, lifetimes or idle timeouts, and therefore without its maintenance task.
///
/// The timeout around every check-out, its two clock readings, and the task that a check-in spawns cannot be turned
/// off. Closing a pool is final, and no other method drops idle connections, so sqlx is left out of `clear`.
pub struct Sqlx(Pool<Nothing>);

impl Subject for Sqlx {
    const NAME: &'static str = "sqlx";
    type Guard<'a> = PoolConnection<Nothing>;

    async fn open(size: usize) -> Self {
        let pool = PoolOptions::new()
            .max_connections(u32::try_from(size).expect("the size exceeds sqlx's limit"))
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_time_level(LevelFilter::Off)
            .acquire_slow_level(LevelFilter::Off)
            .connect_lazy_with(Options(Source));
        Self(pool)
    }

    #[inline]
    async fn check_out(&self) -> PoolConnection<Nothing> {
        self.0.acquire().await.expect("no connection within sqlx's default timeout")
    }

    /// Also waits for the check-ins, each of which runs in a spawned task.
    async fn warm(&self, size: usize) {
        let mut held = Vec::with_capacity(size);
        for _ in 0..size {
            held.push(self.check_out().await);
        }
        drop(held);
        while self.0.num_idle() < size {
            tokio::task::yield_now().await;
        }
    }
}

impl Queue for Sqlx {}

/// Closes with `PoolConnection::close`, which closes the connection and then releases its permit.
impl Create for Sqlx {
    async fn create_and_close(&self) {
        self.check_out().await.close().await.expect("closing failed");
    }
}

/// Opens the database's dummies, without any delay.
#[derive(Debug, Clone)]
pub struct Source;

impl Source {
    async fn open(&self) -> Dummy {
        Dummy::open()
    }
}

fn is_alive(_: &Dummy) -> bool {
    true
}
