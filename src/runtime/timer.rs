//! Time limits that hold on every executor.
//!
//! A timer of tokio needs a runtime to be made on. A pool and its connections know one, so a future that is polled
//! outside of tokio, such as by another executor, lends its timer from there.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Why a future was not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lapse {
    /// The time is up.
    TimeUp,
    /// It is polled outside of a runtime, and there is none to lend a timer from, or that has ended.
    NoRuntime,
}

/// Waits for `future` until `at`. `lender`: the runtime whose timer is taken where the caller is not on one.
///
/// There, without a runtime, `future` is not polled at all.
pub(crate) async fn within<F: Future>(
    at: Instant,
    lender: impl FnOnce() -> Option<Handle>,
    future: F,
) -> Result<F::Output, Lapse> {
    if is_on_runtime() {
        return timeout_at(at, future).await.map_err(|_| Lapse::TimeUp);
    }
    let runtime = lender().ok_or(Lapse::NoRuntime)?;
    // A task, because a timer panics when it is polled after its runtime has ended. A task is cancelled then.
    let mut timer = AbortedOnDrop(runtime.spawn(sleep_until_there(at)));
    let mut future = pin!(future);
    poll_fn(|context| {
        // The timer first: on a runtime that has ended, nothing may begin.
        match pin!(&mut timer.0).poll(context) {
            Poll::Ready(Ok(())) => return Poll::Ready(Err(Lapse::TimeUp)),
            Poll::Ready(Err(_ended)) => return Poll::Ready(Err(Lapse::NoRuntime)),
            Poll::Pending => {}
        }
        future.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Whether the caller is polled on a runtime.
fn is_on_runtime() -> bool {
    // A task has a number, which is quick to ask for. To get the handle counts one reference more, on a line that all
    // cores of the runtime share.
    tokio::task::try_id().is_some() || Handle::try_current().is_ok()
}

/// Polls `future` on a runtime: the caller's, or else this one. For futures that make timers and open sockets.
///
/// [`Lapse::NoRuntime`] if the caller is not on one and this one has ended. The future is not polled then.
pub(crate) async fn on_runtime<F: Future>(runtime: &Handle, future: F) -> Result<F::Output, Lapse> {
    if is_on_runtime() {
        return Ok(future.await);
    }
    // A runtime that has ended cancels every task.
    runtime.spawn(async {}).await.map_err(|_ended| Lapse::NoRuntime)?;
    let mut future = pin!(future);
    Ok(poll_fn(|context| {
        let _entered = runtime.enter();
        future.as_mut().poll(context)
    })
    .await)
}

/// The timer is made when the task first runs, so on its runtime.
async fn sleep_until_there(at: Instant) {
    sleep_until(at).await;
}

struct AbortedOnDrop(JoinHandle<()>);

impl Drop for AbortedOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
