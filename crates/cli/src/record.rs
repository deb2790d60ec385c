//! `wirelane record`: packets into a pcapng or pcap file.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow, ensure};
use wirelane::ledger::VirtualDeviceLine;
use wirelane::{Interfaces, Record, Timebase};
use wirelane_export::pcap::PcapWriter;
use wirelane_export::pcapng::{Direction, Interface, InterfaceStatistics, PcapngWriter, SectionInfo};
use wirelane_export::{Output, OutputOptions};

use crate::report::{Report, Stream};
use crate::session::{self, Handler};
use crate::source::{SourceArgs, SteeringArg};
use crate::table::amount;

/// Record packets to a pcapng or pcap file
///
/// A pcapng file gets one interface for each virtual device (one RX queue of a device, eth1@2), times in
/// nanoseconds, and at its end how many packets each interface has seen and lost. Shows the same tables as
/// 'wirelane count'; its --help explains the columns.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// File to write; '-' is standard output, and the tables go to standard error then
    #[arg(short, long, value_name = "FILE", help_heading = RECORDING)]
    write: PathBuf,

    /// File format. Default: pcap where the file's name ends in .pcap, else pcapng
    #[arg(long, value_enum, help_heading = RECORDING)]
    format: Option<Format>,

    /// Overwrite the file if it exists
    #[arg(long, help_heading = RECORDING)]
    overwrite: bool,

    #[command(flatten)]
    source: SourceArgs,
}

const RECORDING: &str = "The recording";

/// What follows the options in the long help.
pub const HELP: &str = "\
Examples:
  wirelane record -i eth1 -w eth1.pcapng
  wirelane record -i eth1@0-3 -w headers.pcapng --snap-length 128 --duration 60
  wirelane record -i eth1 -w - | tcpdump -nn -r -
  wirelane record -r capture.pcap -w capture.pcapng

The file belongs to the user that the command becomes (--user), and nobody else
can read it.
Exit status: 0 done (also after Ctrl-C), 1 failed, 2 wrong usage.";

/// Values of --format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Interfaces, their statistics, any mix of link types
    Pcapng,
    /// Packets only, of one link type; times in nanoseconds
    Pcap,
}

/// How long packets may stay in our buffer while somebody waits at the other end of a pipe.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let format = args.format.unwrap_or_else(|| {
        let pcap = args.write.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pcap"));
        if pcap { Format::Pcap } else { Format::Pcapng }
    });
    let to_stdout = args.write.as_os_str() == "-";
    ensure!(
        args.source.read.as_ref().is_none_or(|read| to_stdout || *read != args.write),
        "{} cannot be read and written at once",
        args.write.display()
    );
    // Nothing but the output can be read or written once the capture is open.
    let os = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let capture = args.source.open(1, SteeringArg::Flow, Some(&args.write))?;
    let output = Output::open(&args.write, OutputOptions { overwrite: args.overwrite })?;
    let begin_ns = utc_ns();
    let file = Arc::new(Mutex::new(Some(Recording::begin(output, format, capture.interfaces(), &os)?)));
    let stream = if to_stdout { Stream::Stderr } else { Stream::Stdout };
    let mut report = Report::new(args.source.json, capture.engine(), stream);
    let outcome = session::run(
        capture,
        &args.source,
        |worker| {
            let recording = lock(&file).take().ok_or_else(|| anyhow!("a recording has one worker"))?;
            Ok(Recorder { recording: Some(recording), home: Arc::clone(&file), time: worker.timebase() })
        },
        &mut report,
    )?;
    let mut failure = outcome.failure;
    let mut recorded = 0;
    if let Some(recording) = lock(&file).take() {
        recorded = recording.packets;
        if let Err(error) = recording.end(&outcome.ledger.virtual_devices, begin_ns) {
            failure.get_or_insert(error);
        }
    }
    let mut shown = report.last(&outcome.ledger, outcome.elapsed);
    if !args.source.json && shown.is_ok() {
        shown = report.say(&format!("{} packets recorded to {}\n", amount(recorded), args.write.display()));
    }
    failure.map_or(shown, Err)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn utc_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The worker's side: it has the recording while it runs, and puts it back at its end, however that comes.
struct Recorder {
    recording: Option<Recording>,
    home: Arc<Mutex<Option<Recording>>>,
    time: Timebase,
}

impl Recorder {
    fn recording(&mut self) -> Result<&mut Recording> {
        self.recording.as_mut().ok_or_else(|| anyhow!("the recording has ended"))
    }
}

impl Handler for Recorder {
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let utc_ns = self.time.utc_ns(record);
        self.recording()?.write(record, utc_ns)
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        self.recording()?.pause(idle)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        *lock(&self.home) = self.recording.take();
    }
}

/// A file that is being written.
struct Recording {
    writer: Writer,
    interfaces: Interfaces,
    packets: u64,
    regular: bool,
    dirty: bool,
    flushed: Instant,
}

enum Writer {
    Pcapng {
        writer: PcapngWriter<Output>,
        /// Interface ids by device and queue.
        ids: Vec<Vec<Option<u32>>>,
    },
    /// The header of a pcap file states the link type, so it is written with the first packet.
    Pcap { output: Option<Output>, writer: Option<PcapWriter<Output>> },
}

