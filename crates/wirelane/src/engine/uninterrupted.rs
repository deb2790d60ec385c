//! Loading of programs that signals do not interrupt.

use nix::sys::signal::{SigSet, SigmaskHow};

/// The signal mask that the thread had before.
struct Before(Option<SigSet>);

impl Drop for Before {
    fn drop(&mut self) {
        // Restoring a mask that the kernel returned cannot fail.
        let _ = self.0.map(|before| before.thread_set_mask());
    }
}

/// Runs `work` while the calling thread blocks all signals; they are delivered afterwards, or to other threads.
///
/// The kernel aborts the verification of a program (EAGAIN) as soon as a signal is pending for the thread, and libbpf
/// retries only four times. A host program with a profiler's timer, or which starts many processes, has more signals
/// than that: one for the end of a child can be sent to any thread.
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
        // These two cannot be blocked.
        assert_eq!(meanwhile, [Signal::SIGKILL, Signal::SIGSTOP]);
        assert_eq!(taken().collect::<Vec<_>>(), before);
        let panicked = std::panic::catch_unwind(|| uninterrupted(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err());
        assert_eq!(taken().collect::<Vec<_>>(), before);
    }
}
