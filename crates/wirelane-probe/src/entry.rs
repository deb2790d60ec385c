//! Stored entries of a probe: results of intervals, alarms, and the ledger.

use wirelane::ledger::Counters;

use crate::alarm::AlarmEvent;
use crate::event::Event;
use crate::result::Shown;

/// One entry to store.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Result of a measurement in an interval.
    Measured(Shown),
    /// An alarm that was raised or cleared, and the path of the file with the packets around it, if there is one.
    Alarm(AlarmEvent, Option<String>),
    /// Packet counts of the ledger.
    Ledger(LedgerPart),
}

/// Increment of the ledger over some time: the parts of a capture add up to its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerPart {
    /// Start of that time, UTC nanoseconds since 1970.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Increments of the counters.
    pub counters: Counters,
    /// Rows of all tables that were not stored meanwhile: beyond the write limit, or unwritten.
    pub unstored: u64,
}

impl Entry {
    /// Entry to store for an event. Totals are not stored: they are sums of stored entries.
    pub fn of(event: &Event) -> Option<Entry> {
        match event {
            Event::Shown(shown) => (!shown.total).then(|| Entry::Measured(shown.clone())),
            Event::Alarm(alarm) => Some(Entry::Alarm(alarm.clone(), None)),
            Event::Log(_) | Event::Run { .. } | Event::Record(_) | Event::Export(..) => None,
        }
    }
}

/// Computes the increments of a ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    before: Counters,
    unstored: u64,
    /// End of the last part, after the first one.
    until_ns: Option<u64>,
}

impl Growth {
    /// From this time on, with all counters at 0.
    pub fn from(start_ns: u64) -> Growth {
        Growth { until_ns: Some(start_ns), ..Growth::default() }
    }

    /// Increment since the last part, up to this time; `None`: nothing has changed. `unstored`: number of rows that the
    /// capture has not stored since its start.
    pub fn part(&mut self, now: &Counters, unstored: u64, end_ns: u64) -> Option<LedgerPart> {
        let before = self.before;
        // The device's own counters may restart, with its driver.
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let counters = Counters {
            seen: more(now.seen, before.seen),
            filtered: more(now.filtered, before.filtered),
            blocked: more(now.blocked, before.blocked),
            absorbed: more(now.absorbed, before.absorbed),
            offloaded: more(now.offloaded, before.offloaded),
            offloaded_bytes: more(now.offloaded_bytes, before.offloaded_bytes),
            measured: more(now.measured, before.measured),
            shed: more(now.shed, before.shed),
            lost: more(now.lost, before.lost),
            delivered: more(now.delivered, before.delivered),
            analysed: more(now.analysed, before.analysed),
            in_flight: 0,
            bytes: more(now.bytes, before.bytes),
            aggregates: more(now.aggregates, before.aggregates),
            nic_missed: now.nic_missed.map(|missed| more(missed, before.nic_missed.unwrap_or(0))),
        };
        let nothing = Counters { nic_missed: counters.nic_missed.filter(|missed| *missed > 0), ..counters };
        if nothing == Counters::default() && unstored == self.unstored {
            return None;
        }
        self.before = *now;
        let unstored = unstored - std::mem::replace(&mut self.unstored, unstored);
        let start_ns = self.until_ns.replace(end_ns).unwrap_or(end_ns).min(end_ns);
        Some(LedgerPart { start_ns, end_ns, counters, unstored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_ledger_and_nothing_is_no_part() {
        let mut growth = Growth::from(5);
        let ledger = |seen, lost, missed| Counters {
            seen,
            lost,
            delivered: seen - lost,
            nic_missed: Some(missed),
            ..Counters::default()
        };
        assert_eq!(growth.part(&ledger(0, 0, 0), 0, 10), None);
        let first = growth.part(&ledger(7, 2, 0), 3, 20).unwrap();
        assert_eq!((first.start_ns, first.end_ns, first.counters), (5, 20, ledger(7, 2, 0)));
        assert_eq!(first.unstored, 3);
        assert_eq!(growth.part(&ledger(7, 2, 0), 3, 30), None);
        let second = growth.part(&ledger(10, 2, 4), 3, 40).unwrap();
        assert_eq!((second.start_ns, second.end_ns), (20, 40), "silence is in the part that ends it");
        assert_eq!((second.counters.seen, second.counters.lost, second.counters.nic_missed), (3, 0, Some(4)));
        assert_eq!(second.unstored, 0);
        let third = growth.part(&ledger(10, 2, 4), 9, 50).unwrap();
        assert_eq!((third.counters.seen, third.unstored), (0, 6), "rows of the end are not silent");
    }
}
