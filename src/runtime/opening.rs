//! Opening a connection, as a task that outlives whoever asked for it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::environment::TokioEnvironment;
use super::establish::{Establish, Establishing};
use super::failure::FailedConnection;
use crate::error::{CheckOutError, EstablishError, PoolClearedError, Stage};
use crate::pool::{Core, Established, Idle, Pending, Permit, Phase, Refusal, SharedPermit};
use crate::sync::contain;

type SharedCore<E> = Arc<Core<TokioEnvironment<E>>>;
pub(super) type Acquired<E> = Result<Idle<TokioEnvironment<E>>, CheckOutError>;

/// The establisher panicked.
#[derive(Debug, Error)]
#[error("the establisher has panicked while it was opening the connection")]
pub(super) struct TaskEnded;

/// What a check-out and the task that opens its connection share, besides what is delivered.
pub(super) struct OpenRequest<E: Establish> {
    core: SharedCore<E>,
    /// The right to open one, until it is made use of, or is not needed any more.
    permit: SharedPermit<TokioEnvironment<E>>,
    created: OnceLock<Created>,
}

type HeldPermit<E> = Permit<TokioEnvironment<E>>;

/// A connection's number and generation.
#[derive(Debug, Clone, Copy, Default)]
struct Created {
    id: u64,
    generation: u64,
}

impl<E: Establish> OpenRequest<E> {
    pub fn new(core: SharedCore<E>, permit: HeldPermit<E>) -> Self {
        Self { core, permit: SharedPermit::new(permit), created: OnceLock::new() }
    }

    /// Takes the right to open one, if the connection was not created yet. By whoever asked and has another one, who
    /// drops it; or by the task that opens.
    pub fn take_permit(&self) -> Option<HeldPermit<E>> {
        self.permit.take()
    }

    /// The error for a check-out whose task went away without a word.
    pub fn task_ended(&self) -> CheckOutError {
        let core = &self.core;
        let Created { id, generation } = match self.created.get() {
            Some(created) => *created,
            None if core.state().phase != Phase::Ready => return core.refused(core.refusal()),
            None => Created::default(),
        };
        let failure = EstablishError::permanent(Stage::Connect, TaskEnded);
        failure.in_pool(core.address().clone(), id, generation).into()
    }
}

/// Creates a connection and [opens](open) it, for a check-out that has the right to.
///
/// Tasks that are ready run first. If one of them gives back a connection to who asks, no other needs to be opened. It
/// is this task that waits for them, and not the check-out: nobody knows when that will be polled again, and until then
/// nobody else could make use of the right.
pub(super) async fn open_for<E: Establish>(request: Arc<OpenRequest<E>>, requester: oneshot::Sender<Acquired<E>>) {
    yield_now().await;
    let Some(permit) = request.take_permit() else { return };
    let core = &request.core;
    match permit.create() {
        Ok(pending) => {
            let created = Created { id: pending.id(), generation: pending.generation() };
            request.created.get_or_init(|| created);
            open(core.clone(), pending, Some(requester)).await;
        }
        // The receiver may be gone.
        Err(refusal) => drop(requester.send(Err(core.refused(refusal)))),
    }
}

/// Opens the connection and hands it to whoever asked for it, if that one is still there; or else to the next who
/// waits, or to the pool.
///
/// If this future is dropped, the connection is closed.
pub(super) async fn open<E: Establish>(
    core: SharedCore<E>,
    pending: Pending<TokioEnvironment<E>>,
    requester: Option<oneshot::Sender<Acquired<E>>>,
) {
    let outcome = establish(&core, pending, requester.as_ref()).await;
    match (requester, outcome) {
        (Some(requester), Ok((idle, opening))) => {
            let unclaimed = requester.send(Ok(idle)).err().and_then(Result::ok);
            opening.hand_on(unclaimed);
        }
        (None, Ok((idle, opening))) => opening.hand_on(Some(idle)),
        // The receiver may be gone; the failure sink has been told.
        (Some(requester), Err(error)) => drop(requester.send(Err(error))),
        (None, Err(_)) => {}
    }
}

/// Establishes the connection. `requester`: the check-out that it is for; `None` for `minPoolSize`.
async fn establish<E: Establish>(
    core: &SharedCore<E>,
    pending: Pending<TokioEnvironment<E>>,
    requester: Option<&oneshot::Sender<Acquired<E>>>,
) -> Result<Established<TokioEnvironment<E>>, CheckOutError> {
    let (connection_id, generation) = (pending.id(), pending.generation());
    // The establisher may keep its `Establishing` for longer than we want to keep the token, so both share it.
    let shared = Arc::new(Mutex::new(Some(pending)));
    let locked = |shared: &Mutex<Option<_>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    let connecting = Establishing::new(
        core.address().clone(),
        connection_id,
        generation,
        core.options().is_load_balanced(),
        requester.is_none(),
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
        outcome = core.environment().establish.establish(connecting) => Some(outcome),
    };
    let pending = locked(&shared).expect("BUG: a pending connection is gone");
    match outcome {
        Some(Ok(connection)) => pending.established(connection).map_err(|_interrupted| given_up(core)),
        Some(Err(failure)) => {
            let error = failure.in_pool(core.address().clone(), connection_id, generation);
            if let Some(on_failure) = &core.environment().on_failure {
                let failure = FailedConnection { error: &error, service: pending.service(), pool: &**core };
                // A panic of the sink's must not hide the error from whoever asked for the connection.
                contain(|| on_failure(&failure));
            }
            if error.is_timeout() && requester.is_some_and(|requester| !requester.is_closed()) {
                // A connection that comes back goes to the openers first. The check-out has had none for as long as an
                // establishment may take, and so there is none to be expected for those that wait behind it, and
                // another establishment would take as long. With a monitor, the pool would be cleared by now.
                core.refuse_waiters(&error);
            }
            // Closed after the failure sink was told, as the specification's tests want it.
            pending.fail(&error);
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
            let address = core.address().clone();
            PoolClearedError { address, cause: None, interrupted: true, sent: false, never_ready: false }.into()
        }
    }
}
