//! Sessions, transactions and elections, on replica sets.

use bson::{RawDocumentBuf, rawdoc};
use wharf::client::{SessionError, TransactionOptions, TransactionState};
use wharf::single::Client;
use wharf::{ClientError, Operation, ReadPreference, ReadPreferenceMode};
use wharf_testbed::replica_set::{self, ReplicaSet, ReplicaSetOptions};

use super::Sent;

fn insert(name: &str, id: i32) -> RawDocumentBuf {
    rawdoc! { "insert": name, "documents": [{ "_id": id }] }
}

fn count(client: &Client, name: &str) -> i32 {
    let count = rawdoc! { "count": name, "query": { "_id": { "$gte": 0 } } };
    client.run(Operation::read("single", &count)).unwrap().get_i32("n").unwrap()
}

fn empty(client: &Client, name: &str) {
    let _ = client.run(Operation::write("single", &rawdoc! { "drop": name }));
    client.run(Operation::write("single", &rawdoc! { "create": name })).unwrap();
}

#[test]
fn session_reads_its_own_writes_on_a_secondary() {
    let set = ReplicaSet::start(ReplicaSetOptions::default()).unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    empty(&client, "causal");
    let mut session = client.start_session().run().unwrap();
    let preference = ReadPreference::new(ReadPreferenceMode::Secondary);
    for id in 0..20 {
        session.run(Operation::write("single", &insert("causal", id))).unwrap();
        let find = rawdoc! { "find": "causal", "filter": { "_id": id } };
        let found = session.cursor(Operation::read("single", &find).read_preference(&preference)).run().unwrap();
        assert_eq!(found.count(), 1, "{id}");
    }
    assert!(session.operation_time().is_some() && session.cluster_time().is_some());
    assert_eq!(client.status().servers.len(), 3);

    // Operations do not fail during an election if the client may look for the primary more than once.
    let (patient, sent) = Sent::client(&format!("{}&serverSelectionTryOnce=false", set.uri()));
    patient.run(Operation::write("single", &insert("causal", 100))).unwrap();
    sent.take();
    set.step_down().unwrap();
    patient.run(Operation::write("single", &insert("causal", 101))).unwrap();
    assert_eq!(sent.take(), ["insert", "insert"], "the first one was refused, and retried");
    assert_eq!(count(&patient, "causal"), 22);
}

#[test]
fn transactions_are_committed_aborted_and_repeated() {
    let set = replica_set::shared().unwrap();
    let (client, sent) = Sent::client(&set.uri());
    empty(&client, "transactions");
    let mut session = client.start_session().run().unwrap();
    let inserted = session
        .with_transaction(|session| {
            session.run(Operation::write("single", &insert("transactions", 1)))?;
            session.write("single", "transactions").with(|write| write.insert(rawdoc! { "_id": 2 })).run()
        })
        .unwrap();
    assert_eq!((inserted.inserted, count(&client, "transactions")), (1, 2));
    assert_eq!(session.transaction_state(), TransactionState::Committed);

    let failed = session.with_transaction(|session| {
        session.insert("single", "transactions", [rawdoc! { "_id": 3 }]).run()?;
        session.delete("single", "transactions", [rawdoc! { "q": { "_id": 1 }, "limit": 1 }]).run()?;
        let update = rawdoc! { "q": { "_id": 9 }, "u": { "$set": { "n": 1 } }, "upsert": true };
        assert_eq!(session.update("single", "transactions", [update]).run()?.upserted.len(), 1);
        assert_eq!(session.cursor(Operation::read("single", &rawdoc! { "find": "transactions" })).run()?.count(), 3);
        Err::<(), _>(ClientError::other("not today"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "not today");
    assert_eq!(count(&client, "transactions"), 2);
    let failed = session.with_transaction_as(TransactionOptions::default(), |session| {
        session.insert("single", "transactions", [rawdoc! { "_id": 3 }]).run()?;
        Err::<(), Box<dyn std::error::Error>>("never".into())
    });
    assert_eq!(failed.unwrap_err().to_string(), "never");
    assert_eq!(count(&client, "transactions"), 2);

    // Another session's write conflicts with the transaction's first run.
    let mut runs = 0;
    session
        .with_transaction(|session| {
            runs += 1;
            session.run(Operation::read("single", &rawdoc! { "find": "transactions" }))?;
            let change =
                rawdoc! { "update": "transactions", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] };
            if runs == 1 {
                client.run(Operation::write("single", &change))?;
            }
            session.run(Operation::write("single", &change))
        })
        .unwrap();
    assert_eq!(runs, 2);

    session.start_transaction(TransactionOptions::default()).unwrap();
    session.run(Operation::write("single", &insert("transactions", 4))).unwrap();
    sent.take();
    drop(session);
    assert_eq!(sent.take(), ["abortTransaction"], "before the drop returns");
    assert_eq!(count(&client, "transactions"), 2);
}

#[test]
fn session_of_another_client_is_refused() {
    let set = replica_set::shared().unwrap();
    let (one, other) = (Client::from_uri(&set.uri()).unwrap(), wharf::Client::from_uri(&set.uri()).unwrap());
    let mut session = other.start_session().into_future().into_inner().unwrap();
    let refused = one.run(Operation::new("admin", &rawdoc! { "ping": 1 }).session(&mut session)).unwrap_err();
    assert!(matches!(refused, ClientError::Session(SessionError::OtherClient)), "{refused}");
}
