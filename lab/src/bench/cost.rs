//! Cost of the parts of a kernel program, each measured separately: BPF_PROG_TEST_RUN repeats a program of
//! `programs/cost.bpf.c` on one packet, and the time of the empty program is subtracted. Parser and hash are those of
//! the capture program, from `crates/wirelane-bpf/bpf/parse_probe.bpf.c`.
//!
//! These are costs with a warm cache. In real traffic, the cache lines of the ring come from the core that last read
//! them, and the data of each packet from where the device put it.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use wirelane_bpf::skel::parse_probe::ParseProbeSkelBuilder;

use super::skel::cost::CostSkelBuilder;
use super::table::{Table, spread};
use crate::calls::datagram;
use crate::summary::Spread;

/// Runs per measurement, and measurements.
const REPEAT: u32 = 1_000_000;
const MEASUREMENTS: usize = 7;

/// Measures all parts.
pub(super) fn measure() -> Result<Vec<Table>> {
    let mut storage = MaybeUninit::uninit();
    let parts =
        CostSkelBuilder::default().open(&mut storage)?.load().context("loading programs/cost.bpf.c")?;
    let mut storage = MaybeUninit::uninit();
    let probe = ParseProbeSkelBuilder::default()
        .open(&mut storage)?
        .load()
        .context("loading crates/wirelane-bpf/bpf/parse_probe.bpf.c")?;
    let programs = [
        ("bpf_ktime_get_ns", &parts.progs.cost_clock),
        ("bpf_ktime_get_coarse_ns", &parts.progs.cost_coarse_clock),
        ("look-up in an array, and count", &parts.progs.cost_array_lookup),
        ("look-up in a per-CPU array, and count", &parts.progs.cost_percpu_lookup),
        ("bpf_xdp_load_bytes of 60 bytes, same place", &parts.progs.cost_copy_in_place),
        ("bpf_xdp_load_bytes of 60 bytes, through 2 MiB", &parts.progs.cost_copy_through_ring),
        ("parse and flow hash of the capture program", &probe.progs.wl_parse_cost),
    ];
    let mut values = vec![Vec::new(); programs.len()];
    // Interleaved: each round measures the empty program again.
    for _ in 0..MEASUREMENTS {
        let empty = run(&parts.progs.cost_empty)?;
        for ((_, program), values) in programs.iter().zip(&mut values) {
            values.push(run(program)? - empty);
        }
    }
    let mut table = Table::new(
        "Parts of a kernel program",
        "Warm, nanoseconds of a packet beyond the empty program.",
        &["part", "median", "spread"],
    );
    for ((part, _), values) in programs.iter().zip(values) {
        let [median, ends] = spread(Spread::of(values).context("one measurement at least")?, 0);
        table.row(&[part, &median, &ends]);
    }
    Ok(vec![table])
}

/// Nanoseconds per run, on a UDP packet of 60 bytes.
fn run(program: &libbpf_rs::ProgramMut<'_>) -> Result<f64> {
    let packet = datagram([(Ipv4Addr::new(10, 0, 0, 1), 4096), (Ipv4Addr::new(10, 0, 0, 2), 9)], &[0; 18]);
    let input = ProgramInput { data_in: Some(&packet), repeat: REPEAT, ..ProgramInput::default() };
    // The kernel reports whole nanoseconds per run.
    Ok(program.test_run(input).context("BPF_PROG_TEST_RUN")?.duration.as_nanos() as f64)
}
