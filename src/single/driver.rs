//! The private runtime, which runs only inside of calls.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;

use crate::client::ClientError;
use crate::runtime::{Inline, PerProcess};

/// Drives futures on a runtime of its own, one at a time.
///
/// The runtime is made by the first call. A forked child leaks its parent's runtime and makes its own: the two would
/// otherwise share one epoll instance, and the child would remove the parent's sockets from it.
#[derive(Default)]
pub(super) struct Driver {
    runtime: PerProcess<Mutex<Private>>,
}

#[derive(Default)]
struct Private(Option<Runtime>);

impl Private {
    /// Returns the runtime.
    fn get(&mut self) -> io::Result<&Runtime> {
        let made = match self.0.take() {
            Some(runtime) => runtime,
            None => Builder::new_current_thread().enable_io().enable_time().build()?,
        };
        Ok(self.0.insert(made))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // An ordinary drop panics inside of an asynchronous task. There is no thread to wait for.
            runtime.shutdown_background();
        }
    }
}

impl Driver {
    /// Creates a driver whose time is virtual.
    #[cfg(test)]
    pub(super) fn of_virtual_time() -> Self {
        let this = Self::default();
        let runtime = Builder::new_current_thread().enable_io().enable_time().start_paused(true).build();
        this.runtime.get().lock().unwrap().0 = Some(runtime.unwrap());
        this
    }

    /// Blocks until the future has completed.
    ///
    /// # Errors
    ///
    /// [`ClientError::OnRuntime`] inside of a tokio runtime, which may be this one: a subscriber that uses the client would
    /// otherwise wait for itself. [`ClientError::EventLoop`] if the runtime cannot be made, or the thread ends.
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
        match Handle::try_current() {
            Ok(_) => return Err(ClientError::OnRuntime),
            // The caller is the destructor of a thread-local value, after those of tokio's. A runtime would panic.
            Err(error) if error.is_thread_local_destroyed() => return Err(event_loop(io::Error::other(error))),
            Err(_) => {}
        }
        let private = self.runtime.get();
        // A panic of a future leaves the runtime as it is.
        let mut private = private.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = private.get().map_err(event_loop)?;
        let _inline = Inline::enter();
        Ok(runtime.block_on(async {
            // Since the last call nothing has asked the operating system what has happened to the sockets. A server may
            // have closed one, and a command that finds that out before it is sent takes another connection.
            yield_now().await;
            future.await
        }))
    }
}

fn event_loop(error: io::Error) -> ClientError {
    ClientError::EventLoop { source: Arc::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_inside_of_a_runtime_fails_and_one_after_it_succeeds() {
        let driver = Driver::default();
        let other = Builder::new_current_thread().build().unwrap();
        let refused = other.block_on(async { driver.run(async { 1 }) });
        assert!(matches!(refused, Err(ClientError::OnRuntime)), "{refused:?}");
        let nested = driver.run(async { driver.run(async { 1 }) }).unwrap();
        assert!(matches!(nested, Err(ClientError::OnRuntime)), "{nested:?}");
        assert_eq!(driver.run(async { 1 }).unwrap(), 1);
    }

    #[test]
    fn driver_may_be_dropped_inside_of_a_runtime() {
        let driver = Driver::default();
        driver.run(async {}).unwrap();
        Builder::new_current_thread().build().unwrap().block_on(async { drop(driver) });
    }

    #[test]
    fn panic_of_a_call_does_not_stop_later_ones() {
        let driver = Driver::default();
        let call = std::panic::AssertUnwindSafe(|| driver.run(async { panic!("the call's panic") }));
        assert!(std::panic::catch_unwind(call).is_err());
        assert!(!Inline::is_entered());
        assert_eq!(driver.run(async { 2 }).unwrap(), 2);
    }
}
