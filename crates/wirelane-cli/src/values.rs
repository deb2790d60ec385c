//! Parsers of option values.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use wirelane::{Error, Watermarks};
use wirelane_export::calendar;

use crate::record::options::size;
use crate::source::{CongestionControl, CoresArg};

/// The usage error of an option.
pub fn wrong(option: &'static str, reason: impl Into<String>) -> anyhow::Error {
    Error::BadOption { option, reason: reason.into() }.into()
}

/// The value of --congestion-control.
pub fn watermarks(text: &str) -> std::result::Result<CongestionControl, String> {
    let percent = |text: &str| text.trim().trim_end_matches('%').parse::<u8>().ok();
    match text {
        "off" => Ok(CongestionControl(None)),
        "on" => Ok(CongestionControl(Some(Watermarks::default()))),
        _ => match text.split_once(',').map(|(low, high)| (percent(low), percent(high))) {
            Some((Some(low), Some(high))) if low > 0 && low < high && high <= 100 => {
                Ok(CongestionControl(Some(Watermarks { low, high })))
            }
            _ => {
                Err("give off, on, or two percentages of a ring from 1 to 100, the lower first, as in 50,90"
                    .into())
            }
        },
    }
}

/// The value of --from and --to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// A time with a zone.
    At(Timestamp),
    /// A time in the zone of times for people, which is known once the command line is read.
    Shown(DateTime),
}

impl Moment {
    /// Reads a time.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> std::result::Result<Moment, String> {
        let text = text.trim();
        let at = text.parse().map(Moment::At).or_else(|_| text.parse().map(Moment::Shown));
        at.map_err(|_| "give a time, as in 2026-11-23, '2026-11-23 04:00' or 2026-11-23T04:00:30Z".to_owned())
    }

    /// Nanoseconds since 1970.
    ///
    /// # Errors
    /// A usage error if these are too many, or negative.
    #[cfg_attr(not(feature = "store"), expect(dead_code, reason = "only stores are asked"))]
    pub fn ns(self) -> Result<i64, Error> {
        let at = match self {
            Moment::At(at) => Ok(at),
            Moment::Shown(time) => time.to_zoned_datetime(calendar::zone()).map(|time| time.timestamp()),
        };
        let ns = at.ok().and_then(|at| i64::try_from(at.as_nanosecond()).ok()).filter(|ns| *ns >= 0);
        let reason = "give times from 1970 to 2262".to_owned();
        ns.ok_or(Error::BadOption { option: "--from and --to", reason })
    }
}

/// Splits a text into a number and its unit.
pub fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A time, of which a number without a unit is in seconds, in nanoseconds; `None` if it is not one.
fn nanoseconds(text: &str) -> Option<f64> {
    time_in(text, 1e9)
}

/// A time in nanoseconds; a number without a unit counts as so many times `bare` nanoseconds.
fn time_in(text: &str, bare: f64) -> Option<f64> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => bare,
        "s" | "sec" => 1e9,
        "ns" => 1.0,
        "us" | "\u{b5}s" => 1e3,
        "ms" => 1e6,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// A time of a millisecond or more: 10 or 10s, 500ms, 10m, 1h, 1d.
pub fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match nanoseconds(text) {
        Some(ns) if (1e6..=1e18).contains(&ns) => Ok(Duration::from_nanos(ns.round() as u64)),
        _ => Err("give a time, as in 10 (seconds), 500ms, 10m or 1h".into()),
    }
}

/// A time of a second or more: 30 or 30s, 15m, 1h, 1d.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    match nanoseconds(text) {
        Some(ns) if (1e9..=1e18).contains(&ns) => Ok(Duration::from_nanos(ns.round() as u64)),
        _ => Err("give a time of a second or more, as in 30s, 15m, 1h or 1d".into()),
    }
}

/// The value of --busy-poll, in microseconds.
pub fn busy_poll(text: &str) -> std::result::Result<u32, String> {
    match time_in(text, 1e3) {
        Some(ns) if (1e3..=1e9).contains(&ns) => Ok((ns / 1e3).round() as u32),
        _ => Err("give a time from 1us to 1s, as in 20us, or 20 (microseconds)".into()),
    }
}

