//! Questions to a store: their time spans, and mistakes in their SQL.

use wirelane_screen::table::printable;

/// A time span in whole hours: until the last one that is over, if it has a beginning, and with one hour at least.
pub fn hours(from_ns: Option<i64>, to_ns: Option<i64>, now_ns: i64) -> (Option<i64>, Option<i64>) {
    const HOUR: i64 = 3_600_000_000_000;
    let begin = |ns: i64| ns.div_euclid(HOUR) * HOUR;
    let to = to_ns.map(|to| begin(to.saturating_add(HOUR - 1))).or(from_ns.map(|_| begin(now_ns)));
    let from = from_ns.map(|from| to.map_or(begin(from), |to| begin(from).min(to.saturating_sub(HOUR))));
    (from, to)
}

/// Length of a step in seconds that results in some dozen rows, if the range has a beginning.
pub fn step_of(from_ns: Option<i64>, to_ns: Option<i64>) -> u64 {
    let Some(from) = from_ns else { return 3600 };
    let seconds = (to_ns.unwrap_or_else(now_ns).saturating_sub(from) / 1_000_000_000) as u64;
    let steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800];
    steps.into_iter().find(|step| seconds / step <= 36).unwrap_or(2_592_000)
}

/// Nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as i64)
}

/// Formats an SQL error with its position.
pub fn mistake(sql: &str, message: &str, at: Option<(u64, u64)>, hint: Option<&str>) -> String {
    let mut text = printable(message).into_owned();
    if let Some(hint) = hint {
        text += &format!("; {}", printable(hint));
    }
    // An error at the end of the text has no other position.
    let end =
        || sql.lines().enumerate().last().map(|(at, line)| (at as u64 + 1, line.chars().count() as u64 + 1));
    let at = at.or_else(|| if message.ends_with("found: EOF") { end() } else { None });
    if let Some((line, column)) = at
        && let Some(shown) = sql.lines().nth(line.saturating_sub(1) as usize)
    {
        let before: String = shown.chars().take(column.saturating_sub(1) as usize).collect();
        let pad = " ".repeat(printable(&before).chars().count());
        text += &format!(" (line {line}, column {column})\n  {}\n  {pad}^", printable(shown));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_whole_and_over() {
        let at = |(hour, minute): (i64, i64)| (20_780 * 24 * 60 + hour * 60 + minute) * 60_000_000_000;
        let now = at((12, 40));
        for (from, to, expected) in [
            (None, None, (None, None)),
            (None, Some((4, 30)), (None, Some((5, 0)))),
            (Some((11, 30)), None, (Some((11, 0)), Some((12, 0)))),
            (Some((12, 10)), None, (Some((11, 0)), Some((12, 0)))),
            (Some((3, 0)), Some((4, 0)), (Some((3, 0)), Some((4, 0)))),
        ] {
            let (from, to) = (from.map(at), to.map(at));
            assert_eq!(hours(from, to, now), (expected.0.map(at), expected.1.map(at)));
        }
    }
}
