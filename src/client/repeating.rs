//! Runs the body of a transaction and its commit repeatedly (Convenient API for Transactions).

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::time::Instant;

use super::error::{BodyError, ClientError};
use super::in_session::{Explicit, LimitedCall};
use super::session_handle::{Session, abandon};
use crate::client::session::{NextStep, Repetitions, TransactionOptions, TransactionState};
use crate::endpoint::Limit;
use crate::pool::error::Labels;
use crate::pool::runtime::{Process, random_fraction};

/// A transaction that is repeated as long as its errors allow it.
///
/// The caller calls [`advance`](Self::advance), runs the body if the result says so, and passes the outcome to the next
/// call.
pub(crate) struct Repeating<T, E> {
    options: TransactionOptions,
    repetitions: Repetitions,
    next: NextStep,
    value: Option<T>,
    last_error: Option<LastError<E>>,
    /// Aborts the transaction of a call that is dropped before it completes.
    open: OpenCall,
    /// Applies the time limit to all operations in the session.
    _limited: LimitedCall,
}

/// The error from the last run or the last commit.
enum LastError<E> {
    Body(E),
    Commit(ClientError),
}

/// A call to `with_transaction` that has not completed. If it is dropped, its transaction is aborted.
struct OpenCall {
    explicit: Arc<Explicit>,
    /// The process that made the call.
    process: Process,
    has_ended: bool,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        // The transaction may belong to the parent of this process.
        if !self.has_ended && !self.process.is_ancestor() {
            abandon(&self.explicit);
        }
    }
}

impl<E: From<ClientError>> LastError<E> {
    fn into_error(self) -> E {
        match self {
            Self::Body(error) => error,
            Self::Commit(error) => error.into(),
        }
    }

    fn into_timeout<K>(self) -> E
    where
        E: BodyError<K>,
    {
        let last = match &self {
            Self::Body(error) => error.client_error(),
            Self::Commit(error) => Some(error.clone()),
        };
        match last {
            Some(last) => ClientError::TransactionTimeout { last: Box::new(last) }.into(),
            // Only an error that comes from the client causes the transaction to be repeated.
            None => self.into_error(),
        }
    }
}

/// The next step for the caller of [`Repeating::advance`]: run the body with this session, or return the outcome.
type Next<T, E> = ControlFlow<Result<T, E>, Session>;

impl<T, E> Repeating<T, E> {
    pub(crate) fn begin(session: &Session, options: TransactionOptions) -> Self {
        let limit = session.timeout_of(&options);
        let limited = session.explicit().limit_to(limit.map(|limit| Limit::of(limit).start()));
        let mut repetitions = Repetitions::new(now(), limit);
        let next = repetitions.begin();
        let open = OpenCall { explicit: session.explicit().clone(), process: Process::this(), has_ended: false };
        Self { options, repetitions, next, value: None, last_error: None, open, _limited: limited }
    }

    /// Advances the transaction until the body must run, or until the outcome is final. `outcome` is the result of the
    /// body, if it has run.
    pub(crate) async fn advance<K>(&mut self, session: &mut Session, outcome: Option<Result<T, E>>) -> Next<T, E>
    where
        E: BodyError<K>,
    {
        let next = self.go_on(session, outcome).await;
        self.open.has_ended = next.is_break();
        next
    }

    async fn go_on<K>(&mut self, session: &mut Session, outcome: Option<Result<T, E>>) -> Next<T, E>
    where
        E: BodyError<K>,
    {
        match outcome {
            Some(Ok(returned)) => {
                self.value = Some(returned);
                self.next = self.repetitions.after_callback(session.transaction_state());
            }
            Some(Err(error)) => {
                if matches!(session.transaction_state(), TransactionState::Starting | TransactionState::InProgress) {
                    // The body's error is more informative than an error from the abort.
                    let _ = session.abort_transaction().await;
                }
                let labels = error.client_error().map_or(Labels::NONE, |error| error.labels());
                self.next = self.repetitions.after_callback_error(labels, now(), random_fraction());
                self.last_error = Some(LastError::Body(error));
            }
            None => {}
        }
        loop {
            match (self.next, self.last_error.take()) {
                (NextStep::RunCallback { after }, _) => {
                    if !after.is_zero() {
                        session.client().pause(after).await;
                    }
                    return match session.start_transaction(self.options.clone()) {
                        Ok(()) => ControlFlow::Continue(session.for_body()),
                        Err(error) => ControlFlow::Break(Err(error.into())),
                    };
                }
                (NextStep::Commit { after }, last_commit) => {
                    if !after.is_zero() {
                        session.client().pause(after).await;
                    }
                    match session.commit_transaction().await {
                        Ok(()) => self.next = NextStep::Return,
                        // No server was found for this commit, and the outcome of the last commit is unknown.
                        Err(ClientError::Selection(_)) if last_commit.is_some() => {
                            self.next = NextStep::Report;
                            self.last_error = last_commit;
                        }
                        Err(error) => {
                            if session.transaction_state() == TransactionState::InProgress {
                                // The session refused the commit.
                                let _ = session.abort_transaction().await;
                            }
                            let (labels, expired) = (error.labels(), error.is_max_time_expired());
                            self.next = self.repetitions.after_commit_error(labels, expired, now(), random_fraction());
                            self.last_error = Some(LastError::Commit(error));
                        }
                    }
                }
                (NextStep::Return, _) => match self.value.take() {
                    Some(value) => return ControlFlow::Break(Ok(value)),
                    None => unreachable!("the transaction ended without a value"),
                },
                (NextStep::Report, Some(error)) => return ControlFlow::Break(Err(error.into_error())),
                (NextStep::ReportTimeout, Some(error)) => return ControlFlow::Break(Err(error.into_timeout())),
                (NextStep::Report | NextStep::ReportTimeout, None) => unreachable!("there is an error to report"),
            }
        }
    }
}

/// Returns the time on the clock that also measures the pauses. Tests control this clock.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
