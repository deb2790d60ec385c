//! `wirelane record`: records packets to pcapng or pcap files.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use wirelane::{Capture, Ledger};
use wirelane_monitor::analysis::{self, EndReporter, Told};
use wirelane_monitor::files;
use wirelane_monitor::record::analysis::{RecordAnalysis, RecordSettings};
use wirelane_monitor::record::post_rotate::PostRotate;
use wirelane_monitor::record::progress::Progress;
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::Reporter;

use crate::metrics::MetricsArgs;
use crate::rights::Output;
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};

pub mod options;

use options::RecordingArgs;

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
    pub source: SourceArgs,

    /// Print the file with which 'wirelane monitor' does the same, and exit
    #[arg(long, help_heading = source::OUTPUT)]
    pub print_config: bool,

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

    #[command(flatten)]
    metrics: MetricsArgs,
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

impl Args {
    /// Checks how the options go together.
    pub fn check(&self) -> Result<()> {
        self.recording.resolve(self.workers, self.source.read.is_empty()).map(|_| ())
    }

    /// Starts the process of post-rotate commands, before the capture: later this process must not start others.
    pub fn prepare(&mut self) -> Result<RecordAnalysis> {
        self.recording.put_time(SystemTime::now())?;
        let live = self.source.read.is_empty();
        let recording = &self.recording;
        let options = recording.resolve(self.workers, live)?;
        let to_stdout = recording.write.as_os_str() == "-";
        ensure!(
            to_stdout || !files::expand(&self.source.read)?.contains(&recording.write),
            "{} cannot be read and written at once",
            recording.write.display()
        );
        let post_rotate = match &recording.post_rotate {
            Some(command) => {
                let rights = &self.source.rights;
                let jobs = recording.post_rotate_jobs;
                Some(PostRotate::start(command, jobs, rights.identity()?, &rights.secrets)?)
            }
            None => None,
        };
        Ok(RecordAnalysis::new(RecordSettings {
            options,
            merges: self.merges(),
            post_rotate,
            expression: self.source.expression()?,
            live,
            pipe: self.quiet && to_stdout,
        }))
    }

    /// Whether the files of several workers are merged into one.
    fn merges(&self) -> bool {
        self.recording.single_file && self.workers > 1
    }

    /// The output that the command writes after it has dropped its privileges.
    pub fn output(&self) -> Output<'_> {
        let read_back = self.recording.direct_io || self.merges();
        Output { path: &self.recording.write, read_back }
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    args.source.rights.secrets = args.metrics.secrets();
    let analysis = args.prepare()?;
    let metrics = args.metrics.open(&mut args.source)?;
    let expression = args.source.expression()?;
    let output = Some(args.output());
    let capture = args.source.open(&expression, args.workers, args.steering, args.balance, output)?;
    let stream = match args.recording.write.as_os_str() == "-" {
        _ if args.quiet => Stream::Nowhere,
        true => Stream::Stderr,
        false => Stream::Stdout,
    };
    let report = Report::new(args.source.json, capture.engine(), stream);
    let progress = Progress::new(&capture, args.source.json);
    let mut reporter = RecordReporter { report, progress };
    let told = Told { metrics, ..Told::default() };
    analysis::run(capture, &args.source.limits(), &mut [Box::new(analysis)], told, &mut reporter)
}

/// Reports the recording together with the capture.
struct RecordReporter {
    report: Report,
    progress: Progress,
}

impl Reporter for RecordReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if self.progress.is_shown() {
            self.progress.show(elapsed);
            return Ok(());
        }
        self.report.interval(ledger, elapsed)
    }
}

impl EndReporter for RecordReporter {
    fn end(&mut self) {
        self.progress.end();
    }

    fn report(&mut self) -> &mut Report {
        &mut self.report
    }
}
