//! Filter expressions: any text compiles or is rejected with a position, and any packet and any steps have a verdict;
//! the verdict of an expression is that of libpcap.
//!
//! Input: the length of the expression (two bytes), the link type's number, a byte for the direction, the expression,
//! the packet; the packet is also taken as steps.
#![no_main]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use libfuzzer_sys::fuzz_target;
use wirelane::filter::{Error, FileFilter, Filter};
use wirelane_bpf::filter::Step;
use wirelane_bpf::native;

/// `struct bpf_program` of pcap/bpf.h.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut c_void,
}

/// `struct pcap_pkthdr` of pcap/pcap.h.
#[repr(C)]
struct Header {
    time: [i64; 2],
    captured: u32,
    length: u32,
}

#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_open_dead(link: c_int, snap_len: c_int) -> *mut c_void;
    fn pcap_compile(
        pcap: *mut c_void,
        program: *mut Program,
        text: *const c_char,
        optimize: c_int,
        mask: u32,
    ) -> c_int;
    fn pcap_offline_filter(program: *const Program, header: *const Header, packet: *const u8) -> c_int;
    fn pcap_freecode(program: *mut Program);
    fn pcap_close(pcap: *mut c_void);
}

/// Whether libpcap accepts the packet; `None` if it does not compile the expression. For Ethernet, where a file's
/// filter is the same as that of a dead handle, except for primitives that only devices support.
fn libpcap(expression: &str, packet: &[u8]) -> Option<bool> {
    let text = CString::new(expression).ok()?;
    // SAFETY: a handle of its own, closed below; the text ends with a zero byte; the program is used between its being
    // filled and its being freed; the header states the packet's own length.
    unsafe {
        let pcap = pcap_open_dead(1, 262_144);
        let mut program = Program { length: 0, instructions: std::ptr::null_mut() };
        let compiled = pcap_compile(pcap, &mut program, text.as_ptr(), 1, 0) == 0;
        let verdict = compiled.then(|| {
            let length = packet.len() as u32;
            let header = Header { time: [0; 2], captured: length, length };
            pcap_offline_filter(&program, &header, packet.as_ptr()) != 0
        });
        if compiled {
            pcap_freecode(&mut program);
        }
        pcap_close(pcap);
        verdict
    }
}

/// Names are looked up in files and on the network: expressions with names are skipped, except for libpcap's own words.
fn has_name(text: &str) -> bool {
    const AFTER: [&str; 7] = ["host", "net", "gateway", "src", "dst", "port", "portrange"];
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || "()!&|".contains(c)).collect();
    words.windows(2).any(|pair| AFTER.contains(&pair[0]) && pair[1].contains(|c: char| c.is_alphabetic()))
}

/// Primitives that query the kernel about packets of a device, or read uninitialised memory of libpcap.
const NOT_OF_FILES: [&str; 8] =
    ["inbound", "outbound", "ifindex", "vlan", "geneve", "mpls", "pppoes", "protochain"];

fuzz_target!(|data: &[u8]| {
    let [low, high, link, outgoing, rest @ ..] = data else { return };
    let split = usize::from(u16::from_le_bytes([*low, *high])) % 512;
    let (text, packet) = rest.split_at(split.min(rest.len()));
    // Exact allocation, so that ASan detects a read beyond its end.
    let packet: Box<[u8]> = packet.into();
    let steps: Vec<Step> = packet
        .chunks_exact(12)
        .map(|bytes| Step {
            op: bytes[0],
            with_x: bytes[1],
            size: bytes[2],
            yes: u16::from_le_bytes([bytes[4], bytes[5]]),
            no: u16::from_le_bytes([bytes[6], bytes[7]]),
            value: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            ..Step::default()
        })
        .collect();
    let outgoing = outgoing & 1 != 0;
    native::filter(&steps, &packet, u32::from(*link) << 4, outgoing);

    let Ok(text) = std::str::from_utf8(text) else { return };
    if has_name(text) {
        return;
    }
    let told = |error: &Error| {
        let Error { at, expression, .. } = error;
        assert!(*at <= expression.len() && !error.to_string().is_empty());
    };
    match Filter::compile(text, (*link).into()) {
        Ok(filter) => {
            let verdict = filter.accepts(&packet, packet.len() as u32, outgoing);
            assert_eq!(
                verdict,
                filter.accepts(&packet, packet.len() as u32, outgoing),
                "a packet has one verdict"
            );
        }
        Err(error) => told(&error),
    }
    let ours = Filter::compile(text, 1);
    if !NOT_OF_FILES.iter().any(|word| text.contains(word)) {
        let ours = ours.as_ref().ok().map(|filter| filter.accepts(&packet, packet.len() as u32, false));
        assert!(ours.is_none() || ours == libpcap(text, &packet), "{text:?}: {ours:?}");
    }
    if let Err(error) = FileFilter::compile(text) {
        told(&error);
    }
});
