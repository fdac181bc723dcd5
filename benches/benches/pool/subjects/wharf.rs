//! wharf: sharded lock-free stacks of available connections, one FIFO queue of waiters, direct hand-over.

use wharf::{Condition, Connection, Establish, EstablishError, Establishing, Pool, PoolOptions};

use super::{Clear, Create, Dummy, Queue, Subject};

/// wharf with default options except for the size.
pub struct Wharf(Pool<Opener>);

/// Opens dummies, and reports a dummy as broken if it was marked as broken.
#[derive(Default)]
pub struct Opener;

impl Establish for Opener {
    type Connection = Dummy;

    async fn establish(&self, _connecting: Establishing) -> Result<Dummy, EstablishError> {
        Ok(Dummy::open())
    }

    fn condition(&self, connection: &mut Dummy) -> Condition {
        if connection.broken { Condition::Broken } else { Condition::Reusable }
    }
}

impl Subject for Wharf {
    const NAME: &'static str = "wharf";
    type Guard<'a> = Connection<Opener>;

    async fn open(size: usize) -> Self {
        let size = u32::try_from(size).expect("the size exceeds wharf's limit");
        let pool = Pool::builder("bench:1", Opener)
            .options(PoolOptions::default().max_pool_size(size))
            .build()
            .expect("invalid options, or no runtime");
        pool.ready();
        Self(pool)
    }

    #[inline]
    async fn check_out(&self) -> Connection<Opener> {
        self.0.check_out().await.expect("the pool is not ready, or opening failed")
    }
}

impl Queue for Wharf {}

/// Closes with `Condition::Broken`: a broken connection is closed instead of pooled.
impl Create for Wharf {
    async fn create_and_close(&self) {
        let mut connection = self.check_out().await;
        connection.broken = true;
    }
}

/// A cleared pool is paused until it is made ready again; making it ready is not measured.
impl Clear for Wharf {
    fn clear(&self) {
        self.0.clear(wharf::Clear::new()).expect("the pool is in load-balanced mode");
    }

    async fn refill(&self, size: usize) {
        self.0.ready();
        self.warm(size).await;
    }
}
