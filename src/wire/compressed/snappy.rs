//! Snappy, in its format without frames, which says the length of its content first.

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};

use super::codec::yields;

/// The table that the encoder finds repetitions with, once there was something to compress.
#[derive(Default)]
pub(super) struct Snappy {
    encoder: Option<Box<Encoder>>,
}

/// No compressed byte stands for more bytes than this: the longest copy yields 64 from three.
const GREATEST_RATIO: usize = 22;

impl Snappy {
    pub const fn new() -> Self {
        Self { encoder: None }
    }

    /// Appends `content`, compressed.
    pub fn compress(&mut self, content: &[u8], buffer: &mut Vec<u8>) -> Result<(), String> {
        let start = buffer.len();
        // The library writes into initialized bytes only.
        buffer.resize(start + max_compress_len(content.len()), 0);
        let encoder = self.encoder.get_or_insert_with(|| Box::new(Encoder::new()));
        let length = encoder.compress(content, &mut buffer[start..]).map_err(|error| error.to_string())?;
        buffer.truncate(start + length);
        Ok(())
    }

    /// Appends what `content` yields, which is refused if it is not `expected` bytes.
    pub fn decompress(&mut self, content: &[u8], expected: usize, buffer: &mut Vec<u8>) -> Result<(), String> {
        // The room that is made is in proportion to what was received.
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
