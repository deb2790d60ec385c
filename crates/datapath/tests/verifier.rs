//! What the verifier has to do to accept the packet functions, and what they cost when they run.

use libbpf_rs::ProgramInput;
use libbpf_rs::query::ProgInfoIter;
use std::os::fd::{AsFd as _, AsRawFd as _};

#[path = "common/probe.rs"]
mod probe;

use probe::Probe;

/// Instructions that the verifier may walk before it accepts the probe (parse, hash, record). A capture
/// program does this and more, and the kernel's limit for all is a million. More is a decision: explain it.
const BUDGET: u32 = 100_000;

fn verified_instructions(name: &str) -> u32 {
    ProgInfoIter::default()
        .filter(|program| program.name.to_string_lossy() == name)
        .map(|program| program.verified_insns)
        .max()
        .expect("the program is loaded")
}

#[test]
fn the_verifier_accepts_the_parser_within_its_budget() {
    let Some(probe) = Probe::load("verifier budget") else { return };
    assert!(probe.skel.progs.wl_parse_probe.as_fd().as_raw_fd() >= 0);
    for name in ["wl_parse_probe", "wl_parse_cost"] {
        let walked = verified_instructions(name);
        println!("{name}: {walked} instructions verified");
        assert!(walked <= BUDGET, "{name}: the verifier walks {walked} instructions, more than {BUDGET}");
    }
}

/// Prints nanoseconds per packet; a figure to look at, as a shared machine gives no bound that could be held.
#[test]
fn parsing_the_common_packet_is_measured() {
    let Some(probe) = Probe::load("cost of parsing") else { return };
    let mut packet = vec![0u8; 60];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14..34].copy_from_slice(&[
        0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 1, 1,
    ]);
    packet[34..42].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 26, 0, 0]);
    let median = |program: &libbpf_rs::ProgramMut<'_>| {
        let mut runs: Vec<u128> = (0..9)
            .map(|_| {
                let input = ProgramInput { data_in: Some(&packet), repeat: 200_000, ..Default::default() };
                program.test_run(input).expect("BPF_PROG_TEST_RUN works").duration.as_nanos()
            })
            .collect();
        runs.sort_unstable();
        runs[runs.len() / 2]
    };
    let empty = median(&probe.skel.progs.wl_empty_cost);
    let parse = median(&probe.skel.progs.wl_parse_cost);
    println!("parse and hash of Ethernet/IPv4/UDP: {parse} ns, of which the test run itself {empty} ns");
    assert!(parse < 1000, "{parse} ns per packet cannot be right");
}
