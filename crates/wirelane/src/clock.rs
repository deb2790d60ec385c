//! Time: conversion of record timestamps (the kernel's monotonic nanoseconds, or a card's own clock) to UTC.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

use wirelane_bpf::layout::{RecordHeader, flags};

use crate::error::{Error, Result};

fn read(clock: libc::clockid_t) -> std::io::Result<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; an invalid clock id is refused.
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

/// UTC minus `CLOCK_MONOTONIC` now, in nanoseconds.
pub(crate) fn utc_minus_monotonic_ns() -> i64 {
    // Both clocks exist on every Linux.
    utc_minus(libc::CLOCK_MONOTONIC, &mut read).ok().flatten().unwrap_or_default().ns
}

/// Reader of a clock, in nanoseconds: [`read`], or a test's own time.
type Read<'a> = &'a mut dyn FnMut(libc::clockid_t) -> std::io::Result<i64>;

/// UTC minus a clock, as measured.
#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    ns: i64,
    /// The gap between the two readings of UTC: the distance is known to half of it.
    gap: i64,
}

/// UTC minus a clock, in nanoseconds. Between two readings of UTC the distance is known to half their gap; the best of
/// a few tries is kept. `None` where UTC was set back in the middle of every try.
fn utc_minus(clock: libc::clockid_t, read: Read<'_>) -> std::io::Result<Option<Distance>> {
    let mut best: Option<Distance> = None;
    for _ in 0..5 {
        let before = read(libc::CLOCK_REALTIME)?;
        let there = read(clock)?;
        let gap = read(libc::CLOCK_REALTIME)? - before;
        // A step of the system's clock between the two makes a useless gap: negative, or by far not the smallest of
        // five.
        if gap >= 0 && best.is_none_or(|best| gap < best.gap) {
            best = Some(Distance { ns: before + gap / 2 - there, gap });
        }
    }
    Ok(best)
}

/// Converts the timestamps of a capture's records to UTC. The distances are read anew a few times a second, so that
/// steps of the system's clock, and the drift of a card's, are followed.
///
/// If the system's clock is slewed, the kernel's monotonic clock is slewed alike (adjtimex(2)): timestamps advance
/// as UTC does, and the distance between the two changes by steps only. New measurements differ all the same, by their
/// uncertainty. Such a difference is not followed: consecutive packets that are converted before and after a
/// measurement would change their order.
#[derive(Debug)]
pub(crate) struct Clock {
    utc_minus_monotonic: AtomicI64,
    /// Card clocks by device index in the capture; `None` where records carry the kernel's time.
    cards: Vec<Option<CardClock>>,
}

impl Clock {
    /// A clock with fresh measurements.
    pub(crate) fn new(cards: Vec<Option<CardClock>>) -> Clock {
        let clock = Clock { utc_minus_monotonic: AtomicI64::new(0), cards };
        clock.follow();
        clock
    }

    /// Measures the distances anew.
    pub(crate) fn follow(&self) {
        self.follow_by(&mut read);
    }

    fn follow_by(&self, read: Read<'_>) {
        // Relaxed, here and below: each value is independent of other data.
        if let Ok(Some(distance)) = utc_minus(libc::CLOCK_MONOTONIC, read) {
            let known = self.utc_minus_monotonic.load(Ordering::Relaxed);
            if (distance.ns - known).abs() > distance.gap {
                self.utc_minus_monotonic.store(distance.ns, Ordering::Relaxed);
            }
        }
        for card in self.cards.iter().flatten() {
            card.follow_by(read);
        }
    }

    /// UTC nanoseconds since 1970 of a time of `CLOCK_MONOTONIC`, by the latest measured distance.
    pub(crate) fn utc_of_monotonic_ns(&self, ns: u64) -> u64 {
        ns.wrapping_add_signed(self.utc_minus_monotonic.load(Ordering::Relaxed))
    }

    /// The time of `CLOCK_MONOTONIC` of a record's timestamp.
    pub(crate) fn monotonic_of_ns(&self, header: &RecordHeader, device: usize) -> u64 {
        if header.flags & flags::HW_CLOCK == 0 {
            return header.ts_ns;
        }
        let distance = self.utc_minus_monotonic.load(Ordering::Relaxed);
        self.utc_ns(header, device).wrapping_add_signed(distance.wrapping_neg())
    }

