//! The writer of a store: a thread of its own, beside the capture.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use datafusion::parquet::file::properties::WriterPropertiesPtr;
use serde::Serialize;
use wirelane_analysis::flows::FlowRecord;
use wirelane_export::flows::Naming;

use crate::columns::Names;
use crate::file::{Ended, OpenFile, properties};
use crate::place::{self, Hour};
use crate::retention::{Keep, sweep};
use crate::unfinished::make_folder;
use crate::{Error, Result};

/// Batches of flows that may wait for the thread. One is 256 flows while many come, and so some 60 KiB.
const UNDER_WAY: usize = 256;
/// Bytes that may wait in memory for a disk that takes none.
const MOST_WAITING: usize = 64 << 20;
/// Hours of which files are open at once. A capture file may have packets of any.
const MOST_OPEN: usize = 4;
/// How long the thread waits for flows, where nothing else is to be done.
const REST: Duration = Duration::from_millis(200);
/// After a failed write, how long until the next one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often retention looks, beside after every file.
const SWEEPS: Duration = Duration::from_secs(60);
/// A file ends when it has this many bytes, about: fewer where the store is small.
const MOST_FILE: u64 = 128 << 20;
/// The least size of a store: below that, ends of files are most of it.
pub const LEAST_SIZE: u64 = 1 << 20;

/// How a store is written.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Its folder.
    pub folder: PathBuf,
    /// How long flows are kept after their end, to the hour.
    pub max_age: Option<Duration>,
    /// Bytes that are kept, of all tables and writers. At least [`LEAST_SIZE`].
    pub max_size: Option<u64>,
    /// After how long a file is ended, so that its flows can be asked for and no longer be lost.
    pub rotate: Duration,
    /// Whether flows are of now. Then nothing waits for the disk: what finds no room is counted as unwritten.
    pub live: bool,
    /// Whom the folder is given to, where it is made here by root.
    pub owner: Option<(u32, u32)>,
}

/// What has become of the flows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreCounts {
    /// The store.
    pub store: String,
    /// Flows in files that are whole and on the disk.
    pub flows: u64,
    /// Flows that are in no file: no room, no right to write, a disk that is too slow.
    pub unwritten_flows: u64,
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were too old or too many, and were removed.
    pub removed_files: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Unfinished files of writers that had died, removed.
    pub cleared_files: u64,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip)]
    first_error: Option<String>,
}

impl StoreCounts {
    /// The error of a store that lacks flows.
    pub fn failure(&self) -> Option<Error> {
        let first = self.first_error.clone().unwrap_or_default();
        let (flows, path) = (self.unwritten_flows, PathBuf::from(&self.store));
        (flows > 0).then_some(Error::Unwritten { flows, path, first })
    }

    fn failed(&mut self, why: String) {
        if self.error.as_ref() != Some(&why) {
            tracing::warn!("store {}: {why}", self.store);
            self.first_error.get_or_insert_with(|| why.clone());
            self.error = Some(why);
        }
    }
}

/// The capture's side of the writer.
#[derive(Debug)]
pub struct Writer {
    settings: StoreSettings,
    thread: Option<(SyncSender<Vec<FlowRecord>>, JoinHandle<StoreCounts>)>,
    /// Flows for which the thread had no time.
    refused: u64,
}

