//! The recorder: packets of several workers into files.
//!
//! ```text
//! worker --PacketRecorder--> chunks --Writer (a thread)--> NAME.part --Finisher (a thread)--> NAME
//!          blocks             pool     rotate, compress,                fsync, rename, ring of files,
//!                                      write, account                   tell who wants to know
//! ```
//! The rules:
//!
//! * Each worker has its own writer and files. There are no locks, allocations or system calls per packet.
//! * A packet is completely in one file, or it is counted as unwritten. The files of a recording, however it ends,
//!   contain as many packets as `written` states.
//! * A file gets its name when it is complete and on the disk; before that it is `NAME.part`. No existing file is
//!   replaced (except the one that may be, on request), no link is followed, and only the owner can read the files.
//! * Memory is bounded: a pool of chunks for each worker. If a disk is too slow, the worker waits, its ring fills, and
//!   the kernel counts the lost packets.

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

mod body;
mod chunk;
mod compress;
mod counts;
mod file;
mod finish;
mod keep;
mod names;
mod packets;
mod part;
mod rotate;
mod writer;

pub use chunk::Format;
pub use counts::RecordingCounts;
pub use finish::OnFinished;
pub use keep::Keep;
pub use packets::{Packet, PacketRecorder};
pub use rotate::Rotation;

use crate::{Error, InterfaceStatistics, Output, OutputOptions, OutputState, Result, SectionInfo};
use chunk::Pool;
use counts::Shared;
use keep::Ring;
use names::Names;
use part::{Creation, Directory};
use std::sync::atomic::Ordering;
use writer::{Destination, Plan, Target, Writer};

/// Bytes of each worker's chunks.
const POOL: usize = 16 << 20;
/// Bytes of a chunk that is written unchanged: it stays in a second-level cache.
const CHUNK: usize = 256 << 10;
/// Bytes of a chunk that is compressed or written past the page cache.
const LARGE_CHUNK: usize = 1 << 20;
/// Minimum bytes of a chunk, whatever the size of files.
const SMALL_CHUNK: usize = 16 << 10;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordingOptions {
    /// The path of the file, or the pattern for the names of several; `-` is standard output. An existing pipe or
    /// device is written to directly.
    pub path: PathBuf,
    /// File format.
    pub format: Format,
    /// Limits of a file.
    pub rotation: Rotation,
    /// Limits of the kept files.
    pub keep: Keep,
    /// Compression level of zstd, if files are compressed. A path that ends in `.zst` does not imply it.
    pub zstd_level: Option<i32>,
    /// Whether files are written past the page cache (O_DIRECT).
    pub direct_io: bool,
    /// Whether an existing file may be replaced.
    pub overwrite: bool,
    /// Whether the first failed write ends the recording. A failed write to a pipe always does.
    pub stop_on_error: bool,
    /// Number of workers; with more than one, each has its own files.
    pub workers: usize,
    /// Whether packets are captured live; packets from a file are timed only by their time stamps.
    pub live: bool,
}

/// A running recording.
#[derive(Debug)]
pub struct Recording {
    shared: Arc<Shared>,
    writers: Vec<JoinHandle<()>>,
    finisher: Option<JoinHandle<()>>,
    first_path: Option<PathBuf>,
}

