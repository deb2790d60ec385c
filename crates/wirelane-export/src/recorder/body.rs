//! The contents of one file: appended through or past the page cache, and truncated to whole blocks after a failure.

use std::collections::VecDeque;
use std::io;

use super::chunk::Format;
use super::part::PartFile;

/// Alignment of addresses, offsets and lengths for O_DIRECT. No disk that is sold today requires more.
const ALIGNMENT: usize = 4096;
/// Bytes that are collected for one write past the page cache, besides the rest of the previous write.
const STAGE: usize = 1 << 20;

/// The body of a file.
#[derive(Debug)]
pub(crate) struct Body {
    format: Format,
    /// Bytes of whole blocks (or frames) in the file, including staged ones.
    len: u64,
    /// Packets in the file that the kernel has accepted.
    settled: u64,
    /// Staged packets.
    pending: u64,
    stage: Option<Box<Stage>>,
}

/// Bytes that are not yet written past the page cache.
#[derive(Debug)]
struct Stage {
    memory: Vec<u8>,
    /// Start of the aligned part in `memory`.
    skip: usize,
    /// Number of staged bytes; the first one belongs at offset `base`.
    len: usize,
    base: u64,
    /// Ends of blocks that are not completely in the file, and the packets in each.
    ends: VecDeque<(u64, u64)>,
    /// End of the last block that is completely in the file.
    whole: u64,
    /// Set by a failed write: the bytes between `base` and `whole` must be read back first.
    resume: bool,
}

/// Kind of the appended bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Blocks that can be separated.
    Blocks,
    /// Bytes that must be written completely or not at all: a frame, a file header.
    Opaque,
}

impl Body {
    /// The body of an empty file.
    pub(crate) fn new(format: Format, direct: bool) -> Body {
        let stage = direct.then(|| {
            let memory = vec![0; STAGE + 2 * ALIGNMENT];
            let skip = memory.as_ptr().align_offset(ALIGNMENT);
            let ends = VecDeque::new();
            Box::new(Stage { memory, skip, len: 0, base: 0, ends, whole: 0, resume: false })
        });
        Body { format, len: 0, settled: 0, pending: 0, stage }
    }

    /// Size of the file in bytes, including staged ones.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Number of packets in the file.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Number of staged packets.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// Appends bytes that contain this many packets.
    ///
    /// # Errors
    /// The kernel's error. The file then ends after its last whole block, [`Body::settled`] is the number of packets in
    /// it, nothing is pending, and more can be appended.
    pub(crate) fn append(
        &mut self,
        part: &PartFile,
        bytes: &[u8],
        packets: u64,
        kind: Kind,
    ) -> io::Result<()> {
        if self.stage.is_some() {
            return self.append_direct(part, bytes, packets, kind);
        }
        match part.write_at(bytes, self.len) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                self.settled += packets;
                Ok(())
            }
            Err((written, error)) => {
                let (whole, packets) = match kind {
                    Kind::Blocks => self.format.whole(bytes, written),
                    Kind::Opaque => (0, 0),
                };
                self.len += whole as u64;
                self.settled += packets;
                cut(part, self.len);
                Err(error)
            }
        }
    }

    /// Writes the staged bytes; nothing is appended after that.
    ///
    /// # Errors
    /// As [`Body::append`].
    pub(crate) fn close(&mut self, part: &PartFile) -> io::Result<()> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        if stage.len == 0 {
            return Ok(());
        }
        let result =
            part.leave_direct().map_err(|error| (0, error)).and_then(|()| stage.write(part, stage.len));
        self.settle(part, result)
    }

    fn append_direct(&mut self, part: &PartFile, bytes: &[u8], packets: u64, kind: Kind) -> io::Result<()> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        if stage.resume {
            stage.read_back(part)?;
        }
        // Records where each block will end, so that the lost packets are known after a failure.
        match kind {
            Kind::Opaque => stage.ends.push_back((self.len + bytes.len() as u64, packets)),
            Kind::Blocks => {
                let mut at = 0;
                while let Some(block) = self.format.first_block(&bytes[at..]) {
                    at += block.len;
                    stage.ends.push_back((self.len + at as u64, u64::from(block.ts_ns.is_some())));
                }
            }
        }
        self.pending += packets;
        self.len += bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(stage) = &mut self.stage else { return Ok(()) };
            rest = stage.take(rest);
            let aligned = stage.len - stage.len % ALIGNMENT;
            let result = stage.write(part, aligned);
            self.settle(part, result)?;
        }
        Ok(())
    }

    /// Counts the packets of a write past the cache.
    fn settle(
        &mut self,
        part: &PartFile,
        result: std::result::Result<(), (usize, io::Error)>,
    ) -> io::Result<()> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        let there = match &result {
            Ok(()) => stage.base,
            Err((written, _)) => stage.base + *written as u64,
        };
        while let Some(&(end, packets)) = stage.ends.front()
            && end <= there
        {
            stage.ends.pop_front();
            stage.whole = end;
            self.settled += packets;
            self.pending -= packets;
        }
        match result {
            Ok(()) => Ok(()),
            Err((_, error)) => {
                stage.ends.clear();
                stage.resume = true;
                self.len = stage.whole;
                self.pending = 0;
                cut(part, self.len);
                Err(error)
            }
        }
    }
}

impl Stage {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + STAGE + ALIGNMENT]
    }

    /// Copies as many bytes as fit, and returns the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let at = self.len;
        let now = bytes.len().min(STAGE + ALIGNMENT - at);
        self.bytes()[at..at + now].copy_from_slice(&bytes[..now]);
        self.len += now;
        &bytes[now..]
    }

    /// Writes the first `length` bytes, and moves the bytes after them to the front.
    fn write(&mut self, part: &PartFile, length: usize) -> std::result::Result<(), (usize, io::Error)> {
        let base = self.base;
        part.write_at(&self.bytes()[..length], base)?;
        let len = self.len;
        self.bytes().copy_within(length..len, 0);
        self.len -= length;
        self.base += length as u64;
        Ok(())
    }

    /// After a failure: the file ends within a disk block, which must be written again as a whole.
    fn read_back(&mut self, part: &PartFile) -> io::Result<()> {
        let within = (self.whole % ALIGNMENT as u64) as usize;
        let base = self.whole - within as u64;
        if within > 0 {
            part.read_at(&mut self.bytes()[..ALIGNMENT], base)?;
        }
        (self.base, self.len, self.resume) = (base, within, false);
        Ok(())
    }
}

/// Truncates the file after its whole blocks.
fn cut(part: &PartFile, length: u64) {
    if let Err(error) = part.truncate(length) {
        // Readers stop there as well: the last block is truncated, but not invalid.
        tracing::warn!("{} cannot be cut after its last whole packet: {error}", part.path().display());
    }
}
