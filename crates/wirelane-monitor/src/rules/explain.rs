//! Which rules match a packet, and why.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use wirelane::rules::{Explanation, RuleSet};
use wirelane::{Capture, LinkType, PacketToExplain};

/// A packet, as a command line names it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// A pcap or pcapng file, or an Ethernet frame in hex digits.
    pub packet: &'a str,
    /// The number of the packet in the file, from 1.
    pub number: u64,
    /// Name of its device; `None`: that in the file.
    pub device: Option<&'a str>,
    /// Whether the headers inside tunnels count.
    pub inner: bool,
}

impl Packet<'_> {
    /// Explains which of the rules match the packet.
    ///
    /// # Errors
    /// If the packet does not exist, or its file cannot be read.
    pub fn explain(&self, rules: &RuleSet) -> Result<Explanation> {
        let Some(bytes) = hex(self.packet) else { return self.of_file(rules) };
        let packet = PacketToExplain {
            link_type: LinkType::Ethernet,
            data: &bytes,
            wire_len: bytes.len() as u32,
            device: self.device.unwrap_or(""),
            queue: 0,
            egress: false,
            inner: self.inner,
        };
        Ok(packet.explain(rules))
    }

    /// Explains the selected packet of a capture file.
    fn of_file(&self, rules: &RuleSet) -> Result<Explanation> {
        let mut capture = Capture::open_file(self.packet.as_ref())
            .with_context(|| "the packet is neither a capture file nor a frame in hex digits")?;
        let mut worker = capture.workers().remove(0);
        let mut number = 0;
        while let Some(batch) = worker.next_batch(Duration::from_secs(1))? {
            for record in batch {
                number += 1;
                if number == self.number {
                    let devices = capture.devices();
                    let named = devices.get(record.device()).map_or("", |device| device.name.as_str());
                    let packet = PacketToExplain {
                        link_type: record.link_type(),
                        data: record.data(),
                        wire_len: record.wire_len(),
                        device: self.device.unwrap_or(named),
                        queue: record.queue(),
                        egress: record.is_egress(),
                        inner: self.inner,
                    };
                    return Ok(packet.explain(rules));
                }
            }
        }
        bail!("{} has {number} packets, and no number {}", self.packet.escape_debug(), self.number)
    }
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
