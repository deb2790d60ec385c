//! `wirelane record`: records packets to pcapng or pcap files.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow, ensure};
use wirelane::ledger::VirtualDeviceLine;
use wirelane::{Capture, Interfaces, Ledger, Record, Timebase};
use wirelane_export::recorder::{OnFinished, Packet, PacketRecorder};
use wirelane_export::{Direction, Error, Interface, InterfaceStatistics, Recording, SectionInfo};

use crate::rights::Output;
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};
use wirelane_monitor::report::{Recorded, Report, Stream};
use wirelane_monitor::run_loop::{self, Handler, Reporter};
use wirelane_screen::table::{amount, counted, printable};

pub mod options;

use options::RecordingArgs;
use wirelane_monitor::record::merge::Merging;
use wirelane_monitor::record::post_rotate::{Outcomes, PostRotate};
use wirelane_monitor::record::progress::Progress;
use wirelane_monitor::record::{aggregate, lock};

/// Record packets to pcapng or pcap files
///
/// A pcapng file gets one interface for each virtual device (one RX queue of a device, eth1@2), times in
/// nanoseconds, and at its end how many packets each interface has seen and lost since the capture began. Shows the
/// same tables as 'wirelane count', whose --help explains the columns, and how much was written.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    recording: RecordingArgs,

    #[command(flatten)]
    source: SourceArgs,

    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json", help_heading = source::OUTPUT)]
    quiet: bool,

    /// Worker threads, which read the rings, 1 to 64. With more than one each writes files of its own (NAME-w0,
    /// NAME-w1, ...), unless --single-file merges them
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Moving load between workers
    #[arg(long, value_enum, default_value_t = BalanceArg::Static, help_heading = source::CAPTURE)]
    balance: BalanceArg,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Files:
  -w eth1.pcapng writes eth1.pcapng.part, and renames it when it is complete
  and synced. A killed recording leaves a .part file, which tcpdump, tshark and
  -r read up to the cut. With a --rotate option (they can be combined) there
  are many files: eth1_00000001_20260301T120000Z.pcapng, with an increasing
  number and the UTC time at which the file begins. Sorted by name they are
  sorted by time, also if the clock was set back. A new recording continues the
  numbers of files of the same name. All workers share the numbers.
  Files belong to the user that the command becomes (--user), and nobody else
  can read them. Links are not followed, and existing files are not replaced.
  Post-rotate commands run as the same user.
  --rotate-interval uses the packets' time; packets that are read some
  milliseconds late are in the next file. Without packets, a file ends two
  seconds after its time, and the next one begins with the next packet.
  --compress makes frames of up to 1 MiB: tshark reads such files, and so
  does -r; tcpdump needs zstd -dc FILE | tcpdump -r -

Write errors:
  delivered = written + unwritten, in packets, at the end. A full disk does not
  end the capture: the file is cut after its last whole packet, packets after
  that are counted as unwritten, and writing is tried again every second. The
  exit status is 1 then. --on-write-error stop ends the capture instead.
  A slow disk makes the worker wait, and 'lost' in the ledger grows.
  With --json: written, unwritten, file_bytes, file_bytes_per_s, files,
  files_removed, write_errors, post_rotate_done and post_rotate_failed.

Examples:
  wirelane record -i eth1 -w eth1.pcapng
  wirelane record -i eth1@0-3 -w headers.pcapng --snap-length 128 --duration 60
  wirelane record -i eth1 -w eth1.pcapng --rotate-size 1GiB --keep-size 100GiB
  wirelane record -i eth1 -w eth1.pcapng --rotate-interval 1h --keep-files 48 \\
      --compress zstd --post-rotate '/usr/local/bin/archive --quiet'
  wirelane record -i eth1 -w eth1.pcapng --workers 4 --single-file
  wirelane record -i eth1 -w - | tcpdump -nn -r -
  wirelane record -r capture.pcap -w capture.pcapng.zst

