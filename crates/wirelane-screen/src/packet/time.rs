//! Times of packets, by tcpdump's -t, -tt, -ttt, -tttt and -ttttt.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use wirelane_export::calendar;

/// Form in which the time of a packet is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Date and time in UTC, or in the local time zone.
    #[default]
    Date,
    /// Nothing.
    None,
    /// Seconds since 1970.
    Epoch,
    /// Seconds since the packet before.
    SincePrevious,
    /// Seconds since the first packet.
    SinceFirst,
}

impl Times {
    /// The style for this number of letters `t`; `None` if there are too many.
    pub fn of_letters(letters: u8) -> Option<Times> {
        use Times::{Date, Epoch, None as Nothing, SinceFirst, SincePrevious};
        [Date, Nothing, Epoch, SincePrevious, Date, SinceFirst].get(usize::from(letters)).copied()
    }
}

/// Writes times of packets, and keeps those that later ones are relative to.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    times: Times,
    first: Option<u64>,
    previous: Option<u64>,
}

impl Clock {
    /// A clock that writes times in this style.
    pub fn new(times: Times) -> Clock {
        Clock { times, ..Clock::default() }
    }

    /// Adds the time of the next packet, in nanoseconds since 1970, and a blank.
    pub fn write(&mut self, into: &mut String, utc_ns: u64) {
        let first = *self.first.get_or_insert(utc_ns);
        let previous = self.previous.replace(utc_ns).unwrap_or(utc_ns);
        match self.times {
            Times::None => {}
            Times::Date if calendar::local().is_some() => {
                _ = write!(into, "{} ", calendar::shown(utc_ns).strftime("%Y-%m-%dT%H:%M:%S%.9f%:z"));
            }
            Times::Date => _ = write!(into, "{} ", date(utc_ns)),
            Times::Epoch => _ = write!(into, "{} ", seconds(i128::from(utc_ns))),
            Times::SincePrevious => {
                _ = write!(into, "{} ", seconds(i128::from(utc_ns) - i128::from(previous)));
            }
            Times::SinceFirst => _ = write!(into, "{} ", seconds(i128::from(utc_ns) - i128::from(first))),
        }
    }
}

/// RFC 3339, UTC, with nanoseconds.
pub fn date(utc_ns: u64) -> String {
    humantime::format_rfc3339_nanos(SystemTime::UNIX_EPOCH + Duration::from_nanos(utc_ns)).to_string()
}

fn seconds(ns: i128) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}.{:09}", ns.unsigned_abs() / 1_000_000_000, ns.unsigned_abs() % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_relative() {
        let shown = |letters: u8| {
            let mut clock = Clock::new(Times::of_letters(letters).unwrap());
            let mut text = String::new();
            for ns in [1_700_000_000_000_000_001u64, 1_700_000_001_500_000_001, 1_700_000_001_000_000_000] {
                clock.write(&mut text, ns);
                text.push('|');
            }
            text
        };
        assert_eq!(shown(1), "|||");
        assert_eq!(shown(2), "1700000000.000000001 |1700000001.500000001 |1700000001.000000000 |");
        assert_eq!(shown(3), "0.000000000 |1.500000000 |-0.500000001 |");
        assert_eq!(shown(5), "0.000000000 |1.500000000 |0.999999999 |");
        assert!(shown(0).starts_with("2023-11-14T22:13:20.000000001Z |") && shown(0) == shown(4));
        assert_eq!(Times::of_letters(6), None);
    }
}
