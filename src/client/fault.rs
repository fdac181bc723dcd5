//! What errors of a pool mean for retries and for sessions.

use crate::endpoint::{CommandError, CommandTimeoutError, OperationError};
use crate::error::CheckOutError;
use crate::session::{ErrorLabels, Fault, FaultKind};

/// Returns what an error means for retries and for the session.
pub(super) fn fault_of(error: &OperationError) -> Fault {
    let known = ["RetryableWriteError", "NoWritesPerformed", "SystemOverloadedError", "RetryableError"];
    let labels = || ErrorLabels::of(known.into_iter().filter(|label| error.has_label(label)));
    let of = |kind| Fault::new(kind, labels());
    match error {
        OperationError::Command(failure) => match failure {
            CommandError::Server { source, .. }
            | CommandError::Timeout { source: CommandTimeoutError::Server(source), .. } => {
                Fault::of_reply(&source.reply).unwrap_or_else(|| of(FaultKind::Server))
            }
            CommandError::Network { .. } | CommandError::Timeout { source: CommandTimeoutError::Sending, .. } => {
                of(FaultKind::Network)
            }
            CommandError::Timeout { source: CommandTimeoutError::Receiving, .. } => of(FaultKind::Network),
            // Nothing was sent.
            CommandError::Lost { .. } | CommandError::NotReusable { .. } => of(FaultKind::PoolCleared),
            CommandError::Timeout { .. } => of(FaultKind::CheckOut),
            CommandError::Wire { .. } | CommandError::Reauthentication { .. } => of(FaultKind::Client),
        },
        OperationError::Interrupted(cleared) if cleared.sent => of(FaultKind::Network),
        OperationError::Interrupted(_) => of(FaultKind::PoolCleared),
        OperationError::CheckOut(error) | OperationError::CheckOutTimeout { source: error, .. } => match error {
            CheckOutError::PoolCleared(_) => of(FaultKind::PoolCleared),
            // A failure that a retry cannot mend, such as a wrong password, counts as an error of the client.
            CheckOutError::Establish(failed) if !failed.is_retryable() => of(FaultKind::Client),
            CheckOutError::Establish(_) => of(FaultKind::Establishment),
            _ => of(FaultKind::CheckOut),
        },
    }
}