Ctrl-C ends the capture and finishes the files; a second one leaves them as
.part. Exit status: 0 done (also after Ctrl-C), 1 failed or something is
unwritten, 2 wrong usage. A post-rotate command that fails is reported and
counted, and does not change the status.";

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    args.recording.put_time(SystemTime::now())?;
    let live = args.source.read.is_none();
    let recording = &args.recording;
    let options = recording.resolve(args.workers, live)?;
    let to_stdout = recording.write.as_os_str() == "-";
    ensure!(
        args.source.read.as_ref().is_none_or(|read| to_stdout || *read != recording.write),
        "{} cannot be read and written at once",
        recording.write.display()
    );
    // Before the capture: later this process must not start others.
    let mut helper = match &recording.post_rotate {
        Some(command) => {
            Some(PostRotate::start(command, recording.post_rotate_jobs, args.source.rights.identity()?)?)
        }
        None => None,
    };
    let os = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let merges = recording.single_file && options.workers > 1;
    let output = Output { path: &recording.write, read_back: options.direct_io || merges };
    let expression = args.source.expression()?;
    let capture = args.source.open(&expression, args.workers, args.steering, args.balance, Some(output))?;
    let begin_ns = utc_ns();
    let on_finished = match &mut helper {
        Some(helper) => Some(Box::new(helper.listen()?) as OnFinished),
        None => None,
    };
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
        let mut queue =
            Queue { recorder, interfaces: interfaces.clone(), filter: expression.clone(), ids: Vec::new() };
        // Each virtual device gets its interface block, even without packets.
        for (device, rx) in interfaces.known() {
            queue.interface_id(device, rx)?;
        }
        lock(&homes).push_back(queue);
    }
    let stream = match to_stdout {
        _ if args.quiet => Stream::Nowhere,
        true => Stream::Stderr,
        false => Stream::Stdout,
    };
    let report = Report::new(args.source.json, capture.engine(), stream);
    let progress = Progress::new(&capture, args.source.json);
    let outcomes = helper.as_ref().map(PostRotate::outcomes);
    let mut reporter = RecordReporter { report, recording: &recording, begin_ns, progress, outcomes };
    let outcome = run_loop::run(
        capture,
        &args.source.limits(),
        |worker| {
            let home = Arc::clone(&homes);
            // In the workers' order; a worker that has ended has already returned its recorder at the end of the queue.
            let queue = lock(&home).pop_front();
            let queue = queue.ok_or_else(|| anyhow!("a worker without a recorder; this is a bug"))?;
            Ok(Recorder { queue: Some(queue), home, time: worker.timebase(), live })
        },
        &mut reporter,
    );
    let RecordReporter { mut report, outcomes, progress, .. } = reporter;
    progress.end();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Packets recorded before the failure must still be written.
            let recorders = lock(&homes).drain(..).map(|queue| queue.recorder).collect();
            if let (_, Err(other)) = recording.end(recorders) {
                tracing::warn!("{other}");
            }
            if let Some((_, Err(other))) = merging.map(|merging| merging.finish(HashMap::new())) {
                tracing::warn!("{other:#}");
            }
            return Err(error);
        }
    };
    let mut failure = outcome.failure;
    let mut recorders = Vec::new();
    for mut queue in lock(&homes).drain(..) {
        for line in &outcome.ledger.virtual_devices {
            if let Err(error) = queue.interface_id(line.index, line.queue as u16) {
                failure.get_or_insert(error);
            }
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
        if let Err(error) = merged {
            failure.get_or_insert(error);
        }
    }
    // Wireshark ends a capture by closing the pipe.
    let gone = |error: &Error| args.quiet && to_stdout && error.to_string().contains("Broken pipe");
    if let Err(error) = ended
        && !gone(&error)
    {
        // The error of a worker ended by a failed write is less specific than that of the recording.
        match failure.take().filter(|failure| !matches!(failure.downcast_ref(), Some(Error::Ended(_)))) {
            Some(other) => {
                tracing::warn!("{error}");
                failure = Some(other);
            }
            None => failure = Some(error.into()),
        }
    }
    if let Some(helper) = helper
        && let Err(error) = helper.end()
    {
        failure.get_or_insert(error);
    }
    report.recorded(Recorded::new(counts, outcomes.as_deref().map(Outcomes::now)));
    report.ruled(outcome.rules);
    let mut shown = report.last(&outcome.ledger, outcome.elapsed);
    if !args.source.json && shown.is_ok() {
        let place = match (first_path, counts.files) {
            _ if to_stdout => "standard output".to_owned(),
            (Some(path), 0 | 1) => path.display().to_string(),
            (Some(path), files) => format!("{} files, {} the first", amount(files), path.display()),
            (None, 0 | 1) => args.recording.write.display().to_string(),
            (None, files) => format!("{} files", amount(files)),
        };
        shown =
            report.say(&format!("{} recorded to {}\n", counted(counts.written, "packet"), printable(&place)));
    }
    failure.map_or(shown, Err)
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

/// Reports the recording together with the capture.
struct RecordReporter<'a> {
    report: Report,
    recording: &'a Recording,
    begin_ns: u64,
    progress: Progress,
    outcomes: Option<Arc<Outcomes>>,
}

impl Reporter for RecordReporter<'_> {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.recording.tell(statistics(ledger, self.begin_ns));
        let outcomes = self.outcomes.as_deref().map(Outcomes::now);
        self.report.recorded(Recorded::new(self.recording.counts(), outcomes));
        if self.progress.is_shown() {
            self.progress.show(elapsed);
            return Ok(());
        }
        self.report.interval(ledger, elapsed)
    }
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
        let checksum = if self.live { record.missing_checksum() } else { None };
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
