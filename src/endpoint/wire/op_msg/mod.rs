//! `OP_MSG`: the operation that carries every command and every reply.
//!
//! A message is a header, 32 flag bits, sections in any order, and a CRC-32C if the flags say so. Exactly one section
//! is a document, the *body* (payload type 0). Each other section is a named *sequence* of documents (payload type 1).

mod decode;
mod encode;

#[cfg(test)]
mod tests;

pub use decode::{Documents, Limits, Message, Sequence};
pub use encode::{Outgoing, OutgoingDocuments, OutgoingSequence, encode, encode_with};

use super::WireError;

/// The operation's number in the header.
pub const OP_CODE: i32 = 2013;

/// The payload type of a body.
const BODY: u8 = 0;
/// The payload type of a document sequence.
const SEQUENCE: u8 = 1;
/// The length of a checksum in bytes.
const CHECKSUM_LENGTH: usize = 4;

/// The flag bits of a message. Only defined bits can be set.
///
/// ```
/// use wharf::unstable::wire::Flags;
///
/// let flags = Flags::CHECKSUM_PRESENT.with(Flags::MORE_TO_COME);
/// assert!(flags.contains(Flags::MORE_TO_COME));
/// assert_eq!(Flags::from_bits(flags.bits()), Ok(flags));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// `checksumPresent`: the message ends with its CRC-32C.
    pub const CHECKSUM_PRESENT: Self = Self(1);
    /// `moreToCome`: no reply to this request is expected, or another reply follows this one without a new request.
    pub const MORE_TO_COME: Self = Self(1 << 1);
    /// `exhaustAllowed`: the sender of this request accepts replies with `moreToCome`.
    pub const EXHAUST_ALLOWED: Self = Self(1 << 16);

    /// The bits that a receiver must understand.
    const REQUIRED: u32 = 0xffff;

    /// Returns the flags in `bits`, and ignores undefined optional bits.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::FlagBits`] if an undefined bit among the required bits (the low 16) is set.
    pub fn from_bits(bits: u32) -> Result<Self, WireError> {
        let required = Self::CHECKSUM_PRESENT.with(Self::MORE_TO_COME).0;
        if bits & Self::REQUIRED & !required != 0 {
            return Err(WireError::FlagBits { value: bits, allowed: required });
        }
        Ok(Self(bits & (required | Self::EXHAUST_ALLOWED.0)))
    }

    /// Returns all 32 bits, as sent.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether every flag of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
