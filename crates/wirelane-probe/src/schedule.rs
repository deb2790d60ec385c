//! Evaluation of schedules by the clock of the packets.

use crate::config::When;

const DAY: u64 = 86_400;
const SECOND_NS: u64 = 1_000_000_000;

/// Whether the schedule is due after the first of these moments and up to the second, UTC in nanoseconds.
pub(crate) fn is_due(when: When, after_ns: u64, now_ns: u64) -> bool {
    if now_ns <= after_ns {
        return false;
    }
    match when {
        When::Every(every_ns) => now_ns / every_ns > after_ns / every_ns,
        When::At { second, days } => {
            let (first, last) = (after_ns / SECOND_NS / DAY, now_ns / SECOND_NS / DAY);
            // A week has all days: a longer time needs no more of them.
            (first.max(last.saturating_sub(7))..=last).any(|day| {
                // 1 January 1970 was a Thursday.
                let bit = 1 << ((day + 3) % 7);
                let moment_ns = (day * DAY + u64::from(second)).saturating_mul(SECOND_NS);
                days & bit != 0 && (after_ns < moment_ns && moment_ns <= now_ns)
            })
        }
    }
}

/// First due time after this moment, UTC in nanoseconds.
pub(crate) fn next(when: When, after_ns: u64) -> u64 {
    match when {
        When::Every(every_ns) => (after_ns / every_ns).saturating_add(1).saturating_mul(every_ns),
        When::At { second, days } => {
            let first = after_ns / SECOND_NS / DAY;
            let moments = (first..=first + 7).filter(|day| days & 1 << ((day + 3) % 7) != 0);
            let moments = moments.map(|day| (day * DAY + u64::from(second)).saturating_mul(SECOND_NS));
            // A configuration names at least one day of the week.
            moments.into_iter().find(|moment| *moment > after_ns).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_times_of_the_day_come_once() {
        let s = |seconds: u64| seconds * SECOND_NS;
        let every = When::Every(s(600));
        assert!(
            is_due(every, s(599), s(600))
                && !is_due(every, s(600), s(1199))
                && is_due(every, s(600), s(1200))
        );
        assert!(is_due(every, s(1), s(100_000)) && !is_due(every, s(700), s(650)));
        // 2026-03-02 was a Monday.
        let monday = 20_514 * DAY;
        let at = |days| When::At { second: 22 * 3600, days };
        let ten = monday + 22 * 3600;
        assert!(is_due(at(1), s(ten - 1), s(ten)) && !is_due(at(1), s(ten), s(ten + 1)));
        assert!(!is_due(at(2), s(ten - 1), s(ten)) && is_due(at(2), s(ten + DAY - 1), s(ten + DAY)));
        assert!(is_due(at(0x40), s(monday), s(monday + 30 * DAY)), "a month has a Sunday");
        assert!(!is_due(at(0x7e), s(ten - 10), s(ten + 10)));
        assert!(is_due(at(0x7f), 0, u64::MAX));
        for (when, after, then) in [
            (every, s(599), s(600)),
            (every, s(600), s(1200)),
            (at(0x7f), s(ten - 1), s(ten)),
            (at(0x7f), s(ten), s(ten + DAY)),
            (at(1), s(ten), s(ten + 7 * DAY)),
            (at(2), s(ten), s(ten + DAY)),
        ] {
            assert_eq!(next(when, after), then, "{when:?}");
            assert!(is_due(when, after, then) && !is_due(when, after, then - 1));
        }
    }
}
