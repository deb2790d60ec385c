//! The `file` engine: pcap and pcapng files give the same records as a device.
//!
//! A capture file is an untrusted input. It may be cut, damaged, or made to hurt; it may also be a pipe that is
//! written while it is read. The rules are:
//!
//! * What is whole before the first damage is delivered; then comes [`crate::Error::CaptureFile`] with the byte
//!   at which the damaged packet or block starts. Nothing after it is guessed.
//! * A length in the file never makes memory grow; arriving bytes do. A packet or block of more than 16 MiB is
//!   refused, and blocks that carry nothing for a record are stepped over without being kept.
//! * No allocation per packet: bytes are read into one window and copied once into one arena of records.
//! * A batch holds packets of one interface. Interfaces of all sections are counted through, from 0.
//!
//! ```text
//! file --read--> Input (window) --Decoder::step--> Packet --annotate, Arena::push--> Batch of Records
//!                  input.rs        pcap.rs, pcapng.rs       annotate.rs, arena.rs
//! ```
//!
//! The decoders are our own and not a crate's because a packet must cost no allocation, an error must say what
//! is wrong in words, and obsolete and big-endian variants must be read as libpcap reads them. The tests hold
//! them against the `pcap-parser` crate, tcpdump and capinfos.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wirelane_bpf::judge;
use wirelane_bpf::layout::{Ip, RecordHeader, flags, record_kind};

use crate::batch::{self, Progress, Said};
use crate::engine::Source;
use crate::filter::FileView;
use crate::in_force::{Fate, Judge, fate};
use crate::{Batch, Error, Result};

mod annotate;
mod arena;
mod compressed;
mod counters;
mod decode;
mod input;
mod interface;
mod messages;
mod options;
mod pcap;
mod pcapng;
mod sort;
mod time;

#[cfg(test)]
pub(crate) mod tests;

use arena::Arena;
pub use compressed::FileProgress;
pub use counters::InterfaceCounters;
pub(crate) use counters::InterfaceLines;
use counters::{Became, Counters};
use decode::{MAX_ITEM, Packet, Step};
pub use input::FileInput;
use input::{Filled, Input};
pub use interface::FileInterface;
pub(crate) use sort::Disorder;
use sort::Sorter;
pub use time::TimestampResolution;

/// Smallest batch that makes sense, in bytes.
const MIN_BATCH: usize = 4 << 10;
/// A wait that is long enough for everybody, and that can be added to the time of day.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// How a capture file is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FileOptions {
    /// Bytes of records that a batch holds at most, headers included. A single packet may be larger.
    pub batch_bytes: usize,
    /// Whether records are sorted by their time stamps, within a window of 16 MiB.
    pub in_order: bool,
}

impl FileOptions {
    /// The defaults, but for the order of records: that of the file.
    #[must_use]
    pub fn as_written() -> FileOptions {
        FileOptions { in_order: false, ..FileOptions::default() }
    }
}

impl Default for FileOptions {
    /// Batches of 256 KiB, which stay in a second-level cache; sorted records.
    fn default() -> FileOptions {
        FileOptions { batch_bytes: 256 << 10, in_order: true }
    }
}

/// A capture file that is being read.
///
/// Timestamps are UTC nanoseconds and nothing waits for them: whoever replays a capture paces it himself.
#[derive(Debug)]
pub struct FileSource {
    input: Input,
    format: Format,
    interfaces: Vec<FileInterface>,
    counters: Counters,
    arena: Arena,
    /// Sorts records by their stamps; `None`: they come in the order of the file.
    sorter: Option<Sorter>,
    /// Interface of the records in the arena.
    device: u16,
    progress: Progress,
    skipping: Option<Skipping>,
    filter: FileView,
    /// What becomes of the packets that the filter accepts, where there are rules.
    judge: Option<Judge>,
    /// Rules look at the headers inside tunnels.
    inner: bool,
    /// The error that ends the file, once what lies before it has been delivered.
    failure: Option<Error>,
    ended: bool,
}

/// Which of the two formats a file has.
#[derive(Debug)]
enum Format {
    Pcap(pcap::Decoder),
    Pcapng(pcapng::Decoder),
}

/// What one step through the file came to.
#[derive(Debug)]
enum Reached {
    /// Something that is no packet was stepped over, or more bytes have come.
    Further,
    /// A packet, which is still to be taken.
    Packet(Packet),
    /// The input has nothing yet.
    Wait,
    /// The end, where an end may be.
    End,
}

