//! kanal: a bounded channel that holds the connections. A channel is not a pool, but it is the quickest way to build
//! one.
//!
//! A check-out is a `recv`, and a check-in is a `try_send`. The channel hands a value directly to a waiting receiver.
//! It does not open connections on demand, so it is left out of `create-and-close`.

use kanal::{AsyncReceiver, AsyncSender};

use super::{Clear, Dummy, Queue, Subject};

/// A bounded channel, filled with connections.
pub struct Kanal {
    idle: AsyncReceiver<Dummy>,
    back: AsyncSender<Dummy>,
}

/// A connection received from the channel.
pub struct Received<'a> {
    back: &'a AsyncSender<Dummy>,
    connection: Option<Dummy>,
}

impl Subject for Kanal {
    const NAME: &'static str = "kanal";
    type Guard<'a> = Received<'a>;

    async fn open(size: usize) -> Self {
        let (back, idle) = kanal::bounded_async(size);
        let channel = Self { idle, back };
        channel.fill(size);
        channel
    }

    #[inline]
    async fn check_out(&self) -> Received<'_> {
        let connection = self.idle.recv().await.expect("the channel is closed");
        Received { back: &self.back, connection: Some(connection) }
    }
}

impl Queue for Kanal {}

/// Clears with `drain_into`, and drops the drained connections.
impl Clear for Kanal {
    fn clear(&self) {
        let mut drained = Vec::new();
        self.idle.drain_into(&mut drained).expect("the channel is closed");
    }

    async fn refill(&self, size: usize) {
        self.fill(size);
    }
}

impl Kanal {
    fn fill(&self, size: usize) {
        for _ in 0..size {
            send_back(&self.back, Dummy::open());
        }
    }
}

impl Drop for Received<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            send_back(self.back, connection);
        }
    }
}

#[inline]
fn send_back(back: &AsyncSender<Dummy>, connection: Dummy) {
    assert_eq!(back.try_send(connection), Ok(true), "BUG: the channel is too small for its connections");
}
