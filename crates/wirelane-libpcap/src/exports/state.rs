//! State of a handle: link type, messages, dump files.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::{self, Dumper, Pcap, Program};
use crate::handle::{Handle, ours, write_error};
use crate::read::Live;
use crate::system::system;

/// Functions of an activated handle that return a number.
macro_rules! numbers {
    ($($name:ident $of:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "()`.")]
            ///
            /// # Safety
            /// As the function's manual page says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(pcap: *mut Pcap) -> c_int {
                // SAFETY: the caller's part.
                let Some(handle) = (unsafe { ours(pcap) }) else {
                    // SAFETY: the caller's part.
                    return unsafe { (system().$name)(pcap) };
                };
                let of: fn(&Live) -> c_int = $of;
                // libpcap does not set an error message for these.
                handle.live.get().map_or(abi::ERROR_NOT_ACTIVATED, of)
            }
        )*
    };
}

numbers! {
    pcap_datalink |live| live.dlt();
    pcap_datalink_ext |_| 0;
    pcap_snapshot |live| live.opened().snap_len;
    pcap_bufsize |live| live.opened().snap_len;
    pcap_is_swapped |_| 0;
    pcap_major_version |_| 0;
    pcap_minor_version |_| 0;
}

/// `pcap_get_tstamp_precision()`.
///
/// # Safety
/// As the function's manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_tstamp_precision(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => handle.options.borrow().precision,
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_get_tstamp_precision)(pcap) },
    }
}

/// `pcap_file()`: a live handle does not read a file.
///
/// # Safety
/// As pcap_file(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_file(pcap: *mut Pcap) -> *mut libc::FILE {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(_) => std::ptr::null_mut(),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_file)(pcap) },
    }
}

/// `pcap_geterr()`.
///
/// # Safety
/// As pcap_geterr(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_geterr(pcap: *mut Pcap) -> *mut c_char {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => handle.error(),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_geterr)(pcap) },
    }
}

/// `pcap_perror()`.
///
/// # Safety
/// As pcap_perror(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_perror(pcap: *mut Pcap, prefix: *const c_char) {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => {
            use std::io::Write as _;
            // SAFETY: the caller's string, and our buffer, both end with a zero.
            let (prefix, said) = unsafe { (CStr::from_ptr(prefix), CStr::from_ptr(handle.error())) };
            // Ignored: standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{}: {}", prefix.to_string_lossy(), said.to_string_lossy());
        }
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_perror)(pcap, prefix) },
    }
}

/// Returns a list of numbers to the program, to be freed with free(3).
///
/// # Safety
/// `list` can be written to.
unsafe fn give(handle: &Handle, numbers: &[c_int], list: *mut *mut c_int) -> c_int {
    // SAFETY: takes a size.
    let memory = unsafe { libc::calloc(numbers.len(), size_of::<c_int>()) }.cast::<c_int>();
    if memory.is_null() {
        return handle.fail(abi::ERROR, "malloc: Cannot allocate memory");
    }
    // SAFETY: as many numbers as there is memory for; the rest is the caller's part.
    unsafe {
        std::ptr::copy_nonoverlapping(numbers.as_ptr(), memory, numbers.len());
        *list = memory;
    }
    numbers.len() as c_int
}

/// Link types that a handle can have: libpcap accepts DOCSIS for Ethernet.
fn link_types(live: &Live) -> &'static [c_int] {
    match live.dlt() {
        abi::DLT_RAW => &[abi::DLT_RAW],
        _ if live.opened().is_loopback => &[abi::DLT_ETHERNET],
        _ => &[abi::DLT_ETHERNET, abi::DLT_DOCSIS],
    }
}

/// `pcap_list_datalinks()`.
///
/// # Safety
/// As pcap_list_datalinks(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_datalinks(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_list_datalinks)(pcap, list) };
    };
    match handle.live.get() {
        // SAFETY: the caller's part.
        Some(live) => unsafe { give(handle, link_types(live), list) },
        None => handle.not_activated(),
    }
}

/// `pcap_list_tstamp_types()`: only the host's.
///
/// # Safety
/// As pcap_list_tstamp_types(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_tstamp_types(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        // SAFETY: the caller's part.
        Some(handle) => unsafe { give(handle, &[abi::TSTAMP_HOST], list) },
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_list_tstamp_types)(pcap, list) },
    }
}

