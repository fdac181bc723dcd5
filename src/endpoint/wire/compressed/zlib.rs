//! Zlib: deflate with zlib's header and checksum.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::codec::yields;

/// The contexts, created on first use. The context for compressing is tied to a level, and is replaced when the level
/// changes.
#[derive(Default)]
pub(super) struct Zlib {
    compress: Option<(i32, Compress)>,
    decompress: Option<Decompress>,
}

/// The maximum number of bytes that one compressed byte yields, according to the format.
const GREATEST_RATIO: usize = 1032;

impl Zlib {
    pub const fn new() -> Self {
        Self { compress: None, decompress: None }
    }

    /// Appends the compressed `content`. The level is -1 to 9, where -1 is the library's default.
    pub fn compress(&mut self, content: &[u8], level: i32, buffer: &mut Vec<u8>) -> Result<(), String> {
        let context = match &mut self.compress {
            Some((made_for, context)) if *made_for == level => context,
            slot => {
                let compression = match u32::try_from(level) {
                    Ok(level @ 0..=9) => Compression::new(level),
                    Err(_) if level == -1 => Compression::default(),
                    _ => return Err(format!("zlibCompressionLevel must be -1 to 9, got {level}")),
                };
                &mut slot.insert((level, Compress::new(compression, true))).1
            }
        };
        context.reset();
        loop {
            // Stored blocks produce the longest output: they add five bytes to each block of a few kilobytes.
            let rest = &content[context.total_in() as usize..];
            buffer.reserve(rest.len() + rest.len() / 1024 + 64);
            match context.compress_vec(rest, buffer, FlushCompress::Finish) {
                Ok(Status::StreamEnd) => return Ok(()),
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Decompresses `content`, and appends as much of the result as fits in the reserved memory.
    pub fn decompress(&mut self, content: &[u8], expected: usize, buffer: &mut Vec<u8>) -> Result<(), String> {
        if expected / GREATEST_RATIO > content.len() {
            return Err(format!("its {} bytes cannot yield {expected}", content.len()));
        }
        let context = self.decompress.get_or_insert_with(|| Decompress::new(true));
        context.reset(true);
        let start = buffer.len();
        // One more byte, to distinguish content that yields too much from truncated content.
        buffer.reserve(expected + 1);
        let status = context.decompress_vec(content, buffer, FlushDecompress::Finish);
        let (read, written) = (context.total_in(), buffer.len() - start);
        match status {
            Ok(Status::StreamEnd) if read == content.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => Err(format!("{} bytes follow its end", content.len() as u64 - read)),
            Ok(Status::Ok | Status::BufError) if written > expected => Err(yields(written, expected)),
            Ok(Status::Ok | Status::BufError) => Err("it is truncated".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}
