//! Decompression of a large reply on a blocking thread.
//!
//! Decompressing 48 MB takes a tenth of a second or more, which would block an asynchronous thread. So the buffers move
//! to a blocking thread and back. The channel is in a state of its own meanwhile, so that the exchange can be paused
//! and resumed as in any other state.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use zeroize::Zeroize;

use super::channel::{Awaited, Channel, ExchangeError, ExchangeState, LONG_TO_UNPACK};
use super::inbox::Inbox;
use crate::wire::{Header, WireError, compressed};

#[cfg(test)]
mod tests;

/// A reply that is being decompressed. Dropping it cancels a decompression that has not begun.
pub(super) struct Unpacking(JoinHandle<Unpacked>);

impl Drop for Unpacking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The channel's buffers. They are wiped if the channel no longer wants them back, because it may be wiping its own.
#[derive(Default)]
struct Unpacked {
    incoming: Inbox,
    plain: Vec<u8>,
    outcome: Option<WireError>,
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        self.incoming.zeroize();
        self.plain.zeroize();
    }
}

impl Channel {
    /// Starts to decompress a large reply on a blocking thread.
    ///
    /// A smaller reply is decompressed when it is taken. So is any reply outside of a runtime, where there is no
    /// blocking thread.
    #[cold]
    pub(super) fn begin_unpacking(
        &mut self,
        context: &mut Context<'_>,
        awaited: Awaited,
        header: Header,
    ) -> Poll<Result<bool, ExchangeError>> {
        let (length, most) = (header.message_length as usize, self.most_received);
        // A size above the limit is refused when the reply is taken, before any decompression.
        let is_large = |size| (LONG_TO_UNPACK..=most as usize).contains(&size);
        let elsewhere = compressed::announced_size(&self.incoming[..length]).is_some_and(is_large);
        let Some(runtime) = elsewhere.then(|| Handle::try_current().ok()).flatten() else {
            self.state = ExchangeState::Received { awaited, header };
            return Poll::Ready(Ok(true));
        };
        let mut buffers = Unpacked {
            incoming: std::mem::take(&mut self.incoming),
            plain: std::mem::take(&mut self.plain),
            outcome: None,
        };
        let unpack = move || {
            let Unpacked { incoming, plain, outcome } = &mut buffers;
            plain.clear();
            *outcome = compressed::decompress(&incoming[..length], most, plain).err();
            buffers
        };
        self.unpacking = Some(Unpacking(runtime.spawn_blocking(unpack)));
        self.state = ExchangeState::Unpacking { awaited, header };
        self.poll_unpack(context, awaited, header)
    }

    /// Polls the decompression.
    #[cold]
    pub(super) fn poll_unpack(
        &mut self,
        context: &mut Context<'_>,
        awaited: Awaited,
        header: Header,
    ) -> Poll<Result<bool, ExchangeError>> {
        let Some(Unpacking(unpacking)) = &mut self.unpacking else {
            unreachable!("BUG: no reply is being decompressed")
        };
        let unpacked = ready!(Pin::new(unpacking).poll(context));
        self.unpacking = None;
        let Ok(mut unpacked) = unpacked else {
            let ended = "the runtime ended while a reply was being decompressed";
            return Poll::Ready(Err(self.network(io::Error::other(ended))));
        };
        self.incoming = std::mem::take(&mut unpacked.incoming);
        self.plain = std::mem::take(&mut unpacked.plain);
        if let Some(error) = unpacked.outcome.take() {
            return Poll::Ready(Err(self.wire(error)));
        }
        self.is_unpacked = true;
        self.state = ExchangeState::Received { awaited, header };
        Poll::Ready(Ok(true))
    }
}
