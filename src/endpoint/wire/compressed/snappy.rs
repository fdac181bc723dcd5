//! Snappy in its unframed format, which begins with the length of its content.

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};

use super::codec::yields;

/// The encoder's table of repetitions, created on first use.
#[derive(Default)]
pub(super) struct Snappy {
    encoder: Option<Box<Encoder>>,
}

/// The maximum number of bytes that one compressed byte yields: the longest copy yields 64 bytes from three.
const GREATEST_RATIO: usize = 22;

impl Snappy {
    pub const fn new() -> Self {
        Self { encoder: None }
    }

    /// Compresses `content`, and appends the result.
    pub fn compress(&mut self, content: &[u8], buffer: &mut Vec<u8>) -> Result<(), String> {
        let start = buffer.len();
        // The library writes only into initialized bytes.
        buffer.resize(start + max_compress_len(content.len()), 0);
        let encoder = self.encoder.get_or_insert_with(|| Box::new(Encoder::new()));
        let length = encoder.compress(content, &mut buffer[start..]).map_err(|error| error.to_string())?;
        buffer.truncate(start + length);
        Ok(())
    }

    /// Appends the decompressed `content`. Refuses content that does not yield `expected` bytes.
    pub fn decompress(&mut self, content: &[u8], expected: usize, buffer: &mut Vec<u8>) -> Result<(), String> {
        // Check the length first, so that the reserved memory is in proportion to the received bytes.
        let length = decompress_len(content).map_err(|error| error.to_string())?;
        if length != expected || expected / GREATEST_RATIO > content.len() {
            return Err(yields(length, expected));
        }
        let start = buffer.len();
        buffer.resize(start + expected, 0);
        let length = Decoder::new().decompress(content, &mut buffer[start..]).map_err(|error| error.to_string())?;
        buffer.truncate(start + length);
        Ok(())
    }
}
