//! The client's private runtime, which runs only inside calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;

use crate::client::ClientError;
use crate::endpoint::Limit;
use crate::pool::runtime::{Inline, OfThisProcess, PerProcess};

/// Drives futures on a private runtime, one at a time.
///
/// The first call creates the runtime. A forked child leaks its parent's runtime and creates a new runtime. Otherwise,
/// both processes would share one epoll instance, and the child would remove the parent's sockets from it.
#[derive(Default)]
pub(super) struct Driver {
    lock: PerProcess<Lock>,
}

/// A lock around the runtime. A call waits for the lock no longer than its time limit. Calls acquire the lock in the
/// order in which they began to wait: a call that finishes hands it over to the next. Otherwise, a thread that makes
/// one call after another would take it again before any other thread wakes up.
#[derive(Default)]
struct Lock {
    state: Mutex<State>,
    handed_over: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a call holds the runtime, or was handed it.
    is_held: bool,
    /// The tickets of the calls that are waiting, in order.
    queue: VecDeque<u64>,
    /// The ticket of the next call that waits.
    next: u64,
    /// The ticket of a call that was handed the runtime, and has not taken it yet.
    granted: Option<u64>,
    /// Empty before the first call, and while a call holds the runtime.
    private: Private,
}

impl Lock {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the runtime. Also returns how long the call waited.
    ///
    /// # Errors
    ///
    /// [`ClientError::InUse`] if other calls hold the runtime until the limit is reached.
    fn take(&self, limit: Limit) -> Result<(Held<'_>, Duration), ClientError> {
        let mut state = self.state();
        let mut waited = Duration::ZERO;
        if state.is_held {
            let (begun, ticket) = (Instant::now(), state.next);
            let waits = |state: &mut State| state.granted != Some(ticket);
            state.next += 1;
            state.queue.push_back(ticket);
            state = match limit {
                Limit::For(whole) | Limit::Until { limit: whole, .. } => {
                    let longest = limit.left().unwrap_or(whole);
                    let waited = self.handed_over.wait_timeout_while(state, longest, waits);
                    let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    if waits(&mut state) {
                        state.queue.retain(|&other| other != ticket);
                        return Err(ClientError::InUse { limit: whole });
                    }
                    state
                }
                Limit::Unset | Limit::Infinite => {
                    self.handed_over.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner)
                }
            };
            state.granted = None;
            waited = begun.elapsed();
        }
        state.is_held = true;
        let private = mem::take(&mut state.private);
        Ok((Held { lock: self, private: OfThisProcess::new(private) }, waited))
    }
}

/// The runtime while a call is using it.
struct Held<'l> {
    lock: &'l Lock,
    /// A subscriber may fork inside the call: the runtime and the lock then belong to the parent.
    private: OfThisProcess<Private>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.private.is_inherited() {
            return;
        }
        let private = mem::take(&mut *self.private);
        let mut state = self.lock.state();
        state.private = private;
        state.granted = state.queue.pop_front();
        state.is_held = state.granted.is_some();
        if state.is_held {
            self.lock.handed_over.notify_all();
        }
    }
}

#[derive(Default)]
struct Private(Option<Runtime>);

impl Private {
    /// Returns the runtime, and creates it if there is none.
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
            // An ordinary drop would panic inside an asynchronous task. The runtime has no threads, so there is nothing
            // to wait for.
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
        this.lock.get().state().private = Private(Some(runtime.unwrap()));
        this
    }

    /// Returns how many calls are waiting for another call.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock.get().state().queue.len()
    }

    /// Blocks until the future completes.
    ///
    /// # Errors
    ///
    /// The same as for [`drive`](Self::drive), without a limit.
    #[cfg(test)]
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
        erased(Limit::Unset, |_| future, |running, call| self.drive(running, call))
    }

    /// Blocks until the call completes. `running` is the call's time limit, which includes the wait for other calls.
    /// The limit is started before the call is first polled.
    ///
    /// # Errors
    ///
    /// [`ClientError::OnRuntime`] inside a tokio runtime. That runtime may be the client's own: a subscriber that uses
    /// the client would wait for the call that runs the subscriber. [`ClientError::EventLoop`] if the runtime cannot be
    /// created, or the thread is exiting. [`ClientError::InUse`] if other calls hold the runtime until the limit is
    /// reached.
    pub(super) fn drive(&self, running: &Cell<Limit>, call: Erased<'_>) -> Result<(), ClientError> {
        refuse_runtime()?;
        let lock = self.lock.get();
        // If the future panics, the runtime is still put back.
        let (mut held, waited) = lock.take(running.get())?;
        let runtime = held.private.get().map_err(event_loop)?;
        let _inline = Inline::enter();
        runtime.block_on(async {
            running.set(running.get().start_after(waited));
            // Nothing has polled the sockets since the last call, and a server may have closed a connection. A command
            // that notices this before it is sent takes another connection.
            yield_now().await;
            call.await;
        });
        Ok(())
    }
}

