//! Reading, filtering and sending packets.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::time::Duration;

use crate::abi::{self, Handler, Header, Pcap, Program, Stats};
use crate::handle::{Handle, ours};
use crate::read::{Live, Wait, to_handler};
use crate::system::system;

/// Maximum time that a read on a handle waits.
fn wait(handle: &Handle) -> Wait {
    match handle.options.borrow().timeout {
        _ if handle.is_nonblocking() => Wait::Never,
        1.. => Wait::For(Duration::from_millis(handle.options.borrow().timeout as u64)),
        _ => Wait::Forever,
    }
}

/// Number of packets for a count; 0 and below: all that are available.
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

/// `pcap_loop()`: reads until the count is reached, or something ends the loop. A timeout without packets does not end
/// it, and neither does a non-blocking handle: as with libpcap, reading is repeated then.
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

/// Reads one packet, whose bytes are valid until the next call. Status as in libpcap: 1 for a packet, 0 for a timeout.
fn next(handle: &Handle, live: &Live) -> (c_int, *const c_uchar) {
    let mut bytes = std::ptr::null();
    let status = live.read(handle, 1, wait(handle), &mut |header: &Header, data: &[u8]| {
        // SAFETY: the handle's own header, which the program reads only between calls.
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
    // SAFETY: both pointers can be written to (the caller's part).
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
    // SAFETY: the caller's header can be written to, and ours is written by `next` only.
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
            // SAFETY: the pointer can be written to (the caller's part).
            unsafe { stats.write(counted) };
            0
        }
        Err(error) => handle.fail(abi::ERROR, &error.to_string()),
    }
}

/// `pcap_setfilter()`: filters in the kernel if it accepts the program, else here, with the same verdicts.
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
    // SAFETY: the caller's program, with the stated number of instructions.
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

/// `pcap_get_selectable_fd()`: readable while there may be packets to read.
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

/// `pcap_fileno()`: the same descriptor. It is not a socket.
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

/// `pcap_get_required_select_timeout()`: the descriptor does not need a timeout.
///
/// # Safety
/// As the function's manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(pcap: *mut Pcap) -> *const libc::timeval {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(_) => std::ptr::null(),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_get_required_select_timeout)(pcap) },
    }
}

/// Sends a packet; returns the number of bytes that were sent.
///
/// # Safety
/// `bytes` points to `length` readable bytes.
unsafe fn send(handle: &Handle, bytes: *const c_void, length: usize) -> c_int {
    let Some(live) = handle.live.get() else { return handle.not_activated() };
    // SAFETY: the caller's part.
    match unsafe { live.sender.send(bytes, length) } {
        Ok(sent) => sent,
        Err(error) => {
            // SAFETY: libpcap's string for the number, which is valid until the thread's next call.
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
        // libpcap has no other failure here.
        _ => 0,
    }
}
