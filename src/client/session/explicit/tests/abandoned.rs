//! Transactions that are left open, and aborted in the background.

use super::*;

#[test]
fn session_that_ends_aborts_its_transaction_unless_a_commit_may_have_been_executed() {
    assert!(!started().abandon() && in_progress().abandon());
    let mut twice = in_progress();
    assert!(twice.abandon() && !twice.abandon() && twice.transaction_state() == TransactionState::Aborted);
    let committed = |end: &dyn Fn(&mut Session<&'static str>)| {
        let mut session = in_progress();
        session.begin_commit().unwrap();
        end(&mut session);
        session.abandon()
    };
    assert!(committed(&|_| ()), "no commit was sent");
    assert!(!committed(&|session| drop(session.commit_command(false))), "its outcome is unknown");
    let refused = Fault::new(FaultKind::CheckOut, Labels::NONE);
    let failed = |session: &mut Session<&'static str>| drop(session.commit_failed(&refused, None));
    assert!(committed(&|session| {
        session.commit_command(false);
        failed(session);
    }));
    assert!(!committed(&|session| {
        session.commit_command(false);
        session.commit_command(false);
        failed(session);
    }));
    let mut empty = started();
    empty.begin_commit().unwrap();
    assert!(!empty.abandon(), "the server knows no transaction");
}

#[test]
fn transaction_whose_connection_is_taken_can_only_be_aborted() {
    let balanced = SessionServer { is_load_balanced: true, is_mongos: true, ..SERVER };
    let cut_off = || Err(SessionError::TransactionCutOff);
    assert_eq!(SessionError::TransactionCutOff.labels(), Labels::TRANSIENT_TRANSACTION);
    // In one session, the first command was cancelled; in the other, a later command was.
    let mut first = started();
    sent_to(&mut first, &WRITE, balanced);
    let mut later = in_progress();
    assert_eq!((later.pin("connection"), later.take_pin()), (None, Ok(Some("connection"))));
    for session in [&mut first, &mut later] {
        assert!(session.is_pin_taken());
        assert_eq!(session.take_pin(), cut_off());
        assert_eq!((session.begin_commit(), session.take_pin()), (Ok(true), cut_off()), "no commit was sent");
        assert!(session.abandon());
        assert_eq!(session.take_pin(), Ok(None), "an abort may go to any server");
        let started = session.start_transaction(TransactionOptions::default());
        assert_eq!(started, Err(SessionError::AbortInProgress), "nothing tells yet what the abort has done");
        assert_eq!(session.abort_ended(), None);
        session.start_transaction(TransactionOptions::default()).unwrap();
        assert_eq!(session.take_pin(), Ok(None), "the next transaction has its own");
    }
    let mut unpinned = in_progress();
    unpinned.pin("connection");
    assert_eq!(unpinned.take_pin(), Ok(Some("connection")));
    let _ = unpinned.failed(&fault(FaultKind::Network), Some(balanced), false);
    assert_eq!((unpinned.begin_commit(), unpinned.take_pin()), (Ok(true), Ok(None)), "an error has unpinned it");

    let mut committing = in_progress();
    committing.pin("connection");
    committing.begin_commit().unwrap();
    assert_eq!(committing.take_pin(), Ok(Some("connection")));
    let _ = committing.commit_command(false);
    assert_eq!((committing.begin_commit(), committing.take_pin()), (Ok(true), Ok(None)), "it repeats a commit");
}
