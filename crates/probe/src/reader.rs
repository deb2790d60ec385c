//! The reader's part: what workers hand over is merged, looked at, and shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::alarm::AlarmEvent;
use crate::course::Course;
use crate::plan::Plan;
use crate::result::Shown;
use crate::state::Conditions;
use crate::table::Table;
use crate::worker::Closed;

/// Intervals without packets that are looked at one by one, between two with some; more of them are left out.
const MOST_EMPTY: u64 = 60;

/// What is to be shown or done.
#[derive(Clone, Debug)]
pub enum Event {
    /// What a measurement has come to.
    Shown(Shown),
    /// An alarm is raised or cleared.
    Alarm(AlarmEvent),
    /// A line for people.
    Log(String),
    /// A program is to be run, with these arguments.
    Run {
        /// The program and its arguments.
        words: Vec<String>,
        /// When it is ended, nanoseconds.
        timeout_ns: u64,
    },
}

/// What everything has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Packets that workers have counted.
    #[serde(rename = "probed")]
    pub packets: u64,
    /// Their bytes on the wire.
    #[serde(rename = "probed_bytes")]
    pub bytes: u64,
    /// Of the packets, those that were counted in a later interval than theirs, as they came late.
    pub late: u64,
    /// Intervals.
    pub intervals: u64,
    /// Intervals without packets that nobody has looked at, as there were too many of them.
    pub skipped_intervals: u64,
    /// Configurations that were taken up after the first.
    pub reloads: u64,
    /// Alarms that were raised.
    pub alarms_raised: u64,
    /// Alarms that were cleared.
    pub alarms_cleared: u64,
    /// Times that an alarm was not raised, as too many others were.
    pub alarms_untracked: u64,
}

/// What is known of an interval so far.
#[derive(Debug)]
struct Pending {
    plan: Arc<Plan>,
    tables: Vec<Option<Table>>,
    /// A worker has taken another plan up in it, or before.
    goes_on: bool,
}

/// Merges what workers hand over.
#[derive(Debug)]
pub struct Reader {
    /// Up to where each worker has handed over everything.
    reached: Vec<(u64, u64)>,
    pending: BTreeMap<(u64, u64), Pending>,
    course: Option<Course>,
    /// By intervals: what was counted of each by a plan, where the plan that follows it counts the rest.
    parts: BTreeMap<u64, Vec<Option<Table>>>,
    /// The number of the plan of which all parts are kept from now on, as another goes on with their intervals.
    awaited: Option<u64>,
    totals: Totals,
}

impl Reader {
    /// A reader of so many workers.
    pub fn new(workers: usize) -> Reader {
        Reader {
            reached: vec![(0, 0); workers],
            pending: BTreeMap::new(),
            course: None,
            parts: BTreeMap::new(),
            awaited: None,
            totals: Totals::default(),
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
                    let Closed { plan, tables, goes_on, .. } = closed;
                    self.pending.insert(closed.at, Pending { plan, tables, goes_on });
                }
            }
            Some(pending) => {
                pending.goes_on |= closed.goes_on;
                // One may have begun the interval after a measurement was switched on, or off.
                merge(&mut pending.tables, closed.tables);
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
    /// called when all workers have ended.
    pub fn finish(&mut self) -> (Vec<Event>, Totals) {
        let mut events = Vec::new();
        while let Some((at, pending)) = self.pending.pop_first() {
            self.interval(at, pending, &mut events);
        }
        self.look_until(u64::MAX, &mut events);
        if let Some(mut course) = self.course.take() {
            course.flush(&mut events);
            course.add(&mut self.totals);
        }
        (events, self.totals)
    }

    /// An interval that all workers are done with.
    fn interval(&mut self, at: (u64, u64), pending: Pending, events: &mut Vec<Event>) {
        let (generation, number) = at;
        let Pending { plan, tables, goes_on } = pending;
        let start_ns = number.saturating_mul(plan.config.interval_ns);
        if let Some(course) = self.course.as_ref().filter(|course| course.generation != generation)
            && !plan.is_of_line(&course.plan)
        {
            // What was measured by another configuration is another sum.
            self.look_until(u64::MAX, events);
            if let Some(mut course) = self.course.take() {
                course.flush(events);
                course.all_off(events);
                course.add(&mut self.totals);
                self.totals.reloads += 1;
            }
        }
        let course =
            self.course.get_or_insert_with(|| Course::new(Arc::clone(&plan), generation, start_ns, number));
        if course.generation != generation {
            course.follow(plan, generation, events);
        }
        match self.parts.get_mut(&number) {
            Some(part) => merge(part, tables),
            None => drop(self.parts.insert(number, tables)),
        }
        // What is left of this interval, and of those behind it, is counted by the plan that follows.
        if course.plan.is_followed() && (goes_on || self.awaited == Some(generation)) {
            self.awaited = Some(generation);
            return;
        }
        self.look_until(number.saturating_add(1), events);
    }

    /// Looks at what there is of intervals before this one, and at those between in which there was nothing.
    fn look_until(&mut self, end: u64, events: &mut Vec<Event>) {
        let Some(course) = &mut self.course else { return };
        let later = self.parts.split_off(&end);
        let mut parts = std::mem::replace(&mut self.parts, later);
        let Some(highest) = parts.last_key_value().map(|(number, _)| *number) else { return };
        let between = course.last.saturating_add(1)..highest;
        let gap = between.end.saturating_sub(between.start);
        let mut numbers: BTreeSet<u64> = between.clone().take(MOST_EMPTY as usize).collect();
        numbers.extend(parts.keys());
        let looked_at = numbers.range(between.start.min(highest)..highest).count() as u64;
        self.totals.skipped_intervals += gap - looked_at;
        for number in numbers {
            let nothing = || {
                let active = course.plan.active();
                let of = course.plan.config.measurements.iter().zip(&course.plan.shapes).enumerate();
                let tables = of.map(|(place, (measurement, shape))| {
                    (active & 1 << place != 0).then(|| Table::new(shape, measurement.keys))
                });
                tables.collect()
            };
            let tables = parts.remove(&number).unwrap_or_else(nothing);
            self.totals.intervals += 1;
            course.look(number, tables, events);
        }
    }

    /// What is active, and what is raised, where this plan is in force; `now_ns`: UTC, for schedules before the first
    /// interval has ended.
    pub fn state(&self, plan: &Plan, now_ns: u64) -> Conditions {
        let course = self.course.as_ref().filter(|course| plan.is_of_line(&course.plan));
        let watches = course.map_or(&[][..], |course| &course.watches);
        Conditions::new(plan, watches, course.map_or(now_ns, |course| course.until_ns))
    }
}

/// Adds to tables what another worker, or another part of the interval, has counted.
fn merge(ours: &mut [Option<Table>], theirs: Vec<Option<Table>>) {
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        match (ours.as_mut(), theirs) {
            (Some(ours), Some(theirs)) => ours.merge(theirs),
            (None, Some(theirs)) => *ours = Some(theirs),
            _ => {}
        }
    }
}
