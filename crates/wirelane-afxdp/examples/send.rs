//! Sends numbered frames on TX queue 0 of a device through an AF_XDP socket. Needs root.
use std::{env, fs};

use wirelane_afxdp::{Sender, ZeroCopy};

/// Frames to send, and their length in bytes without FCS.
const FRAMES: u64 = 1000;
const LENGTH: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = env::args().nth(1).ok_or("usage: send DEVICE")?;
    let ifindex = fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))?.trim().parse()?;
    let mut sender = Sender::open(&device, ifindex, 0, ZeroCopy::Auto)?;
    println!("{device}: zero copy {}", sender.is_zero_copy());
    let mut sent = 0;
    while sent < FRAMES {
        let before = sent;
        sent += sender.send(FRAMES - before, |number, frame| {
            frame[..LENGTH].fill(0);
            frame[..6].fill(0xff); // broadcast
            frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes()); // EtherType for local experiments
            frame[14..22].copy_from_slice(&(before + number).to_be_bytes());
            LENGTH
        })?;
    }
    let left = sender.drain()?;
    println!("{sent} frames sent, {left} not completed by the device");
    Ok(())
}
