//! The recording of a capture: a recorder for each worker, the files, and the results.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::ledger::VirtualDeviceLine;
use wirelane::{Capture, Interfaces, Ledger, Record, Timebase, Worker};
use wirelane_export::recorder::{OnFinished, Packet, PacketRecorder, RecordingOptions};
use wirelane_export::{Direction, Error, Interface, InterfaceStatistics, Recording, SectionInfo};
use wirelane_screen::table::{amount, counted, printable};

use super::merge::Merging;
use super::post_rotate::{Outcomes, PostRotate};
use super::{aggregate, lock};
use crate::analysis::{Analysis, AnyHandler};
use crate::report::{Recorded, Report};
use crate::run_loop::{Handler, Outcome};
use crate::status::AnalysisStatus;

/// Settings of a recording.
pub struct RecordSettings {
    /// The files.
    pub options: RecordingOptions,
    /// Whether the files of several workers are merged into one.
    pub merges: bool,
    /// The process that runs commands for finished files, which was started before privileges are dropped.
    pub post_rotate: Option<PostRotate>,
    /// The filter expression, for the description of interfaces.
    pub expression: String,
    /// Whether the input is live.
    pub live: bool,
    /// Whether a reader that closes the pipe ends the recording without an error.
    pub pipe: bool,
}

/// See [`Analysis`].
pub struct RecordAnalysis {
    /// Set until the start.
    settings: Option<RecordSettings>,
    /// Set from the start to the end.
    running: Option<Running>,
}

/// A recording between its start and its end.
struct Running {
    recording: Recording,
    merging: Option<Merging>,
    helper: Option<PostRotate>,
    outcomes: Option<Arc<Outcomes>>,
    homes: Arc<Mutex<VecDeque<Queue>>>,
    interfaces: Interfaces,
    begin_ns: u64,
    path: std::path::PathBuf,
    live: bool,
    pipe: bool,
}

impl RecordAnalysis {
    /// A recording.
    pub fn new(settings: RecordSettings) -> RecordAnalysis {
        RecordAnalysis { settings: Some(settings), running: None }
    }
}

impl Analysis for RecordAnalysis {
    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let Some(settings) = self.settings.take() else {
            return Err(anyhow!("a recording was started twice; this is a bug"));
        };
        let RecordSettings { options, merges, post_rotate: mut helper, expression, live, pipe } = settings;
        let path = options.path.clone();
        let begin_ns = utc_ns();
        let on_finished = match &mut helper {
            Some(helper) => Some(Box::new(helper.listen()?) as OnFinished),
            None => None,
        };
        let os = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let info = SectionInfo {
            comment: "",
            hardware: std::env::consts::ARCH,
            os: &format!("Linux {}", os.trim()),
            application: concat!("Wirelane ", env!("CARGO_PKG_VERSION")),
        };
        let (merging, options, on_finished) = if merges {
            let (merging, options, on_part) = Merging::begin(options, &info, on_finished)?;
            (Some(merging), options, Some(on_part))
        } else {
            (None, options, on_finished)
        };
        let (recording, recorders) = Recording::begin(options, &info, on_finished)?;
        let interfaces = capture.interfaces();
        let homes = Arc::new(Mutex::new(VecDeque::new()));
        for recorder in recorders {
            let (interfaces, filter) = (interfaces.clone(), expression.clone());
            let mut queue = Queue { recorder, interfaces, filter, ids: Vec::new() };
            // Each virtual device gets its interface block, even without packets.
            for (device, rx) in queue.interfaces.known() {
                queue.interface_id(device, rx)?;
            }
            lock(&homes).push_back(queue);
        }
        let outcomes = helper.as_ref().map(PostRotate::outcomes);
        self.running = Some(Running {
            recording,
            merging,
            helper,
            outcomes,
            homes,
            interfaces,
            begin_ns,
            path,
            live,
            pipe,
        });
        Ok(())
    }

    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler> {
        let running = self.running.as_ref();
        let running = running.ok_or_else(|| anyhow!("a recording was not started; this is a bug"))?;
        let home = Arc::clone(&running.homes);
        // In the workers' order; a worker that has ended has already returned its recorder at the end of the queue.
        let queue = lock(&home).pop_front();
        let queue = queue.ok_or_else(|| anyhow!("a worker without a recorder; this is a bug"))?;
        Ok(Box::new(Recorder { queue: Some(queue), home, time: worker.timebase(), live: running.live }))
    }

    fn interval(&mut self, ledger: &Ledger, report: &mut Report) {
        if let Some(running) = &self.running {
            running.recording.tell(statistics(ledger, running.begin_ns));
            let outcomes = running.outcomes.as_deref().map(Outcomes::now);
            report.recorded(Recorded::new(running.recording.counts(), outcomes));
        }
    }

    fn status(&self) -> AnalysisStatus {
        let Some(running) = &self.running else { return AnalysisStatus::default() };
        let counts = running.recording.counts();
        let counts = [
            ("written", counts.written),
            ("unwritten", counts.unwritten),
            ("file_bytes", counts.file_bytes),
            ("files", counts.files),
            ("files_removed", counts.files_removed),
        ];
        AnalysisStatus {
            name: "record".to_owned(),
            counts: counts.map(|(name, number)| (name.to_owned(), number)).into_iter().collect(),
            outputs: vec![running.recording.state(&running.path.display().to_string())],
        }
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        match (self.running.take(), outcome) {
            (Some(running), Some(outcome)) => running.finish(outcome, report),
            (Some(running), None) => running.give_up(),
            (None, _) => {}
        }
        Ok(())
    }
}

