//! `wirelane receive`: loss, order, duplicates, latency and jitter of numbered packets.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use wirelane::Worker;
use wirelane_monitor::metrics::Metered;
use wirelane_monitor::receive::{Expected, Latest, Receiver, StreamsReporter};
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop;

use crate::metrics::MetricsArgs;
use crate::source::{self, BalanceArg, PriorityArg, SourceArgs, SteeringArg};

/// Report loss, order, duplicates, latency and jitter of numbered packets
///
/// Reads the numbers that 'wirelane send' puts into its packets, per stream, in order of arrival, from a device or a
/// recording. One worker reads all RX queues in time order. Each stream has one sender: numbers that begin again are
/// duplicates, or too late.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Packets sent in each stream; or, as in 2=500, in stream 2. Then those before the first and after the last that came
    /// are lost, too. Repeat it for several streams
    #[arg(long, value_name = "[STREAM=]N", help_heading = source::OUTPUT)]
    expect: Vec<Expect>,

    /// Choice of the worker of a packet: there is one, which sees all.
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, hide = true, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Per stream:
  received    packets, duplicates included
  lost        numbers that did not come: between the lowest and the highest
              that came, or of those that --expect names (RFC 7680)
  reordered   came after a packet with a higher number (RFC 4737)
  duplicates  the number had come before (RFC 5560)
  too late    more than 1,048,576 numbers behind the highest: late or duplicate
  latency     from just before the sender handed the packet to the kernel to
              its time stamp in the capture (RFC 7679), of first copies; needs
              'send --timestamps' or '--stream'. Both times are UTC: on one host
              they are of the same clock, else the clocks' distance is included
  jitter      mean change of the latency (RFC 3550, section 6.4.1)

Examples:
  wirelane receive -i eth1                   until Ctrl-C
  wirelane receive -i eth1 --expect 1000000  of 'send --packets 1000000'
  wirelane receive -i eth1 --json --interval 10 udp port 9
  wirelane receive -r arrived.pcapng

Exit status: 0 done (also after Ctrl-C, and with losses), 1 failed, 2 wrong
usage.";

/// A value of --expect.
#[derive(Clone, Copy, Debug)]
struct Expect(Option<u16>, u64);

impl FromStr for Expect {
    type Err = String;

    fn from_str(text: &str) -> Result<Expect, String> {
        let wrong = |_| {
            format!("invalid value '{text}': expected a number of packets, or STREAM=NUMBER, as in 2=500")
        };
        match text.split_once('=') {
            Some((stream, packets)) => {
                Ok(Expect(Some(stream.parse().map_err(wrong)?), packets.parse().map_err(wrong)?))
            }
            None => Ok(Expect(None, text.parse().map_err(wrong)?)),
        }
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    if args.steering != SteeringArg::Flow {
        let reason =
            "there is one worker, which sees the order of all packets; leave the option out".to_owned();
        return Err(wirelane::Error::BadOption { option: "--steering", reason }.into());
    }
    if args.source.priority == PriorityArg::Auto {
        // Losses of the receiver are not those of the network.
        args.source.priority = PriorityArg::Normal;
    }
    let endpoint = args.metrics.open(&mut args.source)?;
    let expected: Expected = args.expect.iter().map(|Expect(stream, packets)| (*stream, *packets)).collect();
    if expected.len() < args.expect.len() {
        let reason = "each stream is expected once".to_owned();
        return Err(wirelane::Error::BadOption { option: "--expect", reason }.into());
    }
    let expression = args.source.expression()?;
    // One worker: the order of a stream is that of all RX queues.
    let capture = args.source.open(&expression, 1, SteeringArg::Flow, BalanceArg::Static, None)?;
    let latest = Latest::default();
    let report = Report::new(args.source.json, capture.engine(), Stream::Stdout);
    let mut reporter = StreamsReporter::new(report, latest.clone());
    let mut metered = Metered::new(endpoint, &mut reporter)?;
    let receiver = |worker: &Worker| Ok(Receiver::new(worker.timebase(), expected.clone(), latest.clone()));
    let mut outcome = run_loop::run(capture, &args.source.limits(), receiver, &mut metered)?;
    drop(metered);
    let (read, analysed) = (latest.get().packets(), outcome.ledger.total.analysed);
    if outcome.failure.is_none() && read != analysed {
        outcome.fail(Some(anyhow!(
            "{read} packets were read and {analysed} are in the ledger; this is a bug: please report it"
        )));
    }
    let mut report = reporter.into_report();
    report.ruled(outcome.rules);
    let shown = report.last(&outcome.ledger, outcome.elapsed);
    outcome.failure.map_or(shown, Err)
}
