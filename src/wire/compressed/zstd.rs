//! Zstandard: one frame.

use std::io::Cursor;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{compress_bound, find_frame_compressed_size, get_error_name, get_frame_content_size};

use super::codec::yields;

/// The contexts, once they were needed.
#[derive(Default)]
pub(super) struct Zstd {
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

/// The level that stands for the library's own choice.
const DEFAULT_LEVEL: i32 = 0;

impl Zstd {
    pub const fn new() -> Self {
        Self { compressor: None, decompressor: None }
    }

    /// Appends `content`, compressed.
    pub fn compress(&mut self, content: &[u8], buffer: &mut Vec<u8>) -> Result<(), String> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            slot => slot.insert(Compressor::new(DEFAULT_LEVEL).map_err(|error| error.to_string())?),
        };
        buffer.reserve(compress_bound(content.len()));
        compressor.compress_to_buffer(content, &mut after_end(buffer)).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Appends what `content` yields, at most as much as there is room for.
    ///
    /// The whole frame is decompressed at once, for which the library uses the buffer itself as its window: however
    /// large a window the frame claims, no memory is taken for it.
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
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            slot => slot.insert(Decompressor::new().map_err(|error| error.to_string())?),
        };
        buffer.reserve(expected);
        decompressor.decompress_to_buffer(content, &mut after_end(buffer)).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Where bytes are appended.
fn after_end(buffer: &mut Vec<u8>) -> Cursor<&mut Vec<u8>> {
    let end = buffer.len() as u64;
    let mut cursor = Cursor::new(buffer);
    cursor.set_position(end);
    cursor
}
