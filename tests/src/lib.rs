//! The test lab: real traffic in separate network namespaces, and utilities for tests.
//!
//! ```text
//! Lab        namespaces and veth pairs with N queues and no stray packet; removed on drop
//! Child      a process in a namespace: JSON lines read with a time-out; killed by pid on drop
//! battery    what has to be held, and the tests that say they check it
//! bpf        the kernel's list of our programs, maps and links, for leak tests
//! frames     frames that tests make up, sent
//! calls      SIP and RTP that tests make up, and what is told of it
//! commands   every command that reads a network
//! control_group  memory limits by the kernel
//! debian     a Debian with its packages, and with systemd as its first process
//! foreign    somebody else's programs on a device
//! kernel     which kernel this is, and what it complains about
//! process    descriptors and CPU time of a process
//! libpcap    programs that use libpcap, with the system's or with ours
//! mixture    real and hostile traffic without end, and what has to be found in it
//! numbers    numbered packets sent and captured, and the ledger of the capture
//! pages      pages of HTML, parsed by expat
//! paths      the built binary, the corpus
//! programs   steering programs and plug-ins, compiled
//! ruled      captures by rules, by everything that evaluates
//! seccomp    system call filters of a process, evaluated
//! slow_clients   connections that do not finish their requests
//! recordings captures made to be recorded, recordings read back by others and by us, small disks
//! ```
//!
//! Tests that need root start with `if !require_root("name") { return }`. Counts in a lab are exact: its
//! namespaces send nothing by themselves (IPv6 off, neighbours fixed), so only packets of the test arrive.

pub mod battery;
mod bpf;
pub mod calls;
mod child;
pub mod commands;
mod control_group;
mod debian;
pub mod duckdb;
pub mod flow_traffic;
pub mod flows;
mod foreign;
pub mod frames;
mod kernel;
mod lab;
pub mod libpcap;
pub mod mixture;
pub mod numbers;
pub mod pages;
mod paths;
mod process;
mod programs;
pub mod python;
pub mod recordings;
pub mod ruled;
pub mod seccomp;
pub mod slow_clients;
mod sys;
pub mod terminal;

pub use bpf::{BpfObjects, bpf_objects, maps_named, settled_bpf_objects, wait_for_bpf_objects};
pub use child::{Child, Finished};
pub use control_group::ControlGroup;
pub use debian::{Debian, Machine};
pub use foreign::{AttachBy, ForeignTc, ForeignXdp, detach_xdp};
pub use kernel::{KernelLog, kernel_version};
pub use lab::{End, Lab, LabOptions, Link};
pub use paths::{Capture, corpus, merged, repository, wirelane_binary};
pub use process::{bpf_links, brokers, cpu_time, in_own_process, open_descriptors, resident_bytes};
pub use programs::{program_file, program_object, tag_beside};
pub use sys::{
    Signal, children_cpu_time, detach_link, program_statistics, raw_ns, set_guest_clock, slew_guest_clock,
    test_run, timed_run,
};

/// True if tests assert durations, which hold on an otherwise idle machine: with `WIRELANE_TIMED=1`, as `make test-all`
/// sets it.
pub fn timed() -> bool {
    std::env::var_os("WIRELANE_TIMED").is_some_and(|value| value == "1")
}

/// True if tests run in full what they run in part in the gate: with `WIRELANE_FULL=1`, as `make test-all` sets it.
pub fn full() -> bool {
    std::env::var_os("WIRELANE_FULL").is_some_and(|value| value == "1")
}

/// True for one in `parts` consecutive numbers, which the seed of the random cases selects, so that successive commits
/// have all of them in turn; true for each number in `make test-all`.
///
/// # Panics
/// If `WIRELANE_SEED` is not a number.
pub fn chosen(number: usize, parts: usize) -> bool {
    let seed = std::env::var("WIRELANE_SEED").map_or(0, |seed| seed.parse::<u64>().expect("a number"));
    full() || (number as u64 + seed % parts as u64).is_multiple_of(parts as u64)
}

/// True if a test that needs root may run. A test calls this first and returns if it is false.
///
/// # Panics
/// If the tests are not run by root, unless `WIRELANE_UNPRIVILEGED=1` is set: then the test is skipped with a message.
pub fn require_root(test: &str) -> bool {
    if sys::is_root() {
        return true;
    }
    assert!(
        std::env::var("WIRELANE_UNPRIVILEGED").is_ok_and(|value| value == "1"),
        "{test} needs root: run 'make test', which uses sudo, or set WIRELANE_UNPRIVILEGED=1 to leave out \
         what needs root"
    );
    println!("left out: {test} (needs root)");
    false
}
