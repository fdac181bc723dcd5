//! OCSP (RFC 6960): requests and responses about a server's certificate. Responses come stapled to a TLS handshake, or from
//! a responder.
//!
//! [`OcspResponse::read`] parses a response, [`ResponderId::is`] identifies a possible signer, and
//! [`OcspResponse::status_of`] returns the status of a certificate at a given time. The caller must verify the
//! signature: before that, nothing in a response can be trusted.
//!
//! Only the needed parts are decoded, and everything borrows from the bytes of the response.

use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use thiserror::Error;

mod certificate;
mod element;
mod request;
mod response;

pub use certificate::{Certificate, PublicKey};
pub use request::CertificateId;
pub use response::OcspResponse;

use element::Hash;

/// The maximum length of a response, in bytes. Responses from current authorities are 300 to 5,000 bytes long.
pub const MAX_LENGTH: usize = 32 * 1024;

/// How far a responder's clock may be ahead of the client's clock, in seconds: a client with a slow clock must not
/// refuse a response that has just been produced. This tolerance does not apply after
/// [`next_update`](StatusEntry::next_update) (OCSP Support specification, "Should drivers utilize a tolerance period").
pub const CLOCK_SKEW: u64 = 60;

/// The maximum age of a response without a `nextUpdate`, in seconds. Without this limit, it would be valid forever (RFC
/// 6960, section 3.2: its time must be "sufficiently recent").
pub const MAX_AGE: u64 = 24 * 60 * 60;

/// Identifies the signer of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderId<'a> {
    /// The signer's name, in DER.
    Name(&'a [u8]),
    /// The SHA-1 hash of the signer's public key.
    KeyHash(&'a [u8]),
}

impl ResponderId<'_> {
    /// Returns whether this identifies the signer with this name, in DER, and this key. Does not check whether the
    /// signer is authorised.
    #[must_use]
    pub fn is(&self, name: &[u8], key: PublicKey<'_>) -> bool {
        match *self {
            Self::Name(own) => own == name,
            Self::KeyHash(hash) => hash == Sha1::digest(key.bits).as_slice(),
        }
    }
}

/// The status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The certificate is not revoked.
    Good,
    /// The certificate is revoked, permanently or temporarily.
    Revoked,
    /// The responder does not know the certificate.
    Unknown,
}

/// A response's entry about one certificate. Times are in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusEntry<'a> {
    /// The hash function for the issuer's name and key, if wharf knows it.
    hash: Option<Hash>,
    issuer_name_hash: &'a [u8],
    issuer_key_hash: &'a [u8],
    serial: &'a [u8],
    /// The status of the certificate.
    pub status: Status,
    /// The time at which the status was known to be correct.
    pub this_update: u64,
    /// The time at which newer information will be available, if the response says so.
    pub next_update: Option<u64>,
}

impl StatusEntry<'_> {
    /// Returns whether this entry is about `certificate`, whose issuer has the key `issuer`.
    #[must_use]
    pub fn covers(&self, certificate: &Certificate<'_>, issuer: PublicKey<'_>) -> bool {
        let hashes = |hash: fn(&[u8]) -> Vec<u8>| {
            self.issuer_name_hash == hash(certificate.issuer) && self.issuer_key_hash == hash(issuer.bits)
        };
        self.serial == certificate.serial
            && match self.hash {
                None => false,
                Some(Hash::Sha1) => hashes(|bytes| Sha1::digest(bytes).to_vec()),
                Some(Hash::Sha256) => hashes(|bytes| Sha256::digest(bytes).to_vec()),
                Some(Hash::Sha384) => hashes(|bytes| Sha384::digest(bytes).to_vec()),
                Some(Hash::Sha512) => hashes(|bytes| Sha512::digest(bytes).to_vec()),
            }
    }

    /// Returns the end of the entry's validity, exclusive.
    fn valid_until(&self) -> u64 {
        self.next_update.unwrap_or(self.this_update.saturating_add(MAX_AGE))
    }

    /// Checks that the entry is valid at the time `now` (RFC 6960, section 3.2, points 5 and 6).
    fn check_time(&self, now: u64) -> Result<(), OcspError> {
        if self.this_update > now.saturating_add(CLOCK_SKEW) {
            return Err(OcspError::NotYetValid { this_update: self.this_update, now });
        }
        let next_update = self.valid_until();
        if now >= next_update {
            return Err(OcspError::Expired { next_update, now });
        }
        Ok(())
    }
}