impl Recording {
    /// Begins a recording; `info` is written to every pcapng file, and `on_finished` is called, in a separate thread,
    /// with the path of every complete file.
    ///
    /// # Errors
    /// The fault of the path: [`Error::Exists`], [`Error::SymbolicLink`], [`Error::NotAnOutput`], [`Error::DirectIo`],
    /// [`Error::NoName`], [`Error::NeedsFile`], [`Error::Open`].
    pub fn begin(
        mut options: RecordingOptions,
        info: &SectionInfo<'_>,
        on_finished: Option<OnFinished>,
    ) -> Result<(Recording, Vec<PacketRecorder>)> {
        let workers = options.workers.max(1);
        if let (None, Some(bytes)) = (options.rotation.size, options.keep.bytes) {
            // Without a maximum file size, it would be unknown when the oldest file must be removed.
            options.rotation.size = Some((bytes / 4 / workers as u64).max(1));
        }
        let plan = Plan {
            format: options.format,
            rotation: options.rotation,
            zstd_level: options.zstd_level,
            creation: Creation {
                overwrite: options.overwrite && !options.rotation.is_set(),
                direct: options.direct_io,
                beside: !options.rotation.is_set(),
            },
            stop_on_error: options.stop_on_error,
            live: options.live,
        };
        let shared = Arc::new(Shared::default());
        let stream = stream(&options)?;
        let is_stream = stream.is_some();
        let mut writers = Vec::new();
        let mut finisher = None;
        let pools = pools(&options, workers);
        if let Some(output) = stream {
            writers.push(Writer::new(
                plan,
                Target::Stream(output),
                Arc::clone(&shared),
                Arc::clone(&pools[0]),
            )?);
        } else {
            let names = Names::new(&options.path, options.zstd_level.is_some())
                .ok_or_else(|| Error::NoName { path: options.path.clone() })?;
            let directory = Directory::open(&names.directory).map_err(|error| match error {
                Error::Directory { source, .. } => Error::Open { path: options.path.clone(), source },
                other => other,
            })?;
            let mut ring = Ring::new(options.keep);
            if options.rotation.is_set() {
                let next = look_around(&names, &directory, options.keep.is_set().then_some(&mut ring))?;
                shared.next_number.store(next, Ordering::Relaxed);
            }
            let ring_directory = options.keep.is_set().then(|| Arc::clone(&directory));
            let each = options.rotation.size.unwrap_or(0);
            let (events, thread) =
                finish::start(Arc::clone(&shared), ring_directory, ring, each, on_finished)?;
            finisher = Some(thread);
            for (at, pool) in pools.iter().enumerate() {
                let worker = (workers > 1).then_some(at);
                let place = Destination { names: names.clone(), directory: Arc::clone(&directory), worker };
                let target = Target::Files { place, finisher: events.clone(), open: None };
                let begun = Writer::new(plan.clone(), target, Arc::clone(&shared), Arc::clone(pool))
                    .and_then(|mut writer| writer.begin().map(|()| writer));
                match begun {
                    Ok(writer) => writers.push(writer),
                    Err(error) => {
                        writers.into_iter().for_each(Writer::abandon);
                        return Err(error);
                    }
                }
            }
        }
        let first_path = writers[0].path();
        let patience = Duration::from_millis(match (is_stream, options.zstd_level) {
            (true, _) => 50,
            (false, None) => 250,
            (false, Some(_)) => 1000,
        });
        let mut recorders = Vec::new();
        let mut threads = Vec::new();
        for (at, (writer, pool)) in writers.into_iter().zip(pools).enumerate() {
            let (messages, inbox) = sync_channel(POOL / SMALL_CHUNK + 16);
            let thread = std::thread::Builder::new().name(format!("wl-writer-{at}"));
            threads.push(thread.spawn(move || writer.run(&inbox))?);
            let (pool, shared) = (pool, Arc::clone(&shared));
            let way = (patience, is_stream);
            recorders.push(PacketRecorder::new(options.format, info, messages, pool, shared, way)?);
        }
        Ok((Recording { shared, writers: threads, finisher, first_path }, recorders))
    }

    /// Counts of packets and files so far.
    pub fn counts(&self) -> RecordingCounts {
        self.shared.now()
    }

    /// State of the recording with this name. Packets are its records.
    pub fn state(&self, target: &str) -> OutputState {
        let (counts, (failing, error)) = (self.shared.now(), self.shared.failing());
        OutputState {
            written: counts.written,
            lost: counts.unwritten,
            ..OutputState::new(target, failing, error.as_ref())
        }
    }

