mod abandoned;
mod cursors;
mod sequences;

use bson::rawdoc;

use super::super::cluster_time::SharedClusterTime;
use super::*;
use crate::endpoint::options::{Acknowledgement, ReadPreferenceMode, WriteConcern};

type TestSession = Session<&'static str>;

const SERVER: SessionServer =
    SessionServer { max_wire_version: 17, has_cluster_time: true, is_mongos: false, is_load_balanced: false };
const READ: SessionUse<'static> = SessionUse {
    is_read: true,
    read_concern: None,
    has_own_read_concern: false,
    own_read_concern: None,
    has_own_write_concern: false,
    is_unacknowledged: false,
    read_preference: None,
    takes_after_cluster_time: true,
    transaction_number: None,
    is_beside_transaction: false,
};
const WRITE: SessionUse<'static> = SessionUse { is_read: false, ..READ };

fn session_of(options: &SessionOptions, client: &str) -> TestSession {
    Session::new(ServerSession::new(Moment::now()), options, &Options::parse(client).unwrap()).unwrap()
}

fn session() -> TestSession {
    session_of(&SessionOptions::default(), "mongodb://h")
}

fn time(time: u32) -> Timestamp {
    Timestamp { time, increment: 1 }
}

fn cluster_time(time: u32) -> RawDocumentBuf {
    rawdoc! { "clusterTime": self::time(time), "signature": { "keyId": 1_i64 } }
}

/// Returns the fields that the session adds to a command, except the `lsid`, which this function checks.
fn sent_to(session: &mut TestSession, operation: &SessionUse<'_>, server: SessionServer) -> RawDocumentBuf {
    assert_eq!(session.begin(operation).unwrap(), None);
    let mut elements = Vec::new();
    session.append_to(&mut elements, Moment::now(), operation, server, None).unwrap();
    without_lsid(session, &elements)
}

fn sent(session: &mut TestSession, operation: &SessionUse<'_>) -> RawDocumentBuf {
    sent_to(session, operation, SERVER)
}

fn without_lsid(session: &TestSession, elements: &[u8]) -> RawDocumentBuf {
    let all = elements::document(elements);
    assert_eq!(all.get_document("lsid").unwrap(), &*session.id().document());
    let mut rest = RawDocumentBuf::new();
    all.iter_elements().map(Result::unwrap).filter(|element| element.key() != "lsid").for_each(|element| {
        rest.append(element.key(), bson::RawBson::from(element.value().unwrap()));
    });
    rest
}

fn ending(session: &mut TestSession) -> RawDocumentBuf {
    let mut elements = Vec::new();
    session.append_ending(&mut elements, Moment::now(), None);
    without_lsid(session, &elements)
}

/// Records a successful reply with these fields.
fn reply(session: &mut TestSession, reply: &RawDocument) {
    let times = ReplyTimes::read(reply);
    session.replied(&times, None);
    session.succeeded(&times);
}

fn started() -> TestSession {
    let mut session = session();
    session.start_transaction(TransactionOptions::default()).unwrap();
    session
}

fn in_progress() -> TestSession {
    let mut session = started();
    sent(&mut session, &WRITE);
    reply(&mut session, &rawdoc! { "ok": 1 });
    session
}

fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, Labels::NONE)
}

fn overload() -> Fault {
    Fault::new(FaultKind::Server, Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE))
}

#[test]
fn first_operation_carries_only_the_session() {
    let mut session = session();
    assert_eq!((session.operation_time(), session.cluster_time()), (None, None));
    assert_eq!(sent(&mut session, &READ), rawdoc! {});
}

