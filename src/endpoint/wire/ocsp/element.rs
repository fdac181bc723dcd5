//! The elements of certificates and OCSP responses.

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode, ErrorKind, Reader, Result, SliceReader, Tag, TagNumber, Tagged};

/// A hash function that identifies names and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Returns the hash with this object identifier (RFC 3279 and RFC 5754), in DER without tag and length.
    pub fn named(identifier: &[u8]) -> Option<Self> {
        match identifier {
            [0x2b, 0x0e, 0x03, 0x02, 0x1a] => Some(Self::Sha1),
            [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, last] => match last {
                1 => Some(Self::Sha256),
                2 => Some(Self::Sha384),
                3 => Some(Self::Sha512),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns the tag `[number]` of an element that is constructed or explicit.
pub(super) fn context(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(number) }
}

/// Reads all of `bytes`. A remainder is an error.
pub(super) fn whole<'a, T, E: From<der::Error>>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut SliceReader<'a>) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let mut reader = SliceReader::new(bytes)?;
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Reads the next element, which must have this tag. Returns its contents.
pub(super) fn value<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> Result<&'a [u8]> {
    let element = AnyRef::decode(reader)?;
    element.tag().assert_eq(tag)?;
    Ok(element.value())
}

/// Reads the next element if it has this tag. Returns its contents.
pub(super) fn optional<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> Result<Option<&'a [u8]>> {
    if reader.is_finished() || Tag::peek(reader)? != tag {
        return Ok(None);
    }
    value(reader, tag).map(Some)
}

/// Reads the next element, which must be a sequence. Returns it with tag and length.
pub(super) fn sequence<'a>(reader: &mut SliceReader<'a>) -> Result<&'a [u8]> {
    Tag::peek(reader)?.assert_eq(Tag::Sequence)?;
    reader.tlv_bytes()
}

/// Returns the bytes of a bit string, given its contents.
pub(super) fn bits(contents: &[u8]) -> Result<&[u8]> {
    match contents {
        // The first byte is the number of unused bits.
        [0, bytes @ ..] => Ok(bytes),
        _ => Err(ErrorKind::Value { tag: Tag::BitString }.into()),
    }
}

/// Reads a time. Returns it in seconds since 1970.
pub(super) fn time(reader: &mut SliceReader<'_>) -> Result<u64> {
    Ok(GeneralizedTime::decode(reader)?.to_unix_duration().as_secs())
}

/// Reads a time from a certificate, in either form (RFC 5280, section 4.1.2.5). Returns it in seconds since 1970.
pub(super) fn utc_or_generalized_time(reader: &mut SliceReader<'_>) -> Result<u64> {
    match Tag::peek(reader)? {
        Tag::UtcTime => Ok(UtcTime::decode(reader)?.to_unix_duration().as_secs()),
        _ => time(reader),
    }
}

/// An extension of a certificate or of a response.
pub(super) struct Extension<'a> {
    /// The object identifier, in DER without tag and length.
    pub identifier: &'a [u8],
    pub critical: bool,
    pub value: &'a [u8],
}

/// Calls `each` for every extension in `extensions`, which is a whole `Extensions` in DER.
pub(super) fn each_extension<'a, E: From<der::Error>>(
    extensions: &'a [u8],
    mut each: impl FnMut(Extension<'a>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut list = SliceReader::new(whole(extensions, |reader| value(reader, Tag::Sequence))?)?;
    while !list.is_finished() {
        let extension = value(&mut list, Tag::Sequence)?;
        each(whole(extension, |reader| {
            let identifier = value(reader, Tag::ObjectIdentifier)?;
            let critical = optional(reader, Tag::Boolean)?.is_some_and(|critical| critical != [0]);
            Ok::<_, der::Error>(Extension { identifier, critical, value: value(reader, Tag::OctetString)? })
        })?)?;
    }
    Ok(())
}
