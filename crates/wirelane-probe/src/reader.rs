//! The reader's part: what workers hand over is merged, looked at, and shown.

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

/// Intervals without packets that are looked at one by one, between two with some; more of them are left out.
const MOST_EMPTY: u64 = 60;

/// What is known of an interval so far.
#[derive(Debug)]
struct Pending {
    plan: Arc<Plan>,
    part: Part,
    /// A worker has taken another plan up in it, or before.
    goes_on: bool,
}

/// What was counted of an interval: all of it, or by one of the plans that were in force.
#[derive(Debug)]
struct Part {
    tables: Vec<Option<Table>>,
    /// What plug-ins had counted by then, where there are any.
    counted: Vec<PluginLine>,
}

impl Part {
    /// Adds what another worker, or another part of the interval, has counted.
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
    /// Up to where each worker has handed over everything.
    reached: Vec<(u64, u64)>,
    pending: BTreeMap<(u64, u64), Pending>,
    timeline: Option<Timeline>,
    /// By intervals: what was counted of each by a plan, where the plan that follows it counts the rest.
    parts: BTreeMap<u64, Part>,
    /// The number of the plan of which all parts are kept from now on, as another goes on with their intervals.
    awaited: Option<u64>,
    totals: Totals,
    growth: PluginCounterDeltas,
}

impl Reader {
    /// A reader of so many workers.
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

    /// Takes what a worker hands over. Intervals that all workers are done with are looked at.
    pub fn take(&mut self, closed: Closed) -> Vec<Event> {
        self.totals.packets += closed.packets;
        self.totals.bytes += closed.bytes;
        self.totals.late += closed.late;
        if let Some(reached) = self.reached.get_mut(closed.worker) {
            *reached = (*reached).max(closed.reached);
        }
        match self.pending.get_mut(&closed.at) {
            None => {
                // A worker that has had nothing to do says so, and that is all.
                if closed.packets > 0 || closed.reached.0 == closed.at.0 {
                    let Closed { plan, tables, counted, goes_on, .. } = closed;
                    let part = Part { tables, counted };
                    self.pending.insert(closed.at, Pending { plan, part, goes_on });
                }
            }
            Some(pending) => {
                pending.goes_on |= closed.goes_on;
                // One may have begun the interval after a measurement was switched on, or off.
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

    /// The numbers of all that was handed over, and what measurements have come to since they began or were flushed. To be
    /// called when all workers have ended. `counted`: what plug-ins have counted in all.
    pub fn finish(&mut self, counted: &[PluginLine]) -> (Vec<Event>, Totals) {
        let mut events = Vec::new();
        while let Some((at, pending)) = self.pending.pop_first() {
            self.interval(at, pending, &mut events);
        }
        self.look_until(u64::MAX, &mut events);
        if let Some(mut timeline) = self.timeline.take() {
            // What came behind the last packet that was analysed.
            let growth = self.growth.of(counted);
            if growth.iter().any(|one| one.values().any(|number| *number > 0)) {
                timeline.behind(&growth, &mut events);
            }
            timeline.flush(&mut events);
            timeline.add(&mut self.totals);
        }
        (events, self.totals)
    }

    /// An interval that all workers are done with.
    fn interval(&mut self, at: (u64, u64), pending: Pending, events: &mut Vec<Event>) {
        let (generation, number) = at;
        let Pending { plan, part, goes_on } = pending;
        let start_ns = number.saturating_mul(plan.config.interval_ns);
        if let Some(timeline) = self.timeline.as_ref().filter(|timeline| timeline.generation != generation)
            && !plan.is_of_line(&timeline.plan)
        {
            // What was measured by another configuration is another sum.
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
        // What is left of this interval, and of those behind it, is counted by the plan that follows.
        if timeline.plan.is_followed() && (goes_on || self.awaited == Some(generation)) {
            self.awaited = Some(generation);
            return;
        }
        self.look_until(number.saturating_add(1), events);
    }

    /// Looks at what there is of intervals before this one, and at those between in which there was nothing.
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

    /// What is active, and what is raised, where this plan is in force; `now_ns`: UTC, for schedules before the first
    /// interval has ended.
    pub fn state(&self, plan: &Plan, now_ns: u64) -> Conditions {
        let timeline = self.timeline.as_ref().filter(|timeline| plan.is_of_line(&timeline.plan));
        let watches = timeline.map_or(&[][..], |timeline| &timeline.watches);
        Conditions::new(plan, watches, timeline.map_or(now_ns, |timeline| timeline.until_ns))
    }
}