    /// UTC nanoseconds since 1970 of a record's timestamp.
    pub(crate) fn utc_ns(&self, header: &RecordHeader, device: usize) -> u64 {
        let distance = if header.flags & flags::HW_CLOCK == 0 {
            &self.utc_minus_monotonic
        } else {
            match self.cards.get(device) {
                Some(Some(card)) => &card.utc_minus_card,
                // Impossible: only devices with an open card clock stamp with it.
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
        // Set back five times within a microsecond: this does not happen. The next measurement corrects it.
        let distance = utc_minus(clock.id(), &mut read).map_err(failed)?.unwrap_or_default();
        clock.utc_minus_card.store(distance.ns, Ordering::Relaxed);
        Ok(clock)
    }

    /// The clock id of the descriptor: FD_TO_CLOCKID of clock_gettime(2).
    fn id(&self) -> libc::clockid_t {
        (!self.device.as_raw_fd() << 3) | 3
    }

    fn follow_by(&self, read: Read<'_>) {
        // A card that does not answer (it may have been removed) keeps its last distance.
        if let Ok(Some(distance)) = utc_minus(self.id(), read) {
            self.utc_minus_card.store(distance.ns, Ordering::Relaxed);
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

    const HOUR: i64 = 3_600_000_000_000;
    /// Nanoseconds that a clock reading takes.
    const READING: i64 = 40;
    const START_UTC: i64 = 1_700_000_000_000_000_000;

    /// A machine whose time the test controls: monotonic nanoseconds, UTC minus these, and, once, a step of UTC before
    /// the reading with the given number.
    struct Machine {
        monotonic: i64,
        ahead: i64,
        readings: usize,
        step: Option<(usize, i64)>,
        /// Nanoseconds that UTC gains in a million of monotonic time (NTP slews by up to 500 a millisecond).
        slew_ppm: i64,
    }

    impl Machine {
        fn new() -> Machine {
            let monotonic = 77 * HOUR;
            Machine { monotonic, ahead: START_UTC - monotonic, readings: 0, step: None, slew_ppm: 0 }
        }

        fn pass(&mut self, ns: i64) {
            self.monotonic += ns;
            self.ahead += ns * self.slew_ppm / 1_000_000;
        }

        fn read(&mut self, clock: libc::clockid_t) -> std::io::Result<i64> {
            if let Some((_, by)) = self.step.filter(|(at, _)| *at == self.readings) {
                self.ahead += by;
            }
            self.readings += 1;
            self.pass(READING);
            Ok(if clock == libc::CLOCK_REALTIME { self.monotonic + self.ahead } else { self.monotonic })
        }

        fn followed_by(&mut self, clock: &Clock) {
            clock.follow_by(&mut |id| self.read(id));
        }

        /// The UTC that `clock` gives for a record stamped now, minus the true UTC.
        fn error(&self, clock: &Clock) -> i64 {
            let utc = clock.utc_ns(&stamped(self.monotonic as u64, 0), 0);
            utc as i64 - (self.monotonic + self.ahead)
        }
    }

    fn unread() -> Clock {
        Clock { utc_minus_monotonic: AtomicI64::new(0), cards: Vec::new() }
    }

    /// Wherever during a measurement the step happens, the distance is the one before or after the step, and the next
    /// measurement has the one after it.
    /// Battery: F7
    #[test]
    fn steps_of_an_hour_are_followed_at_once_and_never_halved() {
        for by in [HOUR, -HOUR, 1_000_000, -1_000_000] {
            for at in 0..=15 {
                let mut machine = Machine::new();
                let clock = unread();
                machine.followed_by(&clock);
                assert!(machine.error(&clock).abs() <= READING, "{by} at {at}");
                machine.step = Some((machine.readings + at, by));
                machine.followed_by(&clock);
                let error = machine.error(&clock);
                // The remaining error after the step is all or nothing.
                let stepped = machine.readings > 15 + at;
                let behind = if stepped { by } else { 0 };
                assert!(error.abs() <= READING || (error + behind).abs() <= READING, "{by} at {at}: {error}");
                machine.followed_by(&clock);
                assert!(machine.error(&clock).abs() <= READING, "{by} at {at}: not followed");
            }
        }
    }

    /// If every try has a step back, the known distance is kept; it does not become zero, which would be 1970.
    #[test]
    fn a_clock_that_does_nothing_but_step_back_is_not_believed() {
        let clock = unread();
        let mut machine = Machine::new();
        machine.followed_by(&clock);
        let before = machine.error(&clock);
        let known = clock.utc_minus_monotonic.load(Ordering::Relaxed);
        clock.follow_by(&mut |id| {
            machine.ahead -= 1_000;
            machine.read(id)
        });
        assert_eq!(clock.utc_minus_monotonic.load(Ordering::Relaxed), known);
        assert!(before.abs() <= READING);
    }

    /// If the clock of the timestamps were not slewed with UTC, as a card's is not: NTP slews by at most 500 ppm, which
    /// is 100 us in the 200 ms between two measurements.
    /// Battery: F7
    #[test]
    fn slew_is_followed_to_a_tenth_of_a_millisecond() {
        for slew_ppm in [500, -500] {
            let clock = unread();
            let mut machine = Machine { slew_ppm, ..Machine::new() };
            let mut last = 0;
            // An hour, in which UTC gains or loses 1.8 s.
            for _ in 0..5 * 3600 {
                machine.followed_by(&clock);
                assert!(machine.error(&clock).abs() <= READING);
                machine.pass(200_000_000);
                assert!(machine.error(&clock).abs() <= 100_000 + READING, "{}", machine.error(&clock));
                // The distance changes less than time passes: later timestamps have a later UTC.
                let utc = clock.utc_ns(&stamped(machine.monotonic as u64, 0), 0);
                assert!(utc > last);
                last = utc;
            }
        }
    }

    /// Measurements that differ within their uncertainty do not change the distance, so that records converted before
    /// and after one keep their order.
    /// Battery: F7
    #[test]
    fn what_a_look_is_uncertain_of_is_not_followed() {
        let clock = unread();
        let mut machine = Machine::new();
        machine.followed_by(&clock);
        let known = clock.utc_minus_monotonic.load(Ordering::Relaxed);
        // A delay between the two readings of UTC, early or late in the gap.
        for (early, late) in [(1, 2_000), (2_000, 1), (700, 900), (1, 1)] {
            let mut reading = 0;
            clock.follow_by(&mut |id| {
                machine.pass(if reading % 3 == 1 { early } else { late });
                reading += 1;
                machine.read(id)
            });
            assert_eq!(clock.utc_minus_monotonic.load(Ordering::Relaxed), known, "{early} {late}");
        }
        // A larger step is followed.
        machine.ahead += 10_000;
        machine.followed_by(&clock);
        assert_eq!(clock.utc_minus_monotonic.load(Ordering::Relaxed), known + 10_000);
    }

    /// Effect of a step on records: the time between two of them is that of their timestamps, whatever UTC does.
    /// Battery: F7
    #[test]
    fn stamps_of_one_look_keep_their_distances() {
        let clock = unread();
        let mut machine = Machine::new();
        let mut utc = Vec::new();
        for step in [0, HOUR, -2 * HOUR] {
            machine.ahead += step;
            machine.followed_by(&clock);
            for _ in 0..3 {
                machine.pass(1_000);
                utc.push(clock.utc_ns(&stamped(machine.monotonic as u64, 0), 0) as i64);
            }
        }
        let between: Vec<i64> = utc.windows(2).map(|two| two[1] - two[0]).collect();
        // Fifteen readings and a microsecond pass where UTC steps; half a reading is uncertain.
        let stepped = |by: i64| by + 15 * READING + 1_000 - READING..=by + 15 * READING + 1_000 + READING;
        assert_eq!(
            (&between[..2], &between[3..5], &between[6..]),
            (&[1_000; 2][..], &[1_000; 2][..], &[1_000; 2][..])
        );
        assert!(
            stepped(HOUR).contains(&between[2]) && stepped(-2 * HOUR).contains(&between[5]),
            "{between:?}"
        );
    }

    #[test]
    fn a_card_without_a_clock_is_named() {
        let error = CardClock::open(4_000_000).unwrap_err().to_string();
        assert!(error.contains("/dev/ptp4000000"), "{error}");
    }

    /// If the machine has a PTP clock, ours and the kernel's answer agree.
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
        // A virtual machine may be paused between any two of these lines.
        assert!(utc.abs_diff(now) < 1_000_000_000, "{utc} {now}");
    }
}
