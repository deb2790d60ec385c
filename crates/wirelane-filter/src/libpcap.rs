//! Bindings to the six functions of libpcap that compile an expression (pcap_compile(3PCAP)).
//!
//! The meaning of an expression differs slightly between a device and a file (in a file, `AF_INET6` in BSD's loopback
//! header may be any of three numbers, for instance), and libpcap derives it from the handle. So the handle for a file
//! is that of an empty file in memory.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr::{self, NonNull};

use super::Origin;
use super::translate::Classic;
use wirelane_bpf::linktype;

/// `struct bpf_program` of pcap/bpf.h.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut Classic,
}

/// `pcap_t`, opaque.
#[repr(C)]
struct Pcap([u8; 0]);

#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_fopen_offline(file: *mut libc::FILE, error: *mut c_char) -> *mut Pcap;
    fn pcap_open_dead(link: c_int, snap_len: c_int) -> *mut Pcap;
    fn pcap_compile(
        pcap: *mut Pcap,
        program: *mut Program,
        expression: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_geterr(pcap: *mut Pcap) -> *mut c_char;
    fn pcap_freecode(program: *mut Program);
    fn pcap_close(pcap: *mut Pcap);
}

/// `PCAP_ERRBUF_SIZE`.
const ERROR_BUFFER: usize = 256;
/// libpcap's own link-type number of raw IP on Linux.
const DLT_RAW: c_int = 12;
/// Snap length that programs are compiled with: their return value for an accepted packet.
const SNAP_LEN: c_int = 262_144;
/// The same netmask as tcpdump's for files and for devices without an address: `ip broadcast` then means the addresses
/// 0.0.0.0 and 255.255.255.255.
const NETMASK: u32 = 0;

/// A libpcap handle that captures nothing.
struct Dead(NonNull<Pcap>);

impl Drop for Dead {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this value, and is not used after this.
        unsafe { pcap_close(self.0.as_ptr()) };
    }
}

impl Dead {
    /// A handle for packets of devices with this link type, by libpcap's own number (DLT_).
    fn of_device(dlt: c_int) -> Option<Dead> {
        // SAFETY: the function accepts any two numbers.
        NonNull::new(unsafe { pcap_open_dead(dlt, SNAP_LEN) }).map(Dead)
    }

    /// A handle for packets of files with this link type (LINKTYPE_).
    fn of_file(link_number: u32) -> Option<Dead> {
        // The header of a pcap file (pcap-savefile(5)).
        let mut header: Vec<u8> = Vec::new();
        header.extend(0xa1b2_c3d4_u32.to_ne_bytes());
        header.extend([2u16, 4].map(u16::to_ne_bytes).as_flattened());
        header.extend([0, 0, SNAP_LEN as u32, link_number].map(u32::to_ne_bytes).as_flattened());
        let mut error: [c_char; ERROR_BUFFER] = [0; ERROR_BUFFER];
        // SAFETY: the stream reads these bytes, and only in the next call, while they are alive: libpcap reads the
        // header immediately and is never asked for a packet.
        let file = unsafe { libc::fmemopen(header.as_mut_ptr().cast(), header.len(), c"r".as_ptr()) };
        let file = NonNull::new(file)?;
        // SAFETY: the stream is open, and the buffer has the maximum size that libpcap writes.
        let handle = NonNull::new(unsafe { pcap_fopen_offline(file.as_ptr(), error.as_mut_ptr()) });
        if handle.is_none() {
            // SAFETY: on failure the stream is still owned here, and open.
            unsafe { libc::fclose(file.as_ptr()) };
        }
        handle.map(Dead)
    }
}

/// Compiles an expression for packets of this origin and link type (LINKTYPE_), with libpcap's optimizer. The error is
/// libpcap's own text.
pub(super) fn compile(
    expression: &CString,
    link_number: u32,
    origin: Origin,
) -> Result<Vec<Classic>, String> {
    let handle = match origin {
        // Raw IP is the only link type of devices that has a different number in files (pcap-common.c of libpcap).
        Origin::Live if link_number == linktype::RAW => Dead::of_device(DLT_RAW),
        Origin::Live => Dead::of_device(link_number as c_int),
        Origin::File => Dead::of_file(link_number),
    };
    let Some(handle) = handle else { return Err("libpcap does not know this link type".into()) };
    let mut program = Program { length: 0, instructions: ptr::null_mut() };
    // SAFETY: the handle is open; `program` is written on success only, and freed below; the expression ends with a
    // zero byte and is only read.
    let status = unsafe { pcap_compile(handle.0.as_ptr(), &mut program, expression.as_ptr(), 1, NETMASK) };
    if status != 0 {
        // SAFETY: the text belongs to the handle, ends with a zero byte, and is valid until the handle's next use.
        let text = unsafe { CStr::from_ptr(pcap_geterr(handle.0.as_ptr())) };
        return Err(text.to_string_lossy().into_owned());
    }
    let compiled = if program.instructions.is_null() {
        Vec::new()
    } else {
        // SAFETY: libpcap has written this many instructions with the layout of struct bpf_insn, which Classic has.
        unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) }.to_vec()
    };
    // SAFETY: the program was written by pcap_compile(), and is not used again.
    unsafe { pcap_freecode(&mut program) };
    Ok(compiled)
}

/// libpcap's own verdict on a packet, as a test oracle.
#[cfg(test)]
pub(super) mod oracle {
    use super::{Classic, Program, c_int};

    /// `struct pcap_pkthdr` of pcap/pcap.h.
    #[repr(C)]
    struct Header {
        time: libc::timeval,
        captured: u32,
        length: u32,
    }

    #[link(name = "pcap")]
    unsafe extern "C" {
        fn pcap_offline_filter(program: *const Program, header: *const Header, packet: *const u8) -> c_int;
    }

    /// A program with a deterministic verdict: memory that it may read before writing it is set to 0, where libpcap's
    /// interpreter has uninitialized stack memory.
    pub(crate) fn defined(program: &[Classic]) -> Vec<Classic> {
        let words = super::super::translate::read_unwritten(program);
        let cleared = (0..16).filter(|word| words & (1 << word) != 0);
        // ST: stores the accumulator, which is 0.
        cleared.map(|k| Classic { code: 0x02, jt: 0, jf: 0, k }).chain(program.iter().copied()).collect()
    }

    /// Whether libpcap's interpreter accepts the packet. The program must be a result of [`defined`] for a program of
    /// [`super::compile`], or for one whose jumps lead forward and whose last instruction is a return.
    pub(crate) fn accepts(program: &[Classic], data: &[u8], wire_len: u32) -> bool {
        let program = Program { length: program.len() as u32, instructions: program.as_ptr().cast_mut() };
        let header = Header {
            time: libc::timeval { tv_sec: 0, tv_usec: 0 },
            captured: data.len() as u32,
            length: wire_len,
        };
        // SAFETY: the program, which is only read, was made by libpcap or is equally sound, so that its interpreter
        // stays within the program and within the captured bytes stated in the header.
        let verdict = unsafe { pcap_offline_filter(&program, &header, data.as_ptr()) };
        verdict != 0
    }
}