/// A call as a future without an output. The future stores the call's output itself.
pub(super) type Erased<'c> = Pin<&'c mut dyn Future<Output = ()>>;

/// Runs the future that `begin` creates, and returns its output. `drive` starts the limit and polls the future. `begin`
/// receives the started limit. For `drive`, all futures have the same type, so tokio's runtime is compiled for one type
/// instead of a hundred. Compiling it for a hundred types took a tenth of the crate's compile time.
pub(super) fn erased<F: Future>(
    limit: Limit,
    begin: impl FnOnce(Limit) -> F,
    drive: impl FnOnce(&Cell<Limit>, Erased<'_>) -> Result<(), ClientError>,
) -> Result<F::Output, ClientError> {
    let (running, mut output) = (Cell::new(limit), None);
    drive(&running, pin!(async { output = Some(begin(running.get()).await) }))?;
    Ok(output.expect("BUG: a call was driven, and has not completed"))
}

/// Refuses a call that would block a runtime, or that is made while its thread is exiting.
pub(super) fn refuse_runtime() -> Result<(), ClientError> {
    match Handle::try_current() {
        Ok(_) => Err(ClientError::OnRuntime),
        // The caller is the destructor of a thread-local value, and runs after tokio's destructors. A runtime would
        // panic there.
        Err(error) if error.is_thread_local_destroyed() => Err(event_loop(io::Error::other(error))),
        Err(_) => Ok(()),
    }
}

pub(super) fn event_loop(error: io::Error) -> ClientError {
    ClientError::EventLoop { source: Arc::new(error) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

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

    impl Driver {
        fn run_within<T>(&self, limit: Limit, f: impl FnOnce(Limit) -> T) -> Result<T, ClientError> {
            erased(limit, async |limit| f(limit), |running, call| self.drive(running, call))
        }
    }

    /// Runs `other` while a first call is in progress on another thread. The first call completes once `is_ready`
    /// returns true or `other` has finished.
    fn beside_a_call<T: Send>(driver: &Driver, other: impl FnOnce() -> T + Send, is_ready: impl Fn() -> bool) -> T {
        let (begun, has_begun) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                driver.run(async {
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                })
            });
            has_begun.recv().unwrap();
            let other = scope.spawn(other);
            while !is_ready() && !other.is_finished() {
                thread::yield_now();
            }
            end.send(()).unwrap();
            other.join().unwrap()
        })
    }

    #[test]
    fn call_whose_time_is_up_while_another_one_goes_on_fails() {
        let driver = Driver::default();
        for limit in [Limit::For(Duration::from_millis(20)), Limit::For(Duration::from_millis(20)).start()] {
            let run = || driver.run_within(limit, |_| ());
            let error = beside_a_call(&driver, run, || false).unwrap_err();
            assert!(matches!(error, ClientError::InUse { .. }) && error.is_timeout(), "{error}");
            assert!(error.to_string().ends_with("(20 ms)"), "{error}");
            assert_eq!(driver.waiting(), 0);
            driver.run_within(limit, |_| ()).unwrap();
        }
    }

    #[test]
    fn call_that_waits_comes_before_the_next_call_of_the_thread_that_holds_the_runtime() {
        let (driver, order) = (Driver::default(), Mutex::new(Vec::new()));
        let note = |name| driver.run(async { order.lock().unwrap().push(name) }).unwrap();
        thread::scope(|scope| {
            let first = driver.run(async {
                let waiting = [("first", 1), ("second", 2)].map(|(name, waiting)| {
                    let waiter = scope.spawn(move || note(name));
                    while driver.waiting() < waiting {
                        thread::yield_now();
                    }
                    waiter
                });
                waiting.len()
            });
            assert_eq!(first.unwrap(), 2);
            note("again");
        });
        assert_eq!(*order.lock().unwrap(), ["first", "second", "again"]);
    }

    #[test]
    fn time_limit_includes_the_wait_for_another_call() {
        // The runtime's virtual time does not advance during the wait, so the wait is measured in real time.
        let driver = Driver::of_virtual_time();
        let whole = Duration::from_secs(600);
        let left = || driver.run_within(Limit::For(whole), |limit| limit.left()).unwrap().unwrap();
        assert_eq!(left(), whole, "nothing was waited for");
        let after_a_wait = beside_a_call(&driver, left, || driver.waiting() > 0);
        assert!(after_a_wait < whole, "{after_a_wait:?}");
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
