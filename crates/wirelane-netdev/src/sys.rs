//! System calls of this crate: the only `unsafe` of the device code.
//!
//! Each function wraps one call, checks its result and returns an owned descriptor or plain bytes.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of a device's name with the closing NUL (`IFNAMSIZ`, linux/if.h).
pub(super) const NAME_SIZE: usize = libc::IFNAMSIZ;

/// Opens a socket that is closed on exec.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes integers only.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was returned by socket(2) just now, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs one ethtool command (`SIOCETHTOOL`, linux/ethtool.h) on the device with this name. `command` starts
/// with the command's number and is overwritten with the answer.
pub fn ethtool(socket: &OwnedFd, name: &str, command: &mut [u8]) -> io::Result<()> {
    // SAFETY: ifreq is plain integers, arrays and a raw pointer, for all of which zero is a valid value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= NAME_SIZE {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
    // SAFETY: `request` names a NUL-terminated device and points to `command`, which is exclusively borrowed
    // for the call. The kernel writes the struct of the command that `command` starts with; the callers in
    // ethtool.rs and ethtool_set.rs pass buffers that hold this struct, and for commands with a variable tail the tail's length
    // that they state in the struct is the length of their buffer.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The receive filter of hardware time stamping (`SIOCGHWTSTAMP`, Documentation/networking/timestamping.rst).
pub(super) fn hardware_stamps(socket: &OwnedFd, name: &str) -> io::Result<i32> {
    const SIOCGHWTSTAMP: libc::c_ulong = 0x89b1;
    // struct hwtstamp_config: flags, tx_type, rx_filter.
    let mut config = [0i32; 3];
    // SAFETY: as in ethtool().
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= NAME_SIZE {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = config.as_mut_ptr().cast();
    // SAFETY: `request` names a NUL-terminated device and points to `config`, which has the size of the struct
    // that the kernel writes.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGHWTSTAMP as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(config[2]) }
}

/// The CPUs that a thread may run on, by thread id; 0 is the calling thread.
pub fn affinity(thread: u32) -> io::Result<std::collections::BTreeSet<usize>> {
    // SAFETY: cpu_set_t is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: `set` is exclusively borrowed and its size is passed.
    let status = unsafe { libc::sched_getaffinity(thread as libc::pid_t, size_of_val(&set), &raw mut set) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every number is below CPU_SETSIZE, as CPU_ISSET requires.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Binds a thread to CPUs (sched_setaffinity(2)); for other users' threads that needs CAP_SYS_NICE.
pub fn set_affinity(thread: u32, cpus: &std::collections::BTreeSet<usize>) -> io::Result<()> {
    // SAFETY: as in affinity().
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below CPU_SETSIZE, as CPU_SET requires.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is a cpu_set_t and its size is passed; it is only read.
    let status = unsafe { libc::sched_setaffinity(thread as libc::pid_t, size_of_val(&set), &raw const set) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Nice value of threads that yield: a tenth of the weight of other threads.
const YIELDING_NICE: libc::c_int = 10;
/// Time slice of threads that yield, in nanoseconds: the longest that Linux 6.12 and newer accept (sched_setattr(2)). A
/// thread with a shorter slice runs first when it wakes.
const YIELDING_SLICE_NS: u64 = 100_000_000;

/// Makes the calling thread, and the threads that it starts later, yield the CPU to other programs: `SCHED_BATCH`, a nice
/// value of 10 or more, a long slice. Needs no privileges, and cannot be reverted without CAP_SYS_NICE.
pub fn yield_to_others() -> io::Result<()> {
    // SAFETY: getpriority(2) takes integers only. It returns 20 minus the nice value.
    let raw = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: YIELDING_NICE.max(20 - raw as libc::c_int),
        sched_priority: 0,
        sched_runtime: YIELDING_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attributes` has its size, and is only read; thread 0 is the calling thread.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the lock of a file (flock(2)), waiting for it. It is released when the file is closed.
pub fn lock(file: &std::fs::File) -> io::Result<()> {
    loop {
        // SAFETY: flock(2) takes integers only, and the descriptor is open while `file` is borrowed.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The cookie of the network namespace that a socket is in: a number that is unique until the next boot
/// (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn namespace_cookie(socket: &OwnedFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: both pointers are of exclusively borrowed variables, and `length` is the size of the first.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Joins the promiscuous membership of a device (`PACKET_ADD_MEMBERSHIP`, packet(7)).
pub(super) fn join_promiscuous(socket: &OwnedFd, ifindex: i32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: ifindex,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the pointer and the length describe `membership`, which outlives the call and is only read.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            mem::size_of_val(&membership) as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
