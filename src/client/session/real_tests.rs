//! Runs sessions against a real replica set with one member. The server must understand the fields that they append to
//! commands.

use bson::{RawDocumentBuf, rawdoc};
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::*;
use crate::endpoint::options::Options;
use crate::endpoint::{Command, CommandError, DirectConnection, Endpoint};
use crate::pool::error::Labels;

const SERVER: SessionServer =
    SessionServer { max_wire_version: 17, has_cluster_time: true, is_mongos: false, is_load_balanced: false };
const WRITE: SessionUse<'static> = SessionUse {
    is_read: false,
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
const READ: SessionUse<'static> = SessionUse { is_read: true, ..WRITE };

/// The client's state other than its sessions.
struct Client {
    connection: DirectConnection,
    cluster_time: SharedClusterTime,
    pool: ServerSessionPool,
    /// Stopped when the test ends.
    _set: ReplicaSet,
}

impl Client {
    async fn connect() -> Self {
        let options = ReplicaSetOptions { members: 1, ..ReplicaSetOptions::default() };
        let set = tokio::task::spawn_blocking(|| ReplicaSet::start(options)).await.unwrap().unwrap();
        let endpoint = Endpoint::new(&set.addresses()[0].to_string()).unwrap();
        let connection = endpoint.connect().await.unwrap();
        Self {
            connection,
            cluster_time: SharedClusterTime::default(),
            pool: ServerSessionPool::new(Moment::now()),
            _set: set,
        }
    }

    fn session(&self, options: &SessionOptions) -> Session<()> {
        let server = self.pool.acquire(Moment::now(), None);
        Session::new(server, options, &Options::new(["localhost"]).unwrap()).unwrap()
    }

    async fn run(
        &mut self,
        session: &mut Session<()>,
        operation: &SessionUse<'_>,
        command: &RawDocumentBuf,
    ) -> Result<RawDocumentBuf, Fault> {
        session.begin(operation).unwrap();
        let mut elements = Vec::new();
        session
            .append_to(&mut elements, Moment::now(), operation, SERVER, self.cluster_time.load().as_deref())
            .unwrap();
        match self.exchange(session, "bank", command, &elements).await {
            Ok(reply) => {
                session.succeeded(&ReplyTimes::read(&reply));
                Ok(reply)
            }
            Err(fault) => {
                let _ = session.failed(&fault, Some(SERVER), operation.transaction_number.is_some());
                Err(fault)
            }
        }
    }

    /// Sends the commit or the abort.
    async fn end(&mut self, session: &mut Session<()>, command: &RawDocumentBuf) -> Result<RawDocumentBuf, Fault> {
        let mut elements = Vec::new();
        session.append_ending(&mut elements, Moment::now(), self.cluster_time.load().as_deref());
        self.exchange(session, "admin", command, &elements).await
    }

    async fn exchange(
        &mut self,
        session: &mut Session<()>,
        database: &str,
        command: &RawDocumentBuf,
        elements: &[u8],
    ) -> Result<RawDocumentBuf, Fault> {
        let outcome = self.connection.run(Command::new(database, command).appended(elements)).await;
        let reply = match &outcome {
            Ok(reply) => reply,
            Err(CommandError::Server { source, .. }) => &source.reply,
            Err(error) => panic!("{error}"),
        };
        let times = ReplyTimes::read(reply);
        let advanced = times.cluster_time.and_then(|time| self.cluster_time.advance(time));
        session.replied(&times, advanced.as_ref());
        match Fault::of_reply(reply) {
            None => Ok(reply.clone()),
            Some(fault) => Err(fault),
        }
    }

    /// Returns the number of documents that are visible outside the transaction.
    async fn count(&mut self) -> i32 {
        let count = rawdoc! { "count": "c", "query": { "_id": { "$gte": 0 } } };
        self.connection.run_command("bank", &count).await.unwrap().get_i32("n").unwrap()
    }
}

fn insert(id: i32) -> RawDocumentBuf {
    rawdoc! { "insert": "c", "documents": [{ "_id": id }] }
}

