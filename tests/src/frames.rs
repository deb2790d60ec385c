//! Frames that tests make up, and sending them.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::Lab;
use crate::numbers::{LIMIT, last_of, wirelane};
use crate::recordings::{write_header, write_packet};

/// An Ethernet frame, filled up to the shortest there is.
pub fn ethernet(eth_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend_from_slice(&eth_type.to_be_bytes());
    frame.extend_from_slice(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A UDP datagram over IPv4; nobody looks at checksums.
pub fn udp(src: [u8; 4], dst: [u8; 4], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let len = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend_from_slice(&src);
    packet.extend_from_slice(&dst);
    for number in [ports.0, ports.1, len - 20, 0] {
        packet.extend_from_slice(&number.to_be_bytes());
    }
    packet.extend_from_slice(payload);
    packet
}

/// Sends these frames so many times from the lab's sender; `folder` is for a file of them.
///
/// # Errors
/// Where they cannot be written, or sent.
pub fn replay(lab: &Lab, folder: &Path, frames: &[Vec<u8>], times: u64) -> Result<()> {
    let path = folder.join("frames.pcap");
    let mut output = BufWriter::new(File::create(&path)?);
    write_header(&mut output)?;
    for (number, frame) in frames.iter().enumerate() {
        // A fifth of a millisecond from one to the next.
        write_packet(&mut output, number as u64 * 200_000, frame)?;
    }
    output.flush()?;
    drop(output);
    let (end, times) = (lab.sender(), times.to_string());
    let path = path.to_str().context("paths of tests are UTF-8")?;
    let words = ["send", "-i", &end.device, "--replay", path, "--loop", &times, "--json"];
    last_of(&wirelane(lab, &end.namespace, &words)?.finish(LIMIT)?)?;
    Ok(())
}
