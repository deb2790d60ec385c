//! Generator of flows that differ in size, or that begin and end (`programs/flows.bpf.c`): a separate process
//! (`wirelane-testbed generate flows`).
//!
//! Packet `n` carries its number, as the packets of `wirelane send`, so a receiver can derive its flow from it.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use wirelane_send::DST;

use super::generator::{LARGEST_INPUT, MOST_CATCH_UP, Made, Sending, state};
use super::receive::sys;
use super::skel::flows::FlowsSkelBuilder;

/// Entries of the program's table.
const SEQUENCE: usize = 1 << 16;

/// Share of the largest flow in skewed traffic, as in suites.
pub const ELEPHANT: f64 = 0.4;

/// Number of flows of skewed traffic without the largest one (the elephant), whose number this is.
pub const SKEWED_FLOWS: usize = 4096;

/// Traffic with flows that end: number of concurrent flows, and packets of each.
pub const FLOWS_AT_ONCE: u64 = 256;
/// See [`FLOWS_AT_ONCE`].
pub const PACKETS_OF_A_FLOW: u64 = 16;

/// Number of packets after which all flows have ended and others begin: WHOLE in the program.
pub const WHOLE: u64 = FLOWS_AT_ONCE * PACKETS_OF_A_FLOW;

/// Range of the IPv4 header in the frame; CHECKSUM and DESTINATION in the program.
const IPV4: std::ops::Range<usize> = 14..34;
const CHECKSUM: usize = 24;
const DESTINATION: usize = 30;
const UDP_CHECKSUM: usize = 40;

/// Time for the kernel to begin before the signal that ends its call.
const START: Duration = Duration::from_millis(300);

/// The generator.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    sending: Sending,
    /// 4096 endless flows, flow k as large as k to the power of minus this; flows of 16 packets where it is left out
    #[arg(long)]
    zipf: Option<f64>,
    /// Besides, one flow with this part of the packets
    #[arg(long, default_value_t = 0.0, requires = "zipf")]
    elephant: f64,
}

/// Flow of packet `number`, if flows end.
pub fn flow_of(number: u64) -> u64 {
    number / WHOLE * FLOWS_AT_ONCE + number % FLOWS_AT_ONCE
}

/// Table of flows that end: the flows of one turn.
fn ending() -> Vec<u16> {
    (0..SEQUENCE as u64).map(|number| flow_of(number) as u16).collect()
}

/// Flow of a packet in skewed traffic, by its destination; `None` for a packet of another program.
pub fn skewed_flow_of(frame: &[u8]) -> Option<usize> {
    let address = frame.get(DESTINATION..)?.first_chunk::<4>()?;
    let flow = u32::from_be_bytes(*address).checked_sub(u32::from(DST))? as usize;
    (flow <= SKEWED_FLOWS).then_some(flow)
}

