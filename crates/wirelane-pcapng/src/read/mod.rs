//! Reading pcap and pcapng.

mod compressed;
mod decode;
mod input;
mod interface;
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
pub use time::TimestampResolution;

use crate::{Error, Result};

/// A capture file that is being read, packet by packet.
#[derive(Debug)]
pub struct Reader {
    input: Input,
    format: Format,
    interfaces: Vec<FileInterface>,
    skipping: Option<Skipping>,
    /// What was wrong behind the first interfaces, which [`Reader::advance`] says.
    failure: Option<Error>,
}

/// Which of the two formats a file has.
#[derive(Debug)]
enum Format {
    Pcap(pcap::Decoder),
    Pcapng(pcapng::Decoder),
}

/// The result of one step through a file.
#[derive(Debug)]
pub enum Reached {
    /// Something that is no packet was stepped over, or more bytes have come.
    Further,
    /// A packet: look at it with [`Reader::data`], and step over it with [`Reader::consume`].
    Packet(Packet),
    /// The input has nothing yet.
    Wait,
    /// The end, where an end may be.
    End,
}

/// A block that is being stepped over, though not all of it has come yet.
#[derive(Clone, Copy, Debug)]
struct Skipping {
    /// Where in the file it starts.
    start: u64,
    /// Where it has been stepped over.
    until: u64,
    /// Its whole length.
    block: u64,
}

impl Reader {
    /// Opens a pcap or pcapng file, which may be compressed with zstd or gzip, `-` being standard input, and reads its header and, as far as they come
    /// before the first packet, its interfaces. In a pipe it waits for the first interface.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be opened or read; [`Error::CaptureFile`] where it is empty,
    /// no capture at all, or compressed in another way than by zstd or gzip.
    pub fn open(path: &Path) -> Result<Reader> {
        Reader::read(FileInput::open(path)?)
    }

    /// Reads a capture file that has been opened, as [`Reader::open`] does.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn read(input: FileInput) -> Result<Reader> {
        Reader::start(Input::over(input)?)
    }

    /// Reads a capture from anything, for example from memory. `name` is what errors call it.
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
    /// them. The ones described before the first packet are there from the start.
    pub fn interfaces(&self) -> &[FileInterface] {
        &self.interfaces
    }

    /// How far the file has been read; `None` of anything but a regular file.
    pub fn progress(&self) -> Option<FileProgress> {
        self.input.progress()
    }

    /// Whether reading may have to wait for somebody else.
    pub fn is_pipe(&self) -> bool {
        self.input.is_pipe()
    }

    /// Bytes that the window over the file takes.
    pub fn memory(&self) -> usize {
        self.input.memory()
    }

    /// The captured bytes of a packet that [`Reader::advance`] has reached.
    pub fn data(&self, packet: &Packet) -> &[u8] {
        &self.input.bytes()[packet.data.clone()]
    }

    /// Steps over the packet that [`Reader::advance`] has reached.
    pub fn consume(&mut self, packet: &Packet) {
        self.input.consume(packet.size);
    }

    /// One step through the file, waiting up to `wait` for bytes. A packet is reached again and again until it is consumed.
    ///
    /// # Errors
    /// [`Error::CaptureFile`] where the file is damaged and [`Error::Io`] where it cannot be read; do not go on then.
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

    /// Steps over as much of a block as has come.
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

    /// Reads up to the first packet, or in a pipe to the first interface, so that the interfaces are known
    /// before the first batch is. A section header that cannot be read is an error at once.
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
