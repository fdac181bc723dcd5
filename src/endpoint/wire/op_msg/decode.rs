//! Decodes a message in the buffer in which it was received.

use std::collections::HashSet;
use std::iter::FusedIterator;

use bson::RawDocument;

use super::{BODY, CHECKSUM_LENGTH, Flags, OP_CODE, SEQUENCE};
use crate::endpoint::wire::header::{self, Header};
use crate::endpoint::wire::{PeerText, WireError};

/// The limits for received messages. A length beyond these limits is refused before any content is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `maxMessageSizeBytes`: the longest message, in bytes, including its header.
    pub max_message_size: u32,
    /// `maxBsonObjectSize`: the largest document in a sequence, in bytes. A body may be larger, because a command needs
    /// room around the single document that it carries, and a reply needs room around the documents that it returns.
    pub max_document_size: u32,
}

/// A received message, borrowed from its bytes.
///
/// Its documents are framed as BSON: each is complete, has its declared length, and ends with a zero byte. Their
/// elements are not checked, so reading them may still fail.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// The header.
    pub header: Header,
    /// The flags.
    pub flags: Flags,
    /// The command or the reply.
    pub body: &'a RawDocument,
    /// The document sequences, in the message's order.
    pub sequences: Vec<Sequence<'a>>,
}

/// A document sequence in a received message.
#[derive(Debug, Clone)]
pub struct Sequence<'a> {
    /// The name of the command argument that the sequence holds.
    pub identifier: &'a str,
    /// The documents, in order.
    pub documents: Documents<'a>,
}

/// The documents of a sequence, in order. A clone continues from the same position.
#[derive(Debug, Clone)]
pub struct Documents<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// Decodes a message. `bytes` must be exactly one whole message.
    ///
    /// A message without sequences is decoded without an allocation.
    ///
    /// # Errors
    ///
    /// Returns a [`WireError`] that names the first invalid field. The connection that the bytes came from must then be
    /// closed.
    pub fn decode(bytes: &'a [u8], limits: Limits) -> Result<Self, WireError> {
        let header = Header::of_whole(bytes, limits.max_message_size)?;
        Self::after(header, bytes, limits)
    }

    /// Decodes a message whose header has already been read. `bytes` must be exactly one whole message.
    #[inline(always)] // Inlined, so that the caller sees that most messages have no sequences to drop.
    pub(crate) fn after(header: Header, bytes: &'a [u8], limits: Limits) -> Result<Self, WireError> {
        if header.op_code != OP_CODE {
            return Err(WireError::OpCode { value: header.op_code, allowed: OP_CODE });
        }
        let mut cursor = Cursor { rest: &bytes[header::LENGTH..] };
        let flags = Flags::from_bits(u32::from_le_bytes(cursor.chunk("flagBits")?))?;
        if flags.contains(Flags::CHECKSUM_PRESENT) {
            verify_checksum(bytes, &mut cursor)?;
        }
        match only_body(cursor.rest) {
            Some(body) => Ok(Self { header, flags, body, sequences: Vec::new() }),
            None => {
                let (body, sequences) = cursor.sections(limits)?;
                Ok(Self { header, flags, body, sequences })
            }
        }
    }
}

/// Returns the body if it is the only section, which is the usual case. The body then extends to the end of the
/// message.
#[inline(always)] // Inlined, like its only caller.
fn only_body(sections: &[u8]) -> Option<&RawDocument> {
    let document = sections.strip_prefix(&[BODY])?;
    let declared = i32::from_le_bytes(*document.first_chunk()?);
    // The length is compared first, because bson formats a long error for a document that it refuses.
    let is_last = usize::try_from(declared) == Ok(document.len());
    is_last.then(|| RawDocument::from_bytes(document).ok()).flatten()
}

/// Removes the checksum from the end of the cursor's bytes, and checks that it matches the bytes before it.
fn verify_checksum(bytes: &[u8], cursor: &mut Cursor<'_>) -> Result<(), WireError> {
    let available = cursor.rest.len() as u64;
    let Some((sections, checksum)) = cursor.rest.split_last_chunk::<CHECKSUM_LENGTH>() else {
        return Err(WireError::Truncated { field: "checksum", needed: CHECKSUM_LENGTH as u64, available });
    };
    cursor.rest = sections;
    let value = u32::from_le_bytes(*checksum);
    let allowed = crc32c::crc32c(&bytes[..bytes.len() - CHECKSUM_LENGTH]);
    if value == allowed { Ok(()) } else { Err(WireError::Checksum { value, allowed }) }
}

