//! Decompression of a large reply on a blocking thread.
//!
//! Decompressing 48 MB takes a tenth of a second or more, which would block an asynchronous thread. So the buffers move
//! to a blocking thread and back. Meanwhile, the channel is in a separate state, so that the exchange can be paused and
//! resumed as in any other state.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use zeroize::Zeroize;

use super::channel::{Awaited, Channel, ExchangeError, ExchangeState, LONG_TO_DECOMPRESS};
use super::inbox::Inbox;
use crate::endpoint::wire::{Header, WireError, compressed};
use crate::pool::runtime::Inline;

#[cfg(test)]
mod tests;

/// A reply that is being decompressed. Dropping it cancels a decompression that has not begun.
pub(super) struct Decompressing(JoinHandle<Decompressed>);

impl Drop for Decompressing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The channel's buffers. Dropping this value wipes the buffers. If the channel is wiped during the decompression, it
/// does not get these buffers back, and cannot wipe them itself.
#[derive(Default)]
struct Decompressed {
    incoming: Inbox,
    plain: Vec<u8>,
    outcome: Option<WireError>,
}

impl Drop for Decompressed {
    fn drop(&mut self) {
        self.incoming.zeroize();
        self.plain.zeroize();
    }
}

impl Channel {
    /// Starts to decompress a large reply on a blocking thread.
    ///
    /// A smaller reply is decompressed when it is taken, and so is every reply where no blocking thread is available:
    /// outside a runtime, and in a single-threaded client.
    #[cold]
    pub(super) fn begin_decompressing(
        &mut self,
        context: &mut Context<'_>,
        awaited: Awaited,
        header: Header,
    ) -> Poll<Result<bool, ExchangeError>> {
        let (length, most) = (header.message_length as usize, self.most_received);
        if let Err(error) = self.accepted.check(&self.incoming[..length]) {
            return Poll::Ready(Err(self.wire(error)));
        }
        // A size above the limit is refused when the reply is taken, before any decompression. Content that yields only
        // a few bytes may still take a long time to decompress, so the length of the message also matters.
        let is_large = |size: usize| size <= most as usize && size.max(length) >= LONG_TO_DECOMPRESS;
        let elsewhere =
            compressed::announced_size(&self.incoming[..length]).is_some_and(is_large) && !Inline::is_entered();
        let Some(runtime) = elsewhere.then(|| Handle::try_current().ok()).flatten() else {
            self.state = ExchangeState::Received { awaited, header };
            return Poll::Ready(Ok(true));
        };
        let mut buffers = Decompressed {
            incoming: std::mem::take(&mut self.incoming),
            plain: std::mem::take(&mut self.plain),
            outcome: None,
        };
        let decompress = move || {
            let Decompressed { incoming, plain, outcome } = &mut buffers;
            plain.clear();
            *outcome = compressed::decompress(&incoming[..length], most, plain).err();
            buffers
        };
        self.decompressing = Some(Decompressing(runtime.spawn_blocking(decompress)));
        self.state = ExchangeState::Decompressing { awaited, header };
        self.poll_decompress(context, awaited, header)
    }

    /// Polls the decompression.
    #[cold]
    pub(super) fn poll_decompress(
        &mut self,
        context: &mut Context<'_>,
        awaited: Awaited,
        header: Header,
    ) -> Poll<Result<bool, ExchangeError>> {
        let Some(Decompressing(decompressing)) = &mut self.decompressing else {
            unreachable!("BUG: no reply is being decompressed")
        };
        let decompressed = ready!(Pin::new(decompressing).poll(context));
        self.decompressing = None;
        let Ok(mut decompressed) = decompressed else {
            let ended = "the runtime ended while a reply was being decompressed";
            return Poll::Ready(Err(self.network(io::Error::other(ended))));
        };
        self.incoming = std::mem::take(&mut decompressed.incoming);
        self.plain = std::mem::take(&mut decompressed.plain);
        if let Some(error) = decompressed.outcome.take() {
            return Poll::Ready(Err(self.wire(error)));
        }
        self.is_decompressed = true;
        self.state = ExchangeState::Received { awaited, header };
        Poll::Ready(Ok(true))
    }
}