impl OcspResponse<'_> {
    /// Returns the status of `certificate`, whose issuer has the key `issuer`, at the time `now`, in seconds since
    /// 1970.
    ///
    /// If the response has several entries about the certificate, all must be valid at that time, and the worst status
    /// applies.
    ///
    /// # Errors
    ///
    /// Returns [`NotCovered`](OcspError::NotCovered), [`NotYetValid`](OcspError::NotYetValid) or
    /// [`Expired`](OcspError::Expired).
    pub fn status_of(
        &self,
        certificate: &Certificate<'_>,
        issuer: PublicKey<'_>,
        now: u64,
    ) -> Result<Status, OcspError> {
        let mut worst = None;
        for entry in self.entries.iter().filter(|entry| entry.covers(certificate, issuer)) {
            entry.check_time(now)?;
            worst = match (worst, entry.status) {
                (Some(Status::Revoked), _) | (_, Status::Revoked) => Some(Status::Revoked),
                (Some(Status::Unknown), _) | (_, Status::Unknown) => Some(Status::Unknown),
                (_, Status::Good) => Some(Status::Good),
            };
        }
        worst.ok_or(OcspError::NotCovered)
    }

    /// Returns the exclusive end of the response's validity for `certificate`, whose issuer has the key `issuer`, in
    /// seconds since 1970. Returns 0 if the response is about other certificates.
    #[must_use]
    pub fn valid_until(&self, certificate: &Certificate<'_>, issuer: PublicKey<'_>) -> u64 {
        let covering = self.entries.iter().filter(|entry| entry.covers(certificate, issuer));
        covering.map(StatusEntry::valid_until).min().unwrap_or(0)
    }
}

/// Why a server's stapled OCSP response, or its absence, is not accepted.
///
/// A revoked certificate is not among the reasons: in that case the response was accepted.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OcspError {
    /// The certificate requires a stapled response (Must-Staple, RFC 7633), and there is none.
    #[error("the server stapled no OCSP response, but its certificate requires one (Must-Staple)")]
    Missing,
    /// The response is longer than `MAX_LENGTH`.
    #[error("the stapled OCSP response must be at most {} bytes long, got {length}", MAX_LENGTH)]
    Length {
        /// The response's length, in bytes.
        length: usize,
    },
    /// The response is not encoded in DER as RFC 6960 defines it.
    #[error("the stapled OCSP response is malformed: {reason}")]
    Malformed {
        /// The reason.
        reason: String,
    },
    /// The response only says that the responder had no answer.
    #[error("the stapled OCSP response has no answer: responseStatus must be 0 (successful), got {status}")]
    Unsuccessful {
        /// The `responseStatus`.
        status: u8,
    },
    /// The response has a type, a version or a critical extension that wharf does not support.
    #[error("the stapled OCSP response has {what} that is not supported")]
    Unsupported {
        /// The unsupported part.
        what: &'static str,
    },
    /// The signer is neither the issuer of the server's certificate nor authorised by it.
    #[error("the signer of the stapled OCSP response is not authorised by the issuer of the server's certificate")]
    Unauthorized,
    /// The signature is wrong, or uses an algorithm that wharf does not accept, such as SHA-1.
    #[error("the signature of the stapled OCSP response is wrong, or its algorithm is not accepted")]
    Signature,
    /// The response is about other certificates.
    #[error("the stapled OCSP response is about another certificate")]
    NotCovered,
    /// The response becomes valid more than `CLOCK_SKEW` in the future.
    #[error("the stapled OCSP response is not valid yet: thisUpdate is {this_update}, and now is {now}")]
    NotYetValid {
        /// When the response becomes valid, in seconds since 1970.
        this_update: u64,
        /// The current time, in seconds since 1970.
        now: u64,
    },
    /// The response is no longer valid.
    #[error("the stapled OCSP response has expired: nextUpdate is {next_update}, and now is {now}")]
    Expired {
        /// When the validity ended, in seconds since 1970: at `nextUpdate`, or `MAX_AGE` after `thisUpdate`.
        next_update: u64,
        /// The current time, in seconds since 1970.
        now: u64,
    },
}

crate::pool::error::debug_as_sentence!(OcspError);

impl From<der::Error> for OcspError {
    fn from(error: der::Error) -> Self {
        Self::Malformed { reason: error.to_string() }
    }
}
