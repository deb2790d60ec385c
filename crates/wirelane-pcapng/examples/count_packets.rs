//! Counts the packets and bytes of a pcap or pcapng file per interface.
use std::env;
use std::path::Path;
use std::time::Duration;

use wirelane_pcapng::{Reached, Reader, Result};

fn main() -> Result<()> {
    let path = env::args().nth(1).expect("usage: count FILE");
    let mut reader = Reader::open(Path::new(&path))?;
    let mut counts: Vec<(u64, u64)> = Vec::new();
    while let Reached::Packet(packet) = reader.advance(Duration::ZERO)? {
        let interface = packet.interface as usize;
        if counts.len() <= interface {
            counts.resize(interface + 1, (0, 0));
        }
        counts[interface].0 += 1;
        counts[interface].1 += reader.data(&packet).len() as u64;
        reader.consume(&packet);
    }
    for (interface, (packets, bytes)) in counts.iter().enumerate() {
        println!("interface {interface}: {packets} packets, {bytes} captured bytes");
    }
    Ok(())
}
