//! The task that opens a connection. It may outlive the check-out that requested the connection.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tracing::{Instrument, Span};

use super::environment::TokioEnvironment;
use super::establish::{Establish, Establishing};
use super::failure::FailedConnection;
use super::traced;
use crate::pool::core::{
    Closing, Core, Established, Idle, Pending, Permit, Phase, Refusal, SharedOpening, SharedPermit,
};
use crate::pool::error::{CheckOutError, EstablishError, PoolClearedError, Stage};
use crate::pool::metrics::StageTimes;
use crate::pool::sync::contain;

type SharedCore<E> = Arc<Core<TokioEnvironment<E>>>;
pub(super) type Acquired<E> = Result<Idle<TokioEnvironment<E>>, CheckOutError>;

/// The error for a check-out whose establisher panicked.
#[derive(Debug, Error)]
#[error("the establisher panicked while it opened the connection")]
pub(super) struct TaskEnded;

impl TaskEnded {
    pub fn failure() -> EstablishError {
        EstablishError::permanent(Stage::Connect, Self)
    }
}

/// The state that a check-out shares with the task that opens its connection, besides the channel for the outcome.
pub(super) struct OpenRequest<E: Establish> {
    core: SharedCore<E>,
    /// The permit, until it is used or no longer needed.
    permit: SharedPermit<TokioEnvironment<E>>,
    /// The opening, once the connection is open.
    opening: SharedOpening<TokioEnvironment<E>>,
    created: OnceLock<Created>,
}

type HeldPermit<E> = Permit<TokioEnvironment<E>>;

#[derive(Debug, Clone, Copy)]
struct Created {
    id: u64,
    generation: u64,
}

impl<E: Establish> OpenRequest<E> {
    pub fn new(core: SharedCore<E>, permit: HeldPermit<E>) -> Self {
        Self { core, permit: SharedPermit::new(permit), opening: SharedOpening::new(), created: OnceLock::new() }
    }

    /// Takes the permit, if the connection has not been created yet.
    ///
    /// The task takes the permit to create the connection. The check-out takes and drops the permit if it has received
    /// another connection.
    pub fn take_permit(&self) -> Option<HeldPermit<E>> {
        self.permit.take()
    }

    /// Ends the opening of the connection that the check-out has received, so that it no longer counts as pending.
    pub fn end_opening(&self) {
        self.opening.end();
    }

    /// Returns the error for a check-out whose task finished without an outcome.
    pub fn task_ended(&self) -> CheckOutError {
        let core = &self.core;
        let (failure, address) = (TaskEnded::failure(), core.address().clone());
        match self.created.get() {
            Some(Created { id, generation }) => failure.in_pool(address, *id, *generation).into(),
            None if core.state().phase != Phase::Ready => core.refused(core.refusal()),
            None => failure.before_creation(address).into(),
        }
    }
}

/// Creates a connection and [opens](open) it, for a check-out that holds a permit.
///
/// It yields first, so that other ready tasks run before it. If one of them checks in a connection, the check-out gets
/// that connection, and no new connection is needed. The check-out itself does not yield, because it might not be
/// polled again for a long time. Until then, no other check-out could use the permit.
///
/// `cause` is the span of the check-out.
pub(super) async fn open_for<E: Establish>(
    request: Arc<OpenRequest<E>>,
    requester: oneshot::Sender<Acquired<E>>,
    cause: Span,
) {
    yield_now().await;
    let Some(permit) = request.take_permit() else { return };
    let core = &request.core;
    match permit.create() {
        Ok(pending) => {
            let created = Created { id: pending.id(), generation: pending.generation() };
            request.created.get_or_init(|| created);
            let requester = Requester { outcome: requester, request: request.clone(), cause };
            // The requester receives the error.
            let _ = open(core.clone(), pending, Some(requester), false).await;
        }
        // The receiver may be gone.
        Err(refusal) => drop(requester.send(Err(core.refused(refusal)))),
    }
}

/// The check-out that a connection is opened for.
pub(super) struct Requester<E: Establish> {
    outcome: oneshot::Sender<Acquired<E>>,
    request: Arc<OpenRequest<E>>,
    cause: Span,
}

