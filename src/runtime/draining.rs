//! Bringing to an end what the last user of a connection has left undone, as a task of the pool's.

use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork::OfThisProcess;
use super::home::Home;
use crate::pool::Draining;
use crate::sync::{Watch, contain};

/// Lets the establisher drain the connection, on the pool's runtime, or without one on the caller's. Without any, and
/// on one that is shutting down, the connection is closed.
#[cold]
pub(super) fn begin<E: Establish>(draining: Draining<TokioEnvironment<E>>) {
    let home = draining.environment().residence.home();
    let runtime = home.as_ref().map(|home| home.handle().clone()).or_else(|| Handle::try_current().ok());
    let task = DrainTask::<E> { draining: ManuallyDrop::new(draining), home };
    if let Some(runtime) = runtime {
        runtime.spawn(drain(task));
    }
}

/// How a drain ended.
enum End {
    /// It did what it could. The connection is judged once more.
    Done,
    /// The pool was cleared or closed meanwhile, or a check-out has taken the connection's capacity.
    Revoked,
    /// The establisher's code panicked.
    Panicked,
    /// This is a forked child, which has inherited the task together with its runtime.
    Forked,
}

async fn drain<E: Establish>(mut task: DrainTask<E>) {
    let core = task.draining.core();
    let environment = core.environment();
    // Its list's lock may be held by a thread that a forked child does not have.
    let mut change = OfThisProcess::new(Watch::new(&environment.changed));
    let end = {
        let (connection, revocation) = task.draining.revocable();
        // A block, so that a panic of the call itself is one of the first poll.
        let mut drain = pin!(async move { environment.establish.drain(connection).await });
        let change = &mut change;
        poll_fn(move |context| {
            if environment.is_the_parents() {
                return Poll::Ready(End::Forked);
            }
            if revocation.poll(context).is_ready() || change.poll(context, || revocation.is_stale()).is_ready() {
                return Poll::Ready(End::Revoked);
            }
            match contain(|| drain.as_mut().poll(context)) {
                Some(polled) => polled.map(|()| End::Done),
                None => Poll::Ready(End::Panicked),
            }
        })
        .await
    };
    task.home = None;
    match end {
        End::Done | End::Revoked | End::Forked => drop(task),
        End::Panicked => task.close(),
    }
}

/// A connection being drained, which in a forked child is still the parent's.
struct DrainTask<E: Establish> {
    draining: ManuallyDrop<Draining<TokioEnvironment<E>>>,
    /// The pool's runtime, if the task runs there, until the drain ends. A task that is dropped before tells that the
    /// runtime has ended.
    home: Option<Arc<Home>>,
}

impl<E: Establish> DrainTask<E> {
    #[allow(unsafe_code)]
    fn close(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its `Drop` does not run.
        unsafe { ManuallyDrop::take(&mut this.draining) }.close();
    }
}

#[allow(unsafe_code)]
impl<E: Establish> Drop for DrainTask<E> {
    fn drop(&mut self) {
        // SAFETY: taken here or in `close`, which keeps this from running; and nothing uses it afterwards.
        let draining = unsafe { ManuallyDrop::take(&mut self.draining) };
        if !draining.environment().is_the_parents() {
            if let Some(home) = self.home.take() {
                home.end(&draining.core());
            }
            return drop(draining);
        }
        let establish = Arc::clone(&draining.environment().establish);
        if let Some(connection) = draining.leak() {
            establish.abandon_after_fork(connection);
        }
    }
}
