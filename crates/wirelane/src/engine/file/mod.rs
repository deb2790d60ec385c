//! The `file` engine: pcap and pcapng files give the same records as a device.
//!
//! A capture file is an untrusted input. It may be cut, damaged or malicious; it may also be a pipe that is written
//! while it is read. The rules are:
//!
//! * Whole packets before the first damage are delivered; then comes [`wirelane_pcapng::Error::CaptureFile`] with the
//!   byte at which the damaged packet or block starts. Nothing after it is guessed.
//! * A length in the file never makes memory grow; arriving bytes do. A packet or block of more than 16 MiB is refused,
//!   and blocks that are not needed for records are skipped without being buffered.
//! * No allocation per packet: bytes are read into one window and copied once into one arena of records.
//! * A batch holds packets of one interface. Interfaces are numbered from 0 through all sections.
//!
//! ```text
//! wirelane_pcapng::Reader --advance--> Packet --annotate, Arena::push--> Batch of Records
//!                                              annotate.rs, arena.rs
//! ```
//!
//! The files themselves are read by the crate `wirelane-pcapng`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wirelane_bpf::evaluate;
use wirelane_bpf::layout::{Ip, RecordHeader, flags, record_kind};
use wirelane_pcapng::{
    FileInput, FileInterface, FileProgress, MAX_ITEM, MergedReader, Packet, Reached, Reader,
};

use crate::active_rules::{Evaluator, Fate, fate};
use crate::batch::Batch;
use crate::batch::{self, Progress, Said};
use crate::engine::Source;
use crate::error::{Error, Result};
use wirelane_filter::FileView;

mod annotate;
mod arena;
mod counters;
mod sort;

#[cfg(test)]
pub(crate) mod tests;

use arena::Arena;
pub use counters::InterfaceCounters;
pub(crate) use counters::InterfaceLines;
use counters::{Became, Counters};
pub(crate) use sort::Disorder;
use sort::Sorter;

/// Minimum size of a batch, in bytes.
const MIN_BATCH: usize = 4 << 10;
/// A practically unlimited wait that can be added to the time of day.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Options for reading a capture file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FileOptions {
    /// Maximum bytes of records in a batch, headers included. A single packet may be larger.
    pub batch_bytes: usize,
    /// Whether records are sorted by timestamp, within a window of 16 MiB.
    pub in_order: bool,
}

impl FileOptions {
    /// The defaults, but with records in the order of the file.
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

/// A capture file that is being read, or several, merged by time.
///
/// Timestamps are UTC nanoseconds and do not delay reading: a program that replays a capture does the pacing.
#[derive(Debug)]
pub struct FileSource {
    reader: MergedReader,
    counters: Counters,
    arena: Arena,
    /// Sorts records by timestamp; `None`: records come in the order of the file.
    sorter: Option<Sorter>,
    /// Interface of the records in the arena.
    device: u16,
    progress: Progress,
    filter: FileView,
    /// Evaluator of the rules for packets that the filter accepts; `None`: no rules.
    evaluate: Option<Evaluator>,
    /// Whether rules look at the headers inside tunnels.
    inner: bool,
    /// The error that ends the file, to be returned after the records before it.
    failure: Option<Error>,
    ended: bool,
}

/// Outcome of a packet for the current batch.
enum Taken {
    /// The packet is in the arena.
    Wanted,
    /// The filter or a rule refuses the packet, or a rule only counts it.
    Refused,
    /// The packet belongs to a later batch.
    Later,
}

/// Number of consecutively refused packets after which an empty batch is yielded.
const MOST_REFUSED: u32 = 1 << 14;

impl FileSource {
    /// Opens a pcap or pcapng file, which may be compressed with zstd or gzip (`-` is standard input), and reads its
    /// header and the interfaces that it describes before the first packet. For a pipe it waits for the first
    /// interface.
    ///
    /// # Errors
    /// [`wirelane_pcapng::Error::Io`] where the file cannot be opened or read; [`wirelane_pcapng::Error::CaptureFile`]
    /// where it is empty, not a capture, or compressed in another way than by zstd or gzip.
    pub fn open(path: &Path, options: FileOptions) -> Result<FileSource> {
        FileSource::read(FileInput::open(path)?, options)
    }

    /// Reads an open capture file, as [`FileSource::open`] does.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn read(input: FileInput, options: FileOptions) -> Result<FileSource> {
        FileSource::merge(vec![input], options)
    }

    /// Reads several open capture files as one: their packets in the order of the time stamps, each file in its own
    /// order. A file that is damaged ends there, and the error comes after the packets of the others.
    ///
    /// # Errors
    /// As [`FileSource::open`]; [`wirelane_pcapng::Error::BadOption`] without a file, and for a pipe among several files.
    pub fn merge(inputs: Vec<FileInput>, options: FileOptions) -> Result<FileSource> {
        Ok(FileSource::start(MergedReader::read(inputs)?, options))
    }

