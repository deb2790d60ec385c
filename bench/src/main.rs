//! Measures Wirelane beside its peers: receivers in turn on the same generator, in one interleaved run.
//!
//! ```text
//! receive/   the peers that are no program of their own, each in its own process
//! receiver   how every receiver is started and read
//! trial      the lab, one trial, and where every packet of it went
//! search     the highest rate without loss, and with 0.5 % of it
//! results    medians, spread, ratios: table and CSV
//! chart      the same as SVG
//! machine    what it was measured on
//! ```
//!
//! Two generators are used, because they show different things. Live frames cost little and so show what the
//! receiver costs; sk_buffs cost several times as much, as most of a host's packets do, and hide it. What a
//! receiver reaches with one must not be compared with the limit of the other.

mod chart;
mod machine;
mod options;
mod receive;
mod receiver;
mod results;
mod run;
mod search;
mod skel;
mod trial;

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    let options = options::Options::parse();
    match options.command {
        Some(options::Command::Receive { kind, device, jumbo }) => receive::run(kind, &device, jumbo),
        None => run::run(&options),
    }
}
