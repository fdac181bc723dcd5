//! The header before every message. It holds the message's length, its number, the number of the message that it
//! answers, and its operation.

use std::cmp::Ordering;

use super::WireError;

/// The header before every message. All four fields are little-endian 32-bit integers.
///
/// ```
/// use wharf::unstable::wire::{Header, header, op_msg};
///
/// let header = Header { message_length: 38, request_id: 7, response_to: 0, op_code: op_msg::OP_CODE };
/// let mut bytes = Vec::new();
/// header.write(&mut bytes);
/// assert_eq!(bytes.len(), header::LENGTH);
/// assert_eq!(Header::read(&bytes, 48_000_000), Ok(Some(header)));
/// assert_eq!(Header::read(&bytes[..15], 48_000_000), Ok(None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The length of the whole message in bytes, including this header.
    pub message_length: u32,
    /// The number that the sender gave the message.
    pub request_id: i32,
    /// The number of the message that this one answers; 0 in a request.
    pub response_to: i32,
    /// The operation, which determines the format of the bytes after the header.
    pub op_code: i32,
}

/// The length of a header in bytes.
pub const LENGTH: usize = 16;

impl Header {
    /// Reads the header at the start of `bytes`. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Length`] if the message would be shorter than its own header, or longer than
    /// `max_message_size` bytes.
    #[inline]
    pub fn read(bytes: &[u8], max_message_size: u32) -> Result<Option<Self>, WireError> {
        let Some(fields) = bytes.first_chunk::<LENGTH>() else { return Ok(None) };
        let field = |at: usize| i32::from_le_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let declared = field(0);
        let message_length = match u32::try_from(declared) {
            Ok(length) if length as usize >= LENGTH && length <= max_message_size => length,
            _ => return Err(impossible(declared, max_message_size)),
        };
        Ok(Some(Self { message_length, request_id: field(4), response_to: field(8), op_code: field(12) }))
    }

    /// Reads the header of a message. `bytes` must be exactly one whole message.
    ///
    /// # Errors
    ///
    /// The same as for [`read`](Self::read), and [`WireError::Truncated`] or [`WireError::Unasked`] if the bytes are
    /// not exactly one whole message.
    pub fn of_whole(bytes: &[u8], max_message_size: u32) -> Result<Self, WireError> {
        let Some(header) = Self::read(bytes, max_message_size)? else {
            let available = bytes.len() as u64;
            return Err(WireError::Truncated { field: "header", needed: LENGTH as u64, available });
        };
        header.check_whole(bytes)?;
        Ok(header)
    }

    /// Checks that `bytes`, which begin with this header, are exactly the whole message.
    #[inline]
    pub(crate) fn check_whole(&self, bytes: &[u8]) -> Result<(), WireError> {
        let (available, needed) = (bytes.len() as u64, u64::from(self.message_length));
        match available.cmp(&needed) {
            Ordering::Less => Err(WireError::Truncated { field: "message", needed, available }),
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(WireError::Unasked { count: available - needed }),
        }
    }

    /// Appends the header's sixteen bytes.
    pub fn write(&self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(&self.to_bytes());
    }

    /// Returns the header's sixteen bytes.
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&self.message_length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.request_id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.response_to.to_le_bytes());
        bytes[12..].copy_from_slice(&self.op_code.to_le_bytes());
        bytes
    }
}

/// Returns the error for a header that declares an impossible length.
#[cold]
fn impossible(declared: i32, max_message_size: u32) -> WireError {
    let (least, most) = (LENGTH as u64, max_message_size.into());
    WireError::Length { field: "messageLength", value: declared.into(), least, most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_out_of_range_is_refused_by_name_value_and_range() {
        for (declared, shown) in [(0_i32, "0"), (15, "15"), (-1, "-1"), (1_001, "1001"), (i32::MIN, "-2147483648")] {
            let mut bytes = [0; LENGTH];
            bytes[..4].copy_from_slice(&declared.to_le_bytes());
            let error = Header::read(&bytes, 1_000).unwrap_err();
            assert_eq!(error.to_string(), format!("messageLength must be 16 to 1000 bytes, got {shown}"));
        }
    }
}