/// What became of a packet.
enum Taken {
    /// It is in the arena.
    Wanted,
    /// The filter or a rule does not want it, or a rule has only counted it.
    Refused,
    /// It does not go into this batch.
    Later,
}

/// Packets that a filter refuses in a row before an empty batch is yielded.
const MOST_REFUSED: u32 = 1 << 14;

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

impl FileSource {
    /// Opens a pcap or pcapng file, which may be compressed with zstd or gzip, `-` being standard input, and reads its header and, as far as they come
    /// before the first packet, its interfaces. In a pipe it waits for the first interface.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be opened or read; [`Error::CaptureFile`] where it is empty,
    /// no capture at all, or compressed in another way than by zstd or gzip.
    pub fn open(path: &Path, options: FileOptions) -> Result<FileSource> {
        FileSource::read(FileInput::open(path)?, options)
    }

    /// Reads a capture file that has been opened, as [`FileSource::open`] does.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn read(input: FileInput, options: FileOptions) -> Result<FileSource> {
        FileSource::start(Input::over(input)?, options)
    }

    /// Reads a capture from anything, for example from memory. `name` is what errors call it.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn from_reader(
        reader: impl Read + Send + 'static,
        name: impl Into<PathBuf>,
        options: FileOptions,
    ) -> Result<FileSource> {
        FileSource::start(Input::new(Box::new(reader), &name.into()), options)
    }

    fn start(mut input: Input, options: FileOptions) -> Result<FileSource> {
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
        let mut source = FileSource {
            input,
            format,
            interfaces,
            counters: Counters::default(),
            arena: Arena::new(options.batch_bytes.clamp(MIN_BATCH, MAX_ITEM)),
            sorter: options.in_order.then(Sorter::default),
            device: 0,
            progress: Progress::default(),
            skipping: None,
            filter: FileView::default(),
            judge: None,
            inner: false,
            failure: None,
            ended: false,
        };
        source.read_ahead()?;
        Ok(source)
    }

    /// The interfaces that the file has described so far, over all sections; [`crate::Record::device`] is an
    /// index into them. The ones described before the first packet are there from the start.
    pub fn interfaces(&self) -> &[FileInterface] {
        &self.interfaces
    }

    /// How far the file has been read; `None` of anything but a regular file.
    pub fn progress(&self) -> Option<FileProgress> {
        self.input.progress()
    }

    /// Yields from the next batch on only what this accepts.
    pub(crate) fn filter_by(&mut self, filter: FileView) {
        self.filter = filter;
    }

    /// Judges what the filter accepts, by the headers inside tunnels with `inner`.
    pub(crate) fn judge_by(&mut self, judge: Judge, inner: bool) {
        (self.judge, self.inner) = (Some(judge), inner);
    }

    /// The interfaces and their counters, for the ledger.
    pub(crate) fn lines(&self) -> InterfaceLines {
        self.counters.lines.clone()
    }

    /// What was read and analysed of the interface with this index.
    pub fn counters(&self, interface: usize) -> InterfaceCounters {
        self.counters.of(interface)
    }

    /// The next packets of one interface. A file gives them at once, whatever `wait` is; a pipe gives what has
    /// come, or an empty batch when nothing came for as long as `wait` or until a signal. `None` is the end.
    ///
    /// # Errors
    /// [`Error::CaptureFile`] where the file is damaged and [`Error::Io`] where it cannot be read, after
    /// everything before that place; then the source has ended.
    pub fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        self.arena.release(self.progress.take());
        if self.arena.is_empty() && !self.build_ordered(wait)? {
            return Ok(None);
        }
        self.counters.follow(&self.interfaces); // an empty batch may come before any packet
        let Some(tally) = self.counters.analysed(usize::from(self.device)) else {
            return Ok(None); // the end of a file without interfaces
        };
        let records = self.arena.records();
        Ok(Some(Batch::new(records, records.len(), self.device, &self.progress, tally)))
    }

    /// Fills the arena with the next records of the file. False: there is nothing more.
    fn build(&mut self, wait: Duration) -> Result<bool> {
        self.arena.clear();
        if let Some(failure) = self.failure.take() {
            self.ended = true;
            return Err(failure);
        }
        self.filter.refresh();
        let mut refused = 0;
        let deadline = self.input.is_pipe().then(|| Instant::now() + wait.min(LONGEST_WAIT));
        while !self.ended {
            let wait = match deadline {
                Some(deadline) if self.arena.is_empty() => deadline.saturating_duration_since(Instant::now()),
                _ => Duration::ZERO,
            };
            match self.advance(wait) {
                Ok(Reached::Packet(packet)) => match self.take(&packet) {
                    Ok(Taken::Wanted) => {}
                    // Now and then whoever waits gets a chance to stop, or to change the filter.
                    Ok(Taken::Refused) if refused < MOST_REFUSED => refused += 1,
                    Ok(Taken::Refused | Taken::Later) => return Ok(true),
                    Err(error) if self.arena.is_empty() => {
                        self.ended = true;
                        return Err(error);
                    }
                    Err(error) => {
                        self.failure = Some(error);
                        return Ok(true);
                    }
                },
                Ok(Reached::Wait) => return Ok(true),
                Ok(Reached::Further) if deadline.is_some() && self.arena.is_empty() && wait.is_zero() => {
                    return Ok(true);
                }
                Ok(Reached::Further) => {}
                Ok(Reached::End) => self.ended = true,
                Err(error) if self.arena.is_empty() => {
                    self.ended = true;
                    return Err(error);
                }
                Err(error) => {
                    self.failure = Some(error);
                    return Ok(true);
                }
            }
        }
        Ok(!self.arena.is_empty())
    }

    /// Copies a packet into the arena, if it is wanted, belongs into this batch and fits.
    fn take(&mut self, packet: &Packet) -> Result<Taken> {
        if !self.arena.is_empty() && packet.interface != self.device {
            return Ok(Taken::Later);
        }
        let interface = &self.interfaces[usize::from(packet.interface)];
        let data = &self.input.bytes()[packet.data.clone()];
        let cap_len = data.len() as u32;
        let at = usize::from(packet.interface);
        if !self.filter.accepts((at, interface.link_number), data, packet.wire_len, packet.egress)? {
            return Ok(self.refuse(packet, Became::Filtered));
        }
        // Of a short packet the digest is longer.
        if !self.arena.has_room(data.len().max(size_of::<Ip>())) {
            // Judged when it comes again.
            return Ok(Taken::Later);
        }
        let egress = if packet.egress { flags::EGRESS } else { 0 };
        let mut header = RecordHeader {
            ts_ns: packet.ts_ns,
            cap_len,
            wire_len: packet.wire_len,
            queue: interface.queue,
            flags: egress,
            kind: record_kind::PACKET,
            link: interface.link_type as u8,
            ..RecordHeader::default()
        };
        let parsed = annotate::annotate(&mut header, data);
        let (mut said, mut digested) = (Said::default(), false);
        if let Some(judge) = &mut self.judge {
            let seen = judge::Packet { parsed: &parsed, data, inner: self.inner };
            let judged = annotate::judge(judge, interface.device(), seen, &header);
            match fate(&judged) {
                Fate::Delivered { at_most } => header.cap_len = cap_len.min(at_most as u32),
                Fate::Digested => digested = true,
                Fate::Filtered => return Ok(self.refuse(packet, Became::Filtered)),
                Fate::Absorbed => return Ok(self.refuse(packet, Became::Absorbed)),
            }
            header.rule_id = judged.rule_id;
            said = Said::of(&judged);
            header.flags |= said.flags;
        }
        if header.cap_len < packet.wire_len {
            header.flags |= flags::SNAPPED;
        }
        if digested {
            let digest = batch::digest(&mut header, &parsed);
            self.arena.push(&header, arena::digest_bytes(digest), &said);
        } else {
            self.arena.push(&header, &data[..header.cap_len as usize], &said);
        }
        self.device = packet.interface;
        self.counters.follow(&self.interfaces);
        self.counters.read(at, packet.wire_len, Became::Wanted);
        self.input.consume(packet.size);
        Ok(Taken::Wanted)
    }

    /// Steps over a packet that is not delivered.
    fn refuse(&mut self, packet: &Packet, became: Became) -> Taken {
        self.counters.follow(&self.interfaces);
        self.counters.read(usize::from(packet.interface), packet.wire_len, became);
        self.input.consume(packet.size);
        Taken::Refused
    }

    /// One step through the file, waiting up to `wait` for bytes.
    fn advance(&mut self, wait: Duration) -> Result<Reached> {
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

impl Source for FileSource {
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        FileSource::next_batch(self, wait)
    }
}
