//! Reading pcap and pcapng.

mod compressed;
mod decode;
mod input;
mod interface;
mod merge;
mod messages;
mod options;
mod pcap;
mod pcapng;
mod time;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use compressed::FileProgress;
use decode::Step;
pub use decode::{MAX_ITEM, Packet};
pub use input::FileInput;
use input::{Filled, Input};
pub use interface::FileInterface;
pub use merge::MergedReader;
pub use time::TimestampResolution;

use crate::{Error, Result};

/// A capture file that is being read, packet by packet.
#[derive(Debug)]
pub struct Reader {
    input: Input,
    format: Format,
    interfaces: Vec<FileInterface>,
    skipping: Option<Skipping>,
    /// An error after the first interfaces, which the next [`Reader::advance`] returns.
    failure: Option<Error>,
}

/// Format of the file.
#[derive(Debug)]
enum Format {
    Pcap(pcap::Decoder),
    Pcapng(pcapng::Decoder),
}

/// The result of one step through a file.
#[derive(Debug)]
pub enum Reached {
    /// Bytes other than a packet were skipped, or more bytes have arrived.
    Further,
    /// A packet: read it with [`Reader::data`], and skip it with [`Reader::consume`].
    Packet(Packet),
    /// The input has no data at the moment.
    Wait,
    /// The end of the file, at a valid place.
    End,
}

/// A block that is being skipped, but has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct Skipping {
    /// File offset of its start.
    start: u64,
    /// File offset up to which it is skipped.
    until: u64,
    /// Its whole length in bytes.
    block: u64,
}

impl Reader {
    /// Opens a pcap or pcapng file, optionally compressed with zstd or gzip, or standard input for `-`. Reads its
    /// header and the interfaces before the first packet. In a pipe it waits for the first interface.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or read; [`Error::CaptureFile`] if it is empty, not a capture file,
    /// or compressed with another method than zstd or gzip.
    pub fn open(path: &Path) -> Result<Reader> {
        Reader::read(FileInput::open(path)?)
    }

    /// Reads an open capture file, as [`Reader::open`] does.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn read(input: FileInput) -> Result<Reader> {
        Reader::start(Input::over(input)?)
    }

    /// Reads a capture from any reader, for example from memory. `name` is its name in error messages.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_reader(reader: impl Read + Send + 'static, name: impl Into<PathBuf>) -> Result<Reader> {
        Reader::start(Input::new(Box::new(reader), &name.into()))
    }

    fn start(mut input: Input) -> Result<Reader> {
        input.await_bytes(4)?;
        let Some(&magic) = input.bytes().first_chunk::<4>() else {
            return Err(input.damage(0, messages::no_magic(input.bytes().len())));
        };
        let mut interfaces = Vec::new();
        let format = if let Some(order) = pcap::recognise(magic) {
            input.await_bytes(pcap::FILE_HEADER)?;
            let Some(header) = input.bytes().first_chunk() else {
                let (needed, there) = (pcap::FILE_HEADER as u64, input.bytes().len() as u64);
                return Err(input.damage(0, messages::cut("the file header", needed, there)));
            };
            let (decoder, interface) =
                pcap::Decoder::new(header, order).map_err(|reason| input.damage(0, reason))?;
            interfaces.push(interface);
            input.consume(pcap::FILE_HEADER);
            Format::Pcap(decoder)
        } else if u32::from_le_bytes(magic) == pcapng::SECTION {
            Format::Pcapng(pcapng::Decoder::new())
        } else {
            return Err(input.damage(0, messages::no_capture(magic)));
        };
        let mut reader = Reader { input, format, interfaces, skipping: None, failure: None };
        reader.read_ahead()?;
        Ok(reader)
    }

    /// The interfaces that the file has described so far, over all sections; [`Packet::interface`] is an index into
    /// them. Interfaces before the first packet are available from the start.
    pub fn interfaces(&self) -> &[FileInterface] {
        &self.interfaces
    }

    /// Progress of reading the file; `None` unless it is a regular file.
    pub fn progress(&self) -> Option<FileProgress> {
        self.input.progress()
    }

    /// Whether reading may block on the writer of a pipe.
    pub fn is_pipe(&self) -> bool {
        self.input.is_pipe()
    }

    /// Size of the window over the file in bytes.
    pub fn memory(&self) -> usize {
        self.input.memory()
    }

    /// The captured bytes of a packet that [`Reader::advance`] has reached.
    pub fn data(&self, packet: &Packet) -> &[u8] {
        &self.input.bytes()[packet.data.clone()]
    }

    /// Skips the packet that [`Reader::advance`] has reached.
    pub fn consume(&mut self, packet: &Packet) {
        self.input.consume(packet.size);
    }

    /// Advances one step through the file, waiting up to `wait` for bytes. Returns the same packet until it is
    /// consumed.
    ///
    /// # Errors
    /// [`Error::CaptureFile`] if the file is damaged, [`Error::Io`] if it cannot be read; the reader must not be used
    /// afterwards.
    pub fn advance(&mut self, wait: Duration) -> Result<Reached> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if let Some(skipping) = self.skipping {
            return self.skip(skipping, wait);
        }
        let bytes = self.input.bytes();
        let step = match &mut self.format {
            Format::Pcap(decoder) => decoder.step(bytes),
            Format::Pcapng(decoder) => decoder.step(bytes, &mut self.interfaces),
        };
        let (here, there) = (self.input.offset(), bytes.len());
        match step {
            Step::Packet(packet) => Ok(Reached::Packet(packet)),
            Step::Damage { back, reason } => Err(self.input.damage(here - back, reason)),
            Step::Skip { bytes, block } => {
                let skipping = Skipping { start: here, until: here + bytes, block };
                self.skipping = Some(skipping);
                self.skip(skipping, wait)
            }
            Step::Need { bytes, what, back } => match self.input.fill(wait)? {
                Filled::More => Ok(Reached::Further),
                Filled::Waited => Ok(Reached::Wait),
                Filled::End if there == 0 && back == 0 => Ok(Reached::End),
                Filled::End => {
                    let reason = messages::cut(what, back + bytes as u64, back + there as u64);
                    Err(self.input.damage(here - back, reason))
                }
            },
        }
    }

    /// Skips the part of a block that has arrived.
    fn skip(&mut self, skipping: Skipping, wait: Duration) -> Result<Reached> {
        let left = skipping.until - self.input.offset();
        let there = self.input.bytes().len();
        let now = usize::try_from(left).map_or(there, |left| left.min(there));
        self.input.consume(now);
        if now as u64 == left {
            self.skipping = None;
            return Ok(Reached::Further);
        }
        match self.input.fill(wait)? {
            Filled::More => Ok(Reached::Further),
            Filled::Waited => Ok(Reached::Wait),
            Filled::End => {
                let there = self.input.offset() - skipping.start;
                Err(self.input.damage(skipping.start, messages::cut("a block", skipping.block, there)))
            }
        }
    }

    /// Reads up to the first packet, or in a pipe to the first interface, so that the interfaces are known before the
    /// first batch. A section header that cannot be read is an immediate error.
    fn read_ahead(&mut self) -> Result<()> {
        while !self.input.is_pipe() || self.interfaces.is_empty() {
            match self.advance(Duration::MAX) {
                Ok(Reached::Further) => {}
                Ok(Reached::Packet(_) | Reached::End) => break,
                Ok(Reached::Wait) => return Err(self.input.interrupted()),
                Err(error) if self.input.offset() == 0 => return Err(error),
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            }
        }
        Ok(())
    }
}
