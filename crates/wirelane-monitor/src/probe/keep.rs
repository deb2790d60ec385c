//! Writes results of a probe to a store and to Prometheus metrics.

use wirelane::ledger::Counters;
use wirelane_export::OutputState;
use wirelane_export::metrics::ProbeMetrics;
use wirelane_probe::{AlarmEvent, Entry, Event, Growth};

use super::worker::now_ns;
use crate::store::{Store, Stored};

/// Stores results. The store and the metrics are both optional.
#[derive(Default)]
pub struct Keep {
    store: Option<Store<Entry>>,
    numbers: Option<ProbeMetrics>,
    /// Growth of a live capture's ledger, which is stored in parts.
    growth: Option<Growth>,
    /// From the first interval of a file to the last.
    span_ns: Option<(u64, u64)>,
}

impl Keep {
    /// Creates empty outputs. `live`: the current time is that of the clock, instead of the file's packets.
    pub fn new(store: Option<Store<Entry>>, numbers: Option<ProbeMetrics>, live: bool) -> Keep {
        Keep { store, numbers, growth: live.then(|| Growth::from(now_ns())), span_ns: None }
    }

    /// Stores results, except these alarms, which are stored with their recordings ([`Keep::recorded`]).
    pub fn take(&mut self, events: &[Event], awaited: &[&AlarmEvent]) {
        if self.store.is_none() && self.numbers.is_none() {
            return;
        }
        let mut entries: Vec<Entry> = events.iter().filter_map(Entry::of).collect();
        for entry in &entries {
            if let Some(numbers) = &self.numbers {
                numbers.take(entry);
            }
            if let Entry::Measured(shown) = entry {
                let (start_ns, end_ns) = (shown.interval.start_ns, shown.interval.end_ns);
                let (first_ns, last_ns) = self.span_ns.unwrap_or((start_ns, end_ns));
                self.span_ns = Some((first_ns.min(start_ns), last_ns.max(end_ns)));
            }
        }
        entries.retain(|entry| !matches!(entry, Entry::Alarm(alarm, _) if awaited.contains(&alarm)));
        self.put(entries);
    }

    /// Stores alarms whose recordings have ended, with the paths of their files.
    pub fn recorded(&mut self, alarms: Vec<(AlarmEvent, Option<String>)>) {
        self.put(alarms.into_iter().map(|(alarm, file)| Entry::Alarm(alarm, file)).collect());
    }

    fn put(&mut self, entries: Vec<Entry>) {
        if let Some(store) = self.store.as_mut().filter(|_| !entries.is_empty()) {
            store.take(entries);
        }
    }

    /// State of the store, if there is one.
    pub fn store(&self) -> Option<OutputState> {
        self.store.as_ref().map(Store::state)
    }

    /// Stores the growth of a live capture's ledger.
    pub fn ledger(&mut self, counters: &Counters) {
        if let (Some(store), Some(growth)) = (&mut self.store, &mut self.growth)
            && let Some(part) = growth.part(counters, store.unstored(), now_ns())
        {
            store.take(vec![Entry::Ledger(part)]);
        }
    }

    /// Ends the outputs. `counters`: the final ledger; for a file it is stored with the time of its packets.
    pub fn finish(mut self, counters: Option<&Counters>) -> Option<Stored> {
        if let Some(counters) = counters {
            if self.growth.is_some() {
                self.ledger(counters);
            } else if let Some(store) = &mut self.store {
                // Without a measured packet, the time of the packets is unknown.
                let (start_ns, end_ns) = self.span_ns.unwrap_or_else(|| (now_ns(), now_ns()));
                let part = Growth::from(start_ns).part(counters, store.unstored(), end_ns);
                part.into_iter().for_each(|part| store.take(vec![Entry::Ledger(part)]));
            }
        }
        self.store.take().map(Store::finish)
    }
}