    /// Reads a capture from any reader, for example from memory. `name` is its name in errors.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn from_reader(
        reader: impl Read + Send + 'static,
        name: impl Into<PathBuf>,
        options: FileOptions,
    ) -> Result<FileSource> {
        Ok(FileSource::start(Reader::from_reader(reader, name)?.into(), options))
    }

    fn start(reader: MergedReader, options: FileOptions) -> FileSource {
        FileSource {
            reader,
            counters: Counters::default(),
            arena: Arena::new(options.batch_bytes.clamp(MIN_BATCH, MAX_ITEM)),
            sorter: options.in_order.then(Sorter::default),
            device: 0,
            progress: Progress::default(),
            filter: FileView::default(),
            evaluate: None,
            inner: false,
            failure: None,
            ended: false,
        }
    }

    /// The interfaces that the file has described so far, over all sections; [`crate::Record::device`] is an index into
    /// them. Interfaces described before the first packet are in the list from the start.
    pub fn interfaces(&self) -> &[FileInterface] {
        self.reader.interfaces()
    }

    /// Progress through the file; `None` for anything but a regular file.
    pub fn progress(&self) -> Option<FileProgress> {
        self.reader.progress()
    }

    /// Sets the filter, from the next batch on.
    pub(crate) fn filter_by(&mut self, filter: FileView) {
        self.filter = filter;
    }

    /// Evaluates rules for the packets that the filter accepts, by the headers inside tunnels with `inner`.
    pub(crate) fn evaluate_by(&mut self, evaluate: Evaluator, inner: bool) {
        (self.evaluate, self.inner) = (Some(evaluate), inner);
    }

    /// The interfaces and their counters, for the ledger.
    pub(crate) fn lines(&self) -> InterfaceLines {
        self.counters.lines.clone()
    }

    /// The counters of the interface with this index.
    pub fn counters(&self, interface: usize) -> InterfaceCounters {
        self.counters.of(interface)
    }

    /// The next packets of one interface. A file gives them at once, whatever `wait` is; a pipe gives the packets that
    /// have arrived, or an empty batch when none arrived for as long as `wait` or until a signal. `None` is the end.
    ///
    /// # Errors
    /// [`wirelane_pcapng::Error::CaptureFile`] where the file is damaged and [`wirelane_pcapng::Error::Io`] where it
    /// cannot be read, after all records before that position; then the source has ended.
    pub fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        self.arena.release(self.progress.take());
        if self.arena.is_empty() && !self.build_ordered(wait)? {
            return Ok(None);
        }
        self.counters.follow(self.reader.interfaces()); // an empty batch may come before any packet
        let Some(tally) = self.counters.analysed(usize::from(self.device)) else {
            return Ok(None); // the end of a file without interfaces
        };
        let records = self.arena.records();
        Ok(Some(Batch::new(records, records.len(), self.device, &self.progress, tally)))
    }

    /// Fills the arena with the next records of the file. False: the file has ended.
    fn build(&mut self, wait: Duration) -> Result<bool> {
        self.arena.clear();
        if let Some(failure) = self.failure.take() {
            self.ended = true;
            return Err(failure);
        }
        self.filter.refresh();
        let mut refused = 0;
        let deadline = self.reader.is_pipe().then(|| Instant::now() + wait.min(LONGEST_WAIT));
        while !self.ended {
            let wait = match deadline {
                Some(deadline) if self.arena.is_empty() => deadline.saturating_duration_since(Instant::now()),
                _ => Duration::ZERO,
            };
            match self.reader.advance(wait) {
                Ok(Reached::Packet(packet)) => match self.take(&packet) {
                    Ok(Taken::Wanted) => {}
                    // Return now and then, so that the caller can stop, or change the filter.
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
                    return Err(error.into());
                }
                Err(error) => {
                    self.failure = Some(error.into());
                    return Ok(true);
                }
            }
        }
        Ok(!self.arena.is_empty())
    }

    /// Copies a packet into the arena, if it is accepted, belongs to this batch and fits.
    fn take(&mut self, packet: &Packet) -> Result<Taken> {
        if !self.arena.is_empty() && packet.interface != self.device {
            return Ok(Taken::Later);
        }
        let interface = &self.reader.interfaces()[usize::from(packet.interface)];
        let data = self.reader.data(packet);
        let cap_len = data.len() as u32;
        let at = usize::from(packet.interface);
        if !self.filter.accepts((at, interface.link_number), data, packet.wire_len, packet.egress)? {
            return Ok(self.refuse(packet, Became::Filtered));
        }
        // The digest of a short packet is longer than the packet.
        if !self.arena.has_room(data.len().max(size_of::<Ip>())) {
            // The packet is evaluated when it is read again.
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
        if let Some(evaluate) = &mut self.evaluate {
            let seen = evaluate::Packet { parsed: &parsed, data, inner: self.inner };
            let evaluated = annotate::evaluate(evaluate, interface.device(), seen, &header);
            match fate(&evaluated) {
                Fate::Delivered { at_most } => header.cap_len = cap_len.min(at_most as u32),
                Fate::Digested => digested = true,
                Fate::Filtered => return Ok(self.refuse(packet, Became::Filtered)),
                Fate::Absorbed => return Ok(self.refuse(packet, Became::Absorbed)),
            }
            header.rule_id = evaluated.rule_id;
            said = Said::of(&evaluated);
        }
        if let Some(aggregate) = packet.aggregate {
            said = said.of_aggregate(aggregate.segment_size, aggregate.headers);
        }
        header.flags |= said.flags;
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
        self.counters.follow(self.reader.interfaces());
        self.counters.read(at, said.on_wire(packet.wire_len), Became::Wanted);
        self.reader.consume(packet);
        Ok(Taken::Wanted)
    }

    /// Skips a packet that is not delivered.
    fn refuse(&mut self, packet: &Packet, became: Became) -> Taken {
        self.counters.follow(self.reader.interfaces());
        let said = packet.aggregate.map_or_else(Said::default, |aggregate| {
            Said::default().of_aggregate(aggregate.segment_size, aggregate.headers)
        });
        self.counters.read(usize::from(packet.interface), said.on_wire(packet.wire_len), became);
        self.reader.consume(packet);
        Taken::Refused
    }
}

impl Source for FileSource {
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        FileSource::next_batch(self, wait)
    }
}
