//! The task that drains a connection.

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

/// Spawns a task in which the establisher drains the connection.
///
/// The task runs on the pool's runtime, or on the caller's if the pool has none. If neither exists, or the runtime is
/// shutting down, or the pool spawns nothing, the connection is closed.
#[cold]
pub(super) fn begin<E: Establish>(draining: Draining<TokioEnvironment<E>>) {
    let has_tasks = draining.environment().has_tasks;
    let home = draining.environment().residence.home().filter(|_| has_tasks);
    let runtime = home.as_ref().map(|home| home.handle().clone()).or_else(|| Handle::try_current().ok());
    let runtime = runtime.filter(|_| has_tasks);
    let task = DrainTask::<E> { draining: ManuallyDrop::new(draining), home };
    if let Some(runtime) = runtime {
        runtime.spawn(drain(task));
    }
}

/// How a drain ended.
enum End {
    /// The establisher's drain completed. The connection's condition is checked again.
    Done,
    /// The pool was cleared or closed meanwhile, or a check-out waits for the connection's capacity.
    Revoked,
    /// The establisher's code panicked.
    Panicked,
    /// This is a forked child, which inherited the task together with its runtime.
    Forked,
}

async fn drain<E: Establish>(mut task: DrainTask<E>) {
    let core = task.draining.core();
    let environment = core.environment();
    // The lock of the watch's list may be held by a thread that a forked child does not have.
    let mut change = OfThisProcess::new(Watch::new(&environment.changed));
    let end = {
        let (connection, revocation) = task.draining.revocable();
        // The async block moves a panic of the call itself into the first poll.
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

/// A connection that is drained. In a forked child it still belongs to the parent.
struct DrainTask<E: Establish> {
    draining: ManuallyDrop<Draining<TokioEnvironment<E>>>,
    /// The pool's runtime, if the task runs there. Taken when the drain ends, so a task that is dropped while it still
    /// has its home shows that the runtime has ended.
    home: Option<Arc<Home>>,
}

impl<E: Establish> DrainTask<E> {
    #[allow(unsafe_code)]
    fn close(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: nothing uses `this` afterwards, and its `Drop` does not run.
        unsafe { ManuallyDrop::take(&mut this.draining) }.close();
    }
}

#[allow(unsafe_code)]
impl<E: Establish> Drop for DrainTask<E> {
    fn drop(&mut self) {
        // SAFETY: the value is taken either here or in `close`, after which `Drop` does not run. Nothing uses it
        // afterwards.
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
