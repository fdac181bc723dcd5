//! The parts of a certificate that are needed to find it in an OCSP response, or to accept it without a chain.

use der::{Error, Reader, Result, SliceReader, Tag, TagNumber};

use super::element::{bits, context, each_extension, optional, sequence, utc_or_generalized_time, value, whole};

/// id-pe-tlsfeature (RFC 7633).
const TLS_FEATURE: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x18];

/// The number of the TLS extension status_request, with which a client requests a stapled response.
const STATUS_REQUEST: &[u8] = &[5];

/// id-ce-keyUsage (RFC 5280, section 4.2.1.3).
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];

/// digitalSignature, keyEncipherment and keyAgreement. A TLS handshake uses a key in one of these ways.
const HANDSHAKE_USAGES: u8 = 0b1010_1000;

/// id-ce-extKeyUsage (RFC 5280, section 4.2.1.12).
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];

/// id-kp-serverAuth.
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// id-pe-authorityInfoAccess (RFC 5280, section 4.2.2.1).
const AUTHORITY_INFORMATION: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x01];

/// id-ad-ocsp: the address of a responder.
const RESPONDER: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01];

/// A public key, as encoded in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey<'a> {
    /// The key's `AlgorithmIdentifier`, in DER without tag and length.
    pub algorithm: &'a [u8],
    /// The key itself.
    pub bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    /// Reads a `SubjectPublicKeyInfo` from its contents, in DER without tag and length.
    ///
    /// # Errors
    ///
    /// Returns an error if it is malformed.
    pub fn read(contents: &'a [u8]) -> Result<Self> {
        whole(contents, |reader| {
            let algorithm = value(reader, Tag::Sequence)?;
            Ok(Self { algorithm, bits: bits(value(reader, Tag::BitString)?)? })
        })
    }

    /// Reads a whole `SubjectPublicKeyInfo` in DER.
    pub(crate) fn of_info(info: &'a [u8]) -> Result<Self> {
        Self::read(whole(info, |reader| value(reader, Tag::Sequence))?)
    }
}

/// Some parts of a certificate (RFC 5280). Nothing is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// The serial number, in DER without tag and length.
    pub serial: &'a [u8],
    /// The issuer's name, in DER.
    pub issuer: &'a [u8],
    /// The subject's name, in DER.
    pub subject: &'a [u8],
    /// The subject's key.
    pub public_key: PublicKey<'a>,
    /// Whether the server must staple an OCSP response: Must-Staple (RFC 7633).
    pub must_staple: bool,
    /// The contents of the `Validity`: see [`valid_between`](Self::valid_between).
    pub validity: &'a [u8],
    /// The `Extensions`, in DER.
    pub extensions: Option<&'a [u8]>,
}

impl<'a> Certificate<'a> {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    ///
    /// Returns an error if it is malformed.
    pub fn read(certificate: &'a [u8]) -> Result<Self> {
        let certificate = whole(certificate, |reader| value(reader, Tag::Sequence))?;
        let signed = value(&mut SliceReader::new(certificate)?, Tag::Sequence)?;
        whole(signed, |reader| {
            optional(reader, context(0))?; // The version.
            let serial = value(reader, Tag::Integer)?;
            value(reader, Tag::Sequence)?; // The algorithm of the signature.
            let issuer = sequence(reader)?;
            let validity = value(reader, Tag::Sequence)?;
            let subject = sequence(reader)?;
            let public_key = PublicKey::read(value(reader, Tag::Sequence)?)?;
            let mut extensions = None;
            let mut must_staple = false;
            while !reader.is_finished() {
                match optional(reader, context(3))? {
                    Some(found) => {
                        must_staple |= demands_staple(found)?;
                        extensions = Some(found);
                    }
                    // A unique identifier.
                    None => drop(reader.tlv_bytes()?),
                }
            }
            Ok(Self { serial, issuer, subject, public_key, must_staple, validity, extensions })
        })
    }

    /// Returns whether the certificate names its own subject as its issuer.
    #[must_use]
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Returns the start and the end of the validity period, both inclusive, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// Returns an error if either time is malformed or before 1970.
    pub fn valid_between(&self) -> Result<(u64, u64)> {
        whole(self.validity, |reader| Ok((utc_or_generalized_time(reader)?, utc_or_generalized_time(reader)?)))
    }

    /// Returns the URLs of the responders that know the certificate's status. URLs that are not valid UTF-8 are left
    /// out.
    ///
    /// # Errors
    ///
    /// Returns an error if the extensions are malformed.
    pub fn responders(&self) -> Result<Vec<&'a str>> {
        let url = Tag::ContextSpecific { constructed: false, number: TagNumber(6) };
        let mut responders = Vec::new();
        let Some(extensions) = self.extensions else { return Ok(responders) };
        each_extension(extensions, |extension| {
            if extension.identifier == AUTHORITY_INFORMATION {
                let mut list = SliceReader::new(whole(extension.value, |reader| value(reader, Tag::Sequence))?)?;
                while !list.is_finished() {
                    let mut entry = SliceReader::new(value(&mut list, Tag::Sequence)?)?;
                    if value(&mut entry, Tag::ObjectIdentifier)? == RESPONDER
                        && let Some(found) = optional(&mut entry, url)?
                    {
                        responders.extend(std::str::from_utf8(found));
                    }
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok(responders)
    }

    /// Returns whether a TLS server may use the key. If the certificate does not restrict the usage, every usage is
    /// allowed.
    ///
    /// # Errors
    ///
    /// Returns an error if the extensions are malformed.
    pub fn is_for_servers(&self) -> Result<bool> {
        let mut is_for_servers = true;
        let Some(extensions) = self.extensions else { return Ok(true) };
        each_extension(extensions, |extension| {
            is_for_servers &= match extension.identifier {
                KEY_USAGE => allows_handshakes(extension.value)?,
                EXTENDED_KEY_USAGE => allows_server_authentication(extension.value)?,
                _ => true,
            };
            Ok::<_, Error>(())
        })?;
        Ok(is_for_servers)
    }
}

fn allows_handshakes(key_usage: &[u8]) -> Result<bool> {
    match whole(key_usage, |reader| value(reader, Tag::BitString))? {
        // The first byte is the number of unused bits. The usages for a handshake are all in the second byte.
        [_, usages, ..] => Ok(usages & HANDSHAKE_USAGES != 0),
        _ => Ok(false),
    }
}

fn allows_server_authentication(extended_key_usage: &[u8]) -> Result<bool> {
    let mut purposes = SliceReader::new(whole(extended_key_usage, |reader| value(reader, Tag::Sequence))?)?;
    let mut allows = false;
    while !purposes.is_finished() {
        allows |= value(&mut purposes, Tag::ObjectIdentifier)? == SERVER_AUTH;
    }
    Ok(allows)
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
