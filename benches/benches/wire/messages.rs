//! The messages that are measured.

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use wharf::unstable::wire::op_msg::{OutgoingSequence, encode};
use wharf::unstable::wire::{Flags, Limits, Outgoing};

pub const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

/// The sizes by name: the total length of the documents, in bytes.
pub const SIZES: [(&str, usize); 4] = [("ping", 0), ("1KiB", 1 << 10), ("64KiB", 1 << 16), ("1MiB", 1 << 20)];

/// A command, and the documents that it carries.
#[derive(Clone)]
pub struct Content {
    body: RawDocumentBuf,
    /// The documents outside the body.
    documents: Vec<RawDocumentBuf>,
    /// All documents, whether in the body or outside it.
    all: Vec<RawDocumentBuf>,
}

impl Content {
    /// Creates a command whose body contains an array of documents, about `length` bytes in total.
    pub fn of(length: usize) -> Self {
        let mut all = Vec::new();
        let mut sum = 0;
        for number in 0.. {
            if sum >= length {
                break;
            }
            let document = document(number);
            sum += document.as_bytes().len();
            all.push(document);
        }
        let body = match all.is_empty() {
            true => rawdoc! { "ping": 1 },
            false => rawdoc! { "insert": "orders", "documents": all.iter().cloned().collect::<RawArrayBuf>() },
        };
        Self { body, documents: Vec::new(), all }
    }

    /// Moves the documents into a sequence.
    pub fn in_a_sequence(self) -> Self {
        Self { body: rawdoc! { "insert": "orders" }, documents: self.all.clone(), all: self.all }
    }

    pub fn with_outgoing(&self, flags: Flags, run: impl FnOnce(&Outgoing<'_>)) {
        let sequence = [OutgoingSequence::new("documents", &self.documents)];
        let sequences = if self.documents.is_empty() { &[][..] } else { &sequence };
        run(&Outgoing { request_id: 1, response_to: 0, flags, body: &self.body, database: Some("shop"), sequences });
    }

    pub fn encoded(&self, flags: Flags) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.with_outgoing(flags, |outgoing| {
            encode(outgoing, LIMITS.max_message_size, &mut bytes).expect("the message exceeds the limit");
        });
        bytes
    }
}

/// Returns a shop order of about 250 bytes. Its field names repeat, and its numbers vary.
fn document(number: u64) -> RawDocumentBuf {
    let mixed = |salt: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(salt as u32);
    let mut id = [0; 12];
    id[..8].copy_from_slice(&mixed(7).to_le_bytes());
    rawdoc! {
        "_id": bson::oid::ObjectId::from_bytes(id),
        "customer": format!("customer-{}", mixed(3) % 100_000),
        "state": (["new", "paid", "sent", "returned"][(mixed(11) % 4) as usize]),
        "total": (mixed(17) % 1_000_000) as f64 / 100.0,
        "created": bson::DateTime::from_millis(1_700_000_000_000 + (mixed(23) % 10_000_000_000) as i64),
        "lines": [
            { "sku": format!("{:08x}", mixed(29) as u32), "count": (mixed(31) % 9) as i32, "price": (mixed(37) % 9_999) as i32 },
            { "sku": format!("{:08x}", mixed(41) as u32), "count": (mixed(43) % 9) as i32, "price": (mixed(47) % 9_999) as i32 },
        ],
        "note": "please ring twice",
    }
}

/// Returns a reply to hello with as many fields as a replica set member sends.
pub fn hello() -> Vec<u8> {
    let body = rawdoc! {
        "topologyVersion": { "processId": bson::oid::ObjectId::from_bytes([7; 12]), "counter": 6_i64 },
        "hosts": ["a.example.com:27017", "b.example.com:27017", "c.example.com:27017"],
        "setName": "rs0", "setVersion": 1, "isWritablePrimary": true, "secondary": false, "primary": "a.example.com:27017",
        "me": "a.example.com:27017", "electionId": bson::oid::ObjectId::from_bytes([8; 12]),
        "maxBsonObjectSize": 16_777_216, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000,
        "localTime": bson::DateTime::from_millis(1_700_000_000_000), "logicalSessionTimeoutMinutes": 30,
        "connectionId": 12, "minWireVersion": 0, "maxWireVersion": 17, "readOnly": false, "helloOk": true, "ok": 1.0,
    };
    let flags = Flags::NONE;
    let outgoing = Outgoing { request_id: 1, response_to: 1, flags, body: &body, database: None, sequences: &[] };
    let mut bytes = Vec::new();
    encode(&outgoing, LIMITS.max_message_size, &mut bytes).expect("the message exceeds the limit");
    bytes
}
