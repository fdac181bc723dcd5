//! Cursors that outlive their transaction.

use super::*;

#[test]
fn cursor_of_an_earlier_transaction_leaves_a_later_one_alone() {
    let mut session = in_progress();
    let first = session.open_transaction();
    let number = first.unwrap();
    session.pin("first");
    assert_eq!(session.take_pin(), Ok(Some("first")));
    let numbered = |session: &mut TestSession| {
        let mut elements = Vec::new();
        session.append_to_cursor(&mut elements, Moment::now(), None, first);
        without_lsid(session, &elements).get("txnNumber").unwrap().is_some()
    };
    assert!(numbered(&mut session));
    assert_eq!(session.begin_commit(), Ok(true));
    assert!(numbered(&mut session) && session.open_transaction() == first, "no commit was sent");
    assert!(session.abandon());
    assert_eq!((session.open_transaction(), session.pin_again(number, "first")), (None, Some("first")));
    assert_eq!(session.abort_ended(), None);
    session.start_transaction(TransactionOptions::default()).unwrap();
    sent(&mut session, &WRITE);
    session.pin("second");
    assert!(!numbered(&mut session));
    let consequence = session.cursor_failed(&fault(FaultKind::Network), first);
    assert_eq!((consequence.labels, consequence.unpinned), (Labels::NONE, None));
    assert_eq!(session.pin_again(number, "first"), Some("first"));
    assert_eq!(session.take_pin(), Ok(Some("second")));
    assert_eq!(session.pin_again(number, "first"), Some("first"), "the second transaction has lent its own");
    assert_eq!(session.pin_again(number + 1, "second"), None);
    assert_eq!(session.failed_beside(&fault(FaultKind::Network)).unpinned, None, "the second one continues");
    assert_eq!(session.cursor_failed(&fault(FaultKind::Network), Some(number + 1)).unpinned, Some("second"));
}
