//! Encodes a message into a buffer.

use bson::{RawDocument, RawDocumentBuf};

use super::{BODY, CHECKSUM_LENGTH, Flags, OP_CODE, SEQUENCE};
use crate::endpoint::wire::header::{self, Header};
use crate::endpoint::wire::{PeerText, WireError};

/// A message to encode. It always has exactly one body and valid flags.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The message's number, which its reply repeats.
    pub request_id: i32,
    /// The number of the message that this one answers; 0 in a request.
    pub response_to: i32,
    /// The flags. With [`Flags::CHECKSUM_PRESENT`], encoding computes and appends the checksum.
    pub flags: Flags,
    /// The command or the reply.
    pub body: &'a RawDocument,
    /// The database that a command runs on. It is appended to the body as the last element, `$db`. `None` in a reply,
    /// or if the body already has a `$db`.
    pub database: Option<&'a str>,
    /// The command's arguments that are sent outside its body.
    pub sequences: &'a [OutgoingSequence<'a>],
}

/// A command argument that is sent as a document sequence.
///
/// ```
/// use bson::rawdoc;
/// use wharf::unstable::wire::op_msg::OutgoingSequence;
///
/// let documents = vec![rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
/// let owned = OutgoingSequence::new("documents", &documents);
/// let in_another_order = [&*documents[1], &*documents[0]];
/// let borrowed = OutgoingSequence::new("documents", &in_another_order);
/// # let _ = (owned, borrowed);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OutgoingSequence<'a> {
    /// The argument's name: `documents`, `updates` or `deletes`. Unique within a message.
    pub identifier: &'a str,
    /// The documents, in order.
    pub documents: OutgoingDocuments<'a>,
}

impl<'a> OutgoingSequence<'a> {
    /// Creates the argument `identifier` from these documents: a slice, array or vector of owned or borrowed documents.
    pub fn new(identifier: &'a str, documents: impl Into<OutgoingDocuments<'a>>) -> Self {
        Self { identifier, documents: documents.into() }
    }
}

/// The documents of a sequence, in the caller's memory. They are copied once, into the buffer that is sent.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum OutgoingDocuments<'a> {
    /// Documents that the caller borrows from several places.
    Borrowed(&'a [&'a RawDocument]),
    /// Documents that the caller owns.
    Owned(&'a [RawDocumentBuf]),
}

impl<'a> OutgoingDocuments<'a> {
    /// Returns the document at a position, from 0.
    pub(crate) fn get(&self, place: usize) -> Option<&'a RawDocument> {
        match *self {
            Self::Borrowed(documents) => documents.get(place).copied(),
            Self::Owned(documents) => documents.get(place).map(|document| &**document),
        }
    }

    /// Returns the number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Borrowed(documents) => documents.len(),
            Self::Owned(documents) => documents.len(),
        }
    }

    /// Returns whether there are no documents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total length of all documents, in bytes.
    fn byte_length(&self) -> usize {
        fn sum(documents: &[impl AsRef<RawDocument>]) -> usize {
            documents.iter().map(|document| document.as_ref().as_bytes().len()).sum()
        }
        match self {
            Self::Borrowed(documents) => sum(documents),
            Self::Owned(documents) => sum(documents),
        }
    }

    fn write(&self, buffer: &mut Vec<u8>) {
        fn append(documents: &[impl AsRef<RawDocument>], buffer: &mut Vec<u8>) {
            for document in documents {
                buffer.extend_from_slice(document.as_ref().as_bytes());
            }
        }
        match self {
            Self::Borrowed(documents) => append(documents, buffer),
            Self::Owned(documents) => append(documents, buffer),
        }
    }
}

impl<'a> From<&'a [&'a RawDocument]> for OutgoingDocuments<'a> {
    fn from(documents: &'a [&'a RawDocument]) -> Self {
        Self::Borrowed(documents)
    }
}

impl<'a, const N: usize> From<&'a [&'a RawDocument; N]> for OutgoingDocuments<'a> {
    fn from(documents: &'a [&'a RawDocument; N]) -> Self {
        Self::Borrowed(documents)
    }
}

