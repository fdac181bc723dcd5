//! Why a connection is closed with the reason "error".

use thiserror::Error;

use super::environment::Environment;
use super::held::Held;
use crate::error::EstablishError;
use crate::event::EventError;

/// Why a connection is closed with the reason "error".
pub(super) enum CloseError {
    /// The connection could not be established.
    Failed(EstablishError),
    /// The establishment was given up without an error.
    GivenUp,
    /// The connection cannot be used again. The environment knows why.
    Unusable,
    /// The code that judges or drains the connection panicked.
    Panicked,
    /// The connection was drained, and a check-out needed its capacity.
    Displaced,
}

/// The error for the event if the environment does not provide one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum Unexplained {
    #[error("the task that was opening the connection ended early")]
    GivenUp,
    #[error("the connection was left in a state in which it cannot be reused")]
    Unusable,
    #[error("the code that judges or drains the connection panicked")]
    Panicked,
    #[error("the drain after its last command was stopped because a check-out needed the connection's capacity")]
    Displaced,
}

impl CloseError {
    /// Returns the error for the event. The caller owns the connection.
    pub(super) fn into_event_error<E: Environment>(self, held: Held<E>) -> EventError {
        let unexplained = match self {
            Self::Failed(error) => return EventError::new(error),
            Self::GivenUp => Unexplained::GivenUp,
            Self::Unusable => match held.fault() {
                Some(cause) => return cause.into(),
                None => Unexplained::Unusable,
            },
            Self::Panicked => Unexplained::Panicked,
            Self::Displaced => Unexplained::Displaced,
        };
        EventError::new(unexplained)
    }
}
