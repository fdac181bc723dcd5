//! Time limits that work on every executor.
//!
//! A tokio timer must be created on a runtime. A pool and its connections have a runtime. A future that is polled by
//! another executor borrows a timer from that runtime.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The reason why a future did not complete within its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lapse {
    /// The time is up.
    TimeUp,
    /// The caller is being polled outside a runtime, and there is no live runtime to borrow a timer from.
    NoRuntime,
}

/// Waits for `future` until `at`.
///
/// If the caller is not on a runtime, a timer from the runtime that `lender` returns is used. If `lender` returns
/// `None`, `future` is never polled.
pub(crate) async fn within<F: Future>(
    at: Instant,
    lender: impl FnOnce() -> Option<Handle>,
    future: F,
) -> Result<F::Output, Lapse> {
    if is_on_runtime() {
        return timeout_at(at, future).await.map_err(|_| Lapse::TimeUp);
    }
    let runtime = lender().ok_or(Lapse::NoRuntime)?;
    // The timer runs in a task, because a timer panics if it is polled after its runtime has shut down. A task, by
    // contrast, is cancelled.
    let mut timer = AbortedOnDrop(runtime.spawn(sleep_until_there(at)));
    let mut future = pin!(future);
    poll_fn(|context| {
        // The timer is polled first, because nothing may begin on a runtime that has shut down.
        match pin!(&mut timer.0).poll(context) {
            Poll::Ready(Ok(())) => return Poll::Ready(Err(Lapse::TimeUp)),
            Poll::Ready(Err(_ended)) => return Poll::Ready(Err(Lapse::NoRuntime)),
            Poll::Pending => {}
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Waits for `future` until `at`, for a caller that polls again at that instant. Returns `None` when the time is up.
pub(super) async fn polled_at<F: Future>(at: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if Instant::now() >= at => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

fn is_on_runtime() -> bool {
    // Most callers are in a task, whose id is cheap to read. Getting the handle increments a reference count, on a
    // cache line that all of the runtime's threads share.
    tokio::task::try_id().is_some() || Handle::try_current().is_ok()
}

/// Polls `future` on the caller's runtime, or on `runtime` if the caller has none. Meant for futures that create timers
/// and open sockets.
///
/// Returns [`Lapse::NoRuntime`], without polling the future, if the caller has no runtime and `runtime` has shut down.
pub(crate) async fn on_runtime<F: Future>(runtime: &Handle, future: F) -> Result<F::Output, Lapse> {
    if is_on_runtime() {
        return Ok(future.await);
    }
    // A runtime that has shut down cancels every task that is spawned on it.
    runtime.spawn(async {}).await.map_err(|_ended| Lapse::NoRuntime)?;
    let mut future = pin!(future);
    Ok(poll_fn(|context| {
        let _entered = runtime.enter();
        future.as_mut().poll(context)
    })
    .await)
}

/// Creates the timer when the task first runs, so that it is created on the task's runtime.
async fn sleep_until_there(at: Instant) {
    sleep_until(at).await;
}

struct AbortedOnDrop(JoinHandle<()>);

impl Drop for AbortedOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
