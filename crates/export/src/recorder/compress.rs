//! zstd, a frame at a time.
//!
//! Each chunk becomes a frame of its own (RFC 8878, section 3.1): a file that is cut is readable up to the last
//! frame and mostly into it, frames can follow one another in a file, and a failed write takes back one frame only.

use std::io;

use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, compress_bound};

/// Makes frames.
pub(crate) struct Compression {
    compressor: Compressor<'static>,
    frame: Vec<u8>,
}

impl std::fmt::Debug for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compression").finish_non_exhaustive()
    }
}

impl Compression {
    /// `level`: as in `zstd -LEVEL`.
    ///
    /// # Errors
    /// Where there is no memory for the level.
    pub(crate) fn new(level: i32) -> io::Result<Compression> {
        let mut compressor = Compressor::new(level)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Compression { compressor, frame: Vec::new() })
    }

    /// A frame of these bytes.
    ///
    /// # Errors
    /// What zstd said.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.frame.clear();
        self.frame.reserve(compress_bound(bytes.len()));
        self.compressor.compress_to_buffer(bytes, &mut self.frame)?;
        Ok(&self.frame)
    }
}
