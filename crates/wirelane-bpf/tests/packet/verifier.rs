//! Verified instructions of the packet functions, and their run time.

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Program, ProgramInput};
use std::os::fd::AsFd as _;

use crate::probe::Probe;

/// Maximum number of instructions that the verifier may walk before it accepts a program; the kernel's limit is a
/// million. One turn of the parser is a function that is walked once (parse.h). Raising it is a decision: explain it.
const BUDGET: [(&str, u32); 2] = [("wl_parse_cost", 40_000), ("wl_parse_probe", 40_000)];

fn verified_instructions(probe: &Probe, name: &str) -> u32 {
    let program = match name {
        "wl_parse_cost" => &probe.skel.progs.wl_parse_cost,
        _ => &probe.skel.progs.wl_parse_probe,
    };
    let id = Program::id_from_fd(program.as_fd()).expect("the program is loaded");
    ProgInfoIter::default()
        .find(|info| info.id == id)
        .map(|info| info.verified_insns)
        .expect("the program is loaded")
}

#[test]
fn the_verifier_accepts_the_parser_within_its_budget() {
    let Some(probe) = Probe::load("verifier budget") else { return };
    for (name, budget) in BUDGET {
        let walked = verified_instructions(&probe, name);
        println!("{name}: {walked} instructions verified");
        assert!(walked <= budget, "{name}: the verifier walks {walked} instructions, more than {budget}");
    }
}

/// Prints nanoseconds per packet for information only, as a shared machine allows no reliable bound.
#[test]
fn parsing_the_common_packet_is_measured() {
    let Some(probe) = Probe::load("cost of parsing") else { return };
    let mut packet = vec![0u8; 60];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 1, 1]);
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
    // Both have the same test run, on any machine.
    assert!(parse < 20 * empty.max(10), "{parse} ns per packet, and {empty} ns without parsing");
}