#[test]
fn later_operations_read_what_earlier_ones_saw() {
    let mut session = session();
    reply(&mut session, &rawdoc! { "ok": 1, "operationTime": time(5) });
    reply(&mut session, &rawdoc! { "ok": 0, "operationTime": time(7) });
    assert_eq!(session.operation_time(), Some(time(7)), "also of an operation that failed");
    let after = rawdoc! { "readConcern": { "afterClusterTime": time(7) } };
    assert_eq!(sent(&mut session, &READ), after);
    assert_eq!(sent(&mut session, &WRITE), after);
    let majority = SessionUse { read_concern: Some("majority"), ..READ };
    let expected = rawdoc! { "readConcern": { "level": "majority", "afterClusterTime": time(7) } };
    assert_eq!(sent(&mut session, &majority), expected);
    let generic = SessionUse { takes_after_cluster_time: false, ..READ };
    assert_eq!(sent(&mut session, &generic), rawdoc! {});
    let standalone = SessionServer { has_cluster_time: false, ..SERVER };
    assert_eq!(sent_to(&mut session, &READ, standalone), rawdoc! {});
}

#[test]
fn session_without_causal_consistency_sends_no_time_but_keeps_it() {
    let mut session = session_of(&SessionOptions::default().causal_consistency(false), "mongodb://h");
    reply(&mut session, &rawdoc! { "ok": 1, "operationTime": time(5) });
    assert_eq!(session.operation_time(), Some(time(5)));
    assert_eq!(
        sent(&mut session, &SessionUse { read_concern: Some("local"), ..READ }),
        rawdoc! { "readConcern": { "level": "local" } }
    );
}

#[test]
fn operation_time_only_advances() {
    let mut session = session();
    session.advance_operation_time(time(9));
    session.advance_operation_time(time(8));
    reply(&mut session, &rawdoc! { "ok": 1, "operationTime": time(7) });
    assert_eq!(session.operation_time(), Some(time(9)));
}

#[test]
fn newer_one_of_the_two_cluster_times_is_sent() {
    let client = SharedClusterTime::default();
    let mut session = session();
    let cluster_time_sent = |session: &mut TestSession, client: &SharedClusterTime| {
        let mut elements = Vec::new();
        session.append_to(&mut elements, Moment::now(), &READ, SERVER, client.load().as_deref()).unwrap();
        without_lsid(session, &elements).get_document("$clusterTime").ok().map(RawDocument::to_owned)
    };
    assert_eq!(cluster_time_sent(&mut session, &client), None);
    client.advance(&cluster_time(5));
    assert_eq!(session.cluster_time(), None, "the session has seen none");
    assert_eq!(cluster_time_sent(&mut session, &client), Some(cluster_time(5)));
    session.advance_cluster_time(&cluster_time(7)).unwrap();
    session.advance_cluster_time(&cluster_time(6)).unwrap();
    assert_eq!(session.cluster_time(), Some(&*cluster_time(7)));
    assert_eq!(cluster_time_sent(&mut session, &client), Some(cluster_time(7)));
    assert_eq!(client.load().as_ref().unwrap().time(), time(5), "the client never takes a session's time");
    let error = session.advance_cluster_time(&rawdoc! {}).unwrap_err();
    assert_eq!(error, SessionError::InvalidClusterTime);

    // A reply advances both times. A session that is behind the client also takes a time that the client already knows.
    let received = rawdoc! { "ok": 1, "$clusterTime": cluster_time(9) };
    let times = ReplyTimes::read(&received);
    session.replied(&times, client.advance(times.cluster_time.unwrap()).as_ref());
    assert_eq!((session.cluster_time(), client.load().as_ref().unwrap().time()), (Some(&*cluster_time(9)), time(9)));
    let mut other = self::session();
    other.replied(&times, client.advance(times.cluster_time.unwrap()).as_ref());
    assert_eq!(other.cluster_time(), Some(&*cluster_time(9)));
}

#[test]
fn write_that_may_be_retried_has_the_same_number_each_time() {
    let mut session = session();
    let number = session.next_transaction_number();
    let write = SessionUse { transaction_number: Some(number), ..WRITE };
    for _ in 0..2 {
        assert_eq!(sent(&mut session, &write), rawdoc! { "txnNumber": 1_i64 });
    }
    assert_eq!(session.next_transaction_number(), 2);
}

