//! The reader: merges the tables of all workers, evaluates alarms and schedules, and emits events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wirelane::PluginLine;

use crate::event::{Event, Totals};
use crate::plan::Plan;
use crate::plugin_counters::{self, PluginCounterDeltas};
use crate::state::Conditions;
use crate::table::Table;
use crate::timeline::Timeline;
use crate::worker::Closed;

/// Maximum number of empty intervals between two others that are evaluated; further ones are skipped.
const MOST_EMPTY: u64 = 60;

/// An interval that not all workers have handed over.
#[derive(Debug)]
struct Pending {
    plan: Arc<Plan>,
    part: Part,
    /// Whether a worker has adopted another plan during or before this interval.
    goes_on: bool,
}

/// Counts of an interval: all of it, or the part by one of the plans that were active during it.
#[derive(Debug)]
struct Part {
    tables: Vec<Option<Table>>,
    /// Plug-in counters at the end of the interval, if there are plug-ins.
    counted: Vec<PluginLine>,
}

impl Part {
    /// Adds the counts of another worker, or of another part of the interval.
    fn merge(&mut self, other: Part) {
        for (ours, theirs) in self.tables.iter_mut().zip(other.tables) {
            match (ours.as_mut(), theirs) {
                (Some(ours), Some(theirs)) => ours.merge(theirs),
                (None, Some(theirs)) => *ours = Some(theirs),
                _ => {}
            }
        }
        plugin_counters::later(&mut self.counted, other.counted);
    }
}

/// Merges what workers hand over.
#[derive(Debug)]
pub struct Reader {
    /// Position before which each worker has handed over everything.
    reached: Vec<(u64, u64)>,
    pending: BTreeMap<(u64, u64), Pending>,
    timeline: Option<Timeline>,
    /// Counts by interval that wait for the rest, which the successor plan counts.
    parts: BTreeMap<u64, Part>,
    /// Number of the plan whose parts are collected from now on, as a successor plan continues its intervals.
    awaited: Option<u64>,
    totals: Totals,
    growth: PluginCounterDeltas,
}

impl Reader {
    /// A reader for this number of workers.
    pub fn new(workers: usize) -> Reader {
        Reader {
            reached: vec![(0, 0); workers],
            pending: BTreeMap::new(),
            timeline: None,
            parts: BTreeMap::new(),
            awaited: None,
            totals: Totals::default(),
            growth: PluginCounterDeltas::default(),
        }
    }

    /// Accepts the result of a worker, and evaluates the intervals that all workers have handed over.
    pub fn take(&mut self, closed: Closed) -> Vec<Event> {
        self.totals.packets += closed.packets;
        self.totals.bytes += closed.bytes;
        self.totals.late += closed.late;
        if let Some(reached) = self.reached.get_mut(closed.worker) {
            *reached = (*reached).max(closed.reached);
        }
        match self.pending.get_mut(&closed.at) {
            None => {
                // A worker without packets only reports how far it is.
                if closed.packets > 0 || closed.reached.0 == closed.at.0 {
                    let Closed { plan, tables, counted, goes_on, .. } = closed;
                    let part = Part { tables, counted };
                    self.pending.insert(closed.at, Pending { plan, part, goes_on });
                }
            }
            Some(pending) => {
                pending.goes_on |= closed.goes_on;
                // A worker may have begun the interval after a measurement was switched on or off.
                pending.part.merge(Part { tables: closed.tables, counted: closed.counted });
            }
        }
        let done = self.reached.iter().min().copied().unwrap_or((u64::MAX, u64::MAX));
        let mut events = Vec::new();
        while let Some(entry) = self.pending.first_entry() {
            if *entry.key() >= done {
                break;
            }
            let (at, pending) = entry.remove_entry();
            self.interval(at, pending, &mut events);
        }
        events
    }