/// The value of --plugin-budget, in nanoseconds.
pub fn plugin_budget(text: &str) -> std::result::Result<u32, String> {
    match time_in(text, 1.0) {
        Some(ns) if (1.0..=1e9).contains(&ns) => Ok(ns.round() as u32),
        _ => Err("give a time from 1ns to 1s, as in 5us, or 5000 (nanoseconds)".into()),
    }
}

/// Whole MiB from `least` to `most`: a number without a unit, or a size, as in 512MiB or 2G.
fn mib(text: &str, least: u64, most: u64) -> std::result::Result<u64, String> {
    let bare = text.trim().parse::<u64>().ok();
    let bytes = match bare {
        Some(mib) => mib.checked_mul(1 << 20),
        None => size(text).ok(),
    };
    let whole = bytes.filter(|bytes| bytes % (1 << 20) == 0).map(|bytes| bytes >> 20);
    whole
        .filter(|mib| (least..=most).contains(mib))
        .ok_or_else(|| format!("give whole MiB from {least} to {most}, as in 64, 64MiB or 2GiB"))
}

/// The value of --memory of an analysis, in MiB.
pub fn memory(text: &str) -> std::result::Result<u32, String> {
    mib(text, 1, 1_000_000).map(|mib| mib as u32)
}

/// The value of --memory of a query, in MiB.
pub fn query_memory(text: &str) -> std::result::Result<u32, String> {
    mib(text, 16, 1_000_000).map(|mib| mib as u32)
}

/// The value of --ring-size, in MiB; the capture checks its range.
pub fn ring_size(text: &str) -> std::result::Result<usize, String> {
    mib(text, 0, 1 << 40).map(|mib| mib as usize)
}

/// A list of cores, or 'auto'.
pub fn cores(text: &str) -> std::result::Result<CoresArg, String> {
    if text == "auto" {
        return Ok(CoresArg::Auto);
    }
    let list: std::result::Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    list.map(CoresArg::These).map_err(|_| "give numbers with commas, as in 1,3, or 'auto'".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        let ns = |text: &str| Moment::parse(text).ok().and_then(|moment| moment.ns().ok());
        for (text, expected) in [
            ("1970-01-02", Some(86_400_000_000_000)),
            ("1970-01-01 00:01", Some(60_000_000_000)),
            ("1970-01-01T00:00:01.5Z", Some(1_500_000_000)),
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("", None),
            ("yesterday", None),
            ("2026-13-01", None),
            ("2026-11-23 25:00", None),
            ("1969-12-31", None),
            ("2500-01-01", None),
        ] {
            assert_eq!(ns(text), expected, "{text}");
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        for (text, ns) in [
            ("10", 10_000_000_000u64),
            ("0.5", 500_000_000),
            ("500ms", 500_000_000),
            ("1500 us", 1_500_000),
            ("10s", 10_000_000_000),
            ("10m", 600_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(seconds(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for wrong in ["", "0", "-1", "10x", "soon", "1e9", "0.1ms", "1.2.3", "m", "inf", "nan", "99999999d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!((memory("64"), memory("64MiB"), memory("2G")), (Ok(64), Ok(64), Ok(2048)));
        assert_eq!((ring_size("4"), ring_size("8M")), (Ok(4), Ok(8)));
        for wrong in ["", "0", "64MB", "1KiB", "1000001", "many", "99999999999999999999"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
        assert_eq!((busy_poll("20"), busy_poll("20us"), busy_poll("1ms")), (Ok(20), Ok(20), Ok(1000)));
        assert_eq!(
            (plugin_budget("5000"), plugin_budget("5us"), plugin_budget("1s")),
            (Ok(5000), Ok(5000), Ok(1_000_000_000))
        );
        for wrong in ["", "0", "-1", "2s", "20x", "1e3"] {
            assert!(busy_poll(wrong).is_err() && plugin_budget(wrong).is_err(), "{wrong}");
        }
        assert!(query_memory("15").is_err() && query_memory("16MiB").is_ok());
    }
}
