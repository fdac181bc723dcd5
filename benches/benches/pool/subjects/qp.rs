//! qp: a crossbeam `ArrayQueue` of connections behind a semaphore of its own.

use std::convert::Infallible;

use qp::resource::Manage;
use qp::{Pool, Pooled, async_trait};

use super::{Create, Dummy, Queue, Subject};

/// qp, checking out without validation, which would box a future for every check-out.
///
/// It has no call to throw its idle connections away, so it takes no part in `clear`.
///
/// When it is saturated its waiters get lost: a waiter leaves its waker behind only once, and one that is woken but
/// finds the permit taken by a newcomer is never woken again. The saturated cases therefore end by abandoning whoever
/// still waits, and tell how many did.
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
        self.0.acquire_unchecked().await.expect("opening cannot fail")
    }
}

impl Queue for Qp {}

/// Closing is `Pooled::take`, which gives the connection away for good.
impl Create for Qp {
    async fn create_and_close(&self) {
        drop(Pooled::take(self.check_out().await));
    }
}
