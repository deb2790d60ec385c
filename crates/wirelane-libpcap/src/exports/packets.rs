//! Reading packets, and sending them; what decides which.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::time::Duration;

use crate::abi::{self, Handler, Header, Pcap, Program, Stats};
use crate::handle::{Handle, ours};
use crate::read::{Live, Wait, to_handler};
use crate::system::system;

/// How long a handle's reading waits.
fn wait(handle: &Handle) -> Wait {
    match handle.options.borrow().timeout {
        _ if handle.is_nonblocking() => Wait::Never,
        1.. => Wait::For(Duration::from_millis(handle.options.borrow().timeout as u64)),
        _ => Wait::Forever,
    }
}

/// How many packets a count asks for; 0 and below: as many as there are.
fn most(count: c_int) -> u64 {
    if count > 0 { count as u64 } else { u64::MAX }
}

/// `pcap_dispatch()`.
///
/// # Safety
/// As pcap_loop(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dispatch(
    pcap: *mut Pcap,
    count: c_int,
    handler: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_dispatch)(pcap, count, handler, user) };
    };
    let (Some(live), Some(handler)) = (handle.live.get(), handler) else { return handle.not_activated() };
    live.read(handle, most(count), wait(handle), &mut to_handler(handler, user))
}

/// `pcap_loop()`: until there were so many, or something ends it. A time without packets does not, and neither does a
/// handle that is not to block: as with libpcap, it is asked again and again then.
///
/// # Safety
/// As pcap_loop(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_loop(
    pcap: *mut Pcap,
    count: c_int,
    handler: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_loop)(pcap, count, handler, user) };
    };
    let (Some(live), Some(handler)) = (handle.live.get(), handler) else { return handle.not_activated() };
    let mut sink = to_handler(handler, user);
    let mut left = most(count);
    loop {
        let wait = if handle.is_nonblocking() { Wait::Never } else { Wait::Forever };
        let status = live.read(handle, left, wait, &mut sink);
        if status < 0 {
            return status;
        }
        if left != u64::MAX {
            left -= status as u64;
            if left == 0 {
                return 0;
            }
        }
    }
}

/// One packet: its bytes stay until the next call. libpcap's numbers: 1 for a packet, 0 for none in time.
fn next(handle: &Handle, live: &Live) -> (c_int, *const c_uchar) {
    let mut bytes = std::ptr::null();
    let status = live.read(handle, 1, wait(handle), &mut |header: &Header, data: &[u8]| {
        // SAFETY: the handle's own, which the program reads between calls only.
        unsafe { *handle.header.get() = *header };
        bytes = data.as_ptr();
        true
    });
    (status, bytes)
}

/// `pcap_next_ex()`.
///
/// # Safety
/// As pcap_next_ex(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_ex(
    pcap: *mut Pcap,
    header: *mut *mut Header,
    bytes: *mut *const c_uchar,
) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_next_ex)(pcap, header, bytes) };
    };
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    let (status, data) = next(handle, live);
    // SAFETY: both can be written to (the caller's part).
    unsafe {
        *header = handle.header.get();
        *bytes = data;
    }
    status
}

/// `pcap_next()`.
///
/// # Safety
/// As pcap_next_ex(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(pcap: *mut Pcap, header: *mut Header) -> *const c_uchar {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_next)(pcap, header) };
    };
    let Some(live) = handle.live.get() else {
        handle.not_activated();
        return std::ptr::null();
    };
    let (status, data) = next(handle, live);
    if status != 1 {
        return std::ptr::null();
    }
    // SAFETY: the caller's can be written to, and ours is written by `next` only.
    unsafe { *header = *handle.header.get() };
    data
}

/// `pcap_breakloop()`: may be called from a signal handler, and by another thread.
///
/// # Safety
/// As pcap_breakloop(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(pcap: *mut Pcap) {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => handle.break_loop(),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_breakloop)(pcap) },
    }
}

