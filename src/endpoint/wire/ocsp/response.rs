//! Parses OCSP responses in DER.

use der::{ErrorKind, Reader, Result, SliceReader, Tag, TagNumber};

use super::element::{Hash, bits, context, each_extension, optional, sequence, time, value, whole};
use super::{MAX_LENGTH, OcspError, ResponderId, Status, StatusEntry};

/// id-pkix-ocsp-basic, the only defined type of response (RFC 6960, section 4.2.1).
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];

/// A signed response. The [module](super) documentation says what the caller must verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OcspResponse<'a> {
    /// The signed part: the `ResponseData`, in DER.
    pub signed: &'a [u8],
    /// The signature's `AlgorithmIdentifier`, in DER without tag and length.
    pub algorithm: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
    /// The signer.
    pub responder: ResponderId<'a>,
    /// Possible certificates of the signer, each in DER. The signature does not cover them.
    pub certificates: Vec<&'a [u8]>,
    /// The entries about certificates.
    pub entries: Vec<StatusEntry<'a>>,
}

impl<'a> OcspResponse<'a> {
    /// Parses a response.
    ///
    /// # Errors
    ///
    /// Returns [`Length`](OcspError::Length), [`Malformed`](OcspError::Malformed),
    /// [`Unsuccessful`](OcspError::Unsuccessful) or [`Unsupported`](OcspError::Unsupported).
    pub fn read(response: &'a [u8]) -> std::result::Result<Self, OcspError> {
        if response.len() > MAX_LENGTH {
            return Err(OcspError::Length { length: response.len() });
        }
        let response = whole(response, |reader| value(reader, Tag::Sequence))?;
        let (status, bytes) = whole(response, |reader| {
            let status = match value(reader, Tag::Enumerated)? {
                [status] => *status,
                _ => return Err(ErrorKind::Value { tag: Tag::Enumerated }.into()),
            };
            Ok::<_, der::Error>((status, optional(reader, context(0))?))
        })?;
        if status != 0 {
            return Err(OcspError::Unsuccessful { status });
        }
        let bytes = bytes.ok_or_else(|| {
            der::Error::from(Tag::ContextSpecific { constructed: true, number: TagNumber(0) }.value_error())
        })?;
        let bytes = whole(bytes, |reader| value(reader, Tag::Sequence))?;
        let (kind, basic) = whole(bytes, |reader| {
            Ok::<_, der::Error>((value(reader, Tag::ObjectIdentifier)?, value(reader, Tag::OctetString)?))
        })?;
        if kind != BASIC {
            return Err(OcspError::Unsupported { what: "a type" });
        }
        Self::read_basic(whole(basic, |reader| value(reader, Tag::Sequence))?)
    }

    /// Reads the contents of a `BasicOCSPResponse`.
    fn read_basic(contents: &'a [u8]) -> std::result::Result<Self, OcspError> {
        let (signed, algorithm, signature, certificates) = whole(contents, |reader| {
            let signed = sequence(reader)?;
            let algorithm = value(reader, Tag::Sequence)?;
            let signature = bits(value(reader, Tag::BitString)?)?;
            Ok::<_, der::Error>((signed, algorithm, signature, optional(reader, context(0))?))
        })?;
        let certificates = match certificates {
            Some(certificates) => elements(whole(certificates, |reader| value(reader, Tag::Sequence))?, sequence)?,
            None => Vec::new(),
        };
        let (responder, entries) = read_data(whole(signed, |reader| value(reader, Tag::Sequence))?)?;
        Ok(Self { signed, algorithm, signature, responder, certificates, entries })
    }
}

/// Reads the contents of a `ResponseData`.
fn read_data(contents: &[u8]) -> std::result::Result<(ResponderId<'_>, Vec<StatusEntry<'_>>), OcspError> {
    whole(contents, |reader| {
        if let Some(version) = optional(reader, context(0))?
            && whole(version, |reader| value(reader, Tag::Integer))? != [0]
        {
            return Err(OcspError::Unsupported { what: "a version" });
        }
        let responder = match optional(reader, context(1))? {
            Some(name) => ResponderId::Name(whole(name, sequence)?),
            None => ResponderId::KeyHash(whole(value(reader, context(2))?, |reader| value(reader, Tag::OctetString))?),
        };
        time(reader)?; // The time of the signature.
        let entries = elements(value(reader, Tag::Sequence)?, read_entry)?;
        refuse_critical(optional(reader, context(1))?)?;
        Ok((responder, entries))
    })
}

/// Reads a `SingleResponse`.
fn read_entry<'a>(reader: &mut SliceReader<'a>) -> std::result::Result<StatusEntry<'a>, OcspError> {
    whole(value(reader, Tag::Sequence)?, |reader| {
        let certificate = value(reader, Tag::Sequence)?;
        let status = read_status(reader)?;
        let this_update = time(reader)?;
        let next_update = optional(reader, context(0))?.map(|next| whole(next, time)).transpose()?;
        refuse_critical(optional(reader, context(1))?)?;
        whole(certificate, |reader| {
            let algorithm = value(reader, Tag::Sequence)?;
            let hash = Hash::named(value(&mut SliceReader::new(algorithm)?, Tag::ObjectIdentifier)?);
            let issuer_name_hash = value(reader, Tag::OctetString)?;
            let issuer_key_hash = value(reader, Tag::OctetString)?;
            let serial = value(reader, Tag::Integer)?;
            Ok(StatusEntry { hash, issuer_name_hash, issuer_key_hash, serial, status, this_update, next_update })
        })
    })
}

/// Reads a `CertStatus`.
fn read_status(reader: &mut SliceReader<'_>) -> Result<Status> {
    let tag = Tag::peek(reader)?;
    let contents = value(reader, tag)?;
    match tag {
        Tag::ContextSpecific { constructed: false, number: TagNumber(0) } if contents.is_empty() => Ok(Status::Good),
        Tag::ContextSpecific { constructed: false, number: TagNumber(2) } if contents.is_empty() => Ok(Status::Unknown),
        // The time of the revocation and the reason for it do not matter, so they are not checked.
        Tag::ContextSpecific { constructed: true, number: TagNumber(1) } => Ok(Status::Revoked),
        _ => Err(tag.value_error().into()),
    }
}

/// Refuses critical extensions. No other extension changes the meaning of a response.
fn refuse_critical(extensions: Option<&[u8]>) -> std::result::Result<(), OcspError> {
    let Some(extensions) = extensions else { return Ok(()) };
    each_extension(extensions, |extension| match extension.critical {
        true => Err(OcspError::Unsupported { what: "a critical extension" }),
        false => Ok(()),
    })
}

/// Reads all elements in `contents`.
fn elements<'a, T, E: From<der::Error>>(
    contents: &'a [u8],
    read: impl Fn(&mut SliceReader<'a>) -> std::result::Result<T, E>,
) -> std::result::Result<Vec<T>, E> {
    let mut reader = SliceReader::new(contents)?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(read(&mut reader)?);
    }
    Ok(elements)
}
