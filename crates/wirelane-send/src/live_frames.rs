//! Sending from inside the kernel by XDP live frames: `bpf/generate.bpf.c` run by
//! BPF_PROG_TEST_RUN (Documentation/bpf/bpf_prog_run.rst in the kernel tree). Frames go from a page pool
//! straight to the driver's `ndo_xdp_xmit`; there is no socket and no sk_buff.
//!
//! One system call lasts as long as the run: the program keeps the rate and counts, and user space reads its counters
//! from shared memory. A signal ends the call, see [`super::wake`].

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use wirelane_bpf::skel::generate::{GenerateSkel, GenerateSkelBuilder, types::generate_state};

use super::interface::{Interface, require};
use super::pace::{MOST_CATCH_UP, monotonic_ns};
use super::pattern::{MOST_SIZES, Transport};
use super::stamp::MAGIC;
use super::template::Template;
use super::{Counts, Share};
use crate::{Error, Result};

/// The largest frame, in bytes, that fits a page together with the kernel's data: 4096 less the page's own header, 256
/// bytes of headroom and `skb_shared_info`, rounded down.
pub(super) const LARGEST_FRAME: usize = 3300;

/// Frames that the kernel processes between two checks for signals and the scheduler.
const KERNEL_BATCH: u32 = 64;

const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (39, "CAP_BPF")];

/// Fraction bits of the gap between packets: GAP_SHIFT in the program.
const GAP_SHIFT: u32 = 12;

/// Checks whether this process may load the program.
pub(super) fn permitted() -> Result<()> {
    require(&CAPABILITIES, "generating inside the kernel")
}

/// Rejects a device without `ndo_xdp_xmit`, if the kernel reports it (Linux 6.3 and later).
pub(super) fn check_device(interface: &Interface) -> Result<()> {
    const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
    let mut answer = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `answer` is a bpf_xdp_query_opts that states its own size and is borrowed for the call.
    let done = unsafe { libbpf_sys::bpf_xdp_query(interface.index as c_int, 0, &raw mut answer) };
    let unknown = done != 0 || !wirelane_bpf::kernel::at_least(6, 3);
    if unknown || answer.feature_flags & NETDEV_XDP_ACT_NDO_XMIT != 0 {
        return Ok(());
    }
    Err(super::refuses_live_frames(&interface.name))
}

/// Loads the program for one thread's share, to send from the device with this index (0: none, for tests).
pub(super) fn load<'a>(
    storage: &'a mut MaybeUninit<OpenObject>,
    interface_index: u32,
    template: &Template,
    share: Share,
) -> Result<LiveFrames<'a>> {
    let refused = |source| Error::bpf("loading the generator into the kernel", source);
    let mut open = GenerateSkelBuilder::default().open(storage).map_err(refused)?;
    let config = &mut open.maps.rodata_data.as_deref_mut().expect("the program has constants").config;
    config.ifindex = interface_index;
    config.l3 = template.l3 as u32;
    config.l4 = template.l4 as u32;
    config.payload = template.payload as u32;
    config.rotating = template.rotating as u32;
    config.rotates_port = u32::from(template.rotates_port);
    let (first_flow, flows) = share.flows(template.flows);
    config.first = template.first + first_flow as u32;
    config.flows = (flows * share.stride) as u32;
    config.tcp = u32::from(template.transport == Transport::Tcp);
    config.ipv6 = u32::from(template.ipv6);
    config.stamped = u32::from(template.is_stamped());
    config.stream = u32::from(template.stream.unwrap_or(0));
    config.utc_minus_monotonic = utc_minus_monotonic();
    config.l3_sum = template.l3_sum;
    config.l4_sum = template.l4_sum;
    config.largest = template.largest() as u32;
    config.sizes_count = template.sizes.len() as u32;
    config.sizes_step = (share.stride % template.sizes.len() as u64) as u32;
    config.flows_step = share.stride as u32;
    config.stride = share.stride as u32;
    let header = template.frame[..template.payload + MAGIC.len()].chunks(size_of::<u64>());
    config.header_words = header.len() as u32;
    for (word, bytes) in config.header.iter_mut().zip(header) {
        let mut padded = [0; size_of::<u64>()];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    config.limit = share.limit;
    config.gap = share.pps.map_or(0, |pps| ((1e9 / pps * f64::from(1 << GAP_SHIFT)) as u64).max(1));
    config.most_catch_up_ns = MOST_CATCH_UP.as_nanos() as u64;
    debug_assert_eq!(config.sizes.len(), MOST_SIZES);
    config.sizes[..template.sizes.len()].copy_from_slice(&template.sizes);
    let start = &mut open.maps.bss_data.as_deref_mut().expect("the program has variables").state;
    start.next_number = share.first;
    start.next_flow = share.first / share.stride % flows.max(1) * share.stride;
    start.next_size = share.first % template.sizes.len() as u64;
    let mut skel = open.load().map_err(refused)?;
    let state = &raw mut skel.maps.bss_data.as_deref_mut().expect("the program has variables").state;
    Ok(LiveFrames { state: state.cast(), skel })
}