    /// Final totals of the probe, and of measurements since the start or the last flush. Call after all workers have
    /// ended. `counted`: final plug-in counters.
    pub fn finish(&mut self, counted: &[PluginLine]) -> (Vec<Event>, Totals) {
        let mut events = Vec::new();
        while let Some((at, pending)) = self.pending.pop_first() {
            self.interval(at, pending, &mut events);
        }
        self.look_until(u64::MAX, &mut events);
        if let Some(mut timeline) = self.timeline.take() {
            // Counts of plug-ins after the last analysed packet.
            let growth = self.growth.of(counted);
            if growth.iter().any(|one| one.values().any(|number| *number > 0)) {
                timeline.behind(&growth, &mut events);
            }
            timeline.flush(&mut events);
            timeline.add(&mut self.totals);
        }
        (events, self.totals)
    }

    /// Number of intervals that wait for other workers or for evaluation, and of plans with totals.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.pending.len() + self.parts.len() + usize::from(self.timeline.is_some())
    }

    /// Evaluates an interval that all workers have handed over.
    fn interval(&mut self, at: (u64, u64), pending: Pending, events: &mut Vec<Event>) {
        let (generation, number) = at;
        let Pending { plan, part, goes_on } = pending;
        let start_ns = number.saturating_mul(plan.config.interval_ns);
        if let Some(timeline) = self.timeline.as_ref().filter(|timeline| timeline.generation != generation)
            && !plan.is_of_line(&timeline.plan)
        {
            // Another configuration measures another sum.
            self.look_until(u64::MAX, events);
            if let Some(mut timeline) = self.timeline.take() {
                timeline.flush(events);
                timeline.all_off(events);
                timeline.add(&mut self.totals);
                self.totals.reloads += 1;
            }
        }
        let timeline = self
            .timeline
            .get_or_insert_with(|| Timeline::new(Arc::clone(&plan), generation, start_ns, number));
        if timeline.generation != generation {
            timeline.follow(plan, generation, events);
        }
        match self.parts.get_mut(&number) {
            Some(known) => known.merge(part),
            None => drop(self.parts.insert(number, part)),
        }
        // The successor plan counts the rest of this interval and the intervals after it.
        if timeline.plan.is_followed() && (goes_on || self.awaited == Some(generation)) {
            self.awaited = Some(generation);
            return;
        }
        self.look_until(number.saturating_add(1), events);
    }

    /// Evaluates the collected intervals before this one, and the empty intervals between them.
    fn look_until(&mut self, end: u64, events: &mut Vec<Event>) {
        let Some(timeline) = &mut self.timeline else { return };
        let later = self.parts.split_off(&end);
        let mut parts = std::mem::replace(&mut self.parts, later);
        let Some(highest) = parts.last_key_value().map(|(number, _)| *number) else { return };
        let between = timeline.last.saturating_add(1)..highest;
        let gap = between.end.saturating_sub(between.start);
        let mut numbers: BTreeSet<u64> = between.clone().take(MOST_EMPTY as usize).collect();
        numbers.extend(parts.keys());
        let looked_at = numbers.range(between.start.min(highest)..highest).count() as u64;
        self.totals.skipped_intervals += gap - looked_at;
        for number in numbers {
            let nothing = || {
                let active = timeline.plan.active();
                let of = timeline.plan.config.measurements.iter().zip(&timeline.plan.shapes).enumerate();
                let tables = of.map(|(place, (measurement, shape))| {
                    (active & 1 << place != 0).then(|| Table::new(shape, measurement.keys))
                });
                tables.collect()
            };
            let tables = match parts.remove(&number) {
                Some(Part { mut tables, counted }) => {
                    timeline.put_growth(&self.growth.of(&counted), &mut tables);
                    tables
                }
                None => nothing(),
            };
            self.totals.intervals += 1;
            timeline.look(number, tables, events);
        }
    }

    /// State of measurements, alarms and schedules under the active plan; `now_ns`: UTC, for schedules before the first
    /// interval has ended.
    pub fn state(&self, plan: &Plan, now_ns: u64) -> Conditions {
        let timeline = self.timeline.as_ref().filter(|timeline| plan.is_of_line(&timeline.plan));
        let watches = timeline.map_or(&[][..], |timeline| &timeline.watches);
        Conditions::new(plan, watches, timeline.map_or(now_ns, |timeline| timeline.until_ns))
    }
}