    /// The future name of the first file; `None` for a pipe, or before the first packet decides it.
    pub fn first_path(&self) -> Option<&std::path::Path> {
        self.first_path.as_deref()
    }

    /// Sets the interfaces' statistics, by their keys: every pcapng file that ends from now on contains them.
    pub fn tell(&self, statistics: Vec<(u32, InterfaceStatistics)>) {
        *self.shared.statistics.lock().unwrap_or_else(PoisonError::into_inner) = statistics;
    }

    /// Ends the recording: waits until everything is written and every file is finished.
    ///
    /// # Errors
    /// [`Error::Unwritten`] if packets were lost, [`Error::Flawed`] after another error, with the first failure as
    /// text. The counts are returned in any case.
    pub fn end(self, recorders: Vec<PacketRecorder>) -> (RecordingCounts, Result<()>) {
        let mut broken = false;
        for recorder in recorders {
            broken |= recorder.end().is_err();
        }
        for writer in self.writers {
            broken |= writer.join().is_err();
        }
        if let Some(finisher) = self.finisher {
            broken |= finisher.join().is_err();
        }
        if broken {
            self.shared.failed("a recorder thread ended early; this is a bug: please report it");
        }
        let counts = self.shared.now();
        let result = match self.shared.first_failure() {
            None => Ok(()),
            Some(first) if counts.unwritten > 0 => Err(Error::Unwritten { packets: counts.unwritten, first }),
            Some(first) => Err(Error::Flawed(first)),
        };
        (counts, result)
    }
}

/// Opens an output that is not a regular file, and will not become one.
fn stream(options: &RecordingOptions) -> Result<Option<Output>> {
    let path = &options.path;
    let regular = path.as_os_str() != "-"
        && match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata.is_file() || options.rotation.is_set() || options.workers > 1,
            Err(_) => true,
        };
    if regular {
        return Ok(None);
    }
    let needs = |option| Err(Error::NeedsFile { path: path.clone(), option });
    match options {
        _ if options.rotation.is_set() => needs("rotation"),
        _ if options.workers > 1 => needs("--workers"),
        _ if options.direct_io => needs("--direct-io"),
        _ => Ok(Some(Output::open(path, OutputOptions { overwrite: options.overwrite })?)),
    }
}

fn pools(options: &RecordingOptions, workers: usize) -> Vec<Arc<Pool>> {
    let most = match options.zstd_level.is_some() || options.direct_io {
        true => LARGE_CHUNK,
        false => CHUNK,
    };
    // A frame is in one file, so it must be small compared to it.
    let fraction = options.rotation.size.map_or(most as u64, |size| size / 8);
    let bytes = usize::try_from(fraction).unwrap_or(most).clamp(SMALL_CHUNK, most);
    (0..workers).map(|_| Arc::new(Pool::new(POOL / bytes, bytes))).collect()
}

/// Scans the files of earlier recordings: the number of the next file, and the files of the ring.
fn look_around(names: &Names, directory: &Directory, ring: Option<&mut Ring>) -> Result<u64> {
    let failed = |source| Error::Directory { path: names.directory.clone(), source };
    let mut next = 1;
    let mut finished = Vec::new();
    let (mut parts, mut example) = (0u64, None);
    for entry in std::fs::read_dir(&names.directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(parsed) = names.parse(&name) else { continue };
        next = next.max(parsed.number + 1);
        match parsed.part {
            true => {
                parts += 1;
                example = Some(name);
            }
            false => finished.extend(directory.file_size(&name).map(|size| (parsed.number, name, size))),
        }
    }
    if let Some(example) = example {
        tracing::warn!(
            "{parts} .part files of this name are there, of recordings that were cut or that still run \
             ({}); they are left as they are",
            directory.path_of(&example).display()
        );
    }
    if let Some(ring) = ring {
        finished.sort();
        for (_, name, size) in finished {
            ring.add(name, size);
        }
    }
    Ok(next)
}