#[test]
fn snapshot_session_reads_at_the_time_of_its_first_read() {
    let mut session = session_of(&SessionOptions::default().snapshot(true), "mongodb://h");
    reply(&mut session, &rawdoc! { "ok": 1, "operationTime": time(4) });
    assert_eq!(session.snapshot_time(), None);
    assert_eq!(sent(&mut session, &READ), rawdoc! { "readConcern": { "level": "snapshot" } });
    reply(&mut session, &rawdoc! { "cursor": { "atClusterTime": time(5) }, "ok": 1 });
    reply(&mut session, &rawdoc! { "atClusterTime": time(6), "ok": 1 });
    assert_eq!(session.snapshot_time(), Some(time(5)));
    let expected = rawdoc! { "readConcern": { "level": "snapshot", "atClusterTime": time(5) } };
    // The read concern is sent even with commands that do not support it, so that the server refuses them.
    for operation in [READ, WRITE, SessionUse { takes_after_cluster_time: false, ..READ }] {
        assert_eq!(sent(&mut session, &operation), expected);
    }
    let mut elements = Vec::new();
    let old = SessionServer { max_wire_version: 12, ..SERVER };
    let error = session.append_to(&mut elements, Moment::now(), &READ, old, None).unwrap_err();
    assert_eq!((error.to_string(), elements.len()), ("Snapshot reads require MongoDB 5.0 or later".to_owned(), 0));
    let error = session.start_transaction(TransactionOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "Transactions are not supported in snapshot sessions");
    let options = SessionOptions::default().snapshot(true).snapshot_time(time(3));
    assert_eq!(session_of(&options, "mongodb://h").snapshot_time(), Some(time(3)));
}

#[test]
fn first_command_of_a_transaction_begins_it_with_its_read_concern() {
    let mut session = session();
    session.advance_operation_time(time(5));
    session.start_transaction(TransactionOptions::default().read_concern("snapshot")).unwrap();
    assert_eq!(session.transaction_state(), TransactionState::Starting);
    // The read concern of the operation's collection or client does not apply.
    let write = SessionUse { read_concern: Some("local"), takes_after_cluster_time: false, ..WRITE };
    let expected = rawdoc! {
        "txnNumber": 1_i64, "startTransaction": true, "autocommit": false,
        "readConcern": { "level": "snapshot", "afterClusterTime": time(5) },
    };
    assert_eq!(sent(&mut session, &write), expected);
    reply(&mut session, &rawdoc! { "ok": 1 });
    assert_eq!(session.transaction_state(), TransactionState::InProgress);
    assert_eq!(sent(&mut session, &READ), rawdoc! { "txnNumber": 1_i64, "autocommit": false });
    assert!(session.begin_commit().unwrap());
    assert_eq!(session.commit_command(false), rawdoc! { "commitTransaction": 1 });
    assert_eq!(ending(&mut session), rawdoc! { "txnNumber": 1_i64, "autocommit": false });
    session.start_transaction(TransactionOptions::default()).unwrap();
    let expected = rawdoc! {
        "txnNumber": 2_i64, "startTransaction": true, "autocommit": false, "readConcern": { "afterClusterTime": time(5) },
    };
    assert_eq!(sent(&mut session, &READ), expected);
}