/// `pcap_stats()`.
///
/// # Safety
/// As pcap_stats(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(pcap: *mut Pcap, stats: *mut Stats) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_stats)(pcap, stats) };
    };
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    match live.stats() {
        Ok(counted) => {
            // SAFETY: it can be written to (the caller's part).
            unsafe { stats.write(counted) };
            0
        }
        Err(error) => handle.fail(abi::ERROR, &error.to_string()),
    }
}

/// `pcap_setfilter()`: in the kernel where that takes the program, else here, with the same verdicts.
///
/// # Safety
/// As pcap_setfilter(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(pcap: *mut Pcap, program: *mut Program) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_setfilter)(pcap, program) };
    };
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    if program.is_null() {
        return handle.fail(abi::ERROR, "setfilter: No filter specified");
    }
    // SAFETY: the caller's program, of as many instructions as it says.
    let instructions = unsafe {
        let Program { length, instructions } = &*program;
        if instructions.is_null() || *length == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(*instructions, *length as usize)
        }
    };
    live.set_filter(handle, instructions)
}

/// `pcap_setdirection()`.
///
/// # Safety
/// As pcap_setdirection(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(pcap: *mut Pcap, direction: c_int) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_setdirection)(pcap, direction) };
    };
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    if ![abi::BOTH, abi::IN, abi::OUT].contains(&direction) {
        return handle.fail(abi::ERROR, "Invalid direction");
    }
    live.set_direction(direction);
    0
}

/// `pcap_get_selectable_fd()`: readable while there may be something to read.
///
/// # Safety
/// As pcap_get_selectable_fd(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => handle.live.get().map_or(abi::ERROR, |live| live.descriptor(handle)),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_get_selectable_fd)(pcap) },
    }
}

/// `pcap_fileno()`: the same descriptor. It is no socket.
///
/// # Safety
/// As pcap_fileno(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_fileno(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => handle.live.get().map_or(abi::ERROR, |live| live.descriptor(handle)),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_fileno)(pcap) },
    }
}

/// `pcap_get_required_select_timeout()`: the descriptor needs none.
///
/// # Safety
/// As its manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(pcap: *mut Pcap) -> *const libc::timeval {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(_) => std::ptr::null(),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_get_required_select_timeout)(pcap) },
    }
}

/// Sends a packet; how many bytes of it were taken.
///
/// # Safety
/// There are `length` bytes to read.
unsafe fn send(handle: &Handle, bytes: *const c_void, length: usize) -> c_int {
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    // SAFETY: the caller's part.
    match unsafe { live.sender.send(bytes, length) } {
        Ok(sent) => sent,
        Err(error) => {
            // SAFETY: a string of libpcap's for the number, which stays until the thread's next call.
            let text = unsafe {
                let text: *const c_char = (system().pcap_strerror)(error.raw_os_error().unwrap_or(0));
                std::ffi::CStr::from_ptr(text).to_string_lossy()
            };
            handle.fail(abi::ERROR, &format!("send: {text}"))
        }
    }
}

/// `pcap_inject()`.
///
/// # Safety
/// As pcap_inject(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(pcap: *mut Pcap, bytes: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_inject)(pcap, bytes, length) };
    };
    if length == 0 {
        return handle.fail(abi::ERROR, "The number of bytes to be injected must not be zero");
    }
    if length > c_int::MAX as usize {
        return handle.fail(abi::ERROR, "More than 2147483647 bytes cannot be injected");
    }
    // SAFETY: the caller's part.
    unsafe { send(handle, bytes, length) }
}

/// `pcap_sendpacket()`.
///
/// # Safety
/// As pcap_inject(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(pcap: *mut Pcap, bytes: *const c_uchar, length: c_int) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_sendpacket)(pcap, bytes, length) };
    };
    if length <= 0 {
        return handle.fail(abi::ERROR, "The number of bytes to be sent must be positive");
    }
    // SAFETY: the caller's part.
    match unsafe { send(handle, bytes.cast(), length as usize) } {
        abi::ERROR => abi::ERROR,
        // libpcap knows no other failure here.
        _ => 0,
    }
}
