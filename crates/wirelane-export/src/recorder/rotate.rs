//! Rotation: when a file is full.
//!
//! By size and by packets, a file ends before the packet that would exceed the limit. By time, it ends at the multiples
//! of the interval in UTC (an interval of an hour: at 12:00:00, 13:00:00), by the packets' own time, so that files of
//! several machines cover the same spans.
//!
//! The clock may be set during a recording. A step forward ends one file, however large it is. After a step back, the
//! packets' time lies before the file's span: they stay in it, and the file ends when it is older, by the monotonic
//! clock, than an interval may be. So each file that ends by time needs either a later span or an interval of real
//! time, and neither can repeat in a loop.

use std::time::Duration;

/// Limits of a file, after which the next one begins. All limits that are set apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum bytes of a file, as on the disk; only a single larger packet exceeds it.
    pub size: Option<u64>,
    /// Time span of a file; spans begin at the interval's multiples in UTC.
    pub interval: Option<Duration>,
    /// Maximum packets of a file.
    pub packets: Option<u64>,
}

impl Rotation {
    /// Whether there may be more than one file.
    pub fn is_set(&self) -> bool {
        self.size.is_some() || self.interval.is_some() || self.packets.is_some()
    }

    /// The span of a file that begins at this UTC time; `monotonic` is the time of the monotonic clock.
    pub(crate) fn span(&self, utc_ns: u64, monotonic: Duration) -> Span {
        let Some(interval) = self.interval else {
            return Span { end_ns: None, oldest: Duration::MAX };
        };
        let length = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        // More than an interval: a slewed clock must reach the end of the span first, or the age would end a file a
        // moment before its span ends, and the next file would cover only that moment.
        let age = interval.saturating_add(interval / 10).saturating_add(Duration::from_secs(1));
        Span { end_ns: (utc_ns - utc_ns % length).checked_add(length), oldest: monotonic.saturating_add(age) }
    }
}

/// Time span of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first UTC nanosecond after the span; `None`: the span has no end.
    end_ns: Option<u64>,
    /// End by the monotonic clock, whatever the UTC clock shows.
    oldest: Duration,
}

impl Span {
    /// Whether a packet with this time belongs to a later file.
    pub(crate) fn is_over(&self, utc_ns: u64, monotonic: Duration) -> bool {
        self.end_ns.is_some_and(|end_ns| utc_ns >= end_ns) || monotonic >= self.oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * SECOND;

    #[test]
    fn the_last_nanosecond_of_64_bits_is_in_a_file() {
        let forever = Rotation::default().span(0, Duration::ZERO);
        assert!(!forever.is_over(u64::MAX, Duration::MAX - Duration::from_secs(1)));
        assert!(!hourly().span(u64::MAX, Duration::ZERO).is_over(u64::MAX, Duration::ZERO));
    }

    fn hourly() -> Rotation {
        Rotation { interval: Some(Duration::from_secs(3600)), ..Rotation::default() }
    }

    /// Files of a recording with one packet per second, under clocks that show these times; as (first, last) UTC.
    fn files(rotation: Rotation, clocks: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let mut files: Vec<(u64, u64)> = Vec::new();
        let mut span = None;
        for (utc, monotonic) in clocks {
            let monotonic = Duration::from_nanos(monotonic);
            if span.is_none_or(|span: Span| span.is_over(utc, monotonic)) {
                span = Some(rotation.span(utc, monotonic));
                files.push((utc, utc));
            }
            files.last_mut().unwrap().1 = utc;
        }
        files
    }

    #[test]
    fn spans_begin_at_multiples() {
        let clocks = (0..3 * 3600 + 1).map(|s| (10 * HOUR + HOUR / 2 + s * SECOND, s * SECOND));
        let files = files(hourly(), clocks);
        let starts: Vec<u64> = files.iter().map(|file| file.0).collect();
        assert_eq!(starts, [10 * HOUR + HOUR / 2, 11 * HOUR, 12 * HOUR, 13 * HOUR]);
        assert_eq!(files[0].1, 11 * HOUR - SECOND);
    }

    #[test]
    fn a_step_of_an_hour_costs_one_file_either_way() {
        // Two hours of real time from 10:30; the step comes after half an hour and a second.
        let run = |step: i64| {
            let clocks = (0..7200u64).map(|s| {
                let utc = 10 * HOUR + HOUR / 2 + s * SECOND;
                (if s > 1800 { utc.wrapping_add_signed(step) } else { utc }, s * SECOND)
            });
            files(hourly(), clocks).len()
        };
        assert_eq!(run(0), 3);
        assert_eq!(run(HOUR as i64), 4, "10:30, 11:00, 12:00, 13:00");
        // 10:30, 11:00; back at 10:00, which stays in the file of 11:00 until the file is older than an hour.
        assert_eq!(run(-(HOUR as i64)), 3);
    }

    #[test]
    fn slew_does_not_make_files_of_a_moment() {
        // A clock that loses 500 parts per million.
        let clocks = (0..20 * 3600).map(|s| (10 * HOUR + s * (SECOND - SECOND / 2000), s * SECOND));
        let files = files(hourly(), clocks);
        assert_eq!(files.len(), 20);
        assert!(files[..19].iter().all(|file| file.1 - file.0 > HOUR - 2 * SECOND), "{files:?}");
    }

    #[test]
    fn without_an_interval_no_time_ends_a_file() {
        let span = Rotation { size: Some(1), ..Rotation::default() }.span(0, Duration::ZERO);
        assert!(!span.is_over(u64::MAX - 1, Duration::from_secs(1 << 40)));
    }

    proptest! {
        /// Whatever the clock does, there are no more files than spans that it newly reached or than intervals that
        /// passed, and a clock that only goes forward leaves no packet outside of its file's span.
        /// Battery: F7
        #[test]
        fn clock_steps_never_loop(
            steps in proptest::collection::vec((0u64..2000, -5000i64..5000, 0u8..10), 1..400),
            interval in 1u64..600,
        ) {
            let rotation = Rotation { interval: Some(Duration::from_secs(interval)), ..Rotation::default() };
            let (mut utc, mut monotonic) = (1_000_000 * SECOND, 0u64);
            let (mut advanced, mut steps_back) = (0u64, 0u64);
            let mut clocks = Vec::new();
            for (pass, step, kind) in steps {
                monotonic += pass * SECOND;
                utc += pass * SECOND;
                advanced += pass;
                if kind == 0 {
                    utc = utc.saturating_add_signed(step * SECOND as i64);
                    if step > 0 { advanced += step as u64 } else { steps_back += 1 }
                }
                clocks.push((utc, monotonic));
            }
            let files = files(rotation, clocks);
            prop_assert!(files.len() as u64 <= advanced / interval + steps_back + 2);
            if steps_back == 0 {
                for (first, last) in files {
                    prop_assert_eq!(first / (interval * SECOND), last / (interval * SECOND));
                }
            }
        }
    }
}
