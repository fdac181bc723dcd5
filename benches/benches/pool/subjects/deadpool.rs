//! deadpool: a `VecDeque` under a mutex behind a tokio semaphore. Waiters wait on the semaphore.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

use deadpool::managed::{Manager, Metrics, Object, Pool, RecycleResult};

use super::{Clear, Create, Dummy, Queue, Subject};

/// deadpool's managed pool without timeouts or hooks.
pub struct Deadpool(Pool<Opener>);

/// Opens dummies and accepts every connection that is returned.
pub struct Opener;

impl Manager for Opener {
    type Type = Dummy;
    type Error = Infallible;

    async fn create(&self) -> Result<Dummy, Infallible> {
        Ok(Dummy::open())
    }

    async fn recycle(&self, _connection: &mut Dummy, _metrics: &Metrics) -> RecycleResult<Infallible> {
        Ok(())
    }
}

impl Subject for Deadpool {
    const NAME: &'static str = "deadpool";
    type Guard<'a> = Object<Opener>;

    async fn open(size: usize) -> Self {
        Self(Pool::builder(Opener).max_size(size).build().expect("a pool without timeouts needs no runtime"))
    }

    #[inline]
    async fn check_out(&self) -> Object<Opener> {
        self.0.get().await.expect("the pool is closed, or opening failed")
    }
}

impl Queue for Deadpool {}

/// Closes with `Object::take`, which removes the connection from the pool.
impl Create for Deadpool {
    async fn create_and_close(&self) {
        drop(Object::take(self.check_out().await));
    }
}

/// Clears with a `retain` that keeps nothing, and drops the removed connections.
impl Clear for Deadpool {
    fn clear(&self) {
        drop(self.0.retain(|_, _| false));
    }
}

/// deadpool with the code that a user must add to find out how long check-outs wait: two clock readings around `get`.
///
/// In both subjects, deadpool itself counts each connection's check-outs and reads the clock at each check-out
/// (`Metrics`). The measured wait is not recorded anywhere, so this is the minimum cost of metrics. `Pool::status`
/// locks the pool, but only when the numbers are read.
pub struct Timed(Deadpool);

impl Subject for Timed {
    const NAME: &'static str = "deadpool";
    type Guard<'a> = Object<Opener>;

    async fn open(size: usize) -> Self {
        Self(Deadpool::open(size).await)
    }

    #[inline]
    async fn check_out(&self) -> Object<Opener> {
        let start = Instant::now();
        let object = self.0.check_out().await;
        black_box(start.elapsed());
        black_box(Object::metrics(&object));
        object
    }
}

impl Queue for Timed {}
