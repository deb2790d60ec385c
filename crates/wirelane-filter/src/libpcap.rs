//! The six functions of libpcap that compile an expression (pcap_compile(3PCAP)).
//!
//! Expressions mean a little different things for a device and for a file (whose `AF_INET6` in BSD's loopback header may be
//! any of three numbers, for instance), and libpcap goes by the handle. So the handle of a file is one of an empty file
//! in memory.

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

/// `pcap_t`, which only libpcap looks into.
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
/// libpcap's own number of raw IP on Linux.
const DLT_RAW: c_int = 12;
/// The snap length that programs are compiled with: what they return for an accepted packet.
const SNAP_LEN: c_int = 262_144;
/// As tcpdump has it for files and for devices without an address: `ip broadcast` is then the addresses 0.0.0.0 and
/// 255.255.255.255.
const NETMASK: u32 = 0;

/// A handle of libpcap's that captures nothing.
struct Dead(NonNull<Pcap>);

impl Drop for Dead {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and nobody has it after this.
        unsafe { pcap_close(self.0.as_ptr()) };
    }
}

impl Dead {
    /// For packets of devices with this link type, by libpcap's own number (DLT_).
    fn of_device(dlt: c_int) -> Option<Dead> {
        // SAFETY: takes two numbers, any of them.
        NonNull::new(unsafe { pcap_open_dead(dlt, SNAP_LEN) }).map(Dead)
    }

    /// For packets of files with this link type (LINKTYPE_).
    fn of_file(link_number: u32) -> Option<Dead> {
        // The header of a pcap file (pcap-savefile(5)).
        let mut header: Vec<u8> = Vec::new();
        header.extend(0xa1b2_c3d4_u32.to_ne_bytes());
        header.extend([2u16, 4].map(u16::to_ne_bytes).as_flattened());
        header.extend([0, 0, SNAP_LEN as u32, link_number].map(u32::to_ne_bytes).as_flattened());
        let mut error: [c_char; ERROR_BUFFER] = [0; ERROR_BUFFER];
        // SAFETY: the stream reads these bytes, and only in the next call, while they are there: libpcap reads the header at
        // once and is never asked for a packet.
        let file = unsafe { libc::fmemopen(header.as_mut_ptr().cast(), header.len(), c"r".as_ptr()) };
        let file = NonNull::new(file)?;
        // SAFETY: an open stream, and a buffer of the size that libpcap writes to at most.
        let handle = NonNull::new(unsafe { pcap_fopen_offline(file.as_ptr(), error.as_mut_ptr()) });
        if handle.is_none() {
            // SAFETY: where it fails the stream is still ours, and open.
            unsafe { libc::fclose(file.as_ptr()) };
        }
        handle.map(Dead)
    }
}

/// Compiles an expression for packets of this origin and link type (LINKTYPE_), and optimises it. The error is libpcap's
/// own text.
pub(super) fn compile(
    expression: &CString,
    link_number: u32,
    origin: Origin,
) -> Result<Vec<Classic>, String> {
    let handle = match origin {
        // The only link type of devices whose number is another in files is raw IP (pcap-common.c of libpcap).
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
        // SAFETY: the text belongs to the handle, is ended by a zero byte, and stays until the handle's next use.
        let text = unsafe { CStr::from_ptr(pcap_geterr(handle.0.as_ptr())) };
        return Err(text.to_string_lossy().into_owned());
    }
    let compiled = if program.instructions.is_null() {
        Vec::new()
    } else {
        // SAFETY: libpcap has filled this many instructions, of the layout of struct bpf_insn, which Classic has.
        unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) }.to_vec()
    };
    // SAFETY: it was filled by pcap_compile(), and is not used again.
    unsafe { pcap_freecode(&mut program) };
    Ok(compiled)
}

/// libpcap's own verdict on a packet: what ours is compared with.
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

    /// A program whose verdict is the same each time: what it may read of memory that it has not written is 0, where
    /// libpcap's interpreter has what lies on its stack.
    pub(crate) fn defined(program: &[Classic]) -> Vec<Classic> {
        let words = super::super::translate::read_unwritten(program);
        let cleared = (0..16).filter(|word| words & (1 << word) != 0);
        // ST: the accumulator, which is 0.
        cleared.map(|k| Classic { code: 0x02, jt: 0, jf: 0, k }).chain(program.iter().copied()).collect()
    }

    /// Whether libpcap's interpreter accepts the packet. The program must be one of [`defined`], and before that of
    /// [`super::compile`], or one whose jumps lead forward and whose end is an end.
    pub(crate) fn accepts(program: &[Classic], data: &[u8], wire_len: u32) -> bool {
        let program = Program { length: program.len() as u32, instructions: program.as_ptr().cast_mut() };
        let header = Header {
            time: libc::timeval { tv_sec: 0, tv_usec: 0 },
            captured: data.len() as u32,
            length: wire_len,
        };
        // SAFETY: the program, which is only read, was made by libpcap or is as sound, so that its interpreter stays within it and within the
        // captured bytes that the header states.
        let verdict = unsafe { pcap_offline_filter(&program, &header, data.as_ptr()) };
        verdict != 0
    }
}
