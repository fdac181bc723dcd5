//! Why a connection is closed with the reason "error".

use thiserror::Error;

use super::environment::Environment;
use super::held::Held;
use crate::error::EstablishError;
use crate::event::EventError;

/// What happened to a connection that is closed with the reason "error".
pub(super) enum Fault {
    /// It could not be established.
    Failed(EstablishError),
    /// Its establishment was given up without an error.
    GivenUp,
    /// It cannot be used again. The environment knows more.
    Unusable,
    /// The code that judges or drains it panicked.
    Panicked,
    /// Its last command was being brought to an end, and a check-out needed its capacity.
    Displaced,
}

/// What is known where the owner of the connection's code does not tell more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum Unexplained {
    #[error("the task that was opening the connection has ended early")]
    GivenUp,
    #[error("the connection was left in a state in which it cannot be used again")]
    Unusable,
    #[error("the code that judges the connection panicked")]
    Panicked,
    #[error("the rest of its last command was given up because a check-out needed the connection's capacity")]
    Displaced,
}

impl Fault {
    /// The error for the event. The caller owns the connection.
    pub(super) fn into_error<E: Environment>(self, held: Held<E>) -> EventError {
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