/// The transitions of the specification's diagram.
#[test]
fn transitions_and_their_errors_are_those_of_the_specification() {
    let committed = || {
        let mut session = in_progress();
        session.begin_commit().unwrap();
        session
    };
    let aborted = || {
        let mut session = in_progress();
        session.begin_abort().unwrap();
        session
    };
    type Make = fn() -> TestSession;
    let states: [(TransactionState, Box<dyn Fn() -> TestSession>); 5] = [
        (TransactionState::None, Box::new(session as Make)),
        (TransactionState::Starting, Box::new(started as Make)),
        (TransactionState::InProgress, Box::new(in_progress as Make)),
        (TransactionState::Committed, Box::new(committed)),
        (TransactionState::Aborted, Box::new(aborted)),
    ];
    let check = |from: TransactionState,
                 session: &TestSession,
                 outcome: Result<TransactionState, (SessionError, &str)>,
                 error: Option<SessionError>| {
        match outcome {
            Ok(state) => assert_eq!((session.transaction_state(), error), (state, None), "from {from:?}"),
            Err((expected, message)) => {
                assert_eq!(session.transaction_state(), from, "an error changes nothing");
                assert_eq!(expected.to_string(), message);
                assert_eq!(error, Some(expected), "from {from:?}");
            }
        }
    };
    use SessionError as E;
    use TransactionState::{Aborted, Committed, InProgress, None as NoTransaction, Starting};
    for (from, make) in &states {
        let from = *from;
        let mut session = make();
        let error = session.start_transaction(TransactionOptions::default()).err();
        check(
            from,
            &session,
            match from {
                Starting | InProgress => Err((E::TransactionInProgress, "Transaction already in progress")),
                _ => Ok(Starting),
            },
            error,
        );
        let mut session = make();
        let error = session.begin_commit().err();
        check(
            from,
            &session,
            match from {
                NoTransaction => Err((E::NoTransaction, "No transaction started")),
                Aborted => Err((E::CommitAfterAbort, "Cannot call commitTransaction after calling abortTransaction")),
                Starting | InProgress | Committed => Ok(Committed),
            },
            error,
        );
        let mut session = make();
        let error = session.begin_abort().err();
        check(
            from,
            &session,
            match from {
                NoTransaction => Err((E::NoTransaction, "No transaction started")),
                Committed => Err((E::AbortAfterCommit, "Cannot call abortTransaction after calling commitTransaction")),
                Aborted => Err((E::AbortedTwice, "Cannot call abortTransaction twice")),
                Starting | InProgress => Ok(Aborted),
            },
            error,
        );
        let mut session = make();
        sent(&mut session, &WRITE);
        check(
            from,
            &session,
            Ok(match from {
                Starting | InProgress => InProgress,
                NoTransaction | Committed | Aborted => NoTransaction,
            }),
            None,
        );
    }
}

#[test]
fn transaction_without_commands_sends_neither_commit_nor_abort() {
    assert!(!started().begin_commit().unwrap() && !started().begin_abort().unwrap());
    assert!(in_progress().begin_commit().unwrap() && in_progress().begin_abort().unwrap());
    let mut session = started();
    session.begin_commit().unwrap();
    assert!(!session.begin_commit().unwrap(), "nor does a second commit");
}

#[test]
fn operations_in_a_transaction_have_no_concerns_and_read_from_the_primary() {
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let mut session = started();
    for (operation, expected) in [
        (SessionUse { has_own_read_concern: true, ..READ }, "Cannot set read concern after starting a transaction."),
        (SessionUse { has_own_write_concern: true, ..WRITE }, "Cannot set write concern after starting a transaction."),
        (SessionUse { read_preference: Some(&secondary), ..READ }, "read preference in a transaction must be primary"),
    ] {
        assert_eq!(session.begin(&operation).unwrap_err().to_string(), expected);
        assert_eq!(session.transaction_state(), TransactionState::Starting);
    }
    let mut session = session_of(&SessionOptions::default(), "mongodb://h/?readPreference=secondary");
    session.start_transaction(TransactionOptions::default()).unwrap();
    assert_eq!(session.begin(&READ).unwrap_err(), SessionError::ReadPreferenceInTransaction);
    assert!(session.begin(&WRITE).is_ok());
    session.begin_abort().unwrap();
    let primary = TransactionOptions::default().read_preference(ReadPreference::default());
    session.start_transaction(primary).unwrap();
    assert!(session.begin(&READ).is_ok());
}

#[test]
fn unacknowledged_writes_are_refused() {
    let mut session = session_of(&SessionOptions::default(), "mongodb://h/?w=0");
    let unacknowledged = SessionUse { is_unacknowledged: true, ..WRITE };
    assert_eq!(session.begin(&unacknowledged).unwrap_err(), SessionError::UnacknowledgedWrite);
    let error = session.start_transaction(TransactionOptions::default()).unwrap_err();
    assert!(error.to_string().contains("transactions do not support unacknowledged write concerns"));
    let acknowledged = TransactionOptions::default().write_concern(WriteConcern::default());
    session.start_transaction(acknowledged).unwrap();
    assert!(session.begin(&unacknowledged).is_ok(), "the transaction's write concern counts instead");
}

