//! Whether the kernel moved a program while it loaded it: for a program that is bound to a device, a fault of the kernel's
//! that kills it when the device is deleted (`kernel/programs/room.h` has the story).

/// Bytes of a page, on the machines whose pages are the smallest.
const PAGE: usize = 4096;
/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// Bytes of `struct bpf_prog` before its instructions: no fewer, and no more, in any kernel that is served.
const HEAD: (usize, usize) = (40, 160);

/// Pages of a program with so many instructions, behind a head of so many bytes.
const fn pages(head: usize, instructions: usize) -> usize {
    (head + instructions * INSTRUCTION).div_ceil(PAGE)
}

/// Whether a program that was given to the kernel with so many instructions, and has this many now that it has been
/// rewritten, may have outgrown its pages on the way. It only grows once what is never reached has been removed, so
/// what it is now is the most that it was.
pub(super) const fn may_have_moved(given: usize, now: usize) -> bool {
    pages(HEAD.1, now) > pages(HEAD.0, given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_moves_when_it_outgrows_its_pages() {
        // As measured on Linux 6.12: 4,079 instructions had room for 5 more.
        assert!(may_have_moved(4079, 4100));
        assert!(!may_have_moved(4079 + 2048, 4100));
        // What shrinks never moves, and what stays within its pages does not.
        assert!(!may_have_moved(5000, 100));
        assert!(!may_have_moved(100, 400));
        assert!(may_have_moved(100, 600));
    }
}