impl Writer {
    /// Makes the store's folder where it is missing. Nothing is written yet, and no thread runs.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn open(settings: StoreSettings) -> Result<Writer> {
        let failed = |source| Error::Folder { path: settings.folder.clone(), source };
        for folder in [settings.folder.clone(), settings.folder.join(place::FLOWS)] {
            if folder.is_dir() {
                continue;
            }
            make_folder(&folder).map_err(failed)?;
            if let Some((uid, gid)) = settings.owner {
                std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).map_err(failed)?;
            }
        }
        Ok(Writer { settings, thread: None, refused: 0 })
    }

    /// Starts the thread, after rights are given up. `naming`: what numbers in flows are called.
    ///
    /// # Errors
    /// Where there can be no thread more.
    pub fn start(&mut self, naming: Naming) -> io::Result<()> {
        let (sender, inbox) = sync_channel(UNDER_WAY);
        let store = Store::new(self.settings.clone(), naming);
        let thread = std::thread::Builder::new().name("wl-store".into()).spawn(move || store.run(&inbox))?;
        self.thread = Some((sender, thread));
        Ok(())
    }

    /// Takes flows on.
    pub fn flows(&mut self, flows: Vec<FlowRecord>) {
        let number = flows.len() as u64;
        let taken = match &self.thread {
            None => false,
            Some((sender, _)) if self.settings.live => match sender.try_send(flows) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
            },
            Some((sender, _)) => sender.send(flows).is_ok(),
        };
        self.refused += if taken { 0 } else { number };
    }

    /// There are no more flows: ends all files. What has become of them.
    pub fn finish(self) -> StoreCounts {
        let mut counts = match self.thread {
            None => {
                StoreCounts { store: self.settings.folder.display().to_string(), ..StoreCounts::default() }
            }
            Some((sender, thread)) => {
                drop(sender);
                match thread.join() {
                    Ok(counts) => counts,
                    // Its message is on standard error; what it had written is not known.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        };
        if self.refused > 0 {
            counts.unwritten_flows += self.refused;
            counts.failed(format!("the disk was too slow for {} flows", self.refused));
        }
        counts
    }
}

/// The thread's side.
struct Store {
    settings: StoreSettings,
    table: PathBuf,
    names: Names,
    properties: WriterPropertiesPtr,
    open: BTreeMap<Hour, OpenFile>,
    ended: VecDeque<Ended>,
    counts: StoreCounts,
    /// Since when nothing can be written.
    stuck: Option<Instant>,
    swept: Option<Instant>,
}

impl Store {
    fn new(settings: StoreSettings, naming: Naming) -> Store {
        let counts = StoreCounts { store: settings.folder.display().to_string(), ..StoreCounts::default() };
        Store {
            table: settings.folder.join(place::FLOWS),
            settings,
            names: Names::new(naming),
            properties: properties(),
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            counts,
            stuck: None,
            swept: None,
        }
    }

    fn run(mut self, inbox: &Receiver<Vec<FlowRecord>>) -> StoreCounts {
        self.sweep();
        loop {
            match inbox.recv_timeout(REST) {
                Ok(flows) => self.flows(&flows),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_after();
        }
        self.finish()
    }

    /// Bytes at which a file ends.
    fn most_file(&self) -> u64 {
        self.settings.max_size.map_or(MOST_FILE, |most| MOST_FILE.min(most / 8))
    }

    fn waiting(&self) -> usize {
        self.open.values().map(OpenFile::waiting).chain(self.ended.iter().map(Ended::waiting)).sum()
    }

    fn flows(&mut self, flows: &[FlowRecord]) {
        if self.stuck.is_some() && self.waiting() >= MOST_WAITING {
            self.counts.unwritten_flows += flows.len() as u64;
            return;
        }
        for flow in flows {
            let hour = (flow.last_ns() / place::HOUR_NS) as Hour;
            if let Err(error) = self.flow(hour, flow) {
                self.broken(hour, &error);
            }
        }
    }

    fn flow(&mut self, hour: Hour, flow: &FlowRecord) -> datafusion::parquet::errors::Result<()> {
        if !self.open.contains_key(&hour) {
            if self.open.len() >= MOST_OPEN {
                let oldest = self.open.iter().min_by_key(|(_, file)| file.used).map(|(hour, _)| *hour);
                oldest.into_iter().for_each(|hour| self.end(hour));
            }
            let file = OpenFile::new(place::folder(&self.table, hour), &self.properties)?;
            self.open.insert(hour, file);
        }
        let most = self.most_file();
        let Some(file) = self.open.get_mut(&hour) else { return Ok(()) };
        file.push(flow, &mut self.names)?;
        // The clock is asked now and then.
        if file.flows.is_multiple_of(256) {
            file.used = Instant::now();
            if file.size() >= most {
                self.end(hour);
            }
        }
        Ok(())
    }

    /// The encoder has refused flows, which is a fault of ours: this file is lost, and said to be.
    fn broken(&mut self, hour: Hour, error: &datafusion::parquet::errors::ParquetError) {
        let lost = self.open.remove(&hour).map_or(1, |file| file.flows);
        self.counts.unwritten_flows += lost;
        self.counts.failed(format!("flows cannot be encoded, which is a bug: {error}"));
    }

    /// Ends a file.
    fn end(&mut self, hour: Hour) {
        let Some(file) = self.open.remove(&hour) else { return };
        let flows = file.flows;
        match file.end() {
            Ok(ended) => self.ended.push_back(ended),
            Err(error) => {
                self.counts.unwritten_flows += flows;
                self.counts.failed(format!("flows cannot be encoded, which is a bug: {error}"));
            }
        }
    }

    /// What is to be done between flows.
    fn look_after(&mut self) {
        let rotate = self.settings.rotate;
        let due: Vec<Hour> = self
            .open
            .iter()
            .filter(|(_, file)| file.since.elapsed() >= rotate)
            .map(|(hour, _)| *hour)
            .collect();
        due.into_iter().for_each(|hour| self.end(hour));
        if self.stuck.is_none_or(|since| since.elapsed() >= PATIENCE) {
            self.write();
        }
        if self.swept.is_none_or(|swept| swept.elapsed() >= SWEEPS) {
            self.sweep();
        }
    }

    /// Takes to the disk what waits for it.
    fn write(&mut self) {
        let mut finished = false;
        let mut result = Ok(());
        while result.is_ok()
            && let Some(mut ended) = self.ended.pop_front()
        {
            match ended.finish() {
                Ok(bytes) => {
                    self.counts.flows += ended.flows;
                    self.counts.files += 1;
                    self.counts.bytes += bytes;
                    finished = true;
                }
                // It is all there, but whether it would be after a power failure nobody knows, or it is gone.
                Err(error) if ended.is_written() => {
                    self.counts.unwritten_flows += ended.flows;
                    self.counts.failed(error.to_string());
                    ended.discard();
                }
                Err(error) => {
                    self.ended.push_front(ended);
                    result = Err(error);
                }
            }
        }
        for file in self.open.values_mut() {
            result = result.and_then(|()| file.drain());
        }
        match result {
            Ok(()) if self.stuck.take().is_some() => {
                self.counts.error = None;
                let lost = self.counts.unwritten_flows;
                tracing::warn!(
                    "store {}: is written to again; {lost} flows are in no file",
                    self.counts.store
                );
            }
            Ok(()) => {}
            Err(error) => {
                self.stuck = Some(Instant::now());
                self.counts.failed(error.to_string());
            }
        }
        if finished {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.swept = Some(Instant::now());
        // Room for the file that is being written.
        let size = self.settings.max_size.map(|most| most - self.most_file());
        let keep = Keep { age: self.settings.max_age, size };
        let (gone, result) = sweep(&self.table, keep, now_s());
        self.counts.removed_files += gone.files;
        self.counts.removed_bytes += gone.bytes;
        self.counts.cleared_files += gone.parts;
        if gone.parts > 0 {
            let store = &self.counts.store;
            tracing::warn!(
                "store {store}: {} unfinished files of writers that had died are removed",
                gone.parts
            );
        }
        if let Err(error) = result {
            self.counts.failed(format!("what is to go cannot be removed: {error}"));
        }
    }

    /// The end of all files; what cannot be written now is counted.
    fn finish(mut self) -> StoreCounts {
        for hour in self.open.keys().copied().collect::<Vec<_>>() {
            self.end(hour);
        }
        self.write();
        // One that goes makes room for the next.
        while let Some(ended) = self.ended.pop_front() {
            self.counts.unwritten_flows += ended.flows;
            ended.discard();
            self.write();
        }
        self.counts
    }
}

/// Seconds since 1970.
fn now_s() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}

/// Where the files of flows of a store are.
pub(crate) fn table(store: &Path) -> PathBuf {
    store.join(place::FLOWS)
}
