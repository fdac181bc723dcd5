//! bb8: a `VecDeque` under a mutex. Waiters wait on a tokio `Notify` and then compete for the connection that was
//! returned.

use std::convert::Infallible;

use bb8::{ManageConnection, Pool, PooledConnection};

use super::{Create, Dummy, Queue, Subject};

/// bb8 without tests at check-out, lifetimes or idle timeouts, and therefore without its reaper task. The timeout
/// around every check-out cannot be turned off.
///
/// It has no method that drops its idle connections, so it is left out of `clear`.
pub struct Bb8(Pool<Opener>);

/// Opens dummies, and reports a dummy as broken if it was marked as broken.
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
            .max_size(u32::try_from(size).expect("the size exceeds bb8's limit"))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build(Opener)
            .await
            .expect("opening failed");
        Self(pool)
    }

    #[inline]
    async fn check_out(&self) -> PooledConnection<'_, Opener> {
        self.0.get().await.expect("no connection within bb8's default timeout")
    }
}

impl Queue for Bb8 {}

/// Closes through `has_broken`, the only way to make bb8 drop a connection and correct its count.
impl Create for Bb8 {
    async fn create_and_close(&self) {
        let mut connection = self.check_out().await;
        connection.broken = true;
    }
}