#[test]
fn first_command_begins_the_transaction_again_if_the_server_has_not_seen_it() {
    for fault in [fault(FaultKind::Client), overload()] {
        let mut session = started();
        sent(&mut session, &WRITE);
        assert_eq!(session.failed(&fault, Some(SERVER), false).labels, fault.labels);
        assert_eq!(session.transaction_state(), TransactionState::Starting, "{fault:?}");
        assert!(sent(&mut session, &WRITE).get_bool("startTransaction").unwrap());
        // Only the first command can begin the transaction.
        reply(&mut session, &rawdoc! { "ok": 1 });
        sent(&mut session, &WRITE);
        let _ = session.failed(&fault, Some(SERVER), false);
        assert_eq!(session.transaction_state(), TransactionState::InProgress);
    }
    for fault in [fault(FaultKind::Network), fault(FaultKind::Server)] {
        let mut session = started();
        sent(&mut session, &WRITE);
        let _ = session.failed(&fault, Some(SERVER), false);
        assert_eq!(session.transaction_state(), TransactionState::InProgress, "{fault:?}");
    }
}

#[test]
fn cancelled_first_command_counts_as_sent() {
    let mut session = started();
    sent(&mut session, &WRITE);
    // The outcome is never reported. The next operation finds no server.
    session.begin(&WRITE).unwrap();
    let _ = session.failed(&fault(FaultKind::Selection), None, false);
    assert_eq!(session.transaction_state(), TransactionState::InProgress);
    assert!(session.begin_abort().unwrap());
}

#[test]
fn transient_errors_are_labelled_and_unpin_the_session() {
    let labelled = Fault::new(FaultKind::Server, Labels::TRANSIENT_TRANSACTION);
    for (fault, is_transient) in [
        (fault(FaultKind::Network), true),
        (fault(FaultKind::Selection), true),
        (fault(FaultKind::PoolCleared), true),
        (labelled, true),
        (fault(FaultKind::Server), false),
        (fault(FaultKind::CheckOut), false),
    ] {
        let mut session = in_progress();
        assert_eq!(session.pin("mongos"), None);
        let Consequence { labels, unpinned } = session.failed(&fault, Some(SERVER), true);
        assert_eq!(labels.contains(Labels::TRANSIENT_TRANSACTION), is_transient, "{fault:?}");
        assert_eq!(unpinned.is_some(), is_transient, "{fault:?}");
        assert!(!labels.contains(Labels::RETRYABLE_WRITE), "writes in transactions are not retried");
    }
}

#[test]
fn overload_unpins_only_a_transaction_that_has_not_begun() {
    let overload = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);
    let fault = Fault::new(FaultKind::NoConnection { is_retryable: true }, overload);
    let mut session = in_progress();
    session.pin("mongos");
    let Consequence { labels, unpinned } = session.failed(&fault, None, false);
    assert!(labels.contains(Labels::TRANSIENT_TRANSACTION));
    assert_eq!((unpinned, session.pinned()), (None, Some(&"mongos")));
    session.begin_abort().unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    session.pin("mongos");
    assert_eq!(session.failed(&fault, None, false).unpinned, Some("mongos"));
}

#[test]
fn writes_outside_of_transactions_are_labelled_as_retryable() {
    let mut session = session();
    let labels = session.failed(&fault(FaultKind::Network), Some(SERVER), true).labels;
    assert_eq!(labels, Labels::RETRYABLE_WRITE);
    assert_eq!(session.failed(&fault(FaultKind::Network), Some(SERVER), false).labels, Labels::NONE);
}

