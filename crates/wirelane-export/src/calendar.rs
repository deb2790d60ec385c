//! Times as files and logs write them, in UTC.

/// A time of the calendar.
pub struct Calendar {
    /// From 1970 on.
    pub year: u64,
    /// From 1 on.
    pub month: usize,
    /// From 1 on.
    pub day: u64,
    /// Of the day.
    pub hour: u64,
    /// Of the hour.
    pub minute: u64,
    /// Of the minute.
    pub second: u64,
}

/// Months, as logs write them.
pub const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The calendar's time of seconds since 1970.
pub fn calendar(seconds: u64) -> Calendar {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that leap days are last; eras of 400 years are all alike.
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

/// The time of day, of nanoseconds since 1970, with milliseconds.
pub fn clock(ns: u64) -> String {
    let time = calendar(ns / 1_000_000_000);
    let ms = ns / 1_000_000 % 1000;
    format!("{:02}:{:02}:{:02}.{ms:03}", time.hour, time.minute, time.second)
}

/// Date and time without colons, for names of files: `20260301T120000Z`.
pub fn compact(ns: u64) -> String {
    let time = calendar(ns / 1_000_000_000);
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        time.year, time.month, time.day, time.hour, time.minute, time.second
    )
}
