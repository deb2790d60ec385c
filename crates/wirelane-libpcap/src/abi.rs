//! Types and constants of libpcap, as in `pcap/pcap.h` and `pcap/bpf.h` of libpcap 1.10.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

/// `pcap_t`: a handle, of ours or of the system's libpcap. The first word of the handle tells which.
#[repr(C)]
#[derive(Debug)]
pub struct Pcap([u8; 0]);

/// `pcap_dumper_t`, always created by the system's libpcap.
#[repr(C)]
#[derive(Debug)]
pub struct Dumper([u8; 0]);

/// `struct bpf_program`.
#[repr(C)]
#[derive(Debug)]
pub struct Program {
    /// Number of instructions.
    pub length: c_uint,
    /// Pointer to the instructions.
    pub instructions: *mut wirelane::filter::Classic,
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Seconds since 1970.
    pub seconds: libc::time_t,
    /// Microseconds, or nanoseconds if these were requested.
    pub fraction: libc::suseconds_t,
    /// Captured bytes.
    pub captured: u32,
    /// Length of the packet on the wire in bytes.
    pub length: u32,
}

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// `ps_recv`.
    pub received: c_uint,
    /// `ps_drop`.
    pub dropped: c_uint,
    /// `ps_ifdrop`.
    pub dropped_by_device: c_uint,
}

/// `pcap_if_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    /// The next entry of the list.
    pub next: *mut Interface,
    /// Name of the device.
    pub name: *mut c_char,
    /// Description for people; may be null.
    pub description: *mut c_char,
    /// `struct pcap_addr`, which only the system's libpcap uses.
    pub addresses: *mut c_void,
    /// PCAP_IF_LOOPBACK and other flags.
    pub flags: u32,
}

/// `pcap_handler`.
pub type Handler =
    Option<unsafe extern "C" fn(user: *mut c_uchar, header: *const Header, bytes: *const c_uchar)>;

/// `PCAP_ERRBUF_SIZE`.
pub const ERRBUF: usize = 256;
/// `PCAP_NETMASK_UNKNOWN` and the like are passed on. What functions return:
pub const ERROR: c_int = -1;
/// `PCAP_ERROR_BREAK`.
pub const ERROR_BREAK: c_int = -2;
/// `PCAP_ERROR_NOT_ACTIVATED`.
pub const ERROR_NOT_ACTIVATED: c_int = -3;
/// `PCAP_ERROR_ACTIVATED`.
pub const ERROR_ACTIVATED: c_int = -4;
/// `PCAP_ERROR_NO_SUCH_DEVICE`.
pub const ERROR_NO_SUCH_DEVICE: c_int = -5;
/// `PCAP_ERROR_RFMON_NOTSUP`.
pub const ERROR_RFMON_NOTSUP: c_int = -6;
/// `PCAP_ERROR_PERM_DENIED`.
pub const ERROR_PERM_DENIED: c_int = -8;
/// `PCAP_ERROR_IFACE_NOT_UP`.
pub const ERROR_IFACE_NOT_UP: c_int = -9;
/// `PCAP_ERROR_TSTAMP_PRECISION_NOTSUP`.
pub const ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
/// `PCAP_WARNING`: success, and `pcap_geterr()` returns the warning.
pub const WARNING: c_int = 1;
/// `PCAP_WARNING_TSTAMP_TYPE_NOTSUP`.
pub const WARNING_TSTAMP_TYPE_NOTSUP: c_int = 3;

/// `PCAP_TSTAMP_HOST`.
pub const TSTAMP_HOST: c_int = 0;
/// `PCAP_TSTAMP_PRECISION_MICRO`.
pub const PRECISION_MICRO: c_int = 0;
/// `PCAP_TSTAMP_PRECISION_NANO`.
pub const PRECISION_NANO: c_int = 1;

/// `PCAP_D_INOUT`.
pub const BOTH: c_int = 0;
/// `PCAP_D_IN`.
pub const IN: c_int = 1;
/// `PCAP_D_OUT`.
pub const OUT: c_int = 2;

/// `DLT_EN10MB`.
pub const DLT_ETHERNET: c_int = 1;
/// `DLT_RAW` on Linux.
pub const DLT_RAW: c_int = 12;
/// `DLT_DOCSIS`, which libpcap accepts for Ethernet.
pub const DLT_DOCSIS: c_int = 143;
/// The longest packet (`MAXIMUM_SNAPLEN`).
pub const LONGEST: c_int = 262_144;

/// `struct eproto`: the names of Ethernet protocols.
#[repr(C)]
#[derive(Debug)]
pub struct EtherProtocol {
    /// Null in the last entry.
    pub name: *const c_char,
    /// Number of the protocol.
    pub number: u16,
}

// SAFETY: points to constant strings only.
unsafe impl Sync for EtherProtocol {}
