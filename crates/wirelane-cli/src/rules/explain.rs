//! `wirelane rules explain`: which rules match a packet, and why.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use wirelane::escape::to_json;
use wirelane::rules::{Explanation, RuleSet};
use wirelane::{Capture, LinkType, PacketToExplain};

use wirelane_monitor::out;

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
    let rules = RuleSet::read(&args.file)?;
    let explanation = match hex(&args.packet) {
        Some(bytes) => PacketToExplain {
            link_type: LinkType::Ethernet,
            data: &bytes,
            wire_len: bytes.len() as u32,
            device: args.device.as_deref().unwrap_or(""),
            queue: 0,
            egress: false,
            inner: args.inner,
        }
        .explain(&rules),
        None => of_file(args, &rules)?,
    };
    out::print(if args.json { to_json(&explanation)? + "\n" } else { format!("{explanation}\n") })
}

/// The bytes of a frame in hex digits, optionally separated by spaces or colons; `None`: the text is not a frame.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !matches!(c, ' ' | ':' | '\n'))
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    // No Ethernet frame is shorter, and file names usually are.
    (rest.is_empty() && bytes.len() >= 14).then_some(bytes)
}

/// Explains the selected packet of a capture file.
fn of_file(args: &Args, rules: &RuleSet) -> Result<Explanation> {
    let mut capture = Capture::open_file(args.packet.as_ref())
        .with_context(|| "the packet is neither a capture file nor a frame in hex digits")?;
    let mut worker = capture.workers().remove(0);
    let mut number = 0;
    while let Some(batch) = worker.next_batch(Duration::from_secs(1))? {
        for record in batch {
            number += 1;
            if number == args.number {
                let devices = capture.devices();
                let named = devices.get(record.device()).map_or("", |device| device.name.as_str());
                let packet = PacketToExplain {
                    link_type: record.link_type(),
                    data: record.data(),
                    wire_len: record.wire_len(),
                    device: args.device.as_deref().unwrap_or(named),
                    queue: record.queue(),
                    egress: record.is_egress(),
                    inner: args.inner,
                };
                return Ok(packet.explain(rules));
            }
        }
    }
    bail!("{} has {number} packets, and no number {}", args.packet.escape_debug(), args.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_hex_are_told_from_names_of_files() {
        let frame = "02:00:00:00:00:01 020000000002 0800 4500";
        assert_eq!(hex(frame).unwrap().len(), 16);
        assert_eq!(hex(frame).unwrap()[5..8], [1, 2, 0]);
        for other in ["", "cafe", "capture.pcap", "020000000001020000000002080", "02-00-00"] {
            assert_eq!(hex(other), None, "{other}");
        }
    }
}
