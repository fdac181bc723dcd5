//! The task that drains a connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork::OfThisProcess;
use super::home::HomeGuard;
use crate::pool::core::{Draining, Environment as _};
use crate::pool::sync::{Watch, contain};

/// Spawns a task in which the establisher drains the connection.
///
/// The task runs on the pool's runtime or, without one, on the caller's runtime. If there is no runtime, or it is
/// shutting down, or the pool does not spawn tasks, the connection is closed.
#[cold]
pub(super) fn begin<E: Establish>(draining: Draining<TokioEnvironment<E>>) {
    if !draining.environment().has_tasks {
        return;
    }
    let home = draining.environment().residence.home();
    let Some(runtime) = home.as_ref().map(|home| home.handle().clone()).or_else(|| Handle::try_current().ok()) else {
        return;
    };
    let guard = home.map(|home| HomeGuard::new(home, draining.core()));
    runtime.spawn(drain(DrainTask::<E> { guard, draining }));
}

enum End {
    /// The establisher's drain completed. The connection's condition is checked again.
    Done,
    /// The pool has been cleared or closed, or a check-out is waiting for the connection's capacity.
    Revoked,
    Panicked,
    /// This is a forked child that inherited the task together with its runtime.
    Forked,
}

async fn drain<E: Establish>(mut task: DrainTask<E>) {
    let core = task.draining.core();
    let environment = core.environment();
    // In a forked child, the lock on the watch's list may be held by a thread that does not exist there.
    let mut change = OfThisProcess::new(Watch::new(&environment.changed));
    let end = {
        let (connection, revocation) = task.draining.revocable();
        // The async block defers the call to the first poll, where a panic is caught.
        let mut drain = pin!(async move { environment.establish.drain(connection).await });
        let change = &mut change;
        poll_fn(move |context| {
            if environment.is_inherited() {
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
    task.guard.take().into_iter().for_each(HomeGuard::release);
    match end {
        End::Done | End::Revoked | End::Forked => drop(task),
        End::Panicked => task.draining.close(),
    }
}

struct DrainTask<E: Establish> {
    /// Present if the task runs on the pool's runtime. Dropped before the connection.
    guard: Option<HomeGuard<E>>,
    draining: Draining<TokioEnvironment<E>>,
}
