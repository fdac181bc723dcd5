//! Why connections are closed with the reason "error".

use thiserror::Error;

use super::environment::Environment;
use super::held::Held;
use crate::pool::error::{Cause, EstablishError};
use crate::pool::event::EventError;

/// The cause of a close with the reason "error". Its message is used in the event, unless a better explanation is
/// known.
#[derive(Debug, Error)]
pub(super) enum CloseError {
    #[error(transparent)]
    Failed(EstablishError),
    #[error("the task that was opening the connection ended early")]
    GivenUp,
    /// The environment may know the cause.
    #[error("the connection was left in a state in which it cannot be reused")]
    Unusable,
    #[error("the connection failed the check before its use: {0}")]
    CheckFailed(#[source] Cause),
    #[error("the check before its use ended early, because its check-out gave up")]
    CheckGivenUp,
    #[error("the code that judges, checks or drains the connection panicked")]
    Panicked,
    #[error("its user discarded the connection")]
    Discarded,
    #[error("the drain after its last command was stopped because a check-out needed the connection's capacity")]
    Displaced,
}

impl CloseError {
    /// Returns the error for the event. The caller owns the connection.
    pub(super) fn into_event_error<E: Environment>(self, held: Held<E>) -> EventError {
        match self {
            Self::Failed(error) => EventError::new(error),
            Self::Unusable => held.broken_by().map_or_else(|| EventError::new(self), EventError::from),
            error => EventError::new(error),
        }
    }
}
