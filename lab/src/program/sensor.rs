//! A sensor over libpcap: captures packets and spins for each, as a stand-in for a probe in user space.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::SensorArgs;
use super::out;

/// Maximum delay of packets in libpcap, in milliseconds.
const TIMEOUT: i32 = 100;
/// Captured bytes of a packet: all.
const SNAP: i32 = 262_144;

/// Captures until SIGINT, SIGTERM or SIGHUP, and prints its counters.
pub fn run(args: &SensorArgs) -> Result<()> {
    let buffer = i32::try_from(args.buffer << 20).unwrap_or(i32::MAX);
    let capture = pcap::Capture::from_device(args.interface.as_str()).context("libpcap")?;
    let capture = capture.promisc(true).snaplen(SNAP).timeout(TIMEOUT).buffer_size(buffer).open();
    let mut capture = capture.with_context(|| format!("libpcap on {}", args.interface))?;
    // libpcap sleeps until packets come, whatever its timeout is.
    let stop = Arc::new(AtomicBool::new(false));
    let (wakes, stopped) = (capture.breakloop_handle(), Arc::clone(&stop));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
    std::thread::spawn(move || {
        for _ in &mut signals {
            stopped.store(true, Ordering::Relaxed);
            wakes.breakloop();
        }
    });
    out::print(format!("{}\n", json!({ "ready": true })))?;
    let mut captured: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        match capture.next_packet() {
            Ok(_) => {
                wirelane::spin(args.loops);
                captured += 1;
            }
            Err(pcap::Error::TimeoutExpired) => {}
            Err(pcap::Error::NoMorePackets) if stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(error).with_context(|| format!("libpcap on {}", args.interface)),
        }
    }
    let stats = capture.stats().context("libpcap's counters")?;
    let last = json!({ "final": true, "seen": stats.received, "captured": captured, "lost": stats.dropped });
    out::print(format!("{last}\n"))
}
