//! `OP_MSG`: sequences, checksums, and the order in which the sides send.

use std::io::ErrorKind;

use super::*;

/// Returns a document of nearly the maximum size. It is small enough to be the replacement in an update.
fn large(id: i32, letter: &str) -> RawDocumentBuf {
    rawdoc! { "_id": id, "text": letter.repeat(16 * 1024 * 1024 - 1024) }
}

/// OP_MSG, "Test Plan": one document, two documents, and a small document together with a large one are inserted,
/// updated and deleted in one round trip each.
#[test]
fn writes_travel_as_document_sequences() {
    let server = mongod::shared().unwrap();
    let mut peer = Peer::connect(server.address(), None);
    let small = |id, letter: &str| rawdoc! { "_id": id, "text": letter };
    let cases: [[Vec<RawDocumentBuf>; 2]; 3] = [
        [vec![small(1, "a")], vec![small(1, "b")]],
        [vec![small(1, "a"), small(2, "a")], vec![small(1, "b"), small(2, "b")]],
        [vec![small(1, "a"), large(2, "a")], vec![large(1, "b"), large(2, "b")]],
    ];
    for [documents, replacements] in cases {
        let collection = collection();
        let mut write = |command: &str, argument, documents: &Vec<RawDocumentBuf>| {
            let mut body = RawDocumentBuf::new();
            body.append(bson::raw::CString::try_from(command).unwrap(), &*collection);
            let reply = peer.run_with("test", &body, &[OutgoingSequence::new(argument, documents)]);
            assert_eq!(reply.get_i32("n").unwrap() as usize, documents.len(), "{command}: {reply:?}");
            assert_eq!(reply.get("writeErrors").unwrap(), None);
            // Only the find below checks that these are the right documents.
            let find = rawdoc! { "find": &*collection, "sort": { "_id": 1 }, "projection": { "text": { "$substr": ["$text", 0, 1] } } };
            let found = peer.run("test", &find);
            batch(&found, "firstBatch")
                .iter()
                .map(|found| found.get_str("text").unwrap().to_owned())
                .collect::<String>()
        };
        let of_id = |document: &RawDocumentBuf| rawdoc! { "_id": document.get_i32("_id").unwrap() };
        assert_eq!(write("insert", "documents", &documents), "a".repeat(documents.len()));
        let updates =
            replacements.iter().map(|document| rawdoc! { "q": of_id(document), "u": document.clone() }).collect();
        assert_eq!(write("update", "updates", &updates), "b".repeat(documents.len()));
        let deletes = documents.iter().map(|document| rawdoc! { "q": of_id(document), "limit": 1 }).collect();
        assert_eq!(write("delete", "deletes", &deletes), "");
    }
}

#[test]
fn checksums_are_verified_in_both_directions() {
    let server = mongod::shared().unwrap();
    let mut peer = Peer::connect(server.address(), None);
    peer.send("admin", &rawdoc! { "ping": 1 }, &[], Flags::CHECKSUM_PRESENT);
    let reply = peer.receive();
    reply::check(reply.body).unwrap();
    assert_eq!(reply.flags, Flags::CHECKSUM_PRESENT, "the reply carries no checksum to verify");
}

#[test]
fn server_closes_the_connection_on_a_wrong_checksum() {
    let server = mongod::shared().unwrap();
    let peer = Peer::connect(server.address(), None);
    let flags = Flags::CHECKSUM_PRESENT;
    let body = rawdoc! { "ping": 1 };
    let request =
        Outgoing { request_id: 9, response_to: 0, flags, body: &body, database: Some("admin"), sequences: &[] };
    let mut bytes = Vec::new();
    op_msg::encode(&request, LIMITS.max_message_size, &mut bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let mut stream = peer.stream;
    stream.write_all(&bytes).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("the connection was not closed: {other:?}"),
    }
}

#[test]
fn request_with_more_to_come_gets_no_reply() {
    let server = mongod::shared().unwrap();
    for compressor in [None, Some(Compressor::Zstd)] {
        let mut peer = Peer::connect(server.address(), compressor.filter(|compressor| compressor.is_supported()));
        let collection = collection();
        let insert = rawdoc! { "insert": &*collection, "writeConcern": { "w": 0 } };
        let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
        peer.send("test", &insert, &[OutgoingSequence::new("documents", &documents)], Flags::MORE_TO_COME);
        // The next reply belongs to the next request.
        let found = peer.run("test", &rawdoc! { "find": &*collection, "sort": { "_id": 1 } });
        assert_eq!(batch(&found, "firstBatch"), documents);
    }
}

#[test]
fn exhaust_allowed_replies_follow_one_another() {
    let server = mongod::shared().unwrap();
    for compressor in [None, Some(Compressor::Zstd)] {
        let mut peer = Peer::connect(server.address(), compressor.filter(|compressor| compressor.is_supported()));
        let collection = collection();
        let documents: Vec<_> = (0..9).map(|id| rawdoc! { "_id": id }).collect();
        let sequences = [OutgoingSequence::new("documents", &documents)];
        peer.run_with("test", &rawdoc! { "insert": &*collection }, &sequences);
        let find = rawdoc! { "find": &*collection, "sort": { "_id": 1 }, "batchSize": 2 };
        let found = peer.run("test", &find);
        let mut all = batch(&found, "firstBatch");
        let id = found.get_document("cursor").unwrap().get_i64("id").unwrap();

        let get_more = rawdoc! { "getMore": id, "collection": &*collection, "batchSize": 2 };
        peer.send("test", &get_more, &[], Flags::EXHAUST_ALLOWED);
        let mut answers = peer.last_request_id;
        let mut replies = 0;
        loop {
            let reply = peer.receive();
            reply::check(reply.body).unwrap();
            assert_eq!(reply.header.response_to, answers, "a reply does not answer the one before");
            answers = reply.header.request_id;
            all.extend(batch(reply.body, "nextBatch"));
            replies += 1;
            if !reply.flags.contains(Flags::MORE_TO_COME) {
                break;
            }
        }
        assert!(replies >= 4, "only {replies} replies");
        assert_eq!(all, documents);
        peer.run("admin", &rawdoc! { "ping": 1 });
    }
}
