//! wharf at several levels of observation: without metrics, with its usual metrics, and with additional observers.

use std::hint::black_box;
use std::marker::PhantomData;
use std::time::Duration;

use tokio::time::Instant;
use wharf::telemetry::EventCounts;
use wharf::{
    Condition, Connection, Establish, EstablishError, Establishing, Pool, PoolBuilder, PoolEvent, PoolOptions,
};

use super::wharf::Opener;
use super::{Dummy, Handled, Handler, Queue, Subject};

/// A way of observing a pool.
pub trait Observation: Send + Sync + 'static {
    const NAME: &'static str;

    /// Opens the dummies. The pool is compiled again for each type, so most observations share one type.
    type Opener: Establish<Connection = Dummy> + Default;

    /// Adds the observers that the pool starts with.
    fn observe(builder: PoolBuilder<Self::Opener>) -> PoolBuilder<Self::Opener> {
        builder
    }
}

/// wharf with an observation. All options except the size have their defaults.
pub struct Observed<O: Observation> {
    pool: Pool<O::Opener>,
    observation: PhantomData<O>,
}

impl<O: Observation> Observed<O> {
    fn build(size: usize, observe: impl FnOnce(PoolBuilder<O::Opener>) -> PoolBuilder<O::Opener>) -> Self {
        let size = u32::try_from(size).expect("the size exceeds wharf's limit");
        let builder =
            Pool::builder("bench:1", O::Opener::default()).options(PoolOptions::default().max_pool_size(size));
        let pool = observe(O::observe(builder)).build().expect("invalid options, or no runtime");
        pool.ready();
        Self { pool, observation: PhantomData }
    }
}

impl<O: Observation> Subject for Observed<O> {
    const NAME: &'static str = O::NAME;
    type Guard<'a> = Connection<O::Opener>;

    async fn open(size: usize) -> Self {
        Self::build(size, |builder| builder)
    }

    #[inline]
    async fn check_out(&self) -> Connection<O::Opener> {
        self.pool.check_out().await.expect("the pool is not ready, or opening failed")
    }
}

impl<O: Observation> Queue for Observed<O> {}

impl<O: Observation> Handled for Observed<O> {
    async fn open_handled(size: usize, handler: Handler) -> Self {
        Self::build(size, |builder| builder.subscriber(move |_: &PoolEvent| handler()))
    }

    async fn check_out_within(&self, limit: Duration) -> Option<Connection<O::Opener>> {
        self.pool.check_out_until(Instant::now() + limit).await.ok()
    }
}

/// Opens dummies for a pool with or without metrics.
///
/// The pool with metrics and the pool without metrics each have an opener that no other subject uses. So each of these
/// pools is compiled for only one subject, and the compiler has the same reasons to inline code in both.
#[derive(Default)]
pub struct Alone<const METERED: bool>;

impl<const METERED: bool> Establish for Alone<METERED> {
    type Connection = Dummy;

    const METERED: bool = METERED;

    async fn establish(&self, _connecting: Establishing) -> Result<Dummy, EstablishError> {
        Ok(Dummy::open())
    }

    fn condition(&self, connection: &mut Dummy) -> Condition {
        if connection.broken { Condition::Broken } else { Condition::Reusable }
    }
}

/// The pool without metrics, which exists only for this comparison.
pub struct Unmetered;

impl Observation for Unmetered {
    const NAME: &'static str = "unmetered";
    type Opener = Alone<false>;
}

/// The standard pool, with its metrics.
pub struct Metered;

impl Observation for Metered {
    const NAME: &'static str = "wharf";
    type Opener = Alone<true>;
}

/// The standard pool, for the scenarios that add a slow subscriber.
pub struct Slow;

impl Observation for Slow {
    const NAME: &'static str = "wharf";
    type Opener = Opener;
}

/// One trivial subscriber: a closure that hides the event from the compiler. The pool therefore builds every event,
/// including its duration, and makes every call, but the subscriber itself costs next to nothing.
pub struct Closure;

impl Observation for Closure {
    const NAME: &'static str = "+closure";
    type Opener = Opener;

    fn observe(builder: PoolBuilder<Opener>) -> PoolBuilder<Opener> {
        builder.subscriber(|event: &PoolEvent| {
            black_box(event);
        })
    }
}

/// One subscriber that counts the events by kind, in counters that all threads share.
pub struct Counts;

impl Observation for Counts {
    const NAME: &'static str = "+counts";
    type Opener = Opener;

    fn observe(builder: PoolBuilder<Opener>) -> PoolBuilder<Opener> {
        builder.subscriber(EventCounts::new())
    }
}

/// Accounting for the holders of connections: the call site, task, instant and purpose of each check-out.
pub struct Holders;

impl Observation for Holders {
    const NAME: &'static str = "+holders";
    type Opener = Opener;

    fn observe(builder: PoolBuilder<Opener>) -> PoolBuilder<Opener> {
        builder.account_for_holders(true)
    }
}
