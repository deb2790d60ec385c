//! State of a plan over time: results of intervals, alarms, schedules, totals.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::alarm::{AlarmEvent, State, Watch};
use crate::config::{ActionKind, Alarm, Switch};
use crate::event::{Event, Recorded, Totals, filled, log_line};
use crate::key::{self, Key};
use crate::packet_buffer::Wanted;
use crate::plan::Plan;
use crate::plugin_counters::ASKED;
use crate::result::{self, Interval, Shown, entropy, number};
use crate::schedule::is_due;
use crate::table::Table;

/// State of the active plan.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub plan: Arc<Plan>,
    pub generation: u64,
    /// Alarm states, by alarm.
    pub watches: Vec<Watch>,
    /// Sums since the last flush, by measurement.
    totals: Vec<Option<Table>>,
    /// For measurements that use ARP: the addresses that each key had when it was last seen.
    macs: HashMap<String, HashMap<Key, Vec<[u8; 6]>>>,
    since_ns: u64,
    /// End of the last evaluated interval.
    pub until_ns: u64,
    /// Number of the last evaluated interval.
    pub last: u64,
}

impl Timeline {
    pub fn new(plan: Arc<Plan>, generation: u64, start_ns: u64, number: u64) -> Timeline {
        let config = &plan.config;
        Timeline {
            watches: config.alarms.iter().map(|_| Watch::default()).collect(),
            totals: config.measurements.iter().map(|_| None).collect(),
            macs: config
                .measurements
                .iter()
                .zip(&plan.shapes)
                .filter(|(_, shape)| shape.macs)
                .map(|(measurement, _)| (measurement.name.clone(), HashMap::new()))
                .collect(),
            generation,
            since_ns: start_ns,
            until_ns: start_ns,
            last: number,
            plan,
        }
    }

    /// Continues with the successor of the plan: raised alarms stay raised, and sums continue, unless the successor
    /// flushes them.
    pub fn follow(&mut self, plan: Arc<Plan>, generation: u64, events: &mut Vec<Event>) {
        if plan.flushes() != self.plan.flushes() {
            self.flush(events);
        }
        (self.plan, self.generation) = (plan, generation);
        for place in 0..self.watches.len() {
            let alarm = &self.plan.config.alarms[place];
            if !self.plan.alarm_is_on(place) || self.plan.active() & 1 << alarm.measurement == 0 {
                self.clear(place, self.until_ns, events);
            }
        }
    }

    /// Stores the increments of plug-in counters in the tables of active measurements.
    pub fn put_growth(&self, growth: &[BTreeMap<String, u64>], tables: &mut [Option<Table>]) {
        let plan = &self.plan;
        let of = plan.config.measurements.iter().zip(&plan.shapes).enumerate();
        for ((place, (measurement, shape)), table) in of.zip(tables) {
            let Some(plugin) = measurement.plugin.filter(|_| plan.active() & 1 << place != 0) else {
                continue;
            };
            let mut counted = Table::new(shape, 1);
            if let Some(growth) = growth.get(plugin) {
                counted.rest.packets = growth.get(ASKED).copied().unwrap_or(0);
                let shown =
                    |name: &String| measurement.counters.is_empty() || measurement.counters.contains(name);
                counted.counters = growth
                    .iter()
                    .filter(|(name, _)| shown(name))
                    .map(|(name, number)| (name.clone(), *number))
                    .collect();
            }
            *table = Some(counted);
        }
    }

    /// Reports plug-in counts after the last interval. Alarms do not observe them, as they are not of a whole interval.
    pub fn behind(&mut self, growth: &[BTreeMap<String, u64>], events: &mut Vec<Event>) {
        let mut tables: Vec<Option<Table>> = self.plan.shapes.iter().map(|_| None).collect();
        self.put_growth(growth, &mut tables);
        let plan = Arc::clone(&self.plan);
        let start_ns = self.until_ns;
        let interval = Interval { start_ns, end_ns: start_ns.saturating_add(plan.config.interval_ns) };
        for (measurement, table) in plan.config.measurements.iter().zip(&tables) {
            if let Some(table) = table {
                events.push(Event::Shown(Shown::new(measurement, table, interval, false)));
            }
        }
        self.until_ns = interval.end_ns;
        self.add_to_totals(tables);
    }