/// Offset from CLOCK_MONOTONIC to UTC in nanoseconds, modulo 2^64. Both clocks are slewed alike; steps of the
/// system's clock during a run are not followed.
fn utc_minus_monotonic() -> u64 {
    let utc = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    utc.wrapping_sub(monotonic_ns())
}

/// `struct generate_state`, as memory that the kernel writes while user space reads it.
#[repr(C)]
struct State {
    next_number: AtomicU64,
    next_flow: AtomicU64,
    next_size: AtomicU64,
    made: AtomicU64,
    given_up: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    due: AtomicU64,
}

const _: () = assert!(size_of::<State>() == size_of::<generate_state>());
const _: () = assert!(std::mem::offset_of!(State, made) == std::mem::offset_of!(generate_state, made));
const _: () = assert!(std::mem::offset_of!(State, last_ns) == std::mem::offset_of!(generate_state, last_ns));

/// The loaded program of one thread.
pub(super) struct LiveFrames<'a> {
    state: *const State,
    skel: GenerateSkel<'a>,
}

/// Access of threads to a loaded program: running it, and reading its counters.
#[derive(Clone, Copy)]
pub(super) struct Handle<'a> {
    program: BorrowedFd<'a>,
    state: &'a State,
}

impl LiveFrames<'_> {
    pub(super) fn handle(&self) -> Handle<'_> {
        // SAFETY: `state` points to the program's variables, which the skeleton keeps mapped as long as it lives, that
        // is for the lifetime of the borrow. No reference to the plain integers is created after the program was
        // loaded; all access is through these atomics and, also in whole words, by the kernel.
        let state = unsafe { &*self.state };
        Handle { program: self.skel.progs.wl_generate.as_fd(), state }
    }
}

impl Handle<'_> {
    /// The program's progress, at any time and from any thread.
    pub(super) fn counts(&self) -> Counts {
        let read = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let state = self.state;
        Counts {
            offered: read(&state.made),
            refused: 0,
            given_up: read(&state.given_up),
            completed: 0,
            first_ns: read(&state.first_ns),
            last_ns: read(&state.last_ns),
        }
    }

    /// Sends packets until `share.limit` of them are sent, or `ended` returns true after a signal.
    pub(super) fn run(&self, template: &Template, share: Share, ended: &dyn Fn() -> bool) -> Result<()> {
        loop {
            let left = share.limit - self.counts().offered;
            if left == 0 || ended() {
                return Ok(());
            }
            // With a rate, pages are also spent on waiting, so their number is not known in advance.
            let repeat = if share.pps.is_some() { i32::MAX as u32 } else { left.min(i32::MAX as u64) as u32 };
            let flags = libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
            match test_run(self.program, &template.frame, repeat, flags, None) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => {
                    let old = !wirelane_bpf::kernel::at_least(5, 18);
                    let reason = if old { " (live frames need Linux 5.18; use --method socket)" } else { "" };
                    return Err(Error::kernel(format!("generating inside the kernel{reason}"), error));
                }
            }
        }
    }
}

/// One BPF_PROG_TEST_RUN over `frame`, `repeat` times; returns the program's last return value.
fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    repeat: u32,
    flags: u32,
    out: Option<&mut Vec<u8>>,
) -> io::Result<u32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: repeat as c_int,
        flags,
        ..Default::default()
    };
    if flags & libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES != 0 {
        options.batch_size = KERNEL_BATCH.min(repeat);
    }
    let mut out = out;
    if let Some(out) = out.as_deref_mut() {
        options.data_out = out.as_mut_ptr().cast();
        options.data_size_out = out.capacity() as u32;
    }
    // SAFETY: the descriptor is of a loaded program; data_in is valid for reads of data_size_in bytes and data_out, if
    // present, for writes of data_size_out bytes. Both outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    if let Some(out) = out {
        // SAFETY: the kernel wrote data_size_out bytes; it lowers this value to the written size and never raises it.
        unsafe { out.set_len((options.data_size_out as usize).min(out.capacity())) };
    }
    Ok(options.retval)
}

#[cfg(test)]
#[path = "live_frames_tests.rs"]
mod tests;