impl Running {
    /// Writes the packets that were recorded before a run failed without a ledger.
    fn give_up(self) {
        let recorders = lock(&self.homes).drain(..).map(|queue| queue.recorder).collect();
        if let (_, Err(other)) = self.recording.end(recorders) {
            tracing::warn!("{other}");
        }
        if let Some((_, Err(other))) = self.merging.map(|merging| merging.finish(HashMap::new())) {
            tracing::warn!("{other:#}");
        }
    }

    /// Ends the files.
    fn finish(self, outcome: &mut Outcome, report: &mut Report) {
        let Running { recording, merging, helper, outcomes, homes, interfaces, begin_ns, path, pipe, .. } =
            self;
        let mut recorders = Vec::new();
        for mut queue in lock(&homes).drain(..) {
            for line in &outcome.ledger.virtual_devices {
                outcome.failure =
                    match (outcome.failure.take(), queue.interface_id(line.index, line.queue as u16)) {
                        (None, Err(error)) => Some(error),
                        (failure, _) => failure,
                    };
            }
            recorders.push(queue.recorder);
        }
        let statistics = statistics(&outcome.ledger, begin_ns);
        recording.tell(statistics.clone());
        let first_path = merging.as_ref().map_or(recording.first_path(), Merging::path).map(Path::to_owned);
        let (mut counts, ended) = recording.end(recorders);
        if let Some(merging) = merging {
            let named = statistics.into_iter().filter_map(|(key, statistics)| {
                let interface = interfaces.get((key >> 16) as usize, key as u16)?;
                Some((interface.name, statistics))
            });
            let unwritten = counts.unwritten;
            let merged;
            (counts, merged) = merging.finish(named.collect());
            counts.unwritten += unwritten;
            outcome.fail(merged.err());
        }
        // Wireshark ends a capture by closing the pipe.
        let gone = |error: &Error| pipe && error.to_string().contains("Broken pipe");
        if let Err(error) = ended
            && !gone(&error)
        {
            // The error of a worker ended by a failed write is less specific than that of the recording.
            match outcome
                .failure
                .take()
                .filter(|failure| !matches!(failure.downcast_ref(), Some(Error::Ended(_))))
            {
                Some(other) => {
                    tracing::warn!("{error}");
                    outcome.failure = Some(other);
                }
                None => outcome.failure = Some(error.into()),
            }
        }
        outcome.fail(helper.and_then(|helper| helper.end().err()));
        report.recorded(Recorded::new(counts, outcomes.as_deref().map(Outcomes::now)));
        let place = match (first_path, counts.files) {
            _ if path.as_os_str() == "-" => "standard output".to_owned(),
            (Some(path), 0 | 1) => path.display().to_string(),
            (Some(path), files) => format!("{} files, {} the first", amount(files), path.display()),
            (None, 0 | 1) => path.display().to_string(),
            (None, files) => format!("{} files", amount(files)),
        };
        report.closing(&format!("{} recorded to {}\n", counted(counts.written, "packet"), printable(&place)));
    }
}

