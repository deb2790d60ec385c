//! Loading of programs that signals do not interrupt.

use nix::sys::signal::{SigSet, SigmaskHow};

/// The signals that the thread took before.
struct Before(Option<SigSet>);

impl Drop for Before {
    fn drop(&mut self) {
        // It was the kernel that gave this mask.
        let _ = self.0.map(|before| before.thread_set_mask());
    }
}

/// Does this work while the calling thread takes no signals; they come afterwards, or to other threads.
///
/// The kernel gives up verifying a program (EAGAIN) as soon as a signal is pending for the thread, and libbpf tries again
/// four times only. A program around us with a profiler's timer, or which starts many processes, has more signals than
/// that: one for the end of a child can be any thread's.
pub(crate) fn uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let _before = Before(SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok());
    work()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn the_thread_takes_no_signals_meanwhile_and_the_same_as_before_after_it() {
        let taken = || Signal::iterator().filter(|one| !SigSet::thread_get_mask().unwrap().contains(*one));
        let before: Vec<Signal> = taken().collect();
        assert!(before.contains(&Signal::SIGCHLD) && before.contains(&Signal::SIGPROF), "{before:?}");
        let meanwhile: Vec<Signal> = uninterrupted(|| taken().collect());
        // Which nobody can keep away.
        assert_eq!(meanwhile, [Signal::SIGKILL, Signal::SIGSTOP]);
        assert_eq!(taken().collect::<Vec<_>>(), before);
        let panicked = std::panic::catch_unwind(|| uninterrupted(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err());
        assert_eq!(taken().collect::<Vec<_>>(), before);
    }
}
