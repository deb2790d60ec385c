//! The bytes of one file: appended through the page cache or past it, and cut to what is whole when that fails.

use std::collections::VecDeque;
use std::io;

use super::chunk::Format;
use super::part::PartFile;

/// What O_DIRECT asks of addresses, offsets and lengths. No disk that is sold today asks for more.
const ALIGNMENT: usize = 4096;
/// Bytes that are gathered for one write past the page cache, beside what is left of the one before.
const STAGE: usize = 1 << 20;

/// The body of a file.
#[derive(Debug)]
pub(crate) struct Body {
    format: Format,
    /// Bytes in the file that are whole blocks (or frames), staged ones included.
    len: u64,
    /// Packets in the file that are safely the kernel's.
    settled: u64,
    /// Packets that are staged.
    pending: u64,
    stage: Option<Box<Stage>>,
}

/// What has not been written past the page cache yet.
#[derive(Debug)]
struct Stage {
    memory: Vec<u8>,
    /// Where in `memory` the aligned part begins.
    skip: usize,
    /// Bytes that are staged; the first of them belongs at `base`.
    len: usize,
    base: u64,
    /// Ends of blocks that are not all in the file, and the packets in each.
    ends: VecDeque<(u64, u64)>,
    /// The end of the last block that is all in the file.
    whole: u64,
    /// Set by a failed write: what lies between `base` and `whole` must be read back first.
    resume: bool,
}

/// What is being appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Blocks that can be told apart.
    Blocks,
    /// All of it or nothing: a frame, a file header.
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

    /// Bytes of the file, staged ones included.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Packets that are in the file.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Packets that are staged.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// Appends bytes that hold so many packets.
    ///
    /// # Errors
    /// What the kernel said. The file then ends after its last whole block, [`Body::settled`] says how many packets
    /// are in it, nothing is pending, and more can be appended.
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

    /// Writes what is staged; nothing is appended after it.
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
        // Where each block will end, so that a failure knows which packets it took.
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

    /// Counts what a write past the cache has brought into the file.
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

    /// Takes as much as there is room for, and gives the rest back.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let at = self.len;
        let now = bytes.len().min(STAGE + ALIGNMENT - at);
        self.bytes()[at..at + now].copy_from_slice(&bytes[..now]);
        self.len += now;
        &bytes[now..]
    }

    /// Writes the first `length` bytes, and moves what follows them to the front.
    fn write(&mut self, part: &PartFile, length: usize) -> std::result::Result<(), (usize, io::Error)> {
        let base = self.base;
        part.write_at(&self.bytes()[..length], base)?;
        let len = self.len;
        self.bytes().copy_within(length..len, 0);
        self.len -= length;
        self.base += length as u64;
        Ok(())
    }

    /// After a failure: the file ends within a block of the disk, which has to be written anew as a whole.
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

/// Cuts the file after what is whole.
fn cut(part: &PartFile, length: u64) {
    if let Err(error) = part.truncate(length) {
        // Readers stop there as well: it is a cut block and no wrong one.
        tracing::warn!("{} cannot be cut after its last whole packet: {error}", part.path().display());
    }
}
