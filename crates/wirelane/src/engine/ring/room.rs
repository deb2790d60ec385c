//! Detects whether the kernel moved a program while it loaded it: for a program that is bound to a device, a kernel bug
//! that crashes the kernel when the device is deleted (`bpf/prog_padding.h` has the details).
//!
//! The kernel allocates whole pages for the instructions that it is given, moves the program when it needs more, and
//! never frees pages. So a program with more pages than it was given has been moved, however it grew and shrank in
//! between. `memlock` in the descriptor's fdinfo is the size of those pages (`bpf_prog_show_fdinfo()` in
//! kernel/bpf/syscall.c).

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::{fs, io};

use libbpf_rs::btf::types::Struct;
use libbpf_rs::btf::{Btf, HasSize as _};

use crate::error::{Error, Result};

/// Bytes of an instruction.
const INSTRUCTION: u64 = 8;
/// Bytes of `struct bpf_prog` before its instructions: the minimum of all supported kernels.
const SMALLEST_HEAD: u64 = 40;

/// Whether this loaded program, which was given to the kernel with `given` instructions, may have been moved since.
///
/// # Errors
/// If its fdinfo cannot be read.
pub(super) fn may_have_moved(program: BorrowedFd<'_>, given: usize) -> Result<bool> {
    let path = PathBuf::from(format!("/proc/self/fdinfo/{}", program.as_raw_fd()));
    let held = fs::read_to_string(&path).and_then(|text| {
        held(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no line 'memlock'"))
    });
    let held = held.map_err(|source| Error::Io { path, source })?;
    let page = rustix::param::page_size() as u64;
    // The size of this kernel's head is looked up only where it may decide.
    Ok(has_more(held, SMALLEST_HEAD, given, page) && has_more(held, head(), given, page))
}

/// Bytes of `struct bpf_prog` before its instructions in this kernel (`bpf_prog_size()` in linux/filter.h).
fn head() -> u64 {
    let known =
        Btf::from_vmlinux().ok().and_then(|types| Some(types.type_by_name::<Struct<'_>>("bpf_prog")?.size()));
    known.map_or(SMALLEST_HEAD, |size| size as u64)
}

/// Bytes of all pages of a program.
fn held(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

/// Whether a program has more bytes than the pages for `given` instructions after a head of `head` bytes.
const fn has_more(held: u64, head: u64, given: usize, page: u64) -> bool {
    held > (head + given as u64 * INSTRUCTION).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_more_pages_than_it_was_given_has_moved() {
        // As seen on Linux 6.12, whose head has 72 bytes: 4,079 instructions had room for 5 more.
        assert!(!has_more(8 * 4096, 72, 4079, 4096));
        assert!(has_more(9 * 4096, 72, 4079, 4096));
        // It may have grown and shrunk in between: it keeps the pages.
        assert!(has_more(3 * 4096, 72, 100, 4096));
        // Larger pages.
        assert!(!has_more(65_536, 72, 4079, 65_536));
        assert!(has_more(131_072, 72, 4079, 65_536));
        // As seen on Linux 6.18, where the head decides: 5,622 instructions were given 12 pages.
        assert!(has_more(12 * 4096, SMALLEST_HEAD, 5622, 4096));
        assert!(!has_more(12 * 4096, 96, 5622, 4096));
    }

    #[test]
    fn the_kernels_head_is_known_where_it_tells_its_types() {
        if std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            assert!((56..=256).contains(&head()), "{}", head());
        } else {
            println!("left out: the_kernels_head_is_known_where_it_tells_its_types (no BTF)");
        }
    }

    #[test]
    fn the_kernel_says_what_a_program_holds() {
        let fdinfo = "pos:\t0\nflags:\t02000002\nprog_type:\t6\nmemlock:\t45056\nprog_id:\t12\n";
        assert_eq!(held(fdinfo), Some(45_056));
        assert_eq!(held("prog_type:\t6\n"), None);
    }
}