impl Recording {
    fn begin(output: Output, format: Format, interfaces: Interfaces, os: &str) -> Result<Recording> {
        let regular = output.is_regular();
        let writer = match format {
            Format::Pcap => Writer::Pcap { output: Some(output), writer: None },
            Format::Pcapng => {
                let info = SectionInfo {
                    hardware: std::env::consts::ARCH,
                    os: &format!("Linux {}", os.trim()),
                    application: concat!("Wirelane ", env!("CARGO_PKG_VERSION")),
                };
                Writer::Pcapng { writer: PcapngWriter::new(output, &info)?, ids: Vec::new() }
            }
        };
        let mut recording =
            Recording { writer, interfaces, packets: 0, regular, dirty: true, flushed: Instant::now() };
        // Each virtual device gets its block, whether or not packets come.
        for (device, queue) in recording.interfaces.known() {
            recording.interface_id(device, queue)?;
        }
        recording.pause(true)?;
        Ok(recording)
    }

    /// The pcapng id of an interface, described at its first mention.
    fn interface_id(&mut self, device: usize, queue: u16) -> Result<u32> {
        let Writer::Pcapng { writer, ids } = &mut self.writer else { return Ok(0) };
        if let Some(Some(id)) = ids.get(device).and_then(|queues| queues.get(usize::from(queue))) {
            return Ok(*id);
        }
        let interface = self
            .interfaces
            .get(device, queue)
            .ok_or_else(|| anyhow!("a packet of an interface that was never described; this is a bug"))?;
        let id = writer.add_interface(&Interface {
            name: &interface.name,
            description: &interface.description,
            hardware: "",
            filter: "",
            link_number: interface.link_number,
            snap_len: interface.snap_len,
            speed_bps: interface.speed_bps,
        })?;
        if ids.len() <= device {
            ids.resize(device + 1, Vec::new());
        }
        let queues = &mut ids[device];
        if queues.len() <= usize::from(queue) {
            queues.resize(usize::from(queue) + 1, None);
        }
        queues[usize::from(queue)] = Some(id);
        Ok(id)
    }

    fn write(&mut self, record: &Record<'_>, utc_ns: u64) -> Result<()> {
        let (device, queue) = (record.device(), record.queue());
        let id = self.interface_id(device, queue)?;
        match &mut self.writer {
            Writer::Pcapng { writer, .. } => {
                let direction = record.is_egress().then_some(Direction::Outbound);
                writer.write_packet(id, utc_ns, record.data(), record.wire_len(), direction)?;
            }
            Writer::Pcap { output, writer } => {
                let interface = self.interfaces.get(device, queue);
                let (number, snap) = interface.map_or((1, 0), |i| (i.link_number, i.snap_len));
                if let Some(output) = output.take() {
                    *writer = Some(PcapWriter::new(output, number, snap)?);
                }
                if let Some(writer) = writer {
                    writer.write_packet(number, utc_ns, record.data(), record.wire_len())?;
                }
            }
        }
        self.packets += 1;
        self.dirty = true;
        Ok(())
    }

    /// Passes on what is buffered when there is time, or when a reader has waited long enough.
    fn pause(&mut self, idle: bool) -> Result<()> {
        if !self.dirty || !(idle || !self.regular && self.flushed.elapsed() >= FLUSH_EVERY) {
            return Ok(());
        }
        match &mut self.writer {
            Writer::Pcapng { writer, .. } => writer.flush()?,
            Writer::Pcap { writer: Some(writer), .. } => writer.flush()?,
            Writer::Pcap { .. } => {}
        }
        self.dirty = false;
        self.flushed = Instant::now();
        Ok(())
    }

    /// Writes what became of each interface's packets, and closes the file.
    fn end(mut self, lines: &[VirtualDeviceLine], begin_ns: u64) -> Result<()> {
        let now = utc_ns();
        for line in lines {
            let id = self.interface_id(line.index, line.queue as u16)?;
            let Writer::Pcapng { writer, .. } = &mut self.writer else { break };
            let c = &line.counters;
            // As dumpcap has it, and Wireshark shows it: isb_ifdrop holds what the capture dropped.
            writer.write_statistics(
                id,
                &InterfaceStatistics {
                    at_ns: now,
                    start_ns: Some(begin_ns),
                    end_ns: Some(now),
                    received: Some(c.seen),
                    dropped: Some(c.lost + c.shed),
                    filter_accepted: Some(c.seen - c.filtered),
                    os_drop: Some(c.lost + c.shed),
                    delivered: Some(c.analysed),
                },
            )?;
        }
        match self.writer {
            Writer::Pcapng { writer, .. } => drop(writer.finish()?),
            Writer::Pcap { output: Some(output), .. } => {
                // No packet came: an empty file of the most likely link type.
                let (number, snap) =
                    self.interfaces.get(0, 0).map_or((1, 0), |i| (i.link_number, i.snap_len));
                drop(PcapWriter::new(output, number, snap)?.finish()?);
            }
            Writer::Pcap { writer: Some(writer), .. } => drop(writer.finish()?),
            Writer::Pcap { .. } => {}
        }
        Ok(())
    }
}
