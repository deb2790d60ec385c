//! The writer: the thread between a worker's chunks and its files.
//!
//! A slow disk blocks this thread and not the worker, which continues as long as there are empty chunks. The writer
//! begins and ends files, and it alone decides which file contains a packet.
//!
//! A failed write does not lose any packet that was complete before. The file is truncated after its last whole packet;
//! the packets after it are counted as unwritten, and so are those that come until the next attempt, a second later: in
//! the next file if the recording has many, else in the same one.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use super::body::Body;
use super::chunk::{Chunk, Format, Pool};
use super::compress::Compression;
use super::counts::Shared;
use super::file::OpenFile;
use super::finish::Event;
use super::names::{LAST_NUMBER, Names};
use super::part::{Creation, Directory, PartFile};
use super::rotate::Rotation;
use wirelane_pcapng::statistics_block;

use crate::{Error, Output, Result};

/// Delay after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Time after its span at which a file is ended without a later packet: longer than packets wait in a chunk.
const GRACE_NS: u64 = 2_000_000_000;
/// Interval at which the clock is checked while no messages come.
const TICK: Duration = Duration::from_millis(200);
/// Maximum numbers that are tried for a new file while names exist.
const TAKEN: u32 = 1000;
/// A compressed file is full when less than this fraction of its size is left.
const CRUMBS: u64 = 64;
/// Maximum bytes of an interface's statistics at the end of a file.
const STATISTICS: u64 = 128;

/// Messages from a worker to its writer, in order.
#[derive(Debug)]
pub(crate) enum Message {
    /// The beginning of every file.
    Head(Vec<u8>),
    /// A new interface, with the key of its statistics: every file describes it from now on.
    Interface { key: u32, block: Vec<u8> },
    /// Packets.
    Packets(Chunk),
    /// The last message.
    End,
}

/// Settings common to all writers of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) format: Format,
    pub(crate) rotation: Rotation,
    pub(crate) zstd_level: Option<i32>,
    pub(crate) creation: Creation,
    pub(crate) stop_on_error: bool,
    /// Whether packets are captured live, or come from a file.
    pub(crate) live: bool,
}

/// Location of a writer's files.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) names: Names,
    pub(crate) directory: Arc<Directory>,
    /// Number of the worker, if there are several.
    pub(crate) worker: Option<usize>,
}

/// Output of a writer.
pub(crate) enum Target {
    Files { place: Destination, finisher: SyncSender<Event>, open: Option<OpenFile> },
    Stream(Output),
}

/// A writer; see the module documentation.
pub(crate) struct Writer {
    plan: Plan,
    target: Target,
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    compression: Option<Compression>,
    head: Vec<u8>,
    /// Keys of the interfaces, by id.
    keys: Vec<u32>,
    start: Instant,
    /// Time before which nothing is tried after a failure.
    retry: Option<Instant>,
}

