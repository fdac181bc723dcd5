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
use crate::pool::Unfinished;
use crate::sync::{Watch, contain};

/// Lets the establisher recover the connection, on the pool's runtime, or without one on the caller's. Without any, and
/// on one that is shutting down, the connection is closed.
#[cold]
pub(super) fn begin<E: Establish>(unfinished: Unfinished<TokioEnvironment<E>>) {
    let home = unfinished.environment().residence.home();
    let runtime = home.as_ref().map(|home| home.handle().clone()).or_else(|| Handle::try_current().ok());
    let patient = Patient::<E> { unfinished: ManuallyDrop::new(unfinished), home };
    if let Some(runtime) = runtime {
        runtime.spawn(recover(patient));
    }
}

/// How a recovery ended.
enum End {
    /// It did what it could. The connection is judged once more.
    Done,
    /// The pool was cleared or closed meanwhile, or a check-out has taken the connection's place.
    Revoked,
    /// The establisher's code panicked.
    Panicked,
    /// This is a forked child, which has inherited the task together with its runtime.
    Forked,
}

async fn recover<E: Establish>(mut patient: Patient<E>) {
    let core = patient.unfinished.core();
    let environment = core.environment();
    // Its list's lock may be held by a thread that a forked child does not have.
    let mut change = OfThisProcess::new(Watch::new(&environment.changed));
    let end = {
        let (connection, revocation) = patient.unfinished.recoverable();
        // A block, so that a panic of the call itself is one of the first poll.
        let mut recovery = pin!(async move { environment.establish.recover(connection).await });
        let change = &mut change;
        poll_fn(move |context| {
            if environment.is_the_parents() {
                return Poll::Ready(End::Forked);
            }
            if revocation.poll(context).is_ready() || change.poll(context, || revocation.is_stale()).is_ready() {
                return Poll::Ready(End::Revoked);
            }
            match contain(|| recovery.as_mut().poll(context)) {
                Some(polled) => polled.map(|()| End::Done),
                None => Poll::Ready(End::Panicked),
            }
        })
        .await
    };
    patient.home = None;
    match end {
        End::Done | End::Revoked | End::Forked => drop(patient),
        End::Panicked => patient.close(),
    }
}

/// A connection in recovery, which in a forked child is still the parent's.
struct Patient<E: Establish> {
    unfinished: ManuallyDrop<Unfinished<TokioEnvironment<E>>>,
    /// The pool's runtime, if the task runs there, until the recovery ends. A task that is dropped before tells that the
    /// runtime has ended.
    home: Option<Arc<Home>>,
}

impl<E: Establish> Patient<E> {
    #[allow(unsafe_code)]
    fn close(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its `Drop` does not run.
        unsafe { ManuallyDrop::take(&mut this.unfinished) }.close();
    }
}

#[allow(unsafe_code)]
impl<E: Establish> Drop for Patient<E> {
    fn drop(&mut self) {
        // SAFETY: taken here or in `close`, which keeps this from running; and nothing uses it afterwards.
        let unfinished = unsafe { ManuallyDrop::take(&mut self.unfinished) };
        if !unfinished.environment().is_the_parents() {
            if let Some(home) = self.home.take() {
                home.end(&unfinished.core());
            }
            return drop(unfinished);
        }
        let establish = Arc::clone(&unfinished.environment().establish);
        if let Some(connection) = unfinished.leak() {
            establish.abandon_after_fork(connection);
        }
    }
}