/// Table of skewed flows: chosen by a reproducible random generator, the elephant with this probability, the others by
/// Zipf's law.
fn skewed(exponent: f64, elephant: f64) -> Vec<u16> {
    let mut sums = Vec::with_capacity(SKEWED_FLOWS);
    let mut sum = 0.0;
    for rank in 1..=SKEWED_FLOWS {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let draw = |_| {
        if random() < elephant {
            return SKEWED_FLOWS as u16;
        }
        let at = random() * sum;
        sums.partition_point(|sum| *sum < at).min(SKEWED_FLOWS - 1) as u16
    };
    (0..SEQUENCE).map(draw).collect()
}

/// Sum of 16-bit words, big endian.
fn sum16(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// Sends, and prints one JSON object with the field names of `wirelane send`.
pub fn run(args: &Args) -> Result<()> {
    let mut generator = args.sending.prepare()?;
    let frame = &mut generator.frame;
    ensure!(frame.len() <= LARGEST_INPUT, "--size: frames made here have up to {LARGEST_INPUT} bytes");
    // Fields that change from packet to packet. A UDP checksum of zero means that there is no checksum (RFC 768).
    frame[CHECKSUM..CHECKSUM + 2].fill(0);
    frame[DESTINATION..DESTINATION + 4].fill(0);
    frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);

    let mut storage = MaybeUninit::uninit();
    let mut open = FlowsSkelBuilder::default().open(&mut storage)?;
    let constants = open.maps.rodata_data.as_deref_mut().context("the program has constants")?;
    let config = &mut constants.config;
    config.ifindex = generator.ifindex;
    config.first = u32::from(DST);
    config.l3_sum = sum16(&generator.frame[IPV4]);
    config.duration_ns = args.sending.duration_ns();
    config.gap = args.sending.gap();
    config.most_catch_up_ns = MOST_CATCH_UP.as_nanos() as u64;
    // Flows are complete: the number of packets is the closest multiple.
    let Sending { rate, duration, .. } = args.sending;
    config.limit = rate.map_or(0, |pps| ((pps * duration / WHOLE as f64).round() as u64).max(1) * WHOLE);
    for (word, bytes) in config.header.iter_mut().zip(generator.frame.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().context("eight bytes")?);
    }
    config.per_turn = if args.zipf.is_some() { 0 } else { (SEQUENCE as u64 / PACKETS_OF_A_FLOW) as u32 };
    let sequence = args.zipf.map_or_else(ending, |exponent| skewed(exponent, args.elephant));
    constants.sequence.copy_from_slice(&sequence);
    let skel = open.load().context("loading programs/flows.bpf.c")?;

    let wait = START + Duration::from_secs_f64(duration);
    let give_up = Instant::now() + wait * 3 + Duration::from_secs(5);
    loop {
        // Set for each call, since each takes some time to begin.
        sys::alarm_after(wait, Duration::from_millis(20)).context("setting a timer")?;
        let flags = libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
        let (data_in, repeat) = (Some(&*generator.frame), i32::MAX as u32);
        let input = ProgramInput { data_in, repeat, flags, ..ProgramInput::default() };
        match skel.progs.bench_flows.test_run(input) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                return Err(error).context("BPF_PROG_TEST_RUN (live frames need Linux 5.18)");
            }
            _ => {}
        }
        // `struct flows_state`.
        let [packets, given_up, first_ns, last_ns, _due, over] = state(&skel.maps.bss)?;
        if over != 0 {
            return generator.report("flows", &Made { packets, given_up, first_ns, last_ns });
        }
        ensure!(Instant::now() < give_up, "the kernel made {packets} packets and does not end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_end_have_sixteen_packets_each_and_no_gap_between_turns() {
        let table = ending();
        let mut packets = vec![0; SEQUENCE / PACKETS_OF_A_FLOW as usize];
        for flow in &table {
            packets[usize::from(*flow)] += 1;
        }
        assert!(packets.iter().all(|count| *count == PACKETS_OF_A_FLOW));
        // The formula of the program, in the third turn.
        for number in [2 * SEQUENCE as u64, 2 * SEQUENCE as u64 + 4097, 3 * SEQUENCE as u64 - 1] {
            let turn = number / SEQUENCE as u64;
            let of_program = turn * packets.len() as u64 + u64::from(table[number as usize % SEQUENCE]);
            assert_eq!(flow_of(number), of_program, "{number}");
        }
    }

    #[test]
    fn skewed_flows_follow_zipfs_law() {
        let table = skewed(1.0, 0.0);
        let count = |flow: u16| table.iter().filter(|one| **one == flow).count() as f64;
        // The largest flow has 1/H of the packets, where H is the 4096th harmonic number, 8.895.
        let share = count(0) / table.len() as f64;
        assert!((share - 1.0 / 8.895).abs() < 0.01, "{share}");
        assert!((count(0) / count(1) - 2.0).abs() < 0.2 && (count(0) / count(9) - 10.0).abs() < 2.0);
        assert!(table.iter().all(|flow| usize::from(*flow) < SKEWED_FLOWS));
        assert_eq!(table, skewed(1.0, 0.0), "the same each time");
    }

    #[test]
    fn the_elephant_has_its_part_and_the_others_follow_zipfs_law() {
        let table = skewed(1.0, 0.4);
        let count = |flow: usize| table.iter().filter(|one| usize::from(**one) == flow).count() as f64;
        assert!((count(SKEWED_FLOWS) / table.len() as f64 - 0.4).abs() < 0.01);
        assert!((count(0) / count(1) - 2.0).abs() < 0.2);
    }

    #[test]
    fn a_packets_flow_is_in_its_destination() {
        let first = u32::from(DST);
        let mut frame = [0; 34];
        let mut of = |address: u32| {
            frame[DESTINATION..].copy_from_slice(&address.to_be_bytes());
            skewed_flow_of(&frame)
        };
        assert_eq!((of(first), of(first + 4096)), (Some(0), Some(SKEWED_FLOWS)));
        assert_eq!((of(first + 4097), of(first - 1)), (None, None));
        assert_eq!(skewed_flow_of(&[0; 33]), None);
    }

    #[test]
    fn sums_are_of_big_endian_words() {
        assert_eq!(sum16(&[0x12, 0x34, 0x00, 0x01, 0xff]), 0x1234 + 1 + 0xff00);
    }
}