    fn add_to_totals(&mut self, tables: Vec<Option<Table>>) {
        for (place, table) in tables.into_iter().enumerate() {
            match (&mut self.totals[place], table) {
                (Some(total), Some(table)) => total.merge(table),
                (total @ None, Some(table)) => *total = Some(table),
                _ => {}
            }
        }
    }

    /// Evaluates an interval that is over.
    pub fn look(&mut self, number: u64, mut tables: Vec<Option<Table>>, events: &mut Vec<Event>) {
        let plan = Arc::clone(&self.plan);
        let config = &plan.config;
        let start_ns = number.saturating_mul(config.interval_ns);
        let interval = Interval { start_ns, end_ns: start_ns.saturating_add(config.interval_ns) };
        for (measurement, table) in config.measurements.iter().zip(&mut tables) {
            if let Some(table) = table {
                table.end();
                if let Some(last) = self.macs.get_mut(&measurement.name) {
                    remember(last, table, measurement.keys);
                }
                events.push(Event::Shown(Shown::new(measurement, table, interval, false)));
            }
        }
        for place in 0..config.alarms.len() {
            let alarm = &config.alarms[place];
            // A measurement that was switched off during the interval may have counts of a part of it.
            let is_on = plan.alarm_is_on(place) && plan.active() & 1 << alarm.measurement != 0;
            let Some(table) = tables[alarm.measurement].as_ref().filter(|_| is_on) else {
                continue;
            };
            let (values, alone) = values_of(&plan, alarm, table);
            for (key, state, value) in self.watches[place].look(alarm, &values, alone) {
                self.tell(place, key, state, value, interval.end_ns, events);
            }
        }
        self.add_to_totals(tables);
        let before_ns = std::mem::replace(&mut self.until_ns, interval.end_ns);
        self.last = number;
        // By the times before any of them ran: a schedule does not become due because of another.
        let is_due = |place: &usize| is_due(plan.when(*place), before_ns, interval.end_ns);
        let due: Vec<usize> = (0..config.schedules.len()).filter(is_due).collect();
        for schedule in due.into_iter().map(|place| &config.schedules[place]) {
            if schedule.flush {
                self.flush(events);
            }
            self.switch(&schedule.switch, interval.end_ns, events);
        }
    }

    /// Reports a changed alarm and runs its actions.
    fn tell(
        &mut self,
        place: usize,
        key: Key,
        state: State,
        value: f64,
        now_ns: u64,
        events: &mut Vec<Event>,
    ) {
        let plan = Arc::clone(&self.plan);
        let alarm = &plan.config.alarms[place];
        let event = self.event(place, key, state, value, now_ns);
        events.push(Event::Alarm(event.clone()));
        for place in alarm.actions.iter().copied() {
            let action = &plan.config.actions[place];
            let wanted = match state {
                State::Raised => action.on_raise,
                State::Cleared => action.on_clear,
            };
            if !wanted {
                continue;
            }
            match &action.kind {
                ActionKind::Log => events.push(Event::Log(log_line(&event))),
                ActionKind::Run { words, timeout_ns } => {
                    let words = words.iter().map(|word| filled(word, &event)).collect();
                    events.push(Event::Run { words, timeout_ns: *timeout_ns });
                }
                ActionKind::Switch(switch) => self.switch(switch, now_ns, events),
                ActionKind::Export(_) => events.push(Event::Export(place, event.clone())),
                ActionKind::Record(recording) => {
                    let measurement = &plan.config.measurements[alarm.measurement];
                    events.push(Event::Record(Box::new(Recorded {
                        action: place,
                        recording: recording.clone(),
                        alarm: event.clone(),
                        wanted: Wanted {
                            generation: plan.origin(),
                            from_ns: now_ns.saturating_sub(recording.before_ns),
                            to_ns: now_ns.saturating_add(recording.after_ns),
                            rule: recording.rule_of(measurement),
                            most: recording.most,
                        },
                    })));
                }
            }
        }
    }

