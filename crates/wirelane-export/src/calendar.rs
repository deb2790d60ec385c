//! UTC times in the formats of files and logs.

/// A date and time of the calendar.
pub struct Calendar {
    /// Year, at least 1970.
    pub year: u64,
    /// Month, from 1.
    pub month: usize,
    /// Day of the month, from 1.
    pub day: u64,
    /// Hour of the day.
    pub hour: u64,
    /// Minute of the hour.
    pub minute: u64,
    /// Second of the minute.
    pub second: u64,
}

/// Names of the months in logs.
pub const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Converts seconds since 1970 to a calendar time.
pub fn calendar(seconds: u64) -> Calendar {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that leap days are last; all eras of 400 years are equal.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    Calendar { year, month: month as usize, day, hour, minute, second }
}

/// Time of day with milliseconds, from nanoseconds since 1970.
pub fn clock(ns: u64) -> String {
    let time = calendar(ns / 1_000_000_000);
    let ms = ns / 1_000_000 % 1000;
    format!("{:02}:{:02}:{:02}.{ms:03}", time.hour, time.minute, time.second)
}

/// Date and time without colons, for file names: `20260301T120000Z`.
pub fn compact(ns: u64) -> String {
    let time = calendar(ns / 1_000_000_000);
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        time.year, time.month, time.day, time.hour, time.minute, time.second
    )
}
