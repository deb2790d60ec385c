//! The writer: the thread between a worker's chunks and its files.
//!
//! A slow disk stops this thread and not the worker, which goes on as long as there are empty chunks. It begins and
//! ends files, and it alone decides which file a packet is in.
//!
//! A write that fails takes no packet with it that was whole before. The file is cut after its last whole packet; the
//! packets behind that are counted as unwritten, and so are those that come until the next try, a second later:
//! in the next file where the recording has many, else in the same one.

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

/// How long nothing is tried after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// How long after its time a file is ended for that alone: longer than packets lie in a chunk.
const GRACE_NS: u64 = 2_000_000_000;
/// How often the clock is looked at while nothing comes.
const TICK: Duration = Duration::from_millis(200);
/// Numbers that are tried for a new file where names are taken.
const TAKEN: u32 = 1000;
/// A compressed file is full when less than this part of it is left.
const CRUMBS: u64 = 64;
/// Bytes that an interface's statistics take at the end of a file, at most.
const STATISTICS: u64 = 128;

/// What a worker tells its writer, in order.
#[derive(Debug)]
pub(crate) enum Message {
    /// How every file begins.
    Head(Vec<u8>),
    /// One more interface, by the key of its statistics: every file describes it from now on.
    Interface { key: u32, block: Vec<u8> },
    /// Packets.
    Packets(Chunk),
    /// There will be no more.
    End,
}

/// What all writers of a recording do alike.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) format: Format,
    pub(crate) rotation: Rotation,
    pub(crate) zstd_level: Option<i32>,
    pub(crate) creation: Creation,
    pub(crate) stop_on_error: bool,
    /// Whether packets come as they happen, or out of a file.
    pub(crate) live: bool,
}

/// Where a writer's files are.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) names: Names,
    pub(crate) directory: Arc<Directory>,
    /// Its number, where there are several workers.
    pub(crate) worker: Option<usize>,
}

/// What a writer writes to.
pub(crate) enum Target {
    Files { place: Destination, finisher: SyncSender<Event>, open: Option<OpenFile> },
    Stream(Output),
}

/// See the head of this file.
pub(crate) struct Writer {
    plan: Plan,
    target: Target,
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    compression: Option<Compression>,
    head: Vec<u8>,
    /// The keys of the interfaces, by id.
    keys: Vec<u32>,
    start: Instant,
    /// Nothing is tried before; set by a failure.
    retry: Option<Instant>,
}