impl<'a> From<&'a Vec<&'a RawDocument>> for OutgoingDocuments<'a> {
    fn from(documents: &'a Vec<&'a RawDocument>) -> Self {
        Self::Borrowed(documents)
    }
}

impl<'a> From<&'a [RawDocumentBuf]> for OutgoingDocuments<'a> {
    fn from(documents: &'a [RawDocumentBuf]) -> Self {
        Self::Owned(documents)
    }
}

impl<'a, const N: usize> From<&'a [RawDocumentBuf; N]> for OutgoingDocuments<'a> {
    fn from(documents: &'a [RawDocumentBuf; N]) -> Self {
        Self::Owned(documents)
    }
}

impl<'a> From<&'a Vec<RawDocumentBuf>> for OutgoingDocuments<'a> {
    fn from(documents: &'a Vec<RawDocumentBuf>) -> Self {
        Self::Owned(documents)
    }
}

/// Appends `message` to `buffer`. The documents' bytes are copied unchanged.
///
/// # Errors
///
/// If it fails, nothing has been appended.
///
/// - [`WireError::Length`] if the message would be longer than `max_message_size` bytes.
/// - [`WireError::Identifier`] if a sequence's identifier is empty, contains a zero byte, or occurs twice.
pub fn encode(message: &Outgoing<'_>, max_message_size: u32, buffer: &mut Vec<u8>) -> Result<(), WireError> {
    match message.sequences {
        // Most messages take this path. The compiler makes it a separate function, without the code for sequences and
        // extra elements.
        [] => encode_parts(&Outgoing { sequences: &[], ..*message }, &[], max_message_size, buffer),
        _ => encode_with(message, &[], max_message_size, buffer),
    }
}

/// Like [`encode`], but also adds `appended` to the body, after `$db`: the elements that a client adds to every
/// command.
///
/// Each slice holds any number of consecutive BSON elements, without a document around them. They are copied unchanged,
/// so they must be well-formed.
///
/// # Errors
///
/// The same as for [`encode`].
pub fn encode_with(
    message: &Outgoing<'_>,
    appended: &[&[u8]],
    max_message_size: u32,
    buffer: &mut Vec<u8>,
) -> Result<(), WireError> {
    match (message.sequences, appended) {
        // Most of a client's commands take this path. It is separate for the same reason as in [`encode`].
        ([], &[elements]) => {
            encode_parts(&Outgoing { sequences: &[], ..*message }, &[elements], max_message_size, buffer)
        }
        ([], _) => encode_parts(&Outgoing { sequences: &[], ..*message }, appended, max_message_size, buffer),
        _ => encode_parts(message, appended, max_message_size, buffer),
    }
}

#[inline(always)]
fn encode_parts(
    message: &Outgoing<'_>,
    appended: &[&[u8]],
    max_message_size: u32,
    buffer: &mut Vec<u8>,
) -> Result<(), WireError> {
    check_identifiers(message.sequences)?;
    let body_length = body_length(message, appended);
    let message_length = check_length(message, body_length, max_message_size)?;
    let start = buffer.len();
    buffer.reserve(message_length as usize);

    let Outgoing { request_id, response_to, flags, .. } = *message;
    let header = Header { message_length, request_id, response_to, op_code: OP_CODE };
    buffer.extend_from_slice(&before_elements(header, flags, body_length));
    write_elements(message, appended, buffer);
    for sequence in message.sequences {
        buffer.push(SEQUENCE);
        write_sequence(sequence, buffer);
    }
    if flags.contains(Flags::CHECKSUM_PRESENT) {
        let checksum = crc32c::crc32c(&buffer[start..]);
        buffer.extend_from_slice(&checksum.to_le_bytes());
    }
    Ok(())
}

