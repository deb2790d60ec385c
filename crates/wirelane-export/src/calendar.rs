//! Times of files and logs, which are in UTC, and times for people, which are in UTC or in the local time zone.

use std::sync::OnceLock;

use jiff::civil::{DateTime, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ZonedDateTime};

/// Zone of the times for people. There is one for a process, as for the C library's TZ.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Date and time in UTC, from seconds since 1970. Later times become the end of the year 9999.
pub fn calendar(seconds: u64) -> DateTime {
    let since = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    date(1970, 1, 1).at(0, 0, 0, 0).saturating_add(since)
}

/// Time of day in UTC with milliseconds, from nanoseconds since 1970.
pub fn clock(ns: u64) -> String {
    of_day(zoned(ns, TimeZone::UTC).datetime())
}

/// Date and time in UTC without colons, for file names: `20260301T120000Z`.
pub fn compact(seconds: u64) -> String {
    calendar(seconds).strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Has the times for people in the system's time zone, or in that of the variable TZ. Reads files, but only here.
///
/// # Errors
/// If the zone is not known.
pub fn use_local_time() -> Result<(), jiff::Error> {
    let zone = TimeZone::try_system()?;
    // A second call finds the same zone.
    let _ = ZONE.set(zone);
    Ok(())
}

/// The local time zone, if the times for people are in it.
pub fn local() -> Option<&'static TimeZone> {
    ZONE.get()
}

/// The zone of the times for people.
pub fn zone() -> TimeZone {
    local().cloned().unwrap_or(TimeZone::UTC)
}

/// The word for the zone of the times for people: `UTC` or `local`.
pub fn zone_word() -> &'static str {
    if local().is_some() { "local" } else { "UTC" }
}

/// A time for people, from nanoseconds since 1970.
pub fn shown(ns: u64) -> ZonedDateTime {
    zoned(ns, zone())
}

/// Time of day for people with milliseconds, from nanoseconds since 1970.
pub fn shown_clock(ns: u64) -> String {
    of_day(shown(ns).datetime())
}

fn zoned(ns: u64, zone: TimeZone) -> ZonedDateTime {
    // 64 bits of nanoseconds end in 2554, and a time stamp in the year 9999.
    Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::MAX).to_zoned_datetime(zone)
}

fn of_day(time: DateTime) -> String {
    let ms = time.subsec_nanosecond() / 1_000_000;
    format!("{:02}:{:02}:{:02}.{ms:03}", time.hour(), time.minute(), time.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_files_are_in_utc() {
        // Expected texts from date -u -d @N +%Y%m%dT%H%M%SZ.
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_709_251_199, "20240229T235959Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (253_402_300_799, "99991231T235959Z"),
            (u64::MAX, "99991231T235959Z"),
        ] {
            assert_eq!(compact(seconds), text);
        }
        assert_eq!(clock(1_700_000_000_250_999_999), "22:13:20.250");
        assert_eq!(clock(u64::MAX), "23:34:33.709");
    }
}
