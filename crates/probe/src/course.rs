//! The course of things under a plan: what intervals have come to, alarms, schedules, totals.

use std::collections::HashMap;
use std::sync::Arc;

use crate::alarm::{AlarmEvent, State, Watch};
use crate::config::{Alarm, Deed, Switch};
use crate::key::{self, Key};
use crate::plan::Plan;
use crate::reader::{Event, Totals};
use crate::result::{self, Interval, Shown, entropy, number};
use crate::schedule::is_due;
use crate::table::Table;

/// What is known of the plan in force.
#[derive(Debug)]
pub(crate) struct Course {
    pub plan: Arc<Plan>,
    pub generation: u64,
    /// By alarm.
    pub watches: Vec<Watch>,
    /// By measurement, since the last flush.
    totals: Vec<Option<Table>>,
    /// By measurements that look at ARP: the addresses that each key had when it was last seen.
    macs: HashMap<String, HashMap<Key, Vec<[u8; 6]>>>,
    since_ns: u64,
    /// The end of the last interval that was looked at.
    pub until_ns: u64,
    /// Its number.
    pub last: u64,
}

impl Course {
    pub fn new(plan: Arc<Plan>, generation: u64, start_ns: u64, number: u64) -> Course {
        let config = &plan.config;
        Course {
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

    /// Goes on by a plan that follows this one: what is raised stays raised, and sums go on, unless they are to be shown
    /// and begun anew.
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

    /// An interval is over.
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
            // Of what was switched off meanwhile there may be a rest, which is less than an interval's.
            let is_on = plan.alarm_is_on(place) && plan.active() & 1 << alarm.measurement != 0;
            let Some(table) = tables[alarm.measurement].as_ref().filter(|_| is_on) else {
                continue;
            };
            let (values, alone) = values_of(&plan, alarm, table);
            for (key, state, value) in self.watches[place].look(alarm, &values, alone) {
                self.tell(place, key, state, value, interval.end_ns, events);
            }
        }
        for (place, table) in tables.into_iter().enumerate() {
            match (&mut self.totals[place], table) {
                (Some(total), Some(table)) => total.merge(table),
                (total @ None, Some(table)) => *total = Some(table),
                _ => {}
            }
        }
        let before_ns = std::mem::replace(&mut self.until_ns, interval.end_ns);
        self.last = number;
        for schedule in &config.schedules {
            if is_due(schedule.when, before_ns, interval.end_ns) {
                if schedule.flush {
                    self.flush(events);
                }
                self.switch(&schedule.switch, interval.end_ns, events);
            }
        }
    }

    /// An alarm has changed: it is told, and what is to be done is done.
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
        let measurement = &plan.config.measurements[alarm.measurement];
        // Where there is one value for all keys, there is no key.
        let keyed = !alarm.value.is_of_all();
        let event = AlarmEvent {
            alarm: alarm.name.clone(),
            measurement: measurement.name.clone(),
            state,
            key: if keyed { key::json(measurement, &key) } else { serde_json::Map::new() },
            key_text: if keyed { key::text(measurement, &key) } else { String::new() },
            value_name: alarm.value.name(),
            value,
            time: result::seconds(now_ns),
            end_ns: now_ns,
        };
        events.push(Event::Alarm(event.clone()));
        for action in alarm.actions.iter().map(|place| &plan.config.actions[*place]) {
            let wanted = match state {
                State::Raised => action.on_raise,
                State::Cleared => action.on_clear,
            };
            if !wanted {
                continue;
            }
            match &action.deed {
                Deed::Log => events.push(Event::Log(log_line(&event))),
                Deed::Run { words, timeout_ns } => {
                    let words = words.iter().map(|word| filled(word, &event)).collect();
                    events.push(Event::Run { words, timeout_ns: *timeout_ns });
                }
                Deed::Switch(switch) => self.switch(switch, now_ns, events),
            }
        }
    }

    /// Switches, from the next interval on.
    fn switch(&mut self, switch: &Switch, now_ns: u64, events: &mut Vec<Event>) {
        switch.measurements_on.iter().for_each(|place| self.plan.set_active(*place, true));
        switch.measurements_off.iter().for_each(|place| self.plan.set_active(*place, false));
        switch.alarms_on.iter().for_each(|place| self.plan.set_alarm(*place, true));
        // Alarms of measurements that do not go on would stay as they are.
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

    /// Clears what is raised of an alarm. Nothing else is done about it: switches could go round in circles.
    fn clear(&mut self, place: usize, now_ns: u64, events: &mut Vec<Event>) {
        let plan = Arc::clone(&self.plan);
        let alarm = &plan.config.alarms[place];
        let measurement = &plan.config.measurements[alarm.measurement];
        let keyed = !alarm.value.is_of_all();
        for key in self.watches[place].off() {
            events.push(Event::Alarm(AlarmEvent {
                alarm: alarm.name.clone(),
                measurement: measurement.name.clone(),
                state: State::Cleared,
                key: if keyed { key::json(measurement, &key) } else { serde_json::Map::new() },
                key_text: if keyed { key::text(measurement, &key) } else { String::new() },
                value_name: alarm.value.name(),
                value: 0.0,
                time: result::seconds(now_ns),
                end_ns: now_ns,
            }));
        }
    }

    pub fn all_off(&mut self, events: &mut Vec<Event>) {
        (0..self.watches.len()).for_each(|place| self.clear(place, self.until_ns, events));
    }

    /// Shows what measurements have come to, and begins anew.
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

/// Adds to each key the Ethernet addresses that it had when it was last seen, and remembers those that it has now.
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

/// What an alarm looks at, and whether that is one value without a key.
fn values_of(plan: &Plan, alarm: &Alarm, table: &Table) -> (Vec<(Key, f64)>, bool) {
    let of = &plan.config.measurements[alarm.measurement];
    let seconds = plan.config.interval_ns as f64 / 1e9;
    let alone = |value: f64| (vec![(Key::default(), value)], true);
    match alarm.value {
        crate::config::Value::Keys => alone(table.cells.len() as f64),
        crate::config::Value::Entropy => alone(entropy(table)),
        value if of.key.is_empty() => alone(number(of, value, &table.rest, seconds)),
        value => {
            let cells = table.cells.iter();
            (cells.map(|(key, cell)| (*key, number(of, value, cell, seconds))).collect(), false)
        }
    }
}

/// An event on a line: names are of letters, digits and a few signs, keys of addresses and numbers.
fn log_line(event: &AlarmEvent) -> String {
    let key = if event.key_text.is_empty() { String::new() } else { format!(" of {}", event.key_text) };
    let AlarmEvent { alarm, state, value_name, value, time, .. } = event;
    format!("alarm {alarm} {}{key}: {value_name} {value} at {time}", state.name())
}

/// An argument with what stands in braces filled in. It is one argument, whatever that is.
fn filled(word: &str, event: &AlarmEvent) -> String {
    let mut text = String::new();
    let mut parts = word.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        match name {
            "alarm" => text.push_str(&event.alarm),
            "measurement" => text.push_str(&event.measurement),
            "state" => text.push_str(event.state.name()),
            "key" => text.push_str(&event.key_text),
            "value" => text.push_str(&event.value.to_string()),
            _ => text.push_str(&event.time),
        }
        text.push_str(rest);
    }
    text
}
