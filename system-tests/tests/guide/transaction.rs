use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bson::{Binary, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::{CommandError, Connection, Endpoint, OperationError, Pool, Purpose};

type Failure = Box<dyn Error + Send + Sync>;

/// How long a transfer is retried.
const PATIENCE: Duration = Duration::from_secs(120);

/// Moves money from one account to another, or changes nothing. The error says if the outcome is unknown.
pub async fn transfer(pool: &Pool<Endpoint>, from: &str, to: &str, amount: i64) -> Result<(), Failure> {
    if amount <= 0 {
        return Err(format!("the amount must be positive, got {amount}").into());
    }
    let session = rawdoc! { "id": Binary::from(Uuid::new()) };
    let until = Instant::now() + PATIENCE;
    let mut number = 0;
    let outcome = loop {
        number += 1; // a retried transaction is a new one
        let transaction = rawdoc! { "lsid": session.clone(), "txnNumber": number, "autocommit": false };
        match attempt(pool, &transaction, from, to, amount, until).await {
            Err(Trouble::Transient(_)) if Instant::now() < until => sleep(back_off(number)).await,
            Ok(()) => break Ok(()),
            Err(Trouble::Transient(error) | Trouble::Lasting(error)) => break Err(error),
            Err(Trouble::Unknown(error)) => break Err(not_known(error)),
        }
    };
    // The transfer has ended: an error here only means that the server keeps the session for half an hour.
    let _ = pool.run_command("admin", &rawdoc! { "endSessions": [session] }).await;
    outcome
}

async fn attempt(
    pool: &Pool<Endpoint>,
    transaction: &RawDocument,
    from: &str,
    to: &str,
    amount: i64,
    until: Instant,
) -> Result<(), Trouble> {
    let mut connection = pool.check_out().await.map_err(OperationError::from)?;
    connection.pin_to(Purpose::Transaction);
    match move_money(&mut connection, transaction, from, to, amount).await {
        Ok(()) => commit(pool, connection, transaction, until).await,
        Err(trouble) => {
            // Otherwise the server aborts after a minute, and holds the locks until then.
            let abort = with(rawdoc! { "abortTransaction": 1 }, transaction);
            if connection.run_command("admin", &abort).await.is_err() {
                drop(connection);
                let _ = pool.run_command("admin", &abort).await;
            }
            Err(trouble)
        }
    }
}

async fn move_money(
    connection: &mut Connection<Endpoint>,
    transaction: &RawDocument,
    from: &str,
    to: &str,
    amount: i64,
) -> Result<(), Trouble> {
    let withdrawal =
        rawdoc! { "q": { "_id": from, "balance": { "$gte": amount } }, "u": { "$inc": { "balance": -amount } } };
    let deposit = rawdoc! { "q": { "_id": to }, "u": { "$inc": { "balance": amount } } };
    for (account, change, begins) in [(from, withdrawal, true), (to, deposit, false)] {
        let mut update = with(rawdoc! { "update": "accounts", "updates": [change] }, transaction);
        if begins {
            update.append(bson::raw::cstr!("startTransaction"), true);
        }
        let reply = connection.run_command("bank", &update).await?;
        // `ok: 1` says that the command ran, not that it found anything to change.
        if reply.get_i32("n")? != 1 || reply.get("writeErrors")?.is_some() {
            return Err(format!("the account {account} does not exist or has too little: {reply:?}").into());
        }
    }
    Ok(())
}

/// Commits, and retries until the outcome is known. The server commits only once, even after several attempts.
async fn commit(
    pool: &Pool<Endpoint>,
    mut connection: Connection<Endpoint>,
    transaction: &RawDocument,
    until: Instant,
) -> Result<(), Trouble> {
    // Without a majority, a new primary may not know of the commit, and a retry would move the money twice.
    let command = rawdoc! { "commitTransaction": 1, "writeConcern": { "w": "majority", "wtimeout": 10_000 } };
    let command = with(command, transaction);
    let mut outcome = connection.run_command("admin", &command).await;
    drop(connection);
    let mut attempts = 0;
    loop {
        match committed(outcome) {
            Err(Trouble::Unknown(_)) if Instant::now() < until => {
                attempts += 1;
                sleep(back_off(attempts)).await;
                outcome = pool.run_command("admin", &command).await;
            }
            known => return known,
        }
    }
}

/// Classifies the outcome of a commit.
fn committed(outcome: Result<RawDocumentBuf, OperationError>) -> Result<(), Trouble> {
    const MAX_TIME_MS_EXPIRED: i32 = 50;
    const UNKNOWN_REPL_WRITE_CONCERN: i32 = 79;
    const CANNOT_SATISFY_WRITE_CONCERN: i32 = 100;
    let error = match outcome {
        Ok(reply) => match reply.get("writeConcernError").map_err(|error| Trouble::Unknown(error.into()))? {
            None => return Ok(()),
            Some(told) => {
                let code = told.as_document().and_then(|told| told.get_i32("code").ok());
                let error = format!("the commit did not reach a majority of the servers: {told:?}").into();
                return Err(match code {
                    Some(MAX_TIME_MS_EXPIRED | UNKNOWN_REPL_WRITE_CONCERN | CANNOT_SATISFY_WRITE_CONCERN) => {
                        Trouble::Lasting(not_known(error))
                    }
                    _ => Trouble::Unknown(error),
                });
            }
        },
        Err(error) => error,
    };
    let code = match error.command_error().and_then(CommandError::server_error) {
        // Without an answer, the commit may have succeeded.
        None => return Err(Trouble::Unknown(error.into())),
        Some(refused) => refused.code,
    };
    Err(if code == MAX_TIME_MS_EXPIRED {
        Trouble::Lasting(not_known(error.into()))
    } else if error.has_label("RetryableWriteError") || error.is_retryable() || error.state_change().is_some() {
        Trouble::Unknown(error.into())
    } else if error.has_label("TransientTransactionError") {
        Trouble::Transient(error.into())
    } else {
        Trouble::Lasting(error.into())
    })
}

enum Trouble {
    /// Nothing was changed, and the whole transaction may be retried.
    Transient(Failure),
    /// The outcome of the commit is unknown. The commit may be retried.
    Unknown(Failure),
    /// A retry would fail, too.
    Lasting(Failure),
}

impl From<OperationError> for Trouble {
    /// Classifies the errors of all commands except the commit.
    fn from(error: OperationError) -> Self {
        let of_network = error.command_error().is_some_and(CommandError::is_network_error);
        let was_cleared = matches!(error, OperationError::Interrupted(_));
        if error.has_label("TransientTransactionError") || of_network || was_cleared || error.is_retryable() {
            Self::Transient(error.into())
        } else {
            Self::Lasting(error.into())
        }
    }
}

impl From<bson::error::Error> for Trouble {
    fn from(error: bson::error::Error) -> Self {
        Self::Lasting(error.into())
    }
}

impl From<String> for Trouble {
    fn from(error: String) -> Self {
        Self::Lasting(error.into())
    }
}

fn not_known(error: Failure) -> Failure {
    format!("it is not known whether the money was moved: {error}").into()
}

/// Adds the transaction's fields to a command.
fn with(mut command: RawDocumentBuf, transaction: &RawDocument) -> RawDocumentBuf {
    for (name, value) in transaction.iter().flatten() {
        command.append(name, value);
    }
    command
}

/// Returns a random part of 5 ms × 1.5^attempt, but of at most 500 ms (Convenient API for Transactions).
fn back_off(attempt: i64) -> Duration {
    let most = (0.005 * 1.5_f64.powf(attempt as f64)).min(0.5);
    let part = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    Duration::from_secs_f64(most * part)
}
