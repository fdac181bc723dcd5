//! Checks that the server understands every command, for any sequence of operations, failures and cancellations.

use bson::rawdoc;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    /// An operation and its outcome: `None` if it is cancelled after being sent.
    Operation(Option<Outcome>),
    /// A commit with a single attempt, and the outcome of that attempt.
    Commit(Option<Outcome>),
    Abort,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Success,
    Error,
    Overload,
    Lost,
}

fn outcome() -> impl Strategy<Value = Option<Outcome>> {
    prop_oneof![
        4 => Just(Some(Outcome::Success)),
        1 => Just(Some(Outcome::Error)),
        1 => Just(Some(Outcome::Overload)),
        1 => Just(Some(Outcome::Lost)),
        1 => Just(None),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Start),
        4 => outcome().prop_map(Step::Operation),
        2 => outcome().prop_map(Step::Commit),
        1 => Just(Step::Abort),
    ]
}

/// What the server knows about the session's transactions. The server refuses to continue a transaction that it did not
/// begin.
#[derive(Debug, Default)]
struct Server {
    number: i64,
    /// Whether the transaction with this number has begun. `None` if this is unknown.
    begun: Option<bool>,
}

proptest! {
    /// In every case, each transaction begins once, with a number larger than all earlier numbers. A commit or an abort
    /// is sent if and only if the server may know about the transaction.
    #[test]
    fn server_understands_every_command_of_a_session(steps in prop::collection::vec(step(), 0..40)) {
        let mut session = session();
        let mut server = Server { number: 0, begun: Some(false) };
        for step in steps {
            let state = session.transaction_state();
            match step {
                Step::Start => {
                    if session.start_transaction(TransactionOptions::default()).is_ok() {
                        server = Server { number: server.number + 1, begun: Some(false) };
                    }
                }
                Step::Operation(outcome) => {
                    let is_active = session.is_in_transaction();
                    let added = sent(&mut session, &WRITE);
                    if !is_active {
                        prop_assert_eq!(added, rawdoc! {}, "from {:?}", state);
                        prop_assert_eq!(session.transaction_state(), TransactionState::None);
                        continue;
                    }
                    prop_assert_eq!(added.get_i64("txnNumber").unwrap(), server.number);
                    let begins = added.get("startTransaction").unwrap().is_some();
                    prop_assert_eq!(begins, server.begun == Some(false), "{:?}", server);
                    match outcome {
                        Some(Outcome::Success) => {
                            server.begun = Some(true);
                            reply(&mut session, &rawdoc! { "ok": 1 });
                        }
                        Some(Outcome::Error) => {
                            server.begun = Some(true);
                            let _ = session.failed(&fault(FaultKind::Server), Some(SERVER), false);
                        }
                        Some(Outcome::Overload) => {
                            let _ = session.failed(&overload(), Some(SERVER), false);
                        }
                        Some(Outcome::Lost) => {
                            server.begun = server.begun.filter(|begun| *begun);
                            let _ = session.failed(&fault(FaultKind::Network), Some(SERVER), false);
                        }
                        None => server.begun = server.begun.filter(|begun| *begun),
                    }
                }
                Step::Commit(outcome) => {
                    let Ok(is_sent) = session.begin_commit() else { continue };
                    prop_assert_eq!(is_sent, server.begun != Some(false));
                    if !is_sent {
                        continue;
                    }
                    session.commit_command(false);
                    let consequence = match outcome {
                        Some(Outcome::Success) | None => continue,
                        Some(Outcome::Error) => session.commit_failed(&fault(FaultKind::Server), Some(SERVER)),
                        Some(Outcome::Overload) => session.commit_failed(&overload(), Some(SERVER)),
                        Some(Outcome::Lost) => session.commit_failed(&fault(FaultKind::Network), Some(SERVER)),
                    };
                    let is_unknown = consequence.labels.contains(Labels::UNKNOWN_COMMIT_RESULT);
                    prop_assert_eq!(is_unknown, matches!(outcome, Some(Outcome::Lost)));
                }
                Step::Abort => {
                    if let Ok(is_sent) = session.begin_abort() {
                        prop_assert_eq!(is_sent, server.begun != Some(false));
                    }
                }
            }
        }
        prop_assert_eq!(session.server.transaction_number(), server.number);
    }
}
