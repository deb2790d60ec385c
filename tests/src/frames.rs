//! Generated frames, and their transmission.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Lab;
use crate::numbers::{LIMIT, last_of, wirelane};
use crate::recordings::{write_header, write_packet};
use crate::wirelane_binary;

/// An Ethernet frame, padded to the minimum length.
pub fn ethernet(eth_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend_from_slice(&eth_type.to_be_bytes());
    frame.extend_from_slice(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A UDP datagram over IPv4, without checksums.
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

/// Sends these frames so many times from the lab's sender; `folder` is for a temporary file.
///
/// # Errors
/// If they cannot be written or sent.
pub fn replay(lab: &Lab, folder: &Path, frames: &[Vec<u8>], times: u64) -> Result<()> {
    let path = folder.join("frames.pcap");
    let mut output = BufWriter::new(File::create(&path)?);
    write_header(&mut output)?;
    for (number, frame) in frames.iter().enumerate() {
        // 200 microseconds between two frames.
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

/// Sends a capture from the lab's sender while `fill` writes it, so that it may be endless; `speed` as in `wirelane
/// send`. Returns the sender's last object: every frame that was read has been sent.
///
/// # Errors
/// If it cannot be written, or a frame was not sent.
pub fn replay_stream(
    lab: &Lab,
    speed: &str,
    fill: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<Value> {
    let end = lab.sender();
    let mut command = lab.command(&end.namespace, wirelane_binary()?);
    command.args(["send", "-i", &end.device, "--replay", "-", "--speed", speed, "--json"]);
    let mut sender = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut output = BufWriter::new(sender.stdin.take().context("its input is a pipe")?);
    // A sender that has failed reports the reason on standard error.
    let filled = fill(&mut output).and_then(|()| output.flush());
    drop(output);
    let output = sender.wait_with_output()?;
    ensure!(output.status.success(), "wirelane send: {}", output.status);
    filled.context("writing to wirelane send")?;
    let text = String::from_utf8(output.stdout)?;
    let last: Value = serde_json::from_str(text.lines().last().context("no output of wirelane send")?)?;
    ensure!(last["read"] == last["sent"], "not all frames were sent: {last}");
    Ok(last)
}
