//! zstd: one frame per file, flushed with each chunk.
//!
//! A flush ends a block (RFC 8878, section 3.1.1), so a truncated file is readable at least up to the last chunk before
//! the end. There is only one frame, since Wireshark up to 4.0 misreads data after the first one; and no checksum, so
//! that a frame can be ended after any flush, even if the encoder is ahead of the file because a write failed. Then an
//! empty last block ends it.

use std::io;

use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::compress_bound;

/// An empty raw block with the last-block flag.
const END: [u8; 3] = [1, 0, 0];

/// Compresses one file after the other, a frame for each.
pub(crate) struct Compression {
    encoder: Encoder<'static>,
    output: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The frame has not begun.
    Fresh,
    /// The file contains all of the encoder's output.
    Open,
    /// The file ends after an earlier flush.
    Behind,
}

impl std::fmt::Debug for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compression").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Compression {
    /// Creates an encoder. `level`: as in `zstd -LEVEL`.
    ///
    /// # Errors
    /// If there is not enough memory for the level.
    pub(crate) fn new(level: i32) -> io::Result<Compression> {
        Ok(Compression { encoder: Encoder::new(level)?, output: Vec::new(), state: State::Fresh })
    }

    /// Compresses bytes; returns the bytes to append to the file.
    ///
    /// # Errors
    /// The error of zstd.
    pub(crate) fn blocks(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.output.clear();
        if self.state == State::Behind {
            self.output.extend_from_slice(&END);
        }
        if self.state != State::Open {
            self.encoder.reinit()?;
        }
        let mut input = InBuffer::around(bytes);
        let mut flushed = false;
        while !flushed {
            self.output.reserve(compress_bound(bytes.len()) + 1024);
            let there = self.output.len();
            let mut output = OutBuffer::around_pos(&mut self.output, there);
            if input.pos() < bytes.len() {
                self.encoder.run(&mut input, &mut output)?;
            } else {
                flushed = self.encoder.flush(&mut output)? == 0;
            }
        }
        self.state = State::Open;
        Ok(&self.output)
    }

    /// Records that the last output is not in the file, which has this many bytes.
    pub(crate) fn take_back(&mut self, in_file: u64) {
        self.state = if in_file == 0 { State::Fresh } else { State::Behind };
    }

    /// Whether more data could only follow in another frame.
    pub(crate) fn is_behind(&self) -> bool {
        self.state == State::Behind
    }

    /// Number of bytes that always fit into `room` after compression.
    pub(crate) fn fitting(room: u64) -> u64 {
        // The bound of compress_bound, plus the headers of blocks and of the frame.
        room.saturating_sub(room / 128 + 256)
    }

    /// Bytes that end the file's frame. The next blocks begin another frame.
    pub(crate) fn end(&mut self) -> &'static [u8] {
        match std::mem::replace(&mut self.state, State::Fresh) {
            State::Fresh => &[],
            State::Open | State::Behind => &END,
        }
    }

    /// Bytes that the end of a frame needs.
    pub(crate) const fn reserve() -> u64 {
        2 * END.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn decoded(bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut content = Vec::new();
        let whole = zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut content).is_ok();
        (content, whole)
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    #[test]
    fn files_hold_what_was_put_in_up_to_the_cut() {
        let mut compression = Compression::new(3).unwrap();
        for _ in 0..2 {
            let (mut file, mut content, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
            for bytes in [noise(10), vec![7; 300_000], noise(1 << 20), noise(1)] {
                file.extend_from_slice(compression.blocks(&bytes).unwrap());
                content.extend_from_slice(&bytes);
                flushes.push((file.len(), content.len()));
            }
            file.extend_from_slice(compression.end());
            assert_eq!(decoded(&file), (content.clone(), true));
            for (end, there) in flushes {
                assert_eq!(decoded(&file[..end]), (content[..there].to_vec(), false));
            }
        }
        assert_eq!(compression.end(), [0; 0], "nothing was begun");
    }

    #[test]
    fn what_fits_by_our_account_does() {
        for room in [1024, 4096, 100_000, 1 << 20, 10 << 20] {
            let bytes = noise(Compression::fitting(room) as usize);
            for level in [1, 3, 12] {
                let mut compression = Compression::new(level).unwrap();
                assert!(compression.blocks(&bytes).unwrap().len() as u64 <= room, "{room} at level {level}");
            }
        }
    }

    #[test]
    fn what_did_not_get_into_the_file_is_not_in_it() {
        let mut compression = Compression::new(1).unwrap();
        let mut file = compression.blocks(b"one").unwrap().to_vec();
        compression.blocks(b"lost").unwrap();
        compression.take_back(file.len() as u64);
        file.extend_from_slice(compression.blocks(b"two").unwrap());
        compression.blocks(b"lost again").unwrap();
        compression.take_back(file.len() as u64);
        file.extend_from_slice(compression.end());
        assert_eq!(decoded(&file), (b"onetwo".to_vec(), true));

        compression.blocks(b"lost from the start").unwrap();
        compression.take_back(0);
        let mut file = compression.blocks(b"three").unwrap().to_vec();
        file.extend_from_slice(compression.end());
        assert_eq!(decoded(&file), (b"three".to_vec(), true));
    }
}
