//! Time: from what records are stamped with (the kernel's monotonic nanoseconds, or a card's own clock) to UTC.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

use wirelane_datapath::layout::{RecordHeader, flags};

use crate::{Error, Result};

fn read(clock: libc::clockid_t) -> std::io::Result<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; an id that names no clock is refused.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_ns() -> u64 {
    // Exists on every Linux.
    read(libc::CLOCK_MONOTONIC).unwrap_or_default() as u64
}

/// How far UTC is ahead of a clock, in nanoseconds. Between two readings of UTC the distance is known to half
/// their gap; the best of a few tries is kept.
fn utc_minus(clock: libc::clockid_t) -> std::io::Result<i64> {
    let mut best = (i64::MAX, 0);
    for _ in 0..5 {
        let before = read(libc::CLOCK_REALTIME)?;
        let there = read(clock)?;
        let after = read(libc::CLOCK_REALTIME)?;
        // A step of the system's clock between the two makes a gap that says nothing.
        if (0..best.0).contains(&(after - before)) {
            best = (after - before, before + (after - before) / 2 - there);
        }
    }
    Ok(best.1)
}

/// Turns the stamps of a capture's records into UTC. The distances are read anew a few times a second, so that
/// steps and slew of the system's clock, and the drift of a card's, are followed.
#[derive(Debug)]
pub(crate) struct Clock {
    utc_minus_monotonic: AtomicI64,
    /// By the index of the device in the capture; `None` where records carry the kernel's time.
    cards: Vec<Option<CardClock>>,
}

impl Clock {
    /// A clock that has just been read.
    pub(crate) fn new(cards: Vec<Option<CardClock>>) -> Clock {
        let clock = Clock { utc_minus_monotonic: AtomicI64::new(0), cards };
        clock.follow();
        clock
    }

    /// Reads the distances anew.
    pub(crate) fn follow(&self) {
        // Relaxed, here and below: each value stands for itself.
        if let Ok(distance) = utc_minus(libc::CLOCK_MONOTONIC) {
            self.utc_minus_monotonic.store(distance, Ordering::Relaxed);
        }
        for card in self.cards.iter().flatten() {
            card.follow();
        }
    }

    /// UTC nanoseconds since 1970 of a record's stamp.
    pub(crate) fn utc_ns(&self, header: &RecordHeader, device: usize) -> u64 {
        let distance = if header.flags & flags::HW_CLOCK == 0 {
            &self.utc_minus_monotonic
        } else {
            match self.cards.get(device) {
                Some(Some(card)) => &card.utc_minus_card,
                // Cannot be: only a device whose card was asked for stamps with it.
                _ => return header.ts_ns,
            }
        };
        header.ts_ns.wrapping_add_signed(distance.load(Ordering::Relaxed))
    }
}

/// A card's clock: a PTP hardware clock (Documentation/driver-api/ptp.rst), `/dev/ptp0`.
#[derive(Debug)]
pub(crate) struct CardClock {
    device: File,
    utc_minus_card: AtomicI64,
}

impl CardClock {
    /// Opens `/dev/ptp<index>` and reads it once. Needs the right to read the device file.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the file's name.
    pub(crate) fn open(index: u32) -> Result<CardClock> {
        let path = PathBuf::from(format!("/dev/ptp{index}"));
        let failed = |e| Error::kernel(format!("reading the card's clock {}", path.display()), e);
        let device = File::open(&path).map_err(failed)?;
        let clock = CardClock { device, utc_minus_card: AtomicI64::new(0) };
        clock.utc_minus_card.store(utc_minus(clock.id()).map_err(failed)?, Ordering::Relaxed);
        Ok(clock)
    }

    /// FD_TO_CLOCKID of clock_gettime(2).
    fn id(&self) -> libc::clockid_t {
        (!self.device.as_raw_fd() << 3) | 3
    }

    fn follow(&self) {
        // A card that does not answer (it may have been pulled out) keeps its last distance.
        if let Ok(distance) = utc_minus(self.id()) {
            self.utc_minus_card.store(distance, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(ts_ns: u64, flags: u16) -> RecordHeader {
        RecordHeader { ts_ns, flags, ..RecordHeader::default() }
    }

    #[test]
    fn now_is_between_two_readings_of_utc() {
        let clock = Clock::new(Vec::new());
        let before = read(libc::CLOCK_REALTIME).unwrap() as u64;
        let now = clock.utc_ns(&stamped(monotonic_ns(), 0), 0);
        let after = read(libc::CLOCK_REALTIME).unwrap() as u64;
        // The distance is known to half the gap of two readings, some tens of nanoseconds; slew adds a little.
        assert!((before - 100_000..after + 100_000).contains(&now), "{before} {now} {after}");
    }

    #[test]
    fn each_stamp_is_turned_by_its_own_clock() {
        let null = || File::open("/dev/null").unwrap();
        let card = |distance| CardClock { device: null(), utc_minus_card: AtomicI64::new(distance) };
        let clock =
            Clock { utc_minus_monotonic: AtomicI64::new(1_000), cards: vec![None, Some(card(-50)), None] };
        assert_eq!(clock.utc_ns(&stamped(7_000, 0), 1), 8_000);
        assert_eq!(clock.utc_ns(&stamped(7_000, flags::BATCH_CLOCK), 0), 8_000);
        assert_eq!(clock.utc_ns(&stamped(7_000, flags::HW_CLOCK), 1), 6_950);
    }

    #[test]
    fn a_card_without_a_clock_is_named() {
        let error = CardClock::open(4_000_000).unwrap_err().to_string();
        assert!(error.contains("/dev/ptp4000000"), "{error}");
    }

    /// Where the machine has a PTP clock, ours and the kernel's answer agree.
    #[test]
    fn a_real_card_clock_is_followed() {
        let Ok(card) = CardClock::open(0) else {
            println!("left out: no /dev/ptp0 that may be read");
            return;
        };
        let clock = Clock::new(vec![Some(card)]);
        let Some(Some(card)) = clock.cards.first() else { unreachable!() };
        let there = read(card.id()).unwrap() as u64;
        let utc = clock.utc_ns(&stamped(there, flags::HW_CLOCK), 0);
        let now = read(libc::CLOCK_REALTIME).unwrap() as u64;
        // A virtual machine may stop us between any two of these lines.
        assert!(utc.abs_diff(now) < 1_000_000_000, "{utc} {now}");
    }
}
