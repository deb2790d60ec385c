//! `wirelane rules explain`: which rules match a packet, and why.

use std::path::PathBuf;

use anyhow::Result;
use wirelane::escape::to_json;
use wirelane::rules::RuleSet;
use wirelane_monitor::out;
use wirelane_monitor::rules::Packet;

/// Show which rules of a file a packet hits, and why
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rule file
    file: PathBuf,

    /// The packet: a pcap or pcapng file, or an Ethernet frame in hex digits
    #[arg(value_name = "PACKET")]
    packet: String,

    /// Which packet of the file, from 1
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    number: u64,

    /// Name of the device that it comes from, for conditions on it. Default: what the file says
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Look at the headers inside tunnels
    #[arg(long)]
    inner: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The fault of the rule file, or of the packet.
pub fn run(args: &Args) -> Result<()> {
    let explanation = Packet {
        packet: &args.packet,
        number: args.number,
        device: args.device.as_deref(),
        inner: args.inner,
    }
    .explain(&RuleSet::read(&args.file)?)?;
    out::print(if args.json { to_json(&explanation)? + "\n" } else { format!("{explanation}\n") })
}
