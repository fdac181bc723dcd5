//! Recognises, by the first bytes of its answer, a peer that is not a MongoDB server or that unexpectedly uses TLS.

use thiserror::Error;

use crate::endpoint::wire::PeerText;

/// The peer answered the first hello in a protocol other than MongoDB's. A retry does not help.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ForeignProtocolError {
    /// A TLS record, which a server sends to refuse a client that does not begin with a TLS handshake.
    #[error("the server answered in TLS: set tls=true")]
    Tls,
    /// An HTTP response.
    #[error("the peer answered in HTTP ({start:?}): is this a MongoDB server?")]
    #[non_exhaustive]
    Http {
        /// The first line of the answer.
        start: PeerText,
    },
    /// Text in an unknown protocol.
    #[error("the peer answered with text ({start:?}): is this a MongoDB server?")]
    #[non_exhaustive]
    Text {
        /// The first line of the answer.
        start: PeerText,
    },
}

crate::pool::error::debug_as_sentence!(ForeignProtocolError);

/// How many bytes of the text are examined and shown.
const START: usize = 64;

impl ForeignProtocolError {
    /// Returns the protocol that the first bytes of an answer suggest, if they cannot begin a message in MongoDB's
    /// protocol.
    ///
    /// Four characters of text would announce a length of at least 151 million bytes, so text is never mistaken for a
    /// message.
    pub(super) fn of(received: &[u8]) -> Option<Self> {
        // SSL 3.0 records are left out, because they begin like messages of 788 to 791 bytes.
        if let [0x14..=0x17, 0x03, 0x01..=0x04, ..] = received {
            return Some(Self::Tls);
        }
        let start = &received[..received.len().min(START)];
        let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        if start.len() < 4 || !start.iter().all(is_text) {
            return None;
        }
        let line = start.split(|byte| matches!(byte, b'\r' | b'\n')).find(|line| !line.is_empty()).unwrap_or_default();
        let line = PeerText::of(String::from_utf8_lossy(line));
        Some(if start.starts_with(b"HTTP/") { Self::Http { start: line } } else { Self::Text { start: line } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_protocols_are_recognised_by_their_first_bytes() {
        let shown = |bytes: &[u8]| ForeignProtocolError::of(bytes).map(|answer| answer.to_string());
        let http = "the peer answered in HTTP (\"HTTP/1.1 400 Bad Request\"): is this a MongoDB server?";
        assert_eq!(shown(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n").as_deref(), Some(http));
        let ssh = "the peer answered with text (\"SSH-2.0-OpenSSH_9.2\"): is this a MongoDB server?";
        assert_eq!(shown(b"SSH-2.0-OpenSSH_9.2\r\n").as_deref(), Some(ssh));
        assert_eq!(shown(&[0x15, 3, 1, 0, 2, 2, 70]).as_deref(), Some("the server answered in TLS: set tls=true"));
        let long = shown(&b"x".repeat(1_000_000)).unwrap();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn possible_start_of_a_message_is_not_foreign() {
        let header = [0x26, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0xdd, 7, 0, 0];
        for received in [&header[..], &header[..3], b"", b"HTT", b"HTTP\x00", &[0xff; 20], &[0x15, 3], &[0x15, 4, 1]] {
            assert_eq!(ForeignProtocolError::of(received), None, "{received:?}");
        }
        for length in 0..10_000_i32 {
            let mut received = header;
            received[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(ForeignProtocolError::of(&received), None, "{length}");
        }
    }
}
