//! The in-kernel generator of socket buffers (`programs/clone.bpf.c`): a separate process (`wirelane-testbed generate
//! clones`).
//!
//! It is part of the test-bed and not of `wirelane send`, because all of its packets have the same bytes: they can be
//! counted, but not identified.

use std::mem::MaybeUninit;

use anyhow::{Context, Result, ensure};
use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use super::generator::{LARGEST_INPUT, MOST_CATCH_UP, Made, Sending, state};
use super::skel::clone::CloneSkelBuilder;

/// Runs of the program in one system call: some tenths of a millisecond, with or without a gap.
const RUNS_AT_FULL_SPEED: u32 = 16;
const RUNS_PACED: u32 = 8192;

/// The generator.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    sending: Sending,
    /// TX queues that bursts of up to 64 packets take in turn; the kernel chooses where it is left out
    #[arg(long, default_value_t = 0)]
    queues: u32,
}

/// Sends, and prints one JSON object with the field names of `wirelane send`.
pub fn run(args: &Args) -> Result<()> {
    let generator = args.sending.prepare()?;
    let size = args.sending.size;
    let mut storage = MaybeUninit::uninit();
    let mut open = CloneSkelBuilder::default().open(&mut storage)?;
    let config = &mut open.maps.rodata_data.as_deref_mut().context("the program has constants")?.config;
    config.ifindex = generator.ifindex;
    config.size = u32::from(size);
    config.queues = args.queues;
    config.gap = args.sending.gap();
    config.duration_ns = args.sending.duration_ns();
    config.most_catch_up_ns = MOST_CATCH_UP.as_nanos() as u64;
    let skel = open.load().context("loading programs/clone.bpf.c")?;

    let repeat = if args.sending.rate.is_some() { RUNS_PACED } else { RUNS_AT_FULL_SPEED };
    // The program adds the rest.
    let input = &generator.frame[..generator.frame.len().min(LARGEST_INPUT)];
    loop {
        let input = ProgramInput { data_in: Some(input), repeat, ..ProgramInput::default() };
        skel.progs.bench_clone.test_run(input).context("BPF_PROG_TEST_RUN")?;
        // `struct clone_state`.
        let [packets, given_up, first_ns, last_ns, _due, failed, over] = state(&skel.maps.bss)?;
        ensure!(failed == 0, "the kernel does not make frames of {size} bytes");
        if over != 0 {
            return generator.report("clone", &Made { packets, given_up, first_ns, last_ns });
        }
    }
}