fn utc_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Key of an interface's statistics.
fn key(device: usize, queue: u16) -> u32 {
    (device as u32) << 16 | u32::from(queue)
}

/// Statistics of each interface, for the end of a file.
fn statistics(ledger: &Ledger, begin_ns: u64) -> Vec<(u32, InterfaceStatistics)> {
    let now = utc_ns();
    let of = |line: &VirtualDeviceLine| {
        let c = &line.counters;
        // As in dumpcap, and as shown by Wireshark: isb_ifdrop contains the packets that the capture dropped.
        let statistics = InterfaceStatistics {
            at_ns: now,
            start_ns: Some(begin_ns),
            end_ns: Some(now),
            received: Some(c.seen),
            dropped: Some(c.lost + c.shed),
            filter_accepted: Some(c.seen - c.filtered),
            os_drop: Some(c.lost + c.shed),
            delivered: Some(c.analysed),
        };
        (key(line.index, line.queue as u16), statistics)
    };
    ledger.virtual_devices.iter().map(of).collect()
}

/// A recorder, and the ids of its described interfaces.
struct Queue {
    recorder: PacketRecorder,
    interfaces: Interfaces,
    /// The filter expression.
    filter: String,
    /// Interface ids by device and queue.
    ids: Vec<Vec<Option<u32>>>,
}

impl Queue {
    /// Id of an interface, which is described when it is first used.
    #[inline]
    fn interface_id(&mut self, device: usize, queue: u16) -> Result<u32> {
        match self.ids.get(device).and_then(|queues| queues.get(usize::from(queue))) {
            Some(Some(id)) => Ok(*id),
            _ => self.describe(device, queue),
        }
    }

    #[cold]
    fn describe(&mut self, device: usize, queue: u16) -> Result<u32> {
        let interface = self
            .interfaces
            .get(device, queue)
            .ok_or_else(|| anyhow!("a packet of an interface that was never described; this is a bug"))?;
        let id = self.recorder.add_interface(
            key(device, queue),
            &Interface {
                name: &interface.name,
                description: &interface.description,
                hardware: "",
                filter: &self.filter,
                link_number: interface.link_number,
                snap_len: interface.snap_len,
                speed_bps: interface.speed_bps,
            },
        )?;
        if self.ids.len() <= device {
            self.ids.resize(device + 1, Vec::new());
        }
        let queues = &mut self.ids[device];
        if queues.len() <= usize::from(queue) {
            queues.resize(usize::from(queue) + 1, None);
        }
        queues[usize::from(queue)] = Some(id);
        Ok(id)
    }
}

/// The worker's side: owns its recorder while it runs, and returns it on drop.
struct Recorder {
    queue: Option<Queue>,
    home: Arc<Mutex<VecDeque<Queue>>>,
    time: Timebase,
    live: bool,
}

impl Recorder {
    fn queue(&mut self) -> Result<&mut Queue> {
        self.queue.as_mut().ok_or_else(|| anyhow!("the recording has ended"))
    }
}

impl Handler for Recorder {
    type Error = anyhow::Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let ts_ns = self.time.utc_ns(record);
        // Packets from a file keep their checksums.
        let checksum = if self.live { record.open_checksum() } else { None };
        let queue = self.queue()?;
        let interface = queue.interface_id(record.device(), record.queue())?;
        queue.recorder.packet(&Packet {
            interface,
            ts_ns,
            data: record.data(),
            wire_len: record.wire_len(),
            direction: record.is_egress().then_some(Direction::Outbound),
            aggregate: aggregate(record),
            checksum,
        })?;
        Ok(())
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        Ok(self.queue()?.recorder.pause(idle)?)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        lock(&self.home).extend(self.queue.take());
    }
}