/// Opens the connection and sends it to the check-out that requested it. If that check-out is gone, the connection goes
/// to the next waiter or becomes available. An error is sent to the requester or, if there is none, returned.
/// `in_background` says whether the connection is opened for `minPoolSize`.
///
/// Dropping this future closes the connection.
pub(super) async fn open<E: Establish>(
    core: SharedCore<E>,
    pending: Pending<TokioEnvironment<E>>,
    requester: Option<Requester<E>>,
    in_background: bool,
) -> Result<(), CheckOutError> {
    let (requester, cause) = requester.map(|Requester { outcome, request, cause }| ((outcome, request), cause)).unzip();
    let span = traced::establishment(core.address(), pending.id(), in_background, cause.as_ref());
    // The check-out's span must not be kept open after the check-out has finished.
    drop(cause);
    let round = core.environment().failures.round();
    let outcome = establish(&core, pending, in_background).instrument(span.clone()).await;
    let (outcome, failed) = match outcome {
        Ok(established) => (Ok(established), None),
        Err((error, failed)) => (Err(error), failed),
    };
    let has_succeeded = outcome.is_ok();
    if let Err(error) = &outcome {
        traced::failed(&span, error);
    }
    drop(span);
    let outcome = match (requester, outcome) {
        (Some((requester, request)), Ok((idle, opening))) => {
            request.opening.share(opening);
            match requester.send(Ok(idle)) {
                Ok(()) => request.opening.end(),
                Err(unclaimed) => {
                    if let Some(opening) = request.opening.take() {
                        opening.hand_on(unclaimed.ok());
                    }
                }
            }
            Ok(())
        }
        (None, Ok((idle, opening))) => {
            opening.hand_on(Some(idle));
            Ok(())
        }
        // The receiver may be gone. The failure sink has already been called.
        (Some((requester, _)), Err(error)) => {
            drop(requester.send(Err(error)));
            Ok(())
        }
        (None, Err(error)) => Err(error),
    };
    let failures = &core.environment().failures;
    match failed {
        None if has_succeeded => failures.end(&core.environment().changed),
        Some(failed) => {
            // The permit is kept during the pause, so that other check-outs stay in the queue instead of opening the
            // next connection.
            if let Some(pause) = failures.add(round) {
                failures.pause(pause, &core.environment().changed).await;
            }
            drop(failed);
        }
        None => {}
    }
    outcome
}

/// The error of an establishment, and the connection's capacity unless the establishment was abandoned.
type Failed<E> = (CheckOutError, Option<Closing<TokioEnvironment<E>>>);

/// Establishes the connection: in the background for `minPoolSize`, otherwise for a check-out or a warm-up.
async fn establish<E: Establish>(
    core: &SharedCore<E>,
    pending: Pending<TokioEnvironment<E>>,
    in_background: bool,
) -> Result<Established<TokioEnvironment<E>>, Failed<E>> {
    let (connection_id, generation) = (pending.id(), pending.generation());
    // The `Establishing` holds only a weak reference, because the establisher may keep the `Establishing` after this
    // future is dropped.
    let shared = Arc::new(Mutex::new(Some(pending)));
    let locked = |shared: &Mutex<Option<_>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    let stages = Arc::new(StageTimes::default());
    let connecting = Establishing::new(
        core,
        connection_id,
        generation,
        in_background,
        stages.clone(),
        Box::new({
            let shared = Arc::downgrade(&shared);
            move |service_id| {
                let Some(shared) = shared.upgrade() else { return };
                if let Some(pending) = &*shared.lock().unwrap_or_else(PoisonError::into_inner) {
                    pending.identify(service_id);
                }
            }
        }),
    );
    let interrupted = poll_fn(|context| {
        let pending = shared.lock().unwrap_or_else(PoisonError::into_inner);
        // The code below takes the pending connection only once this future is no longer polled.
        pending.as_ref().expect("BUG: a pending connection is gone").poll_interrupted(context)
    });
    let outcome = tokio::select! {
        biased;
        () = interrupted => None,
        outcome = core.environment().establish.establish(connecting) => Some(outcome),
    };
    core.stages_took(&stages);
    let pending = locked(&shared).expect("BUG: a pending connection is gone");
    match outcome {
        Some(Ok(connection)) => {
            pending.established_in(connection, &stages).map_err(|_interrupted| (given_up(core), None))
        }
        Some(Err(failure)) => {
            let error = failure.in_pool(core.address().clone(), connection_id, generation);
            if let Some(on_failure) = &core.environment().on_failure {
                let service = pending.service();
                let clear = |clear| match service {
                    Some((service_id, _)) => core.clear_service(service_id, clear),
                    None => core.clear(clear),
                };
                let is_load_balanced = core.options().load_balanced;
                let failure = FailedConnection { error: &error, service, is_load_balanced, clear: &clear };
                // A panic in the sink must not hide the error from the check-out that requested the connection.
                contain(|| on_failure(&failure));
            }
            // The connection is closed after the failure sink has been called, as the specification's tests require.
            let failed = pending.fail(&error);
            Err((error.into(), Some(failed)))
        }
        None => {
            drop(pending);
            Err((given_up(core), None))
        }
    }
}

/// Returns the error for an abandoned establishment: the pool was closed, or cleared with interruption.
fn given_up<E: Establish>(core: &SharedCore<E>) -> CheckOutError {
    match core.state().phase {
        Phase::Closed => core.refused(Refusal::Closed),
        Phase::Paused | Phase::Ready => {
            let address = core.address().clone();
            PoolClearedError { address, cause: None, interrupted: true, sent: false, never_ready: false }.into()
        }
    }
}
