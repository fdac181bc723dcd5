//! What must be known of a certificate to look for it in an OCSP response.

use der::{Error, Reader, Result, SliceReader, Tag};

use super::element::{bits, context, each_extension, optional, sequence, value, whole};

/// id-pe-tlsfeature (RFC 7633).
const TLS_FEATURE: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x18];

/// The number of the TLS extension status_request, by which a client asks for a stapled response.
const STATUS_REQUEST: &[u8] = &[5];

/// A public key, as it stands in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey<'a> {
    /// Its `AlgorithmIdentifier`, in DER without tag and length.
    pub algorithm: &'a [u8],
    /// The key itself.
    pub bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    /// Reads a `SubjectPublicKeyInfo` from its contents: in DER without tag and length.
    ///
    /// # Errors
    ///
    /// If it is malformed.
    pub fn read(contents: &'a [u8]) -> Result<Self> {
        whole(contents, |reader| {
            let algorithm = value(reader, Tag::Sequence)?;
            Ok(Self { algorithm, bits: bits(value(reader, Tag::BitString)?)? })
        })
    }
}

/// A part of a certificate (RFC 5280). Nothing is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// The contents of its serial number.
    pub serial: &'a [u8],
    /// Its issuer's name, in DER.
    pub issuer: &'a [u8],
    /// Its own name, in DER.
    pub subject: &'a [u8],
    /// Its key.
    pub public_key: PublicKey<'a>,
    /// Whether its server has to staple an OCSP response: Must-Staple (RFC 7633).
    pub must_staple: bool,
}

impl<'a> Certificate<'a> {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    ///
    /// If it is malformed.
    pub fn read(certificate: &'a [u8]) -> Result<Self> {
        let certificate = whole(certificate, |reader| value(reader, Tag::Sequence))?;
        let signed = value(&mut SliceReader::new(certificate)?, Tag::Sequence)?;
        whole(signed, |reader| {
            optional(reader, context(0))?; // the version
            let serial = value(reader, Tag::Integer)?;
            value(reader, Tag::Sequence)?; // the algorithm of the signature
            let issuer = sequence(reader)?;
            value(reader, Tag::Sequence)?; // the validity
            let subject = sequence(reader)?;
            let public_key = PublicKey::read(value(reader, Tag::Sequence)?)?;
            let mut must_staple = false;
            while !reader.is_finished() {
                match optional(reader, context(3))? {
                    Some(extensions) => must_staple |= demands_staple(extensions)?,
                    // A unique identifier.
                    None => drop(reader.tlv_bytes()?),
                }
            }
            Ok(Self { serial, issuer, subject, public_key, must_staple })
        })
    }
}

fn demands_staple(extensions: &[u8]) -> Result<bool> {
    let mut demands = false;
    each_extension(extensions, |extension| {
        if extension.identifier == TLS_FEATURE {
            let mut features = SliceReader::new(whole(extension.value, |reader| value(reader, Tag::Sequence))?)?;
            while !features.is_finished() {
                demands |= value(&mut features, Tag::Integer)? == STATUS_REQUEST;
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(demands)
}
