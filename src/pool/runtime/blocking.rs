//! Runs blocking work on one of the runtime's blocking threads, or on the calling thread if no other thread is allowed.
//!
//! A client on a single thread drives its runtime itself, and promises not to start any threads. While it drives the
//! runtime, its thread is marked ([`Inline`]), and blocking work runs on this thread. Nothing else runs on that thread,
//! so the work delays only the call that needs it.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

use super::fork::PerProcess;

thread_local! {
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread: until this is dropped, blocking work runs on that thread.
#[must_use]
pub(crate) struct Inline {
    before: bool,
    /// This is not `Send`: the mark belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Inline {
    pub(crate) fn enter() -> Self {
        Self { before: IS_INLINE.replace(true), thread: PhantomData }
    }

    pub(crate) fn is_entered() -> bool {
        IS_INLINE.get()
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        IS_INLINE.set(self.before);
    }
}

/// Runs work that blocks.
///
/// # Errors
///
/// [`JoinError`] if the runtime has shut down, or the work panicked on its thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Inline::is_entered() { Ok(work()) } else { spawn_blocking(work).await }
}

/// Starts blocking work and returns without waiting for it, unless the calling thread is marked ([`Inline`]).
pub(crate) fn start_blocking(work: impl FnOnce() + Send + 'static) {
    if Inline::is_entered() {
        work();
    } else {
        spawn_blocking(work);
    }
}

/// How many of a deployment's host names are looked up at the same time. A lookup holds one of the runtime's 512
/// blocking threads until the system answers, even if nothing is still waiting for the answer.
const LOOK_UPS: usize = 8;

/// The permits to look up names, which limit how many lookups run at the same time.
#[derive(Debug, Clone)]
struct Permits(Arc<Semaphore>);

impl Default for Permits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOK_UPS)))
    }
}

/// Looks up the addresses of hosts, a few at a time. Each deployment has its own `LookUps`.
#[derive(Debug, Default)]
pub(crate) struct LookUps(PerProcess<Permits>);

impl LookUps {
    /// Looks up the addresses of a host. An IP address needs no lookup, and does not wait for other lookups.
    ///
    /// # Errors
    ///
    /// Returns the errors from the operating system's lookup.
    pub(crate) async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = name.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let Permits(permits) = Permits::clone(&self.0.get());
        let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let looked_up = blocking(move || {
            let addresses = (&*name, port).to_socket_addrs().map(Iterator::collect);
            drop(permit);
            addresses
        });
        looked_up.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn blocking_work_has_another_thread_unless_the_thread_is_marked() {
        let here = thread::current().id();
        assert_ne!(blocking(move || thread::current().id()).await.unwrap(), here);
        {
            let _inline = Inline::enter();
            {
                let _again = Inline::enter();
            }
            assert!(Inline::is_entered(), "the inner mark has taken the outer one along");
            assert_eq!(blocking(move || thread::current().id()).await.unwrap(), here);
        }
        assert!(!Inline::is_entered());
    }

    #[tokio::test]
    async fn names_are_looked_up_in_both_ways() {
        let look_ups = LookUps::default();
        let there = look_ups.look_up("localhost", 7).await.unwrap();
        let _inline = Inline::enter();
        assert_eq!(look_ups.look_up("localhost", 7).await.unwrap(), there);
    }

    #[tokio::test]
    async fn few_names_are_looked_up_at_a_time_and_addresses_wait_for_none() {
        let look_ups = LookUps::default();
        let Permits(permits) = Permits::clone(&look_ups.0.get());
        let held = permits.acquire_many_owned(LOOK_UPS as u32).await.unwrap();
        let mut waiting = Box::pin(look_ups.look_up("localhost", 7));
        assert!(polled_once(&mut waiting).await.is_pending());
        assert_eq!(look_ups.look_up("::1", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        drop(held);
        assert!(!waiting.await.unwrap().is_empty());
    }

    async fn polled_once<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
        std::future::poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context))).await
    }
}
