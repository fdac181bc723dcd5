//! The pools, with a connection that costs nothing.

use std::convert::Infallible;
use std::future::Future;

use deadpool::managed;
use wharf::{CheckOutError, Connection, Establish, EstablishError, Establishing, Pool, PoolOptions};

/// The connection: a cache line of plain data.
#[derive(Default)]
pub struct Dummy(#[allow(dead_code, reason = "only its size counts")] [usize; 8]);

/// A pool of one connection.
pub trait Subject: Send + Sync + Sized {
    const NAME: &'static str;
    /// A connection in use. Dropping it checks the connection in.
    type Guard: Send;
    type Refused: Send;

    /// Creates a pool. Runs inside a tokio runtime.
    fn open() -> Self;

    fn check_out(&self) -> impl Future<Output = Result<Self::Guard, Self::Refused>> + Send;

    /// Refuses all waiting check-outs.
    fn refuse_all(&self);
}

/// wharf with default options except for the size. Clearing the pool refuses its waiting check-outs.
pub struct Wharf(Pool<Opener>);

/// deadpool's managed pool without timeouts or hooks. It cannot refuse waiting check-outs unless it is closed.
pub struct Deadpool(managed::Pool<Opener>);

/// Opens dummies.
pub struct Opener;

impl Establish for Opener {
    type Connection = Dummy;

    async fn establish(&self, _: Establishing) -> Result<Dummy, EstablishError> {
        Ok(Dummy::default())
    }
}

impl managed::Manager for Opener {
    type Type = Dummy;
    type Error = Infallible;

    async fn create(&self) -> Result<Dummy, Infallible> {
        Ok(Dummy::default())
    }

    async fn recycle(&self, _: &mut Dummy, _: &managed::Metrics) -> managed::RecycleResult<Infallible> {
        Ok(())
    }
}

impl Subject for Wharf {
    const NAME: &'static str = "wharf";
    type Guard = Connection<Opener>;
    type Refused = CheckOutError;

    fn open() -> Self {
        let options = PoolOptions::default().max_pool_size(1);
        let pool = Pool::builder("bench:1", Opener).options(options).build().expect("invalid options, or no runtime");
        pool.ready();
        Self(pool)
    }

    fn check_out(&self) -> impl Future<Output = Result<Connection<Opener>, CheckOutError>> + Send {
        self.0.check_out()
    }

    fn refuse_all(&self) {
        self.0.clear(wharf::Clear::new()).expect("the pool is in load-balanced mode");
    }
}

impl Subject for Deadpool {
    const NAME: &'static str = "deadpool";
    type Guard = managed::Object<Opener>;
    type Refused = managed::PoolError<Infallible>;

    fn open() -> Self {
        Self(managed::Pool::builder(Opener).max_size(1).build().expect("a pool without timeouts needs no runtime"))
    }

    fn check_out(&self) -> impl Future<Output = Result<managed::Object<Opener>, Self::Refused>> + Send {
        self.0.get()
    }

    fn refuse_all(&self) {
        self.0.close();
    }
}