#[test]
fn only_a_network_error_makes_the_session_dirty() {
    for kind in
        [FaultKind::Server, FaultKind::Selection, FaultKind::NoConnection { is_retryable: true }, FaultKind::Client]
    {
        let mut session = session();
        let _ = session.failed(&fault(kind), None, false);
        assert!(!session.server.is_dirty, "{kind:?}");
    }
    let mut sessions = [session(), in_progress(), in_progress(), in_progress()];
    let network = fault(FaultKind::Network);
    let _ = sessions[0].failed(&network, None, false);
    let _ = sessions[1].failed(&network, None, false);
    let _ = sessions[2].commit_failed(&network, None);
    let _ = sessions[3].abort_failed(&network, None);
    assert!(sessions.iter().all(|session| session.server.is_dirty));
}

#[test]
fn pin_is_kept_by_a_commit_and_released_by_what_comes_next() {
    let pinned = || {
        let mut session = in_progress();
        session.pin("mongos");
        session
    };
    let mut session = pinned();
    session.begin_commit().unwrap();
    assert_eq!(session.pinned(), Some(&"mongos"), "the commit may be called again");
    assert_eq!(session.begin(&READ).unwrap(), Some("mongos"));
    assert_eq!(session.pin("other"), Some("other"), "outside a transaction");
    assert_eq!(session.pinned(), None);

    let mut session = pinned();
    session.begin_commit().unwrap();
    assert_eq!(session.start_transaction(TransactionOptions::default()).unwrap(), Some("mongos"));

    let mut session = pinned();
    session.begin_commit().unwrap();
    assert_eq!(session.commit_failed(&fault(FaultKind::Network), Some(SERVER)).unpinned, Some("mongos"));

    let mut session = pinned();
    session.begin_abort().unwrap();
    assert_eq!(session.abort_failed(&fault(FaultKind::Server), Some(SERVER)).unpinned, Some("mongos"));
    let mut session = pinned();
    session.begin_abort().unwrap();
    assert_eq!(session.unpin(), Some("mongos"));
}

#[test]
fn commit_carries_the_options_and_the_newest_token() {
    let mut session = session_of(&SessionOptions::default(), "mongodb://h/?w=2&wTimeoutMS=500");
    session.start_transaction(TransactionOptions::default().max_commit_time(Duration::from_micros(2_999_001))).unwrap();
    for shard in ["a", "b"] {
        sent(&mut session, &WRITE);
        reply(&mut session, &rawdoc! { "ok": 1, "recoveryToken": { "shard": shard } });
    }
    let write_concern = rawdoc! { "w": 2, "wtimeout": 500_i64 };
    let token = rawdoc! { "shard": "b" };
    let abort =
        rawdoc! { "abortTransaction": 1, "writeConcern": write_concern.clone(), "recoveryToken": token.clone() };
    assert_eq!(session.abort_command(false), abort);
    // With `timeoutMS`, the deprecated limits are ignored.
    let abort = rawdoc! { "abortTransaction": 1, "writeConcern": { "w": 2 }, "recoveryToken": token.clone() };
    assert_eq!(session.abort_command(true), abort);
    session.begin_commit().unwrap();
    let commit = rawdoc! {
        "commitTransaction": 1, "writeConcern": write_concern, "recoveryToken": token.clone(), "maxTimeMS": 3_000_i64,
    };
    assert_eq!(session.commit_command(false), commit);
    let again = rawdoc! {
        "commitTransaction": 1, "writeConcern": { "w": "majority", "wtimeout": 10_000_i64 }, "recoveryToken": token,
    };
    assert_eq!(session.commit_command(true), again);
    session.start_transaction(TransactionOptions::default()).unwrap();
    assert!(session.abort_command(false).get("recoveryToken").unwrap().is_none(), "a token belongs to one transaction");
}