/// `pcap_set_datalink()`.
///
/// # Safety
/// As pcap_set_datalink(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_datalink(pcap: *mut Pcap, link: c_int) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_set_datalink)(pcap, link) };
    };
    let live = handle.live.get();
    let Some(live) = live.filter(|live| link_types(live).contains(&link)) else {
        // SAFETY: a constant string of libpcap's, or null.
        let name = unsafe {
            let name = (system().pcap_datalink_val_to_name)(link);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy())
        };
        let name = name.unwrap_or_else(|| format!("DLT {link}").into());
        return handle.fail(abi::ERROR, &format!("{name} is not one of the DLTs supported by this device"));
    };
    let precision = handle.options.borrow().precision as u32;
    // SAFETY: takes numbers.
    let twin =
        unsafe { (system().pcap_open_dead_with_tstamp_precision)(link, live.opened().snap_len, precision) };
    if twin.is_null() {
        return handle.fail(abi::ERROR, "the system's libpcap has made no handle for filters");
    }
    handle.set_twin(twin);
    live.set_dlt(link);
    0
}

/// `pcap_compile()`: compiled by the system's libpcap, for the handle's link type and snap length.
///
/// # Safety
/// As pcap_compile(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    pcap: *mut Pcap,
    program: *mut Program,
    expression: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    // SAFETY: the caller's part.
    let Some(handle) = (unsafe { ours(pcap) }) else {
        // SAFETY: the caller's part.
        return unsafe { (system().pcap_compile)(pcap, program, expression, optimize, netmask) };
    };
    if handle.live.get().is_none() {
        return handle.fail(abi::ERROR, "not-yet-activated pcap_t passed to pcap_compile");
    }
    // SAFETY: the twin exists once the handle is activated; the rest is the caller's part.
    let status = unsafe { (system().pcap_compile)(handle.twin(), program, expression, optimize, netmask) };
    if status < 0 {
        handle.twins_error();
    }
    status
}

/// The name of a file, for a message.
fn name(file: *const c_char) -> String {
    if file.is_null() {
        return "(null)".into();
    }
    // SAFETY: a string that ends with a zero: the argument of the calling functions.
    unsafe { CStr::from_ptr(file) }.to_string_lossy().into_owned()
}

/// Functions that open a file to write a handle's packets to.
macro_rules! dumps {
    ($($name:ident($argument:ident: $type:ty) $called:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "()`: the system's libpcap writes files.")]
            ///
            /// # Safety
            /// As the function's manual page says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(pcap: *mut Pcap, $argument: $type) -> *mut Dumper {
                // SAFETY: the caller's part.
                let Some(handle) = (unsafe { ours(pcap) }) else {
                    // SAFETY: the caller's part.
                    return unsafe { (system().$name)(pcap, $argument) };
                };
                if handle.live.get().is_none() {
                    let called: fn($type) -> String = $called;
                    let (file, name) = (called($argument), stringify!($name));
                    handle.fail(abi::ERROR, &format!("{file}: not-yet-activated pcap_t passed to {name}"));
                    return std::ptr::null_mut();
                }
                // SAFETY: the twin exists once the handle is activated; the rest is the caller's part.
                let dumper = unsafe { (system().$name)(handle.twin(), $argument) };
                if dumper.is_null() {
                    handle.twins_error();
                }
                dumper
            }
        )*
    };
}

dumps! {
    pcap_dump_open(file: *const c_char) name;
    pcap_dump_fopen(file: *mut libc::FILE) |_| "stream".into();
    pcap_dump_open_append(file: *const c_char) name;
}

/// `pcap_getnonblock()`.
///
/// # Safety
/// As pcap_getnonblock(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(pcap: *mut Pcap, error: *mut c_char) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) if handle.live.get().is_some() => handle.is_nonblocking().into(),
        Some(handle) => {
            let status = handle.not_activated();
            // SAFETY: a buffer of libpcap's size (the caller's part).
            unsafe { write_error(error, "This handle hasn't been activated yet") };
            status
        }
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_getnonblock)(pcap, error) },
    }
}

/// `pcap_setnonblock()`.
///
/// # Safety
/// As pcap_setnonblock(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(pcap: *mut Pcap, nonblock: c_int, error: *mut c_char) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => {
            handle.set_nonblocking(nonblock != 0);
            0
        }
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_setnonblock)(pcap, nonblock, error) },
    }
}
