//! qp: a crossbeam `ArrayQueue` of connections behind its own semaphore.

use std::convert::Infallible;

use qp::resource::Manage;
use qp::{Pool, Pooled, async_trait};

use super::{Create, Dummy, Queue, Subject};

/// qp without validation at check-out, which would box a future each time.
///
/// It has no method that drops its idle connections, so it is left out of `clear`.
///
/// It loses waiters when it is saturated. A waiter registers its waker only once, and a waiter that is woken but finds
/// its permit taken by a new caller is never woken again. So the saturated cases end by abandoning the tasks that are
/// still waiting, and report how many there are.
pub struct Qp(Pool<Opener>);

/// Opens dummies.
pub struct Opener;

#[async_trait]
impl Manage for Opener {
    type Output = Dummy;
    type Error = Infallible;

    async fn try_create(&self) -> Result<Dummy, Infallible> {
        Ok(Dummy::open())
    }
}

impl Subject for Qp {
    const NAME: &'static str = "qp";
    type Guard<'a> = Pooled<'a, Opener>;

    async fn open(size: usize) -> Self {
        Self(Pool::new(Opener, size))
    }

    #[inline]
    async fn check_out(&self) -> Pooled<'_, Opener> {
        self.0.acquire_unchecked().await.expect("opening failed")
    }
}

impl Queue for Qp {}

/// Closes with `Pooled::take`, which removes the connection from the pool.
impl Create for Qp {
    async fn create_and_close(&self) {
        drop(Pooled::take(self.check_out().await));
    }
}
