//! Opening a connection, as a task that outlives whoever asked for it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::establish::{Establish, Establishing};
use super::host::{Failure, TokioHost};
use crate::error::{CheckOutError, ConnectionError, EstablishError, PoolCleared, Stage};
use crate::pool::{Core, Established, Idle, Pending, Phase, Place, Refusal};

type SharedCore<E> = Arc<Core<<E as Establish>::Connection, TokioHost<E>>>;
pub(super) type Delivery<E> = Result<Idle<<E as Establish>::Connection, TokioHost<E>>, CheckOutError>;

/// The task that was to open the connection went away: its runtime shut down, or the establisher panicked.
#[derive(Debug, Error)]
#[error("the task that was opening the connection has ended early")]
pub(super) struct TaskEnded;

/// What a check-out and the task that opens its connection know of each other, besides what is delivered.
#[derive(Debug, Default)]
pub(super) struct Errand {
    is_needless: AtomicBool,
    created: OnceLock<Created>,
}

/// A connection's number and generation.
#[derive(Debug, Clone, Copy, Default)]
struct Created {
    id: u64,
    generation: u64,
}

impl Errand {
    /// Whoever asked has another connection. Without effect once the task has created its own.
    pub fn has_become_needless(&self) {
        // Relaxed, here and where it is read: a hint. Who misses it opens one connection more.
        self.is_needless.store(true, Ordering::Relaxed);
    }

    /// The error for a check-out whose task went away without a word.
    pub fn task_ended<E: Establish>(&self, core: &SharedCore<E>) -> CheckOutError {
        let failure = EstablishError::unlabelled(Stage::Connect, TaskEnded);
        // No number if none was created.
        let Created { id, generation } = self.created.get().copied().unwrap_or_default();
        ConnectionError::new(core.address().clone(), id, generation, failure).into()
    }
}

/// Creates a connection and [opens](open) it, for a check-out that has the right to.
///
/// Tasks that are ready run first. If one of them gives back a connection to who asks, no other needs to be opened. That
/// is the work of this task and not of the check-out, because nobody knows when that will be polled again: the right to
/// open one is never in the hands of somebody who may be waiting for another check-out himself.
pub(super) async fn open_for<E: Establish>(
    core: SharedCore<E>,
    place: Place<E::Connection, TokioHost<E>>,
    asked_by: oneshot::Sender<Delivery<E>>,
    errand: Arc<Errand>,
) {
    yield_now().await;
    if errand.is_needless.load(Ordering::Relaxed) {
        return;
    }
    match place.create() {
        Ok(pending) => {
            let created = Created { id: pending.id(), generation: pending.generation() };
            errand.created.get_or_init(|| created);
            open(core, pending, Some(asked_by)).await;
        }
        // The receiver may be gone.
        Err(refusal) => drop(asked_by.send(Err(core.refused(refusal)))),
    }
}

/// Opens the connection and hands it to whoever asked for it, if that one is still there; or else to the next who
/// waits, or to the pool.
///
/// If this future is dropped, the connection is closed.
pub(super) async fn open<E: Establish>(
    core: SharedCore<E>,
    pending: Pending<E::Connection, TokioHost<E>>,
    asked_by: Option<oneshot::Sender<Delivery<E>>>,
) {
    let delivery = establish(&core, pending).await;
    match (asked_by, delivery) {
        (Some(asked_by), Ok((idle, opening))) => {
            let unclaimed = asked_by.send(Ok(idle)).err().and_then(Result::ok);
            opening.hand_on(unclaimed);
        }
        (None, Ok((idle, opening))) => opening.hand_on(Some(idle)),
        // The receiver may be gone; the failure sink has been told.
        (Some(asked_by), Err(error)) => drop(asked_by.send(Err(error))),
        (None, Err(_)) => {}
    }
}

async fn establish<E: Establish>(
    core: &SharedCore<E>,
    pending: Pending<E::Connection, TokioHost<E>>,
) -> Result<Established<E::Connection, TokioHost<E>>, CheckOutError> {
    let (connection_id, generation) = (pending.id(), pending.generation());
    // The establisher may keep its `Establishing` for longer than we want to keep the token, so both share it.
    let shared = Arc::new(Mutex::new(Some(pending)));
    let locked = |shared: &Mutex<Option<_>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    let connecting = Establishing::new(
        core.address().clone(),
        connection_id,
        generation,
        core.options().is_load_balanced(),
        Box::new({
            let shared = shared.clone();
            move |service_id| {
                if let Some(pending) = &*shared.lock().unwrap_or_else(PoisonError::into_inner) {
                    pending.identify(service_id);
                }
            }
        }),
    );
    let interrupted = poll_fn(|context| {
        let pending = shared.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken below only, after this future has ended.
        pending.as_ref().expect("BUG: a pending connection is gone").poll_interrupted(context)
    });
    let outcome = tokio::select! {
        biased;
        () = interrupted => None,
        outcome = core.host().establish.establish(connecting) => Some(outcome),
    };
    let pending = locked(&shared).expect("BUG: a pending connection is gone");
    match outcome {
        Some(Ok(connection)) => pending.established(connection).map_err(|_interrupted| given_up(core)),
        Some(Err(failure)) => {
            let error = ConnectionError::new(core.address().clone(), connection_id, generation, failure);
            if let Some(on_failure) = &core.host().on_failure {
                let failure = Failure { error: &error, service: pending.service(), pool: &**core };
                // A panic of the sink's must not hide the error from whoever asked for the connection.
                let _ = catch_unwind(AssertUnwindSafe(|| on_failure(&failure)));
            }
            // Closed after whoever watches the server was told, as the specification's tests want it.
            drop(pending);
            Err(error.into())
        }
        None => {
            drop(pending);
            Err(given_up(core))
        }
    }
}

/// The error for an establishment that was given up: the pool was closed, or cleared with interruption.
fn given_up<E: Establish>(core: &SharedCore<E>) -> CheckOutError {
    match core.state().phase {
        Phase::Closed => core.refused(Refusal::Closed),
        Phase::Paused | Phase::Ready => {
            PoolCleared { address: core.address().clone(), cause: core.cause(), interrupted: true }.into()
        }
    }
}
