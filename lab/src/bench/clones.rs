//! The in-kernel generator of socket buffers (`programs/clone.bpf.c`): a separate process (`wirelane-testbed generate
//! clones`) with the same report as `wirelane send --json`.
//!
//! It is part of the test-bed and not of `wirelane send`, because all of its packets have the same bytes: they can be
//! counted, but not identified.

use std::fs;
use std::io::{Write, stdout};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use serde_json::json;
use wirelane_send::{Interface, Template, Traffic};

use super::skel::clone::CloneSkelBuilder;

/// Fraction bits of the gap between packets: GAP_SHIFT in the program.
pub(crate) const GAP_SHIFT: u32 = 12;

/// The largest frame that BPF_PROG_TEST_RUN accepts unchanged: a page without headroom and `skb_shared_info`, rounded
/// down. The program adds the rest.
pub(crate) const LARGEST_INPUT: usize = 3300;

/// Maximum delay behind the schedule that the generator catches up. A burst after a longer delay would overrun a
/// receiver's device that keeps up with the rate itself: a veth queues 256 packets.
pub(crate) const MOST_CATCH_UP: Duration = Duration::from_micros(100);

/// Runs of the program in one system call: some tenths of a millisecond, with or without a gap.
const RUNS_AT_FULL_SPEED: u32 = 16;
const RUNS_PACED: u32 = 8192;

/// The generator.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The device to send from
    device: String,
    /// Bytes of a frame without FCS
    #[arg(long)]
    size: u16,
    /// Seconds
    #[arg(long)]
    duration: f64,
    /// Packets per second; as fast as possible where it is left out
    #[arg(long)]
    rate: Option<f64>,
    /// TX queues that bursts of up to 64 packets take in turn; the kernel chooses where it is left out
    #[arg(long, default_value_t = 0)]
    queues: u32,
}

/// Sends, and prints one JSON object with the field names of `wirelane send`.
///
/// # Errors
/// The kernel rejects the program, or the counters of a device cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let interface = Interface::find(&args.device)?;
    let template = Template::new(&Traffic { sizes: vec![args.size], ..Traffic::default() })?;
    let mut frame = vec![0; template.largest()];
    template.prepare(&mut frame);
    template.write(0, &mut frame);

    let mut storage = MaybeUninit::uninit();
    let mut open = CloneSkelBuilder::default().open(&mut storage)?;
    let config = &mut open.maps.rodata_data.as_deref_mut().context("the program has constants")?.config;
    config.ifindex = interface.index;
    config.size = u32::from(args.size);
    config.queues = args.queues;
    config.gap = args.rate.map_or(0, |pps| ((1e9 / pps * f64::from(1 << GAP_SHIFT)) as u64).max(1));
    config.duration_ns = Duration::from_secs_f64(args.duration).as_nanos() as u64;
    config.most_catch_up_ns = MOST_CATCH_UP.as_nanos() as u64;
    let skel = open.load().context("loading programs/clone.bpf.c")?;
    let state = || -> Result<State> {
        let bytes = skel.maps.bss.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.context("no state")?;
        State::read(&bytes).context("the state is too short")
    };

    let before = Counters::read(&args.device)?;
    let repeat = if args.rate.is_some() { RUNS_PACED } else { RUNS_AT_FULL_SPEED };
    let input = &frame[..frame.len().min(LARGEST_INPUT)];
    let end = loop {
        let input = ProgramInput { data_in: Some(input), repeat, ..ProgramInput::default() };
        skel.progs.bench_clone.test_run(input).context("BPF_PROG_TEST_RUN")?;
        let state = state()?;
        ensure!(state.failed == 0, "the kernel does not make frames of {} bytes", args.size);
        if state.over {
            break state;
        }
    };
    let Division { sent, dropped, others } = settle(&args.device, before, end.made)?;
    let duration_s = Duration::from_nanos(end.last_ns.saturating_sub(end.first_ns)).as_secs_f64();
    let report = json!({
        "device": args.device, "method": "clone", "asked_pps": args.rate, "offered": end.made, "sent": sent,
        "dropped": dropped, "others": others, "duration_s": duration_s, "given_up": end.given_up,
        "late_s": Duration::from_nanos(end.late_ns).as_secs_f64(), "final": true,
    });
    writeln!(stdout(), "{report}").context("writing to standard output")
}

/// `struct clone_state`, without the fields that only the program needs.
struct State {
    made: u64,
    given_up: u64,
    first_ns: u64,
    last_ns: u64,
    late_ns: u64,
    failed: u64,
    over: bool,
}

impl State {
    fn read(bytes: &[u8]) -> Option<State> {
        let word =
            |index: usize| Some(u64::from_ne_bytes(bytes.chunks_exact(8).nth(index)?.try_into().ok()?));
        Some(State {
            made: word(0)?,
            given_up: word(1)?,
            first_ns: word(2)?,
            last_ns: word(3)?,
            late_ns: word(5)?,
            failed: word(6)?,
            over: word(7)? != 0,
        })
    }
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

impl Counters {
    /// From sysfs, which shows the network namespace of its mount: `ip netns exec` mounts it again.
    pub(crate) fn read(device: &str) -> Result<Counters> {
        let count = |name: &str| -> Result<u64> {
            let path = format!("/sys/class/net/{device}/statistics/{name}");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            text.trim().parse().with_context(|| format!("{path}: {text}"))
        };
        Ok(Counters { sent: count("tx_packets")?, dropped: count("tx_dropped")? })
    }
}

/// Packets by their fate, according to the device's own counters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    /// Counted in addition to the generated packets: other programs send, too.
    pub(crate) others: u64,
}

/// Waits until the device's counters account for all packets, or stop changing: a veth counts the packets that its peer
/// has polled.
pub(crate) fn settle(device: &str, before: Counters, made: u64) -> Result<Division> {
    let mut last = Counters::read(device)?;
    let mut moved = Instant::now();
    loop {
        let (sent, dropped) = (last.sent - before.sent, last.dropped - before.dropped);
        if sent + dropped >= made || moved.elapsed() > Duration::from_millis(500) {
            return Ok(Division { sent, dropped, others: (sent + dropped).saturating_sub(made) });
        }
        std::thread::sleep(Duration::from_millis(2));
        let now = Counters::read(device)?;
        if now != last {
            (last, moved) = (now, Instant::now());
        }
    }
}