    /// Applies a switch, from the next interval on.
    fn switch(&mut self, switch: &Switch, now_ns: u64, events: &mut Vec<Event>) {
        switch.measurements_on.iter().for_each(|place| self.plan.set_active(*place, true));
        switch.measurements_off.iter().for_each(|place| self.plan.set_active(*place, false));
        switch.rules_on.iter().for_each(|place| self.plan.set_rule_active(*place, true));
        switch.rules_off.iter().for_each(|place| self.plan.set_rule_active(*place, false));
        switch.retimed.iter().for_each(|(place, when)| self.plan.retime(*place, Some(*when)));
        switch.alarms_on.iter().for_each(|place| self.plan.set_alarm(*place, true));
        // Alarms of measurements that are switched off would keep their state.
        let off = &switch.measurements_off;
        let of_these = |alarm: &Alarm| off.contains(&alarm.measurement);
        let alarms = self.plan.config.alarms.iter().enumerate();
        let silenced: Vec<usize> =
            alarms.filter(|(_, alarm)| of_these(alarm)).map(|(place, _)| place).collect();
        for place in switch.alarms_off.iter().copied() {
            self.plan.set_alarm(place, false);
            self.clear(place, now_ns, events);
        }
        silenced.into_iter().for_each(|place| self.clear(place, now_ns, events));
    }

    /// Clears the raised keys of an alarm. No actions run: switches could trigger each other in a loop.
    fn clear(&mut self, place: usize, now_ns: u64, events: &mut Vec<Event>) {
        for key in self.watches[place].off() {
            events.push(Event::Alarm(self.event(place, key, State::Cleared, 0.0, now_ns)));
        }
    }

    fn event(&self, place: usize, key: Key, state: State, value: f64, now_ns: u64) -> AlarmEvent {
        let alarm = &self.plan.config.alarms[place];
        let measurement = &self.plan.config.measurements[alarm.measurement];
        // A value of the whole measurement has no key.
        let keyed = !alarm.value.is_of_all();
        AlarmEvent {
            alarm: alarm.name.clone(),
            measurement: measurement.name.clone(),
            state,
            key: if keyed { key::json(measurement, &key) } else { serde_json::Map::new() },
            key_text: if keyed { key::text(measurement, &key) } else { String::new() },
            value_name: alarm.value_name().to_owned(),
            value,
            time: result::seconds(now_ns),
            end_ns: now_ns,
        }
    }

    pub fn all_off(&mut self, events: &mut Vec<Event>) {
        (0..self.watches.len()).for_each(|place| self.clear(place, self.until_ns, events));
    }

    /// Shows the totals of measurements and resets them.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        let interval = Interval { start_ns: self.since_ns, end_ns: self.until_ns };
        for (measurement, total) in self.plan.config.measurements.iter().zip(&mut self.totals) {
            if let Some(table) = total.take() {
                events.push(Event::Shown(Shown::new(measurement, &table, interval, true)));
            }
        }
        self.since_ns = self.until_ns;
    }

    pub fn add(&self, totals: &mut Totals) {
        for watch in &self.watches {
            totals.alarms_raised += watch.raised;
            totals.alarms_cleared += watch.cleared;
            totals.alarms_untracked += watch.untracked;
        }
    }
}

/// Adds to each key the Ethernet addresses that it had when it was last seen, and stores the current ones.
fn remember(last: &mut HashMap<Key, Vec<[u8; 6]>>, table: &mut Table, most: usize) {
    for (key, cell) in &mut table.cells {
        let Some(more) = &mut cell.more else { continue };
        if more.macs.is_empty() {
            continue;
        }
        let now = more.macs.clone();
        if let Some(before) = last.get(key) {
            before.iter().for_each(|mac| more.mac(*mac));
        }
        if last.len() < most || last.contains_key(key) {
            last.insert(*key, now);
        }
    }
}

/// Values that an alarm observes, and whether that is one value without a key.
fn values_of(plan: &Plan, alarm: &Alarm, table: &Table) -> (Vec<(Key, f64)>, bool) {
    let of = &plan.config.measurements[alarm.measurement];
    let seconds = plan.config.interval_ns as f64 / 1e9;
    let alone = |value: f64| (vec![(Key::default(), value)], true);
    match alarm.value {
        crate::config::Value::Keys => alone(table.cells.len() as f64),
        crate::config::Value::Entropy => alone(entropy(table)),
        crate::config::Value::Counters => {
            let counted = alarm.counter.as_ref().and_then(|name| table.counters.get(name));
            alone(counted.copied().unwrap_or(0) as f64)
        }
        value if of.key.is_empty() => alone(number(of, value, &table.rest, seconds)),
        value => {
            let cells = table.cells.iter();
            (cells.map(|(key, cell)| (*key, number(of, value, cell, seconds))).collect(), false)
        }
    }
}