#[test]
fn repeated_commit_has_the_write_concern_majority_unless_the_server_did_nothing() {
    let w = |session: &mut TestSession| {
        let command = session.commit_command(false);
        command
            .get_document("writeConcern")
            .ok()
            .map(|concern| (concern.get_str("w").unwrap().to_owned(), concern.get_i64("wtimeout").unwrap()))
    };
    let majority = Some(("majority".to_owned(), 10_000));
    let mut session = in_progress();
    session.begin_commit().unwrap();
    assert_eq!(w(&mut session), None);
    assert_eq!(session.commit_failed(&overload(), Some(SERVER)).labels, overload().labels);
    assert_eq!(w(&mut session), None, "overloads before");
    let labels = session.commit_failed(&fault(FaultKind::Network), Some(SERVER)).labels;
    assert_eq!(labels, Labels::RETRYABLE_WRITE.with(Labels::UNKNOWN_COMMIT_RESULT));
    assert_eq!(w(&mut session), majority);
    let _ = session.commit_failed(&overload(), Some(SERVER));
    assert_eq!(w(&mut session), majority, "an overload after a network error");

    let mut session = in_progress();
    session.begin_commit().unwrap();
    assert_eq!(w(&mut session), None);
    session.begin_commit().unwrap();
    assert_eq!(w(&mut session), majority, "called again, after a success or without any outcome");
}

/// The write concern is `majority` after any failure except an overload (Transactions, "writeConcern for
/// commitTransaction attempts").
#[test]
fn commit_after_one_that_failed_unsent_or_has_no_outcome_has_the_write_concern_majority() {
    let has_majority = |session: &mut TestSession| session.commit_command(false).get_document("writeConcern").is_ok();
    let mut session = in_progress();
    session.begin_commit().unwrap();
    let _ = session.commit_failed(&overload(), None);
    assert!(!has_majority(&mut session));
    let _ = session.commit_failed(&overload(), Some(SERVER));
    let _ = session.commit_failed(&fault(FaultKind::CheckOut), None);
    assert!(has_majority(&mut session), "a failure other than an overload");

    for unsent in [overload(), fault(FaultKind::CheckOut)] {
        let mut session = in_progress();
        session.begin_commit().unwrap();
        assert!(!has_majority(&mut session));
        let _ = session.commit_failed(&fault(FaultKind::Network), Some(SERVER));
        let _ = session.commit_failed(&unsent, None);
        assert!(has_majority(&mut session), "the first one may have been executed: {unsent:?}");
    }

    let mut session = in_progress();
    session.begin_commit().unwrap();
    // The commit is cancelled, so there is no outcome.
    assert!(!has_majority(&mut session));
    session.begin_commit().unwrap();
    let _ = session.commit_failed(&overload(), None);
    assert!(has_majority(&mut session), "the cancelled one may have been executed");
}

#[test]
fn session_inherits_the_time_limit() {
    let options = SessionOptions::default().default_timeout(Duration::from_secs(1));
    assert_eq!(session_of(&options, "mongodb://h/?timeoutMS=5").timeout_of_end(), Some(Duration::from_secs(1)));
    assert_eq!(
        session_of(&SessionOptions::default(), "mongodb://h/?timeoutMS=5").timeout_of_end(),
        Some(Duration::from_millis(5))
    );
    assert_eq!(session().timeout_of_end(), None);
    // A transaction's options take precedence, but apply only to that transaction.
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let own = TransactionOptions::default().timeout(minute);
    let mut session = session_of(&options, "mongodb://h");
    assert_eq!((session.timeout_of(&own), session.timeout_of_end()), (Some(minute), Some(second)));
    session.start_transaction(own).unwrap();
    assert_eq!(session.timeout_of_end(), Some(minute));
    let _ = (session.begin_abort().unwrap(), session.start_transaction(TransactionOptions::default()).unwrap());
    assert_eq!(session.timeout_of_end(), Some(second));
    let refused = Session::<()>::new(
        ServerSession::new(Moment::now()),
        &SessionOptions::default().snapshot(true).causal_consistency(true),
        &Options::parse("mongodb://h").unwrap(),
    );
    assert_eq!(refused.unwrap_err().to_string(), "snapshot cannot be combined with causalConsistency");
}

#[test]
fn unacknowledged_write_concern_is_recognized() {
    let zero = WriteConcern::default().w(Acknowledgement::Servers(0));
    assert!(super::super::transaction::is_unacknowledged(&zero));
    let one = WriteConcern::default().w(Acknowledgement::Servers(1));
    assert!(!super::super::transaction::is_unacknowledged(&one));
}