/// UTC nanoseconds now.
fn utc_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Writer {
    /// A writer without a file yet.
    ///
    /// # Errors
    /// [`Error::Write`] where zstd has no memory.
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

    /// Begins the first file at once where its name does not depend on its first packet, so that what is wrong with
    /// the place is said before the capture.
    ///
    /// # Errors
    /// As [`PartFile::create`].
    pub(crate) fn begin(&mut self) -> Result<()> {
        match &self.target {
            Target::Files { .. } if self.plan.live || !self.plan.rotation.is_set() => self.open(utc_ns()),
            _ => Ok(()),
        }
    }

    /// Takes back what [`Writer::begin`] did, where the recording does not come about.
    pub(crate) fn abandon(mut self) {
        self.close();
    }

    /// The path of the file that is being written, as it will be called.
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        match &self.target {
            Target::Files { open: Some(open), place, .. } => Some(place.directory.path_of(open.part.name())),
            _ => None,
        }
    }

    /// The life of the thread.
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

    /// A clock that is never set. Packets out of a file have no such time.
    fn monotonic(&self) -> Duration {
        if self.plan.live { self.start.elapsed() } else { Duration::ZERO }
    }

    /// Ends a file whose time is over though no packet comes, and begins a stream for whoever waits for it.
    fn tick(&mut self) {
        if self.plan.live && self.plan.rotation.interval.is_some() {
            // Packets of the time before may still be on their way.
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

    /// Sees to it that there is a file with its head, and that it covers this time.
    fn ready(&mut self, utc_ns: u64) -> Result<()> {
        let monotonic = self.monotonic();
        if let Target::Files { open: Some(open), .. } = &mut self.target
            && open.span.is_over(utc_ns, monotonic)
        {
            if open.is_empty() {
                // An empty file is as good for the next span.
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
        // The finisher outlives its writers.
        let _ = finisher.send(Event::Opened);
        let body = Body::new(self.plan.format, self.plan.creation.direct);
        *open = Some(OpenFile::new(part, body, span));
        Ok(())
    }

    /// How much goes into the file before it is full: `(bytes, packets)`.
    fn fitting(&self, bytes: &[u8], packets: u64, latest_ns: u64) -> (usize, u64) {
        let Target::Files { open: Some(open), .. } = &self.target else { return (bytes.len(), packets) };
        let (there, in_file) = (open.packets(), open.body.len());
        let monotonic = self.monotonic();
        let room = match self.plan.rotation.size {
            Some(size) => {
                let room = size.saturating_sub(in_file + self.reserve());
                match self.compression {
                    None => room,
                    // Few bytes at a time compress badly, so the last of the room is left.
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
            // The first packet of a file goes in whatever its size is.
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

    /// Bytes that the end of a file takes.
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

    /// Counts what an append came to: `before` are bytes and packets of the file.
    fn account(&mut self, before: (u64, u64), packets: u64, result: io::Result<()>) {
        let Target::Files { open: Some(open), .. } = &self.target else { return };
        self.shared.counts.bytes.add(open.body.len().saturating_sub(before.0));
        self.shared.counts.written.add(packets);
        if let Err(error) = result {
            let text = open.named(&error);
            // Of what was there before, staged packets may be gone as well.
            self.shared.take_back(before.1 + packets - open.packets());
            self.failed(&text, 0);
        } else if self.retry.take().is_some() {
            tracing::warn!("{}: writing works again", open.part.path().display());
        }
    }

    /// Something failed, and with it so many packets that are counted nowhere yet.
    fn failed(&mut self, text: &str, packets: u64) {
        self.shared.counts.unwritten.add(packets);
        self.shared.failed(text);
        let again = self.retry.replace(Instant::now() + RETRY).is_some();
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

    /// Ends the file, if there is one; an empty one leaves no trace.
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
            // Packets before it are whole; readers do not need what is missing.
            let text = file.named(&error);
            tracing::warn!("{text}, while the file was ended");
            self.shared.failed(&text);
        }
        let (bytes, packets) = (file.body.len(), file.packets());
        let _ = finisher.send(Event::Whole { part: file.part, bytes, packets });
    }

    /// The last blocks of a file.
    fn statistics(&self) -> Vec<u8> {
        if self.plan.format == Format::Pcap {
            return Vec::new();
        }
        let told = self.shared.statistics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut blocks = Vec::new();
        for (id, key) in self.keys.iter().enumerate() {
            let Some((_, statistics)) = told.iter().find(|(of, _)| of == key) else { continue };
            // It fails for interfaces that were not described only.
            if let Ok(block) = statistics_block(id as u32, statistics) {
                blocks.extend_from_slice(&block);
            }
        }
        blocks
    }

    /// Ends everything. A recording without a packet is a file without packets.
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
                // Whoever read it is gone, and what he missed would be missing in the middle.
                self.shared.counts.unwritten.add(packets);
                self.stream_failed(&error);
            }
        }
    }

    fn stream_failed(&self, error: &io::Error) {
        self.shared.failed(&error.to_string());
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
            // A name that is taken, by a link or a file, is left as it is: there are others.
            Err(error @ (Error::Exists { .. } | Error::SymbolicLink { .. })) if plan.rotation.is_set() => {
                tracing::warn!("{error}; the recording goes on under the next number");
            }
            // The directory may have been removed and made anew.
            Err(Error::Open { .. }) if !renewed => {
                renewed = true;
                place.directory = Directory::open(&place.names.directory)?;
            }
            result => return result,
        }
    }
    Err(Error::NumbersUsedUp { path: place.names.directory.clone() })
}
