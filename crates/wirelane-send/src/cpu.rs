//! CPU affinity of sending threads.

use crate::{Error, Result};

/// Pins the calling thread to a CPU.
pub(super) fn pin_to(cpu: usize) -> Result<()> {
    let impossible = || Error::BadOption {
        option: "--cores",
        reason: format!("this process may not run on CPU {cpu}; /proc/self/status lists Cpus_allowed_list"),
    };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(impossible());
    }
    // SAFETY: `cpu_set_t` is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE, as CPU_SET requires.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is a cpu_set_t and its size is passed; 0 means the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(impossible()),
    }
}
