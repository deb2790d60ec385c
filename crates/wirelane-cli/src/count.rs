//! `wirelane count`: packets and bytes per virtual device, and the ledger.

use std::sync::Arc;

use anyhow::Result;
use wirelane::{Record, Worker};

use crate::metrics::MetricsArgs;
use crate::outputs;
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};
use wirelane_monitor::live_view::LiveView;
use wirelane_monitor::metrics::Metered;
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::{self, Handler, Reporter};
use wirelane_screen::count::TopModel;

/// Count packets and bytes per virtual device, and account for every packet
///
/// Prints a table at each interval, and the ledger at the end: a line per virtual device (one RX queue of a device,
/// eth1@2), per worker if there are several, and a total.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Worker threads, which read the rings, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Moving load between workers
    #[arg(long, value_enum, default_value_t = BalanceArg::Static, help_heading = source::CAPTURE)]
    balance: BalanceArg,

    /// Loops to spin per packet, to simulate analysis (papers used 1000 and 25000)
    #[arg(long, value_name = "LOOPS", default_value_t = 0, help_heading = source::CAPTURE)]
    load: u32,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Show rates, history and ledger of each virtual device on a screen; ? lists its keys, q ends it
    #[arg(long, conflicts_with_all = ["json", "read"], help_heading = source::OUTPUT)]
    top: bool,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Columns of the ledger, in packets:
  seen       reached the hook in the kernel, on an RX queue that was asked for
  filtered   refused by the filter expression or a rule (--rules), or by a rule
             of another capture that is --device-wide
  absorbed   counted by a rule with action 'count' and not delivered
  shed       refused by congestion control (--congestion-control)
  lost       found no room in the ring: the worker did not keep up (engines
             packet and xsk list the causes below the table, as lost_by)
  delivered  written to a ring
  analysed   taken out of it and counted
  in flight  written, not yet taken out
  missed     dropped by the card, if it counts that; not part of seen
  bytes      bytes of the analysed packets, as on the wire, without FCS
seen = filtered + absorbed + shed + lost + delivered, and
delivered = analysed + in flight. The command fails if this does not hold.

Examples:
  wirelane count -i eth1                     every RX queue, until Ctrl-C
  wirelane count -i eth1@2                   one RX queue
  wirelane count -i eth1,eth2 --duration 10  two devices, for ten seconds
  wirelane count -i eth1 --workers 2 --cores 2,3
  wirelane count -i eth1 --top               on a screen
  wirelane count -r capture.pcapng           a file instead of a device
  wirelane count -i eth1 udp port 53         with a tcpdump filter expression
  wirelane count -i eth1 --rules rules.toml  with rules (see 'wirelane rules')
  wirelane count -i eth1 --device-wide --rules block.toml   for the device

Exit status: 0 done (also after Ctrl-C), 1 failed, 2 wrong usage.";

/// Does nothing for each record except the requested load: the worker itself counts.
struct Counter {
    load: u32,
}

impl Handler for Counter {
    type Error = anyhow::Error;

    fn record(&mut self, _: &Record<'_>) -> Result<()> {
        wirelane::spin(self.load);
        Ok(())
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    if args.top {
        outputs::needs_terminal()?;
        args.source.rights.terminal = true;
    }
    (args.source.any_order, args.source.headers_only) = (true, true);
    let endpoint = args.metrics.open(&mut args.source)?;
    let capture =
        args.source.open(&args.source.expression()?, args.workers, args.steering, args.balance, None)?;
    let mut reporter = Report::new(args.source.json, capture.engine(), Stream::Stdout);
    let mut view = LiveView::new(Arc::<TopModel>::default());
    let shown: &mut dyn Reporter = if args.top { &mut view } else { &mut reporter };
    let mut metered = Metered::new(endpoint, shown)?;
    let counter = |_: &Worker| Ok(Counter { load: args.load });
    let outcome = run_loop::run(capture, &args.source.limits(), counter, &mut metered);
    drop(metered);
    // The terminal is restored before anything is printed.
    drop(view);
    let outcome = outcome?;
    reporter.ruled(outcome.rules);
    let shown = reporter.last(&outcome.ledger, outcome.elapsed);
    outcome.failure.map_or(shown, Err)
}
