//! Time: from the kernel's monotonic nanoseconds to UTC.

use std::sync::atomic::{AtomicI64, Ordering};

fn read(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; the clocks used here exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC) as u64
}

/// The distance from `CLOCK_MONOTONIC` to UTC, read anew a few times a second so that steps and slew of the
/// system's clock are followed.
#[derive(Debug)]
pub(crate) struct Clock {
    utc_minus_monotonic: AtomicI64,
}

impl Clock {
    /// A clock that has just been read.
    pub(crate) fn new() -> Clock {
        let clock = Clock { utc_minus_monotonic: AtomicI64::new(0) };
        clock.follow();
        clock
    }

    /// Reads the distance anew. Between two monotonic readings the true distance is known to half their gap;
    /// the best of a few tries is kept.
    pub(crate) fn follow(&self) {
        let mut best = (i64::MAX, 0);
        for _ in 0..5 {
            let before = read(libc::CLOCK_MONOTONIC);
            let utc = read(libc::CLOCK_REALTIME);
            let after = read(libc::CLOCK_MONOTONIC);
            if after - before < best.0 {
                best = (after - before, utc - (before + (after - before) / 2));
            }
        }
        // Relaxed: one value that stands for itself.
        self.utc_minus_monotonic.store(best.1, Ordering::Relaxed);
    }

    /// UTC nanoseconds since 1970 of a `CLOCK_MONOTONIC` reading.
    pub(crate) fn utc_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.wrapping_add_signed(self.utc_minus_monotonic.load(Ordering::Relaxed))
    }
}