#[tokio::test]
async fn server_understands_sessions_retries_and_transactions() {
    let mut client = Client::connect().await;
    let mut session = client.session(&SessionOptions::default());

    // Causal consistency: the second command carries `afterClusterTime` and `$clusterTime`.
    client.run(&mut session, &WRITE, &insert(0)).await.unwrap();
    assert!(session.operation_time().is_some() && session.cluster_time().is_some());
    let read = SessionUse { read_concern: Some("majority"), ..READ };
    client.run(&mut session, &read, &rawdoc! { "find": "c" }).await.unwrap();

    // A write sent twice with the same number is executed once.
    let number = session.next_transaction_number();
    let retried = SessionUse { transaction_number: Some(number), ..WRITE };
    for _ in 0..2 {
        let reply = client.run(&mut session, &retried, &insert(1)).await.unwrap();
        assert_eq!((reply.get_i32("n").unwrap(), reply.get("writeErrors").unwrap()), (1, None));
    }
    assert_eq!(client.count().await, 2);

    // Nothing in a transaction is visible before its commit. The commit can be repeated.
    let options = TransactionOptions::default().read_concern("snapshot");
    session.start_transaction(options.clone()).unwrap();
    client.run(&mut session, &WRITE, &insert(2)).await.unwrap();
    client.run(&mut session, &WRITE, &insert(3)).await.unwrap();
    assert_eq!(client.count().await, 2);
    assert!(session.begin_commit().unwrap());
    for _ in 0..2 {
        let commit = session.commit_command(false);
        client.end(&mut session, &commit).await.unwrap();
    }
    assert_eq!(client.count().await, 4);

    // An abort undoes everything, and the session continues.
    session.start_transaction(options.clone()).unwrap();
    client.run(&mut session, &WRITE, &insert(4)).await.unwrap();
    assert!(session.begin_abort().unwrap());
    let abort = session.abort_command(false);
    client.end(&mut session, &abort).await.unwrap();
    client.run(&mut session, &READ, &rawdoc! { "find": "c" }).await.unwrap();
    assert_eq!(client.count().await, 4);

    // The server does not know a transaction that was aborted behind the session's back. The server's error says that
    // the transaction can be repeated.
    session.start_transaction(options).unwrap();
    client.run(&mut session, &WRITE, &insert(5)).await.unwrap();
    let abort = session.abort_command(false);
    client.end(&mut session, &abort).await.unwrap();
    session.begin_commit().unwrap();
    let commit = session.commit_command(false);
    let fault = client.end(&mut session, &commit).await.unwrap_err();
    assert!(fault.has(Labels::TRANSIENT_TRANSACTION), "{fault:?}");
    let labels = session.commit_failed(&fault, Some(SERVER)).labels;
    assert!(!labels.contains(Labels::UNKNOWN_COMMIT_RESULT));

    // Another session with the same identifier continues the numbering.
    let (id, last) = (session.id(), number + 3);
    client.pool.release(session.end(Moment::now()).unwrap(), Moment::now(), None);
    let mut session = client.session(&SessionOptions::default());
    assert_eq!((session.id(), session.next_transaction_number()), (id, last + 1));
    let retried = SessionUse { transaction_number: Some(last + 1), ..WRITE };
    client.run(&mut session, &retried, &insert(6)).await.unwrap();

    client.pool.release(session.end(Moment::now()).unwrap(), Moment::now(), None);
    let ids = client.pool.drain(Moment::now(), None);
    assert_eq!(ids, [id]);
    for command in ServerSessionPool::end_sessions(&ids) {
        client.connection.run_command("admin", &command).await.unwrap();
    }
}

#[tokio::test]
async fn snapshot_session_sees_one_point_in_time() {
    let mut client = Client::connect().await;
    let mut writer = client.session(&SessionOptions::default());
    // A snapshot read requires that a majority of the members hold the collection.
    let create = rawdoc! { "insert": "c", "documents": [{ "_id": 0 }], "writeConcern": { "w": "majority" } };
    client.run(&mut writer, &WRITE, &create).await.unwrap();
    let mut reader = client.session(&SessionOptions::default().snapshot(true));
    let find = rawdoc! { "find": "c" };
    let found = |reply: &RawDocumentBuf| {
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count()
    };
    assert_eq!(found(&client.run(&mut reader, &READ, &find).await.unwrap()), 1);
    let time = reader.snapshot_time().expect("the reply has atClusterTime");
    let majority = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }], "writeConcern": { "w": "majority" } };
    client.run(&mut writer, &WRITE, &majority).await.unwrap();
    assert_eq!(
        found(&client.run(&mut reader, &READ, &find).await.unwrap()),
        1,
        "the later write is not in the snapshot"
    );
    let distinct = rawdoc! { "distinct": "c", "key": "_id" };
    let values = client.run(&mut reader, &READ, &distinct).await.unwrap();
    assert_eq!(values.get_array("values").unwrap().into_iter().count(), 1);

    // Another session can read at the same point in time. The server refuses a write in such a session.
    let options = SessionOptions::default().snapshot(true).snapshot_time(time);
    let mut other = client.session(&options);
    assert_eq!(found(&client.run(&mut other, &READ, &find).await.unwrap()), 1);
    let fault = client.run(&mut other, &WRITE, &insert(2)).await.unwrap_err();
    assert_eq!(fault.code, 72, "InvalidOptions");
}
