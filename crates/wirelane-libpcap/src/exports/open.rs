//! Creating, configuring and closing handles; listing devices.

use std::ffi::{CStr, CString, c_char, c_int};

use crate::abi::{self, Interface, Pcap};
use crate::activate;
use crate::handle::{Handle, Options, ours, write_error};
use crate::list;
use crate::names::{self, Named};
use crate::system::system;

/// The text of a C string, if it is valid UTF-8; `None` for a null pointer.
///
/// # Safety
/// `string` is null or a string that ends with a zero.
unsafe fn text(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller's part.
    unsafe { CStr::from_ptr(string) }.to_str().ok().map(ToOwned::to_owned)
}

/// `pcap_create()`: creates a handle of ours if the device is ours, else one of the system's.
///
/// # Safety
/// As pcap_create(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut Pcap {
    // SAFETY: the caller's part.
    let name = unsafe { text(device) };
    match name.map(|name| names::named(&name)) {
        Some(Named::Ours(wanted)) => Handle::create(Ok(wanted)),
        Some(Named::Wrong(reason)) => Handle::create(Err(reason)),
        // SAFETY: the caller's part.
        Some(Named::Systems) | None => unsafe { (system().pcap_create)(device, error) },
    }
}

/// `pcap_open_live()`.
///
/// # Safety
/// As pcap_open_live(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snap_len: c_int,
    promiscuous: c_int,
    timeout: c_int,
    error: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller's part.
    let name = unsafe { text(device) };
    let name = name.filter(|name| names::named(name) != Named::Systems);
    let Some(name) = name else {
        // SAFETY: the caller's part; calls of other functions inside the system's libpcap come here, and go back there.
        return unsafe { (system().pcap_open_live)(device, snap_len, promiscuous, timeout, error) };
    };
    // SAFETY: as above.
    let pcap = unsafe { pcap_create(device, error) };
    // SAFETY: just made.
    let Some(handle) = (unsafe { ours(pcap) }) else { return pcap };
    {
        let mut options = handle.options.borrow_mut();
        options.snap_len = snap_len;
        options.promiscuous = promiscuous != 0;
        options.timeout = timeout;
    }
    let status = activate::activate(handle);
    if status >= 0 {
        return pcap;
    }
    // SAFETY: our own buffer, which ends with a zero.
    let said = unsafe { CStr::from_ptr(handle.error()) }.to_string_lossy().into_owned();
    // SAFETY: a constant string of libpcap's.
    let number = unsafe { CStr::from_ptr((system().pcap_statustostr)(status)) }.to_string_lossy();
    // The same format as libpcap's.
    let reason = match status {
        abi::ERROR => format!("{name}: {said}"),
        abi::ERROR_NO_SUCH_DEVICE | abi::ERROR_PERM_DENIED => format!("{name}: {number} ({said})"),
        _ => format!("{name}: {number}"),
    };
    // SAFETY: a buffer of libpcap's size (the caller's part); the handle is ours, and nothing else has a pointer to it.
    unsafe {
        write_error(error, &reason);
        Handle::close(pcap);
    }
    std::ptr::null_mut()
}

/// `pcap_activate()`.
///
/// # Safety
/// As pcap_activate(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) => activate::activate(handle),
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_activate)(pcap) },
    }
}

/// `pcap_close()`.
///
/// # Safety
/// As pcap_close(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(pcap: *mut Pcap) {
    // SAFETY: the caller's part.
    unsafe {
        if ours(pcap).is_some() {
            Handle::close(pcap);
        } else {
            (system().pcap_close)(pcap);
        }
    }
}

/// Functions that set an option before a handle is activated.
macro_rules! settings {
    ($($name:ident($argument:ident) $set:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "()`.")]
            ///
            /// # Safety
            /// As the function's manual page says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(pcap: *mut Pcap, $argument: c_int) -> c_int {
                // SAFETY: the caller's part.
                let Some(handle) = (unsafe { ours(pcap) }) else {
                    // SAFETY: the caller's part.
                    return unsafe { (system().$name)(pcap, $argument) };
                };
                if handle.live.get().is_some() {
                    return handle.fail(abi::ERROR_ACTIVATED, "can't perform  operation on activated capture");
                }
                let set: fn(&mut Options, c_int) -> c_int = $set;
                set(&mut handle.options.borrow_mut(), $argument)
            }
        )*
    };
}