#[inline(always)] // Compiled away where there are no sequences.
fn check_identifiers(sequences: &[OutgoingSequence<'_>]) -> Result<(), WireError> {
    for (index, OutgoingSequence { identifier, .. }) in sequences.iter().enumerate() {
        let refuse = |allowed| Err(WireError::Identifier { value: PeerText::of(identifier), allowed });
        if identifier.is_empty() || identifier.contains('\0') {
            return refuse("at least one character, and no zero byte");
        }
        if sequences[..index].iter().any(|earlier| earlier.identifier == *identifier) {
            return refuse("unique within its message");
        }
    }
    Ok(())
}

/// Returns the length of the message in bytes. If it is within the limit, all lengths inside it fit their fields.
#[inline(always)]
fn check_length(message: &Outgoing<'_>, body_length: usize, max_message_size: u32) -> Result<u32, WireError> {
    let checksum = if message.flags.contains(Flags::CHECKSUM_PRESENT) { CHECKSUM_LENGTH } else { 0 };
    let sequences: usize = message.sequences.iter().map(|sequence| 1 + sequence_length(sequence)).sum();
    let length = header::LENGTH + 4 + 1 + body_length + sequences + checksum;
    // The length is sent as a signed integer.
    let most = max_message_size.min(i32::MAX as u32);
    match u32::try_from(length) {
        Ok(length) if length <= most => Ok(length),
        _ => Err(WireError::Length {
            field: "messageLength",
            value: i64::try_from(length).unwrap_or(i64::MAX),
            least: header::LENGTH as u64,
            most: most.into(),
        }),
    }
}

/// The `$db` element before its value: its type (string) and its name.
const DB_ELEMENT: &[u8] = b"\x02$db\0";

#[inline(always)]
fn body_length(message: &Outgoing<'_>, appended: &[&[u8]]) -> usize {
    let db = message.database.map_or(0, |database| DB_ELEMENT.len() + 4 + database.len() + 1);
    let appended: usize = appended.iter().map(|elements| elements.len()).sum();
    message.body.as_bytes().len() + db + appended
}

fn sequence_length(sequence: &OutgoingSequence<'_>) -> usize {
    4 + sequence.identifier.len() + 1 + sequence.documents.byte_length()
}

/// The number of bytes before the body's first element.
const BEFORE_ELEMENTS: usize = header::LENGTH + 4 + 1 + 4;

/// Returns the header, the flags, the section's kind and the body's length. They are assembled here, so that copying
/// them into the buffer takes one copy instead of four.
fn before_elements(header: Header, flags: Flags, body_length: usize) -> [u8; BEFORE_ELEMENTS] {
    let mut bytes = [0; BEFORE_ELEMENTS];
    bytes[..16].copy_from_slice(&header.to_bytes());
    bytes[16..20].copy_from_slice(&flags.bits().to_le_bytes());
    bytes[20] = BODY;
    bytes[21..].copy_from_slice(&length_bytes(body_length));
    bytes
}

/// Writes the body, starting at its first element.
#[inline(always)]
fn write_elements(message: &Outgoing<'_>, appended: &[&[u8]], buffer: &mut Vec<u8>) {
    let body = message.body.as_bytes();
    // The elements are between the document's length and the zero byte at its end.
    buffer.extend_from_slice(&body[4..body.len() - 1]);
    if let Some(database) = message.database {
        let mut element = [0; DB_ELEMENT.len() + 4];
        element[..DB_ELEMENT.len()].copy_from_slice(DB_ELEMENT);
        element[DB_ELEMENT.len()..].copy_from_slice(&length_bytes(database.len() + 1));
        buffer.extend_from_slice(&element);
        buffer.extend_from_slice(database.as_bytes());
        buffer.push(0);
    }
    for elements in appended {
        // Usually there are no elements, and even copying nothing would cost a function call.
        if !elements.is_empty() {
            buffer.extend_from_slice(elements);
        }
    }
    buffer.push(0);
}

fn write_sequence(sequence: &OutgoingSequence<'_>, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&length_bytes(0));
    buffer.extend_from_slice(sequence.identifier.as_bytes());
    buffer.push(0);
    sequence.documents.write(buffer);
    // The buffer's growth gives the length, so the documents' lengths need not be added up again.
    let length = buffer.len() - start;
    buffer[start..start + 4].copy_from_slice(&length_bytes(length));
}

/// Encodes a length that [`check_length`] has checked.
fn length_bytes(length: usize) -> [u8; 4] {
    (length as u32).to_le_bytes()
}
