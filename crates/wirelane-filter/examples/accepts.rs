//! Compiles a tcpdump expression and evaluates it for a UDP packet to port 53.
use std::env;

use wirelane_filter::{Filter, Result};

/// LINKTYPE_RAW: packets begin with the IP header.
const RAW_IP: u32 = 101;

fn main() -> Result<()> {
    let expression = env::args().nth(1).unwrap_or_else(|| "udp port 53".to_owned());
    let filter = Filter::compile(&expression, RAW_IP)?;
    let mut packet = [0; 28];
    packet[0] = 0x45; // IPv4, a header of 20 bytes
    packet[3] = 28; // total length
    packet[9] = 17; // UDP
    packet[23] = 53; // destination port
    packet[25] = 8; // UDP length
    let verdict = if filter.accepts(&packet, 28, false) { "accepts" } else { "rejects" };
    println!("'{expression}' has {} steps and {verdict} a UDP packet to port 53", filter.steps().len());
    Ok(())
}
