//! The system calls of the lab: the only `unsafe` of the tests.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// A signal for [`crate::Child::signal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Signal {
    /// SIGINT, as Ctrl-C sends it.
    Interrupt = libc::SIGINT,
    /// SIGTERM.
    Terminate = libc::SIGTERM,
    /// SIGHUP.
    HangUp = libc::SIGHUP,
    /// SIGUSR1.
    User1 = libc::SIGUSR1,
    /// SIGUSR2.
    User2 = libc::SIGUSR2,
    /// SIGKILL.
    Kill = libc::SIGKILL,
    /// SIGSTOP.
    Stop = libc::SIGSTOP,
    /// SIGCONT.
    Continue = libc::SIGCONT,
}

/// Sends a signal to one process.
pub(crate) fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: kill(2) takes integers only. `pid` is positive, so it means one process and no group.
    if unsafe { libc::kill(pid, signal as i32) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel count the runs and run times of BPF programs until the descriptor is closed (`BPF_ENABLE_STATS`,
/// bpf(2)), however this process ends.
pub fn program_statistics() -> io::Result<OwnedFd> {
    use libbpf_rs::libbpf_sys::{BPF_STATS_RUN_TIME, bpf_enable_stats};
    // SAFETY: takes a constant, and returns a new descriptor or a negative error number.
    let fd = unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True if this process has root's user id.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: setns(2) takes an open descriptor, which `namespace` holds for the call, and a constant. It
    // changes the network namespace of the calling thread alone.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits for a lock on a file (flock(2)), which ends when the file is closed.
pub(crate) fn lock(file: &File, exclusive: bool) -> io::Result<()> {
    let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    loop {
        // SAFETY: flock(2) takes an open descriptor, which `file` holds for the call, and a constant.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Processor time of all children of this process that have been waited for, user and system together.
pub fn children_cpu_time() -> Duration {
    // SAFETY: a struct of integers, of which all may be 0.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live struct, which the kernel fills; RUSAGE_CHILDREN is always known.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.cast_unsigned(), 1000 * time.tv_usec.cast_unsigned() as u32)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Clock ticks a second, the unit of CPU times in `/proc` (proc_pid_stat(5)).
pub(crate) fn clock_ticks() -> u64 {
    // SAFETY: sysconf(3) takes a constant. _SC_CLK_TCK is always known.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.cast_unsigned()
}

/// Loads an XDP program of two instructions that passes every packet.
pub(crate) fn load_passing_xdp(name: &CStr) -> io::Result<OwnedFd> {
    load(name, libbpf_rs::libbpf_sys::BPF_PROG_TYPE_XDP, 2) // XDP_PASS
}

/// Loads a tc program of two instructions that passes every packet, so that no program after it runs.
pub(crate) fn load_passing_tc(name: &CStr) -> io::Result<OwnedFd> {
    load(name, libbpf_rs::libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, 0) // TC_ACT_OK, TCX_PASS
}

/// Attaches a tc program after the existing ones on a device's ingress, by link.
pub(crate) fn link_tcx_ingress(program: &OwnedFd, ifindex: u32) -> io::Result<OwnedFd> {
    use libbpf_rs::libbpf_sys::{BPF_TCX_INGRESS, bpf_link_create};
    // SAFETY: a live program and numbers; libbpf takes a null pointer for no options.
    let fd = unsafe { bpf_link_create(program.as_raw_fd(), ifindex as i32, BPF_TCX_INGRESS, ptr::null()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: `fd` was returned by bpf(2) just now, so it is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads a program that only returns `result_code`.
fn load(name: &CStr, kind: u32, result_code: i32) -> io::Result<OwnedFd> {
    use libbpf_rs::libbpf_sys::{bpf_insn, bpf_prog_load};
    // r0 = result (BPF_ALU64 | BPF_MOV | BPF_K); exit (BPF_JMP | BPF_EXIT)
    let (mut result, mut exit) = (bpf_insn::default(), bpf_insn::default());
    (result.code, result.imm, exit.code) = (0xb7, result_code, 0x95);
    let instructions = [result, exit];
    // SAFETY: name and licence are NUL-terminated, the instructions and their number belong together, all
    // outlive the call, and libbpf takes a null pointer for no options.
    let fd = unsafe {
        bpf_prog_load(
            kind,
            name.as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: `fd` was returned by bpf(2) just now, so it is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a program to a device by a link, which holds it until it is closed.
pub(crate) fn link_xdp(program: &OwnedFd, ifindex: u32, native: bool) -> io::Result<OwnedFd> {
    use libbpf_rs::libbpf_sys as sys;
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags: if native { sys::XDP_FLAGS_DRV_MODE } else { sys::XDP_FLAGS_SKB_MODE },
        ..Default::default()
    };
    // SAFETY: a live program's descriptor and a live option struct with its size set.
    let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, sys::BPF_XDP, &options) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just created, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's id of a loaded program.
pub(crate) fn program_id(program: &OwnedFd) -> io::Result<u32> {
    use libbpf_rs::libbpf_sys::{bpf_obj_get_info_by_fd, bpf_prog_info};
    let mut info = bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: `info` and its size are exclusively borrowed for the call and belong together; all pointers in
    // it are null with counts of zero, so the kernel writes nowhere else.
    let status =
        unsafe { bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &raw mut size) };
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(info.id) }
}

/// The id of the next map after this one, by number (`BPF_MAP_GET_NEXT_ID`); `None` after the last.
pub(crate) fn next_map(after: u32) -> Option<u32> {
    let mut next = 0;
    // SAFETY: takes an integer, and a live one to write to.
    let status = unsafe { libbpf_rs::libbpf_sys::bpf_map_get_next_id(after, &raw mut next) };
    (status == 0).then_some(next)
}

/// One test run (`BPF_PROG_TEST_RUN`) of a loaded program on a packet with its context (`struct __sk_buff` or `struct
/// xdp_md`). Returns the program's verdict.
pub fn test_run(program: u32, packet: &[u8], context: &[u8]) -> io::Result<u32> {
    Ok(run(program, packet, context, 1)?.retval)
}

/// Runs a program so many times on a packet; returns the mean time of a run, in whole nanoseconds, as the kernel
/// reports it.
pub fn timed_run(program: u32, packet: &[u8], repeat: u32) -> io::Result<Duration> {
    Ok(Duration::from_nanos(run(program, packet, &[], repeat)?.duration.into()))
}

fn run(
    program: u32,
    packet: &[u8],
    context: &[u8],
    repeat: u32,
) -> io::Result<libbpf_rs::libbpf_sys::bpf_test_run_opts> {
    use libbpf_rs::libbpf_sys;
    // SAFETY: takes an id, returns a descriptor that is ours, or a negative error.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(program) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just opened, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        ctx_in: if context.is_empty() { std::ptr::null() } else { context.as_ptr().cast() },
        ctx_size_in: context.len() as u32,
        repeat: repeat as _,
        ..Default::default()
    };
    // SAFETY: a live option struct with its size set; its pointers are to live bytes of the lengths stated, which
    // are only read.
    let status = unsafe { libbpf_sys::bpf_prog_test_run_opts(fd.as_raw_fd(), &raw mut options) };
    if status == 0 { Ok(options) } else { Err(io::Error::from_raw_os_error(-status)) }
}

/// Detaches a link's program (`BPF_LINK_DETACH`), as `bpftool link detach` does.
pub fn detach_link(link: u32) -> io::Result<()> {
    use libbpf_rs::libbpf_sys::{bpf_link_detach, bpf_link_get_fd_by_id};
    // SAFETY: takes an id, returns a descriptor that is ours, or a negative error.
    let fd = unsafe { bpf_link_get_fd_by_id(link) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just opened, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: takes an open descriptor, which `fd` holds for the call.
    let status = unsafe { bpf_link_detach(fd.as_raw_fd()) };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-status)) }
}

/// Refuses to run outside a guest of `make test-kernels`: clocks belong to the whole machine.
fn only_in_a_guest() -> io::Result<()> {
    match std::env::var_os("WIRELANE_PEER_DEVICE") {
        Some(_) => Ok(()),
        None => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

/// Sets the system's clock by so many nanoseconds (clock_settime(2)), in a guest.
///
/// # Errors
/// `EPERM` outside of a guest; the kernel's error.
pub fn set_guest_clock(by_ns: i64) -> io::Result<()> {
    only_in_a_guest()?;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec, which the kernel fills.
    if unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let ns = time.tv_sec * 1_000_000_000 + time.tv_nsec + by_ns;
    time = libc::timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
    // SAFETY: a live timespec, which is only read.
    if unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the system's clocks run faster by so many parts in a thousand, or slower (`ADJ_TICK` of adjtimex(2)), in a
/// guest. The kernel accepts up to 100 in a thousand.
///
/// # Errors
/// `EPERM` outside of a guest; the kernel's error.
pub fn slew_guest_clock(per_mille: i64) -> io::Result<()> {
    only_in_a_guest()?;
    // SAFETY: a struct of integers, of which all may be 0.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_TICK;
    // Microseconds between ticks of a clock with a hundred ticks a second.
    change.tick = 10_000 + 10 * per_mille;
    // SAFETY: a live struct, which the kernel reads and fills.
    if unsafe { libc::adjtimex(&raw mut change) } >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The time of `CLOCK_MONOTONIC_RAW`, which follows the machine's oscillator and is never slewed, in nanoseconds.
pub fn raw_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec, which the kernel fills; the clock exists on every Linux that is served.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The seccomp filter at this position of a stopped thread that this process traces; 0 is the newest.
///
/// # Errors
/// `ENOENT` behind the last filter; the kernel's error.
pub(crate) fn seccomp_filter(pid: libc::pid_t, position: usize) -> io::Result<Vec<libc::sock_filter>> {
    // linux/ptrace.h and linux/bpf_common.h.
    const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
    const BPF_MAXINSNS: usize = 4096;
    let mut filter = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; BPF_MAXINSNS];
    // SAFETY: the kernel writes at most `BPF_MAXINSNS` instructions to the buffer, which has room for them.
    let read = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, pid, position, filter.as_mut_ptr()) };
    filter.truncate(usize::try_from(read).map_err(|_| io::Error::last_os_error())?);
    Ok(filter)
}
