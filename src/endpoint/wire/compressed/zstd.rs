//! Zstandard, as a single frame.

use std::io::Cursor;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{compress_bound, find_frame_compressed_size, get_error_name, get_frame_content_size};

use super::codec::yields;

/// The contexts, created on first use.
#[derive(Default)]
pub(super) struct Zstd {
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

/// The level that selects the library's default.
const DEFAULT_LEVEL: i32 = 0;

impl Zstd {
    pub const fn new() -> Self {
        Self { compressor: None, decompressor: None }
    }

    /// Appends the compressed `content`.
    pub fn compress(&mut self, content: &[u8], buffer: &mut Vec<u8>) -> Result<(), String> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            slot => slot.insert(Compressor::new(DEFAULT_LEVEL).map_err(|error| error.to_string())?),
        };
        buffer.reserve(compress_bound(content.len()));
        compressor.compress_to_buffer(content, &mut after_end(buffer)).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Decompresses `content`, and appends the result if it fits in the reserved memory.
    ///
    /// The whole frame is decompressed in a single call, so that the library uses the buffer itself as its window. No
    /// memory is allocated for the window that the frame declares, however large it is.
    pub fn decompress(&mut self, content: &[u8], expected: usize, buffer: &mut Vec<u8>) -> Result<(), String> {
        let frame = find_frame_compressed_size(content).map_err(|code| get_error_name(code).to_owned())?;
        if frame != content.len() {
            return Err(format!("{} bytes follow its end", content.len() - frame));
        }
        match get_frame_content_size(content) {
            Ok(Some(length)) if length != expected as u64 => return Err(yields(length as usize, expected)),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        match most_yielded(content) {
            Some(most) if most >= expected as u64 => {}
            _ => return Err(format!("its blocks cannot yield {expected} bytes")),
        }
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            slot => slot.insert(Decompressor::new().map_err(|error| error.to_string())?),
        };
        buffer.reserve_exact(expected);
        decompressor.decompress_to_buffer(content, &mut after_end(buffer)).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The maximum number of bytes that one block can yield (RFC 8878, section 3.1.1.2.4).
const LARGEST_BLOCK: u64 = 128 * 1024;

/// Returns how many bytes a frame can yield, according to the headers of its blocks, before any memory is reserved for
/// the declared length. Returns `None` if the frame is truncated (RFC 8878, section 3.1.1).
fn most_yielded(frame: &[u8]) -> Option<u64> {
    let descriptor = *frame.get(4)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size = [usize::from(is_single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
    let mut rest = frame.get(5 + window + dictionary + content_size..)?;
    let mut most = 0;
    loop {
        let [low, middle, high] = *rest.first_chunk()?;
        let header = u32::from_le_bytes([low, middle, high, 0]);
        let size = header >> 3;
        let (length, yields) = match header >> 1 & 3 {
            // A raw block, or a repeated byte.
            0 => (size, size.into()),
            1 => (1, size.into()),
            _ => (size, LARGEST_BLOCK),
        };
        most += yields;
        if header & 1 != 0 {
            return Some(most);
        }
        rest = rest.get(3 + length as usize..)?;
    }
}

/// Returns a cursor that appends to `buffer`.
fn after_end(buffer: &mut Vec<u8>) -> Cursor<&mut Vec<u8>> {
    let end = buffer.len() as u64;
    let mut cursor = Cursor::new(buffer);
    cursor.set_position(end);
    cursor
}
