//! Whether the kernel moved a program while it loaded it: for a program that is bound to a device, a fault of the kernel's
//! that kills it when the device is deleted (`kernel/programs/room.h` has the story).
//!
//! The kernel gives a program whole pages for the instructions that it was given, moves it when it needs more, and never
//! takes pages back. So a program that has more pages than it was given has been moved, whatever it grew by and shrank by
//! on the way. `memlock` in the descriptor's fdinfo is those pages (`bpf_prog_show_fdinfo()` in kernel/bpf/syscall.c).

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::{fs, io};

use crate::{Error, Result};

/// Bytes of an instruction.
const INSTRUCTION: u64 = 8;
/// Bytes of `struct bpf_prog` before its instructions: no fewer in any kernel that is served.
const HEAD: u64 = 40;

/// Whether this loaded program, which was given to the kernel with so many instructions, may have been moved since.
///
/// # Errors
/// Where its fdinfo cannot be read.
pub(super) fn may_have_moved(program: BorrowedFd<'_>, given: usize) -> Result<bool> {
    let path = PathBuf::from(format!("/proc/self/fdinfo/{}", program.as_raw_fd()));
    let held = fs::read_to_string(&path).and_then(|text| {
        held(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no line 'memlock'"))
    });
    let held = held.map_err(|source| Error::Io { path, source })?;
    Ok(has_more(held, given, rustix::param::page_size() as u64))
}

/// The bytes of all pages of a program.
fn held(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}

/// Whether a program holds more bytes than the pages that so many instructions were given. Where the size of the
/// kernel's head decides, it counts as more.
const fn has_more(held: u64, given: usize, page: u64) -> bool {
    held > (HEAD + given as u64 * INSTRUCTION).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_more_pages_than_it_was_given_has_moved() {
        // As seen on Linux 6.18: 4,079 instructions had room for 5 more.
        assert!(!has_more(8 * 4096, 4079, 4096));
        assert!(has_more(9 * 4096, 4079, 4096));
        // It may have grown and shrunk on the way: it keeps the pages.
        assert!(has_more(3 * 4096, 100, 4096));
        // Larger pages.
        assert!(!has_more(65_536, 4079, 65_536));
        assert!(has_more(131_072, 4079, 65_536));
        // A head of 40 bytes would just fit: one that is larger needs a page more, and it may have moved to it.
        assert!(!has_more(4096, 507, 4096));
        assert!(has_more(8192, 507, 4096));
    }

    #[test]
    fn the_kernel_says_what_a_program_holds() {
        let fdinfo = "pos:\t0\nflags:\t02000002\nprog_type:\t6\nmemlock:\t45056\nprog_id:\t12\n";
        assert_eq!(held(fdinfo), Some(45_056));
        assert_eq!(held("prog_type:\t6\n"), None);
    }
}
