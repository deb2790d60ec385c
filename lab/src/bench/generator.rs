//! Parts that the generators `clones` and `flows` share: options, the frame, the account of the device's counters, and
//! the report, which has the fields of `wirelane send --json`.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapMut};
use serde_json::json;
use wirelane_send::{Counters, Gauge, Interface, Template, Traffic};

/// Fraction bits of the gap between packets: GAP_SHIFT in the programs.
const GAP_SHIFT: u32 = 12;

/// The largest frame that BPF_PROG_TEST_RUN accepts unchanged: a page without headroom and `skb_shared_info`, rounded
/// down.
pub(super) const LARGEST_INPUT: usize = 3300;

/// Maximum delay behind the schedule that a generator catches up. A burst after a longer delay would overrun a
/// receiver's device that keeps up with the rate itself: a veth queues 256 packets.
pub(super) const MOST_CATCH_UP: Duration = Duration::from_micros(100);

/// Time without a change of the device's counters after which they are final.
const SETTLED: Duration = Duration::from_millis(500);

/// Options of both generators.
#[derive(clap::Args, Debug)]
pub struct Sending {
    /// The device to send from
    device: String,
    /// Bytes of a frame without FCS
    #[arg(long)]
    pub(super) size: u16,
    /// Seconds
    #[arg(long)]
    pub(super) duration: f64,
    /// Packets per second; as fast as possible where it is left out
    #[arg(long)]
    pub(super) rate: Option<f64>,
}

/// A device, its counters at the start, and the frame to send.
pub(super) struct Generator<'a> {
    options: &'a Sending,
    gauge: Gauge,
    before: Counters,
    /// Index of the device.
    pub(super) ifindex: u32,
    /// The first frame of `wirelane send`.
    pub(super) frame: Vec<u8>,
}

/// Common fields of the programs' states.
pub(super) struct Made {
    /// Packets that were made.
    pub(super) packets: u64,
    /// Delays or packets that were skipped.
    pub(super) given_up: u64,
    /// Time of the first packet, and of the last one.
    pub(super) first_ns: u64,
    /// See `first_ns`.
    pub(super) last_ns: u64,
}

impl Sending {
    pub(super) fn prepare(&self) -> Result<Generator<'_>> {
        let interface = Interface::find(&self.device)?;
        let template = Template::new(&Traffic { sizes: vec![self.size], ..Traffic::default() })?;
        let mut frame = vec![0; template.largest()];
        template.prepare(&mut frame);
        template.write(0, 0, 0, &mut frame);
        let gauge = interface.gauge()?;
        let before = gauge.counters()?;
        Ok(Generator { options: self, gauge, before, ifindex: interface.index, frame })
    }

    /// Time between packets in units of 2^-GAP_SHIFT ns; 0: full speed.
    pub(super) fn gap(&self) -> u64 {
        self.rate.map_or(0, |pps| ((1e9 / pps * f64::from(1 << GAP_SHIFT)) as u64).max(1))
    }

    pub(super) fn duration_ns(&self) -> u64 {
        Duration::from_secs_f64(self.duration).as_nanos() as u64
    }
}

impl Generator<'_> {
    /// Waits until the device's counters account for all packets, or stop changing, since a veth counts the packets that
    /// its peer has polled; then prints one JSON object.
    pub(super) fn report(&self, method: &str, made: &Made) -> Result<()> {
        let counters = || -> Result<(u64, u64)> {
            let now = self.gauge.counters()?;
            Ok((now.sent - self.before.sent, now.dropped - self.before.dropped))
        };
        let (mut last, mut moved) = (counters()?, Instant::now());
        while last.0 + last.1 < made.packets && moved.elapsed() <= SETTLED {
            std::thread::sleep(Duration::from_millis(2));
            let now = counters()?;
            if now != last {
                (last, moved) = (now, Instant::now());
            }
        }
        let (sent, dropped) = last;
        let report = json!({
            "device": self.options.device, "method": method, "asked_pps": self.options.rate, "offered": made.packets,
            "sent": sent, "dropped": dropped, "others": (sent + dropped).saturating_sub(made.packets),
            "duration_s": Duration::from_nanos(made.last_ns.saturating_sub(made.first_ns)).as_secs_f64(),
            "given_up": made.given_up, "final": true,
        });
        writeln!(stdout(), "{report}").context("writing to standard output")
    }
}

/// The first words of a program's variables.
pub(super) fn state<const N: usize>(bss: &MapMut<'_>) -> Result<[u64; N]> {
    let bytes = bss.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.context("no state")?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.first_chunk().copied().context("the state is too short")
}
