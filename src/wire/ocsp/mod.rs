//! What a server says of its certificate's revocation: OCSP responses (RFC 6960), as they are stapled to a TLS handshake.
//!
//! [`OcspResponse::read`] takes a response apart, [`ResponderId::is`] tells who may have signed it, and
//! [`OcspResponse::status_of`] what it says of a certificate at a time. Verifying the signature is the caller's part:
//! before that is done, nothing that a response says is to be believed.
//!
//! Nothing is decoded that is not needed, and everything borrows from the bytes of the response.

use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use thiserror::Error;

mod certificate;
mod element;
mod response;

pub use certificate::{Certificate, PublicKey};
pub use response::OcspResponse;

use element::Hash;

/// The longest response that is read, in bytes. Those of the authorities in use have 300 to 5,000.
pub const MAX_LENGTH: usize = 32 * 1024;

/// How far a responder's clock may be ahead of ours, in seconds: a response that was just made must not be refused by a
/// client whose clock is a little slow. There is no such tolerance at the other end, after
/// [`next_update`](StatusEntry::next_update) (OCSP Support specification, "Should drivers utilize a tolerance period").
pub const CLOCK_SKEW: u64 = 60;

/// How old a response may be, in seconds, that does not say when the next one comes. It would otherwise hold for ever
/// (RFC 6960, section 3.2: its time must be "sufficiently recent").
pub const MAX_AGE: u64 = 24 * 60 * 60;

/// Who has signed a response, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderId<'a> {
    /// By name, in DER.
    Name(&'a [u8]),
    /// By the SHA-1 hash of the public key.
    KeyHash(&'a [u8]),
}

impl ResponderId<'_> {
    /// Whether it is the one with this name, in DER, and this key. That says nothing of what it may sign.
    #[must_use]
    pub fn is(&self, name: &[u8], key: PublicKey<'_>) -> bool {
        match *self {
            Self::Name(own) => own == name,
            Self::KeyHash(hash) => hash == Sha1::digest(key.bits).as_slice(),
        }
    }
}

/// What a responder knows of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was not revoked.
    Good,
    /// It was revoked, for ever or for now.
    Revoked,
    /// Nothing.
    Unknown,
}

/// What a response says of one certificate. Times are in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusEntry<'a> {
    /// How the issuer's name and key are hashed, if that is known here.
    hash: Option<Hash>,
    issuer_name_hash: &'a [u8],
    issuer_key_hash: &'a [u8],
    serial: &'a [u8],
    /// Whether it was revoked.
    pub status: Status,
    /// When that was known to be right.
    pub this_update: u64,
    /// When more will be known, if the responder tells.
    pub next_update: Option<u64>,
}

impl StatusEntry<'_> {
    /// Whether this is about `certificate`, of the issuer with the key `issuer`.
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

    /// Whether it holds at the time `now` (RFC 6960, section 3.2, points 5 and 6).
    fn check_time(&self, now: u64) -> Result<(), OcspError> {
        if self.this_update > now.saturating_add(CLOCK_SKEW) {
            return Err(OcspError::NotYetValid { this_update: self.this_update, now });
        }
        let next_update = self.next_update.unwrap_or(self.this_update.saturating_add(MAX_AGE));
        if now >= next_update {
            return Err(OcspError::Expired { next_update, now });
        }
        Ok(())
    }
}

impl OcspResponse<'_> {
    /// What it says at the time `now`, in seconds since 1970, of `certificate`, of the issuer with the key `issuer`.
    ///
    /// If it says several things of it, all of them must be in time, and the worst counts.
    ///
    /// # Errors
    ///
    /// [`NotCovered`](OcspError::NotCovered), [`NotYetValid`](OcspError::NotYetValid) or
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
}

/// Why what a server has stapled about its certificate, or not stapled, is not accepted.
///
/// A certificate that was revoked is not among these: that is a response that was accepted.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OcspError {
    /// The certificate demands that a response is stapled (Must-Staple, RFC 7633), and there is none.
    #[error("the server has stapled no OCSP response, but its certificate demands one (Must-Staple)")]
    Missing,
    /// It is longer than [`MAX_LENGTH`].
    #[error("the stapled OCSP response is {length} bytes long, but must be at most {}", MAX_LENGTH)]
    Length {
        /// Its length, in bytes.
        length: usize,
    },
    /// It is not encoded as RFC 6960 wants it, or in DER.
    #[error("the stapled OCSP response is malformed: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// It tells nothing but that the responder had no answer.
    #[error("the stapled OCSP response is none: responseStatus is {status}, but must be 0 (successful)")]
    Unsuccessful {
        /// The `responseStatus`.
        status: u8,
    },
    /// It is of a type that wharf does not know, or has a critical extension that it does not know.
    #[error("the stapled OCSP response has {what} that wharf does not know")]
    Unsupported {
        /// What it has.
        what: &'static str,
    },
    /// Who signed it is neither the issuer of the server's certificate nor authorised by it.
    #[error("the stapled OCSP response is signed by nobody whom the certificate's issuer has authorised")]
    Unauthorized,
    /// The signature is wrong, or made in a way that wharf does not accept, such as with SHA-1.
    #[error("the signature of the stapled OCSP response is wrong or of an algorithm that is not accepted")]
    Signature,
    /// It is about other certificates.
    #[error("the stapled OCSP response is about another certificate")]
    NotCovered,
    /// It is from the future, by more than [`CLOCK_SKEW`].
    #[error("the stapled OCSP response is from the future: thisUpdate is {this_update}, and now is {now}")]
    NotYetValid {
        /// When it begins to hold, in seconds since 1970.
        this_update: u64,
        /// The current time, in seconds since 1970.
        now: u64,
    },
    /// It does not hold any more.
    #[error("the stapled OCSP response has expired: nextUpdate is {next_update}, and now is {now}")]
    Expired {
        /// When it ended to hold, in seconds since 1970: its `nextUpdate`, or [`MAX_AGE`] after its `thisUpdate`.
        next_update: u64,
        /// The current time, in seconds since 1970.
        now: u64,
    },
}

crate::error::debug_as_sentence!(OcspError);

impl From<der::Error> for OcspError {
    fn from(error: der::Error) -> Self {
        Self::Malformed { reason: error.to_string() }
    }
}