settings! {
    pcap_set_snaplen(bytes) |options, bytes| { options.snap_len = bytes; 0 };
    pcap_set_promisc(promiscuous) |options, promiscuous| { options.promiscuous = promiscuous != 0; 0 };
    pcap_set_rfmon(monitor) |options, monitor| { options.monitor = monitor != 0; 0 };
    pcap_set_timeout(milliseconds) |options, milliseconds| { options.timeout = milliseconds; 0 };
    pcap_set_immediate_mode(immediate) |options, immediate| { options.immediate = immediate != 0; 0 };
    pcap_set_protocol_linux(protocol) |options, protocol| { options.protocol = protocol; 0 };
    pcap_set_buffer_size(bytes) |options, bytes| {
        // libpcap ignores invalid values.
        if bytes > 0 { options.buffer = bytes; }
        0
    };
    pcap_set_tstamp_type(kind) |_, kind| {
        if kind == abi::TSTAMP_HOST { 0 } else { abi::WARNING_TSTAMP_TYPE_NOTSUP }
    };
    pcap_set_tstamp_precision(precision) |options, precision| match precision {
        abi::PRECISION_MICRO | abi::PRECISION_NANO => { options.precision = precision; 0 }
        _ => abi::ERROR_TSTAMP_PRECISION_NOTSUP,
    };
}

/// `pcap_can_set_rfmon()`: monitor mode is not supported on our devices.
///
/// # Safety
/// As pcap_can_set_rfmon(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_can_set_rfmon(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller's part.
    match unsafe { ours(pcap) } {
        Some(handle) if handle.live.get().is_some() => {
            handle.fail(abi::ERROR_ACTIVATED, "can't perform  operation on activated capture")
        }
        Some(_) => 0,
        // SAFETY: the caller's part.
        None => unsafe { (system().pcap_can_set_rfmon)(pcap) },
    }
}

/// `pcap_findalldevs()`: the system's list, followed by virtual devices.
///
/// # Safety
/// As pcap_findalldevs(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_findalldevs(all: *mut *mut Interface, error: *mut c_char) -> c_int {
    // SAFETY: the caller's part; libpcap returns a list, or null.
    unsafe {
        let status = (system().pcap_findalldevs)(all, error);
        if status == 0 {
            list::append(*all);
        }
        status
    }
}

/// `pcap_lookupnet()`: for a virtual device, the network of its device.
///
/// # Safety
/// As pcap_lookupnet(3PCAP) says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupnet(
    device: *const c_char,
    network: *mut u32,
    mask: *mut u32,
    error: *mut c_char,
) -> c_int {
    // SAFETY: the caller's part.
    let plain = unsafe { text(device) }.and_then(|name| names::plain(&name));
    let plain = plain.and_then(|name| CString::new(name).ok());
    let name = plain.as_ref().map_or(device, |name| name.as_ptr());
    // SAFETY: the caller's part; the name lives until the end of the function.
    unsafe { (system().pcap_lookupnet)(name, network, mask, error) }
}

/// `pcap_lib_version()`: the system's version, and ours.
#[unsafe(no_mangle)]
pub extern "C" fn pcap_lib_version() -> *const c_char {
    static VERSION: std::sync::OnceLock<CString> = std::sync::OnceLock::new();
    let version = VERSION.get_or_init(|| {
        // SAFETY: a constant string of libpcap's.
        let systems = unsafe { CStr::from_ptr((system().pcap_lib_version)()) }.to_string_lossy();
        let text = format!("{systems}, by Wirelane {}", env!("CARGO_PKG_VERSION"));
        CString::new(text).unwrap_or_default()
    });
    version.as_ptr()
}
