//! bb8: a `VecDeque` under a mutex; waiters wait on a tokio `Notify` and then compete for what came back.

use std::convert::Infallible;

use bb8::{ManageConnection, Pool, PooledConnection};

use super::{Create, Dummy, Queue, Subject};

/// bb8 without tests at check-out, lifetimes and idle timeouts, hence without its reaper task. The timeout around
/// every check-out cannot be turned off.
///
/// It has no call to throw its idle connections away, so it takes no part in `clear`.
pub struct Bb8(Pool<Opener>);

/// Opens dummies, and calls broken the ones that say so.
pub struct Opener;

impl ManageConnection for Opener {
    type Connection = Dummy;
    type Error = Infallible;

    async fn connect(&self) -> Result<Dummy, Infallible> {
        Ok(Dummy::open())
    }

    async fn is_valid(&self, _connection: &mut Dummy) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Dummy) -> bool {
        connection.broken
    }
}

impl Subject for Bb8 {
    const NAME: &'static str = "bb8";
    type Guard<'a> = PooledConnection<'a, Opener>;

    async fn open(size: usize) -> Self {
        let pool = Pool::builder()
            .max_size(u32::try_from(size).expect("a size that bb8 can express"))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build(Opener)
            .await
            .expect("opening cannot fail");
        Self(pool)
    }

    #[inline]
    async fn check_out(&self) -> PooledConnection<'_, Opener> {
        self.0.get().await.expect("a connection within bb8's default timeout")
    }
}

impl Queue for Bb8 {}

/// Closing is `has_broken`: the only way to have bb8 drop a connection and correct its count.
impl Create for Bb8 {
    async fn create_and_close(&self) {
        let mut connection = self.check_out().await;
        connection.broken = true;
    }
}
