//! Sending from inside the kernel by XDP live frames: `kernel/programs/generate.bpf.c` run by
//! BPF_PROG_TEST_RUN (Documentation/bpf/bpf_prog_run.rst in the kernel tree). Frames go from a page pool
//! straight to the driver's `ndo_xdp_xmit`; there is no socket and no sk_buff.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use wirelane_datapath::skel::generate::{GenerateSkel, GenerateSkelBuilder};

use super::interface::{Interface, require};
use super::pattern::{MOST_SIZES, Template, Transport};
use super::{Handed, Sender, Share};
use crate::{Error, Result};

/// The largest frame, in bytes, that fits a page beside what the kernel keeps there: 4096 less the page's own
/// header, 256 bytes of headroom and `skb_shared_info`, rounded down.
pub(super) const LARGEST_FRAME: usize = 3300;

/// Frames that the kernel handles between two looks at signals and the scheduler.
const KERNEL_BATCH: u32 = 64;

/// Packets per system call at most, about 50 ms of them: how late a request to stop may be noticed.
const MOST_PER_CALL: u64 = 65_536;

const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (39, "CAP_BPF")];

/// Whether this process may load the program.
pub(super) fn permitted() -> Result<()> {
    require(&CAPABILITIES, "generating inside the kernel")
}

/// Loads the program for one share of the numbers and calls `body` with the sender.
///
/// The skeleton borrows the memory of its object, so the sender cannot leave this function.
pub(super) fn with_sender<R>(
    interface_index: u32,
    device: &str,
    template: &Template,
    share: Share,
    body: impl FnOnce(&mut dyn Sender) -> Result<R>,
) -> Result<R> {
    let mut storage = MaybeUninit::uninit();
    let skel = load(&mut storage, interface_index, template, share)?;
    body(&mut LiveFrames { skel, device, template, stride: share.stride })
}

/// Refuses a device that has no `ndo_xdp_xmit`, where the kernel tells (Linux 6.3 and later).
pub(super) fn check_device(interface: &Interface) -> Result<()> {
    const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
    let mut answer = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `answer` is a bpf_xdp_query_opts that states its own size and is borrowed for the call.
    let done = unsafe { libbpf_sys::bpf_xdp_query(interface.index as c_int, 0, &raw mut answer) };
    let unknown = done != 0 || !super::kernel::at_least(6, 3);
    if unknown || answer.feature_flags & NETDEV_XDP_ACT_NDO_XMIT != 0 {
        return Ok(());
    }
    Err(super::refuses_live_frames(&interface.name))
}

fn load<'a>(
    storage: &'a mut MaybeUninit<libbpf_rs::OpenObject>,
    interface_index: u32,
    template: &Template,
    share: Share,
) -> Result<GenerateSkel<'a>> {
    let refused = |source| Error::bpf("loading the generator into the kernel", source);
    let mut open = GenerateSkelBuilder::default().open(storage).map_err(refused)?;
    let config = &mut open.maps.rodata_data.as_deref_mut().expect("the program has constants").config;
    config.ifindex = interface_index;
    config.l3 = template.l3 as u32;
    config.l4 = template.l4 as u32;
    config.payload = template.payload as u32;
    config.rotating = template.rotating as u32;
    config.rotates_port = u32::from(template.rotates_port);
    config.first = template.first;
    config.flows = template.flows;
    config.tcp = u32::from(template.transport == Transport::Tcp);
    config.l3_sum = template.l3_sum;
    config.l4_sum = template.l4_sum;
    config.largest = template.largest() as u32;
    config.sizes_count = template.sizes.len() as u32;
    config.sizes_step = (share.stride % template.sizes.len() as u64) as u32;
    config.flows_step = (share.stride % u64::from(template.flows)) as u32;
    config.stride = share.stride as u32;
    debug_assert_eq!(config.sizes.len(), MOST_SIZES);
    config.sizes[..template.sizes.len()].copy_from_slice(&template.sizes);
    let start = open.maps.bss_data.as_deref_mut().expect("the program has variables");
    start.next_number = share.first;
    start.next_flow = (share.first % u64::from(template.flows)) as u32;
    start.next_size = (share.first % template.sizes.len() as u64) as u32;
    open.load().map_err(refused)
}

struct LiveFrames<'a> {
    skel: GenerateSkel<'a>,
    device: &'a str,
    template: &'a Template,
    stride: u64,
}

impl LiveFrames<'_> {
    /// How far the program came.
    fn next_number(&self) -> u64 {
        let variables = self.skel.maps.bss_data.as_deref().expect("the program has variables");
        // SAFETY: a reference is valid for reads. The kernel writes this memory during the system call, which
        // the compiler does not know: the read has to be volatile.
        unsafe { (&raw const variables.next_number).read_volatile() }
    }
}

impl Sender for LiveFrames<'_> {
    fn most(&self) -> u64 {
        MOST_PER_CALL
    }

    fn send(&mut self, at_most: u64, stop: &AtomicBool) -> Result<Handed> {
        let before = self.next_number();
        let count = at_most.min(MOST_PER_CALL);
        let mut done = 0;
        while done < count && !stop.load(Ordering::Relaxed) {
            let left = (count - done) as u32;
            let outcome =
                run(&self.skel, &self.template.frame, left, libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES, None);
            done = (self.next_number() - before) / self.stride;
            match outcome {
                Ok(_) => break,
                // A signal ends the call early; the program's own count says how far it came.
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => {
                    let action = match error.raw_os_error() {
                        Some(libc::EINVAL) if !super::kernel::at_least(5, 18) => {
                            "generating inside the kernel (live frames need Linux 5.18; use --method socket)"
                                .to_owned()
                        }
                        _ => format!("generating on {} inside the kernel", self.device),
                    };
                    return Err(Error::kernel(action, error));
                }
            }
        }
        Ok(Handed { packets: done, refused: 0 })
    }
}

/// One BPF_PROG_TEST_RUN over `frame`, `repeat` times; the program's last return value.
fn run(
    skel: &GenerateSkel<'_>,
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
    // SAFETY: the descriptor is of a loaded program; data_in is valid for reads of data_size_in bytes and
    // data_out, where it is given, for writes of data_size_out bytes. Both outlive the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_test_run_opts(skel.progs.wl_generate.as_fd().as_raw_fd(), &raw mut options)
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    if let Some(out) = out {
        // SAFETY: the kernel wrote data_size_out bytes, which it lowers to what it wrote and never raises.
        unsafe { out.set_len((options.data_size_out as usize).min(out.capacity())) };
    }
    Ok(options.retval)
}

#[cfg(test)]
#[path = "live_frames_tests.rs"]
mod tests;
