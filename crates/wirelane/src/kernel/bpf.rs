//! Probes of the kernel's features by bpf(2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// Queries the id of the first BPF program (`BPF_PROG_GET_NEXT_ID`), which every process with the capabilities of a
/// capture may do: shows whether this process may use bpf(2) at all. The answer is ignored.
pub(super) fn ask_bpf() -> io::Result<()> {
    let mut next = 0;
    // SAFETY: `next` is exclusively borrowed for the call, which writes one number there.
    let status = unsafe { libbpf_sys::bpf_prog_get_next_id(0, &raw mut next) };
    // There is no program yet.
    if status == 0 || status == -libc::ENOENT { Ok(()) } else { Err(io::Error::from_raw_os_error(-status)) }
}

/// Queries the kernel for the tc programs that are attached by TCX to the ingress of a device (`BPF_PROG_QUERY`). The
/// answer is ignored: kernels without TCX refuse the query.
pub(super) fn query_tcx(ifindex: u32) -> io::Result<()> {
    // SAFETY: bpf_prog_query_opts is plain integers and raw pointers, for all of which zero is a valid value.
    let mut options: libbpf_sys::bpf_prog_query_opts = unsafe { MaybeUninit::zeroed().assume_init() };
    options.sz = size_of::<libbpf_sys::bpf_prog_query_opts>() as _;
    // SAFETY: `options` is exclusively borrowed, states its own size, and asks for no arrays: their counts
    // and pointers are zero.
    let status = unsafe {
        libbpf_sys::bpf_prog_query_opts(ifindex as i32, libbpf_sys::BPF_TCX_INGRESS, &raw mut options)
    };
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

/// Loads an XDP program that drops every packet, with these flags (`BPF_F_*` of linux/bpf.h).
pub(super) fn load_dropping_xdp(flags: u32) -> io::Result<OwnedFd> {
    let instruction =
        |code: u32, imm: i32| libbpf_sys::bpf_insn { code: code as u8, imm, ..Default::default() };
    let program = [
        instruction(
            libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K,
            libbpf_sys::XDP_DROP as i32,
        ),
        instruction(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT, 0),
    ];
    let options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        prog_flags: flags,
        ..Default::default()
    };
    // SAFETY: strings that end with a zero, an array of the length stated, and a live option struct with its size set.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"wl_feature".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            &raw const options as *mut _,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just created, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs an XDP program once on a frame of zeros, as live frames or on its own (`BPF_PROG_TEST_RUN`,
/// Documentation/bpf/bpf_prog_run.rst).
pub(super) fn run_xdp(program: &OwnedFd, flags: u32) -> io::Result<()> {
    let frame = [0u8; 64];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: 1,
        flags,
        ..Default::default()
    };
    // SAFETY: a live program, and a live option struct with its size set that points to a frame of the length stated.
    let status = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

/// Creates a BPF array with these flags (`BPF_F_*` of linux/bpf.h) and closes it.
pub(super) fn create_array(flags: u32) -> io::Result<()> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let name = c"wl_feature".as_ptr();
    // SAFETY: a string that ends with a zero, numbers, and a live option struct with its size set.
    let fd = unsafe {
        libbpf_sys::bpf_map_create(libbpf_sys::BPF_MAP_TYPE_ARRAY, name, 4, 8, 1, &raw const options)
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just created, owned by nobody else; closed here.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