/// Current time in UTC nanoseconds.
fn utc_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Writer {
    /// Creates a writer without a file.
    ///
    /// # Errors
    /// [`Error::Write`] if zstd cannot allocate memory.
    pub(crate) fn new(plan: Plan, target: Target, shared: Arc<Shared>, pool: Arc<Pool>) -> Result<Writer> {
        let compression = plan.zstd_level.map(Compression::new).transpose()?;
        Ok(Writer {
            plan,
            target,
            shared,
            pool,
            compression,
            head: Vec::new(),
            keys: Vec::new(),
            start: Instant::now(),
            retry: None,
        })
    }

    /// Begins the first file immediately if its name does not depend on its first packet, so that errors of the path
    /// are reported before the capture.
    ///
    /// # Errors
    /// As [`PartFile::create`].
    pub(crate) fn begin(&mut self) -> Result<()> {
        match &self.target {
            Target::Files { .. } if self.plan.live || !self.plan.rotation.is_set() => self.open(utc_ns()),
            _ => Ok(()),
        }
    }

    /// Reverts [`Writer::begin`], if the recording does not start.
    pub(crate) fn abandon(mut self) {
        self.close();
    }

    /// Final path of the open file.
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        match &self.target {
            Target::Files { open: Some(open), place, .. } => Some(place.directory.path_of(open.part.name())),
            _ => None,
        }
    }

    /// Main loop of the thread.
    pub(crate) fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Message::Head(bytes)) => self.head.extend_from_slice(&bytes),
                Ok(Message::Interface { key, block }) => {
                    self.keys.push(key);
                    self.head.extend_from_slice(&block);
                }
                Ok(Message::Packets(chunk)) => {
                    self.packets(&chunk);
                    self.pool.give(chunk);
                }
                Ok(Message::End) => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.tick();
        }
        self.end();
    }

    /// Monotonic clock. For packets from a file it is always 0.
    fn monotonic(&self) -> Duration {
        if self.plan.live { self.start.elapsed() } else { Duration::ZERO }
    }

    /// Ends a file whose span is over although no packet comes, and begins a stream for a waiting reader.
    fn tick(&mut self) {
        if self.plan.live && self.plan.rotation.interval.is_some() {
            // Packets from before the end of the span may still arrive.
            let (now, monotonic) = (utc_ns().saturating_sub(GRACE_NS), self.monotonic());
            if let Target::Files { open: Some(open), .. } = &self.target
                && !open.is_empty()
                && open.span.is_over(now, monotonic)
            {
                self.close();
            }
        }
        if let Target::Stream(_) = &self.target {
            self.stream(&[], 0);
        }
    }

    fn packets(&mut self, chunk: &Chunk) {
        if let Target::Stream(_) = &self.target {
            return self.stream(&chunk.bytes, chunk.packets);
        }
        let (mut bytes, mut packets) = (&chunk.bytes[..], chunk.packets);
        while packets > 0 {
            if self.shared.ended.load(Ordering::Relaxed)
                || self.retry.is_some_and(|retry| Instant::now() < retry)
            {
                self.shared.counts.unwritten.add(packets);
                return;
            }
            let first_ns = self.plan.format.first_block(bytes).and_then(|block| block.ts_ns).unwrap_or(0);
            if let Err(error) = self.ready(first_ns) {
                self.failed(&error.to_string(), 0);
                continue;
            }
            let (some, count) = self.fitting(bytes, packets, chunk.latest_ns);
            if count == 0 {
                self.close();
                continue;
            }
            self.append(&bytes[..some], count);
            (bytes, packets) = (&bytes[some..], packets - count);
        }
    }

    /// Ensures that there is an open file with its header whose span includes this time.
    fn ready(&mut self, utc_ns: u64) -> Result<()> {
        let monotonic = self.monotonic();
        if let Target::Files { open: Some(open), .. } = &mut self.target
            && open.span.is_over(utc_ns, monotonic)
        {
            if open.is_empty() {
                // An empty file is used for the next span.
                open.span = self.plan.rotation.span(utc_ns, monotonic);
            } else {
                self.close();
            }
        }
        if matches!(&self.target, Target::Files { open: None, .. }) {
            self.open(utc_ns)?;
        }
        let Target::Files { open: Some(open), .. } = &mut self.target else { return Ok(()) };
        let before = open.body.len();
        let result = open.begin(self.compression.as_mut(), &self.head);
        self.shared.counts.bytes.add(open.body.len().saturating_sub(before));
        result.map_err(|e| Error::Write(io::Error::new(e.kind(), open.named(&e))))
    }

    fn open(&mut self, utc_ns: u64) -> Result<()> {
        let span = self.plan.rotation.span(utc_ns, self.monotonic());
        let Target::Files { place, finisher, open } = &mut self.target else { return Ok(()) };
        let part = create(place, &self.plan, &self.shared, utc_ns)?;
        // The finisher ends after its writers.
        let _ = finisher.send(Event::Opened);
        let body = Body::new(self.plan.format, self.plan.creation.direct);
        *open = Some(OpenFile::new(part, body, span));
        Ok(())
    }

    /// The part that fits into the file before it is full, as `(bytes, packets)`.
    fn fitting(&self, bytes: &[u8], packets: u64, latest_ns: u64) -> (usize, u64) {
        let Target::Files { open: Some(open), .. } = &self.target else { return (bytes.len(), packets) };
        let (there, in_file) = (open.packets(), open.body.len());
        let monotonic = self.monotonic();
        let room = match self.plan.rotation.size {
            Some(size) => {
                let room = size.saturating_sub(in_file + self.reserve());
                match self.compression {
                    None => room,
                    // Small amounts compress badly, so the last part of the space is not used.
                    Some(_) if room < size / CRUMBS => 0,
                    Some(_) => Compression::fitting(room),
                }
            }
            None => u64::MAX,
        };
        let packets_left = self.plan.rotation.packets.map_or(u64::MAX, |most| most.saturating_sub(there));
        if bytes.len() as u64 <= room && packets <= packets_left && !open.span.is_over(latest_ns, monotonic) {
            return (bytes.len(), packets);
        }
        let (mut end, mut count) = (0, 0);
        while let Some(block) = self.plan.format.first_block(&bytes[end..])
            && count < packets_left
        {
            // The first packet of a file is written regardless of its size.
            let alone = there + count == 0;
            let over = block.ts_ns.is_some_and(|ts| open.span.is_over(ts, monotonic));
            if !alone && (over || (end + block.len) as u64 > room) {
                break;
            }
            end += block.len;
            count += 1;
        }
        (end, count)
    }

    /// Bytes that the end of a file needs.
    fn reserve(&self) -> u64 {
        let statistics = match self.plan.format {
            Format::Pcapng => self.keys.len() as u64 * STATISTICS,
            Format::Pcap => 0,
        };
        statistics + if self.compression.is_some() { Compression::reserve() } else { 0 }
    }

    fn append(&mut self, bytes: &[u8], packets: u64) {
        let Target::Files { open: Some(open), .. } = &mut self.target else { return };
        let before = (open.body.len(), open.packets());
        let result = open.append(self.compression.as_mut(), bytes, packets);
        self.account(before, packets, result);
    }

    /// Counts the result of an append: `before` are the bytes and packets of the file before it.
    fn account(&mut self, before: (u64, u64), packets: u64, result: io::Result<()>) {
        let Target::Files { open: Some(open), .. } = &self.target else { return };
        self.shared.counts.bytes.add(open.body.len().saturating_sub(before.0));
        self.shared.counts.written.add(packets);
        if let Err(error) = result {
            let text = open.named(&error);
            // Packets that were staged before may be lost as well.
            self.shared.take_back(before.1 + packets - open.packets());
            self.failed(&text, 0);
        } else if self.retry.take().is_some() {
            self.shared.works();
            tracing::warn!("{}: writing works again", open.part.path().display());
        }
    }

    /// Records a failure that lost this many packets, which are not counted yet.
    fn failed(&mut self, text: &str, packets: u64) {
        self.shared.counts.unwritten.add(packets);
        self.shared.failed(text);
        let again = self.retry.replace(Instant::now() + RETRY).is_some();
        if !again {
            self.shared.fails(text);
        }
        if self.plan.stop_on_error {
            self.shared.ended.store(true, Ordering::Relaxed);
        } else if !again {
            tracing::warn!(
                "{text}; the capture goes on, what cannot be written is counted, and writing is tried again every second"
            );
        }
        if self.plan.rotation.is_set() {
            self.close();
        }
    }

    /// Ends the open file, if there is one; an empty file is removed.
    fn close(&mut self) {
        let blocks = self.statistics();
        let Target::Files { finisher, open, .. } = &mut self.target else { return };
        let Some(mut file) = open.take() else { return };
        if file.is_empty() {
            if let Some(compression) = &mut self.compression {
                compression.end();
            }
            if let Err(error) = file.part.discard() {
                self.shared.failed(&error.to_string());
            }
            let _ = finisher.send(Event::Discarded);
            return;
        }
        let (bytes, packets) = (file.body.len(), file.packets());
        let result = file.end(self.compression.as_mut(), &blocks);
        self.shared.counts.bytes.add(file.body.len().saturating_sub(bytes));
        let lost = packets - file.packets();
        if lost > 0 {
            self.shared.take_back(lost);
        }
        if let Err(error) = result {
            // The packets before it are complete; readers do not need the missing end.
            let text = file.named(&error);
            tracing::warn!("{text}, while the file was ended");
            self.shared.failed(&text);
        }
        let (bytes, packets) = (file.body.len(), file.packets());
        let _ = finisher.send(Event::Whole { part: file.part, bytes, packets });
    }

    /// The last blocks of a file: interface statistics.
    fn statistics(&self) -> Vec<u8> {
        if self.plan.format == Format::Pcap {
            return Vec::new();
        }
        let told = self.shared.statistics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut blocks = Vec::new();
        for (id, key) in self.keys.iter().enumerate() {
            let Some((_, statistics)) = told.iter().find(|(of, _)| of == key) else { continue };
            // Fails only for interfaces that were not described.
            if let Ok(block) = statistics_block(id as u32, statistics) {
                blocks.extend_from_slice(&block);
            }
        }
        blocks
    }

    /// Ends the output. A recording without packets is a file without packets.
    fn end(mut self) {
        if let Target::Stream(_) = &self.target {
            let blocks = self.statistics();
            self.stream(&blocks, 0);
            let end = self.compression.as_mut().map_or(&[][..], Compression::end);
            if let Target::Stream(output) = &mut self.target
                && !self.shared.ended.load(Ordering::Relaxed)
                && let Err(error) = output.write_all(end).and_then(|()| output.flush())
            {
                self.stream_failed(&error);
            }
            return;
        }
        let empty = matches!(&self.target, Target::Files { open: Some(open), .. } if open.is_empty());
        let none = matches!(&self.target, Target::Files { open: None, .. }) && !self.plan.live;
        let first = self.shared.now().written == 0 && self.shared.now().unwritten == 0;
        if empty && (first || !self.plan.rotation.is_set()) || none && first {
            if let Err(error) = self.ready(utc_ns()) {
                self.failed(&error.to_string(), 0);
            }
            if let Target::Files { open: Some(open), .. } = &mut self.target {
                open.keep_empty = true;
            }
        }
        self.close();
    }

    fn stream(&mut self, bytes: &[u8], packets: u64) {
        let Target::Stream(output) = &mut self.target else { return };
        if self.shared.ended.load(Ordering::Relaxed) {
            self.shared.counts.unwritten.add(packets);
            return;
        }
        let head = std::mem::take(&mut self.head);
        let written = [&head[..], bytes].into_iter().filter(|part| !part.is_empty()).try_for_each(|part| {
            let bytes = match &mut self.compression {
                Some(compression) => compression.blocks(part)?,
                None => part,
            };
            self.shared.counts.bytes.add(bytes.len() as u64);
            output.write_through(bytes)
        });
        match written {
            Ok(()) => self.shared.counts.written.add(packets),
            Err(error) => {
                // The reader has closed the stream, and a later reader would find a gap.
                self.shared.counts.unwritten.add(packets);
                self.stream_failed(&error);
            }
        }
    }

    fn stream_failed(&self, error: &io::Error) {
        self.shared.failed(&error.to_string());
        self.shared.fails(&error.to_string());
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

/// Creates the next file.
fn create(place: &mut Destination, plan: &Plan, shared: &Shared, utc_ns: u64) -> Result<PartFile> {
    let mut renewed = false;
    for _ in 0..TAKEN {
        let name = match plan.rotation.is_set() {
            false => place.names.single(place.worker),
            true => {
                let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
                if number > LAST_NUMBER {
                    return Err(Error::NumbersUsedUp { path: place.names.directory.clone() });
                }
                place.names.numbered(place.worker, number, utc_ns)
            }
        };
        match PartFile::create(&place.directory, name, plan.creation) {
            // An existing link or file with this name is left unchanged: the next number is tried.
            Err(error @ (Error::Exists { .. } | Error::SymbolicLink { .. })) if plan.rotation.is_set() => {
                tracing::warn!("{error}; the recording goes on under the next number");
            }
            // The directory may have been removed and created again.
            Err(Error::Open { .. }) if !renewed => {
                renewed = true;
                place.directory = Directory::open(&place.names.directory)?;
            }
            result => return result,
        }
    }
    Err(Error::NumbersUsedUp { path: place.names.directory.clone() })
}
