//! libpcap's functions as C programs call them: for any calls in any order, on a handle of a missing device or of a
//! file with any bytes, no call accesses memory outside of its bounds, and errors are text in their buffer.
//!
//! Input: a byte that selects a file or a device, the number of calls (a byte), the calls (a byte for the kind, four
//! for the value), and the rest: the file, the name and the expression.
#![no_main]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr;

use libfuzzer_sys::fuzz_target;
// The functions below are those of this library.
use wirelane_libpcap as _;

/// `struct pcap_pkthdr`.
#[repr(C)]
struct Header {
    time: libc::timeval,
    captured: c_uint,
    length: c_uint,
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut c_void,
}

type Handler = extern "C" fn(*mut c_uchar, *const Header, *const c_uchar);

unsafe extern "C" {
    fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut c_void;
    fn pcap_fopen_offline(file: *mut libc::FILE, error: *mut c_char) -> *mut c_void;
    fn pcap_activate(pcap: *mut c_void) -> c_int;
    fn pcap_close(pcap: *mut c_void);
    fn pcap_geterr(pcap: *mut c_void) -> *mut c_char;
    fn pcap_set_snaplen(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_timeout(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_buffer_size(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_promisc(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_immediate_mode(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_tstamp_type(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_tstamp_precision(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_rfmon(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_protocol_linux(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_set_datalink(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_setdirection(pcap: *mut c_void, value: c_int) -> c_int;
    fn pcap_setnonblock(pcap: *mut c_void, value: c_int, error: *mut c_char) -> c_int;
    fn pcap_getnonblock(pcap: *mut c_void, error: *mut c_char) -> c_int;
    fn pcap_next_ex(pcap: *mut c_void, header: *mut *mut Header, bytes: *mut *const c_uchar) -> c_int;
    fn pcap_dispatch(pcap: *mut c_void, count: c_int, handler: Handler, user: *mut c_uchar) -> c_int;
    fn pcap_breakloop(pcap: *mut c_void);
    fn pcap_stats(pcap: *mut c_void, stats: *mut [c_uint; 3]) -> c_int;
    fn pcap_compile(
        pcap: *mut c_void,
        to: *mut Program,
        text: *const c_char,
        optimize: c_int,
        mask: u32,
    ) -> c_int;
    fn pcap_setfilter(pcap: *mut c_void, program: *mut Program) -> c_int;
    fn pcap_freecode(program: *mut Program);
    fn pcap_inject(pcap: *mut c_void, bytes: *const c_void, length: usize) -> c_int;
    fn pcap_list_datalinks(pcap: *mut c_void, list: *mut *mut c_int) -> c_int;
    fn pcap_free_datalinks(list: *mut c_int);
    fn pcap_list_tstamp_types(pcap: *mut c_void, list: *mut *mut c_int) -> c_int;
    fn pcap_free_tstamp_types(list: *mut c_int);
    fn pcap_datalink(pcap: *mut c_void) -> c_int;
    fn pcap_snapshot(pcap: *mut c_void) -> c_int;
    fn pcap_get_selectable_fd(pcap: *mut c_void) -> c_int;
    fn pcap_statustostr(status: c_int) -> *const c_char;
}

/// Sums the bytes of a packet, so that ASan checks that they are accessible.
extern "C" fn take(user: *mut c_uchar, header: *const Header, bytes: *const c_uchar) {
    // SAFETY: guaranteed by libpcap: a header, its bytes, and the argument of pcap_dispatch(), here a sum.
    unsafe {
        let seen = std::slice::from_raw_parts(bytes, (*header).captured as usize);
        let sum = user.cast::<u64>();
        *sum = seen.iter().fold(*sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
    }
}

/// Number of kinds of calls, and the one that activates.
const CALLS: u8 = 24;
const ACTIVATE: u8 = 11;

/// One call on an open handle.
///
/// # Safety
/// `pcap` is an open handle, and `text` ends with a zero.
unsafe fn call(pcap: *mut c_void, number: u8, value: c_int, text: &CStr) {
    let mut error = Box::new([0x7f as c_char; 256]);
    let mut sum = 0u64;
    // SAFETY: guaranteed by the caller; buffers are as large as libpcap's manual requires, and allocated results are
    // freed.
    unsafe {
        match number % CALLS {
            0 => _ = pcap_set_snaplen(pcap, value),
            1 => _ = pcap_set_timeout(pcap, value),
            2 => _ = pcap_set_buffer_size(pcap, value),
            3 => _ = pcap_set_promisc(pcap, value),
            4 => _ = pcap_set_immediate_mode(pcap, value),
            5 => _ = pcap_set_tstamp_type(pcap, value),
            6 => _ = pcap_set_tstamp_precision(pcap, value),
            7 => _ = pcap_set_rfmon(pcap, value),
            8 => _ = pcap_set_protocol_linux(pcap, value),
            9 => _ = pcap_set_datalink(pcap, value),
            10 => _ = pcap_setdirection(pcap, value),
            ACTIVATE => _ = pcap_activate(pcap),
            12 => {
                error[0] = 0;
                if pcap_setnonblock(pcap, value, error.as_mut_ptr()) == -1 {
                    assert!(error.contains(&0));
                }
            }
            13 => {
                error[0] = 0;
                if pcap_getnonblock(pcap, error.as_mut_ptr()) == -1 {
                    assert!(error.contains(&0));
                }
            }
            14 => {
                let (mut header, mut bytes) = (ptr::null_mut(), ptr::null());
                if pcap_next_ex(pcap, &mut header, &mut bytes) == 1 {
                    take((&raw mut sum).cast(), header, bytes);
                }
            }
            // A file has an end, and a handle that is not activated has no packets.
            15 => _ = pcap_dispatch(pcap, value, take, (&raw mut sum).cast()),
            16 => pcap_breakloop(pcap),
            17 => _ = pcap_stats(pcap, &mut [0; 3]),
            18 => {
                let mut program = Program { length: 0, instructions: ptr::null_mut() };
                if pcap_compile(pcap, &mut program, text.as_ptr(), value & 1, value as u32) == 0 {
                    pcap_setfilter(pcap, &mut program);
                    pcap_freecode(&mut program);
                }
            }
            19 => _ = pcap_inject(pcap, text.as_ptr().cast(), text.to_bytes().len()),
            20 => {
                let mut list = ptr::null_mut();
                let count = pcap_list_datalinks(pcap, &mut list);
                if count > 0 {
                    assert_eq!(std::slice::from_raw_parts(list, count as usize).len(), count as usize);
                    pcap_free_datalinks(list);
                }
            }
            21 => {
                let mut list = ptr::null_mut();
                if pcap_list_tstamp_types(pcap, &mut list) > 0 {
                    pcap_free_tstamp_types(list);
                }
            }
            22 => _ = (pcap_datalink(pcap), pcap_snapshot(pcap), pcap_get_selectable_fd(pcap)),
            _ => assert!(!CStr::from_ptr(pcap_statustostr(value)).is_empty()),
        }
        let told = CStr::from_ptr(pcap_geterr(pcap));
        assert!(told.to_bytes().len() < 256, "{told:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let [options, calls, rest @ ..] = data else { return };
    let (calls, rest) = rest.split_at((usize::from(calls & 15) * 5).min(rest.len()));
    let text: Vec<u8> = rest.iter().copied().filter(|byte| *byte != 0).take(200).collect();
    // Lower case, as other names are looked up.
    let text = CString::new(text.to_ascii_lowercase()).expect("without zeros");
    let mut file: Box<[u8]> = rest.into();
    let mut error = Box::new([0 as c_char; 256]);
    // SAFETY: strings end with a zero, the file's bytes live as long as the handle, buffers have the required size.
    unsafe {
        let is_file = options & 1 != 0 && !file.is_empty();
        let pcap = if is_file {
            let stream = libc::fmemopen(file.as_mut_ptr().cast(), file.len(), c"rb".as_ptr());
            assert!(!stream.is_null());
            let pcap = pcap_fopen_offline(stream, error.as_mut_ptr());
            if pcap.is_null() {
                libc::fclose(stream);
            }
            pcap
        } else {
            // A device that does not exist on any machine, so that nothing is captured.
            let name = [b"no-such-", text.to_bytes()].concat();
            pcap_create(CString::new(name).expect("without zeros").as_ptr(), error.as_mut_ptr())
        };
        if pcap.is_null() {
            assert!(error.contains(&0) && error[0] != 0, "an error is told");
            return;
        }
        let mut activated = is_file;
        for one in calls.chunks_exact(5) {
            let value = c_int::from_le_bytes([one[1], one[2], one[3], one[4]]);
            // A handle whose activation failed may only be closed: libpcap 1.10.3 itself reads the name of the device
            // after it has freed it, if the handle is activated again.
            let activates = one[0] % CALLS == ACTIVATE;
            if activates && std::mem::replace(&mut activated, true) {
                continue;
            }
            call(pcap, one[0], value, &text);
        }
        // libpcap 1.10.3 leaks a descriptor if a handle is closed that was never activated.
        if !activated {
            pcap_activate(pcap);
        }
        pcap_close(pcap);
    }
});