impl<'a> Sequence<'a> {
    /// Reads a section of payload type 1, starting at its size.
    fn read(cursor: &mut Cursor<'a>, limits: Limits) -> Result<Self, WireError> {
        let mut section = Cursor { rest: cursor.sized("document sequence size", SHORTEST_SEQUENCE, u64::MAX)? };
        let [_, _, _, _] = section.chunk("document sequence size")?;
        let identifier = section.identifier()?;
        let documents = Documents { rest: section.rest };
        while !section.rest.is_empty() {
            section.document("document of a sequence", limits.max_document_size.into())?;
        }
        Ok(Self { identifier, documents })
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = &'a RawDocument;

    fn next(&mut self) -> Option<&'a RawDocument> {
        // Decoding the message has already read all documents, so this is `None` only at the end.
        let mut cursor = Cursor { rest: self.rest };
        let document = cursor.document("document of a sequence", u64::MAX).ok()?;
        self.rest = cursor.rest;
        Some(document)
    }
}

impl FusedIterator for Documents<'_> {}

/// The length of an empty document in bytes: its length and the zero byte at its end.
const SHORTEST_DOCUMENT: u64 = 5;

/// The length of an empty sequence in bytes: its size, and an identifier of one character with its zero byte.
const SHORTEST_SEQUENCE: u64 = 6;

/// The bytes of a message or of a section that have not been read yet.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Reads all sections. Returns the body, and the sequences in order.
    fn sections(&mut self, limits: Limits) -> Result<(&'a RawDocument, Vec<Sequence<'a>>), WireError> {
        let mut body = None;
        let mut count = 0;
        let mut sequences = Vec::new();
        let mut identifiers = HashSet::new();
        while !self.rest.is_empty() {
            let [payload_type] = self.chunk("payloadType")?;
            match payload_type {
                BODY => {
                    count += 1;
                    body = Some(self.document("body", u64::MAX)?);
                }
                SEQUENCE => {
                    let sequence = Sequence::read(self, limits)?;
                    if !identifiers.insert(sequence.identifier) {
                        let value = sequence.identifier.into();
                        return Err(WireError::Identifier { value, allowed: "unique within its message" });
                    }
                    sequences.push(sequence);
                }
                value => return Err(WireError::PayloadType { value }),
            }
        }
        match body {
            Some(body) if count == 1 => Ok((body, sequences)),
            _ => Err(WireError::Bodies { count }),
        }
    }

    /// Takes the next `N` bytes.
    fn chunk<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let Some((chunk, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(WireError::Truncated { field, needed: N as u64, available: self.rest.len() as u64 });
        };
        self.rest = rest;
        Ok(*chunk)
    }

    /// Takes bytes that begin with their own length, a little-endian integer. The length includes the integer itself.
    fn sized(&mut self, field: &'static str, least: u64, most: u64) -> Result<&'a [u8], WireError> {
        let available = self.rest.len() as u64;
        let declared = match self.rest.first_chunk::<4>() {
            Some(declared) if available >= least => declared,
            _ => return Err(WireError::Truncated { field, needed: least, available }),
        };
        let value = i64::from(i32::from_le_bytes(*declared));
        let most = most.min(available);
        match usize::try_from(value) {
            Ok(length) if (least..=most).contains(&(length as u64)) => {
                let (taken, rest) = self.rest.split_at(length);
                self.rest = rest;
                Ok(taken)
            }
            _ => Err(WireError::Length { field, value, least, most }),
        }
    }

    /// Takes the next document, of at most `most` bytes.
    fn document(&mut self, field: &'static str, most: u64) -> Result<&'a RawDocument, WireError> {
        let bytes = self.sized(field, SHORTEST_DOCUMENT, most)?;
        RawDocument::from_bytes(bytes).map_err(|error| WireError::Document { field, reason: PeerText::of(error) })
    }

    /// Takes the next string, up to its zero byte.
    fn identifier(&mut self) -> Result<&'a str, WireError> {
        let refuse = |bytes: &[u8], allowed| {
            let value = PeerText::of(String::from_utf8_lossy(&bytes[..bytes.len().min(64)]));
            Err(WireError::Identifier { value, allowed })
        };
        let Some(end) = self.rest.iter().position(|byte| *byte == 0) else {
            return refuse(self.rest, "ended by a zero byte");
        };
        let (name, rest) = (&self.rest[..end], &self.rest[end + 1..]);
        self.rest = rest;
        match std::str::from_utf8(name) {
            Ok(name) if !name.is_empty() => Ok(name),
            _ => refuse(name, "at least one character of UTF-8"),
        }
    }
}
