//! Work that blocks a thread: on a blocking thread of the runtime, or at once where there must be no other thread.
//!
//! A client on a single thread drives its runtime itself, and promises to start no thread. While it does, its thread is
//! marked ([`Inline`]), and blocking work runs there. Nothing else runs on that thread meanwhile, so nothing but the call
//! itself waits for the work.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::net::lookup_host;
use tokio::task::{JoinError, spawn_blocking};

thread_local! {
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread: until this is dropped, blocking work runs there.
#[must_use]
pub(crate) struct Inline {
    before: bool,
    /// The mark belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Inline {
    pub(crate) fn enter() -> Self {
        Self { before: IS_INLINE.replace(true), thread: PhantomData }
    }

    /// Returns whether the calling thread is marked.
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
/// [`JoinError`] if the runtime has ended, or the work has panicked on its thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Inline::is_entered() { Ok(work()) } else { spawn_blocking(work).await }
}

/// Starts work that blocks, and that nothing waits for directly.
pub(crate) fn start_blocking(work: impl FnOnce() + Send + 'static) {
    if Inline::is_entered() {
        work();
    } else {
        spawn_blocking(work);
    }
}

/// Looks up the addresses of a host.
///
/// # Errors
///
/// Those of the operating system's look-up.
pub(crate) async fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if Inline::is_entered() {
        return Ok((name, port).to_socket_addrs()?.collect());
    }
    Ok(lookup_host((name, port)).await?.collect())
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
        let there = look_up("localhost", 7).await.unwrap();
        let _inline = Inline::enter();
        assert_eq!(look_up("localhost", 7).await.unwrap(), there);
    }
}
