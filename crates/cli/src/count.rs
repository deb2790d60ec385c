//! `wirelane count`: packets and bytes per virtual device, and the ledger.

use anyhow::Result;
use wirelane::Record;

use crate::report::{Report, Stream};
use crate::session::{self, Handler};
use crate::source::{SourceArgs, SteeringArg};

/// Count packets and bytes per virtual device, and account for every packet
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Threads that take packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,

    /// Which worker gets a packet
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow)]
    steering: SteeringArg,
}

/// The worker's own tally is all there is to do.
struct Counter;

impl Handler for Counter {
    fn record(&mut self, _: &Record<'_>) -> Result<()> {
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let capture = args.source.open(args.workers, args.steering)?;
    let mut reporter = Report::new(args.source.json, capture.engine(), Stream::Stdout);
    let outcome = session::run(capture, &args.source, |_| Ok(Counter), &mut reporter)?;
    reporter.last(&outcome.ledger, outcome.elapsed)?;
    outcome.failure.map_or(Ok(()), Err)
}
