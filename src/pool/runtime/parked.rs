//! Check-outs on threads that do not run an executor: the thread parks until it is woken or its time is up.

use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::time::Instant;

use super::check_out::{CheckOut, Waiting};
use super::connection::Connection;
use super::establish::Establish;
use super::pool::Pool;
use super::waiting::TimeLimits;
use crate::pool::error::CheckOutError;
use crate::pool::runtime::boxed;

impl<E: Establish> Pool<E> {
    /// Checks out a connection as [`Pool::check_out`] does, and blocks the thread until the check-out completes.
    ///
    /// It waits in the same queue as all other check-outs. `limit` is how long the check-out may take in total, and
    /// replaces `timeoutMS`; with `None`, only the limits in the options apply. The thread enforces the limits itself,
    /// so they hold even if the pool's runtime has shut down or is not being driven. The connection is opened on the
    /// pool's runtime.
    ///
    /// Do not call it in an asynchronous task. It would keep the other tasks on the task's thread from running, and one
    /// of them may hold the connection that the call waits for, or be opening it. Call it in
    /// [`spawn_blocking`](tokio::task::spawn_blocking) or on a thread of your own.
    ///
    /// ```no_run
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// # fn example(pool: wharf::Pool<wharf::Endpoint>) {
    /// let worker = thread::spawn(move || {
    ///     let connection = pool.check_out_blocking(Some(Duration::from_secs(1)))?;
    ///     println!("{}", connection.id());
    ///     Ok::<(), wharf::CheckOutError>(())
    /// });
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`Pool::check_out`]. At the limit, [`CheckOutError::WaitQueueTimeout`].
    /// [`CheckOutError::NoRuntime`] if the pool's runtime has shut down and a connection must be opened.
    #[track_caller]
    #[doc(alias = "get")]
    #[doc(alias = "get_timeout")]
    pub fn check_out_blocking(&self, limit: Option<Duration>) -> Result<Connection<E>, CheckOutError> {
        if let Some(hit) = self.here().core.note_and_try_hit() {
            return Ok(Connection::new(hit.begin()));
        }
        let limits = TimeLimits::of_options(self).kept_by_thread(limit);
        let wait = move |pool| Waiting::Otherwise { future: boxed(|| Self::obtain_within(pool, limits)) };
        run(CheckOut::new(self, Location::caller(), wait), &limits.instants())
    }
}

const INTERVAL: Duration = Duration::from_millis(100);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread. Polls it when it is woken, and at each of `instants`. After the last
/// instant, polls it every [`INTERVAL`], because an opening may have postponed a limit.
fn run<F: Future>(future: F, instants: &[Option<Instant>]) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        // Read before the poll, so that an instant that passes during the poll causes another poll.
        let now = Instant::now();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        match instants.iter().flatten().filter(|at| **at > now).min() {
            Some(next) => thread::park_timeout(next.saturating_duration_since(Instant::now())),
            None if instants.iter().any(Option::is_some) => thread::park_timeout(INTERVAL),
            None => thread::park(),
        }
    }
}
