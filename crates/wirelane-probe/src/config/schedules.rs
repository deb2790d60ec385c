//! Schedules, and the switching that schedules and actions do.

use std::collections::BTreeMap;

use super::check::{Check, Names, SECOND};
use super::raw::{self, Moment, Time};
use crate::placed::At;

/// Changes of a switch action or schedule, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Measurements that are switched on.
    pub measurements_on: Vec<usize>,
    /// Measurements that are switched off.
    pub measurements_off: Vec<usize>,
    /// Alarms that are switched on.
    pub alarms_on: Vec<usize>,
    /// Alarms that are switched off; raised ones are cleared.
    pub alarms_off: Vec<usize>,
    /// Rules that are switched on.
    pub rules_on: Vec<usize>,
    /// Rules that are switched off: they match no packet until they are switched on.
    pub rules_off: Vec<usize>,
    /// Schedules that get other times.
    pub retimed: Vec<(usize, When)>,
}

/// Times of a schedule, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every multiple of this many nanoseconds since 1970.
    Every(u64),
    /// This second of the day, on each day of the week whose bit is set; Monday is the lowest bit.
    At {
        /// Second of the day.
        second: u32,
        /// Bit mask of days.
        days: u8,
    },
}

/// One schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// Times.
    pub when: When,
    /// Changes that it makes.
    pub switch: Switch,
    /// Whether totals are shown and reset then.
    pub flush: bool,
}

/// Names that a switch can refer to.
pub(super) struct Known {
    pub measurements: Names,
    pub alarms: Names,
    pub rules: Names,
    /// Names of schedules, each with its days of the week as in [`When::At`].
    pub schedules: Vec<(String, u8)>,
}

impl raw::Schedule {
    /// Days of the week that it names, or all of them, as in [`When::At`].
    pub(super) fn bits(&self) -> u8 {
        let days = self.days.as_ref();
        days.map_or(0x7f, |days| days.value.iter().fold(0, |bits, day| bits | 1 << *day as u8))
    }
}

impl Check<'_> {
    /// Resolves the names of a switch into indices.
    pub(super) fn switch(
        &mut self,
        (on, off): (&[At<String>], &[At<String>]),
        retime: &BTreeMap<String, At<Moment>>,
        known: &Known,
    ) -> Switch {
        let mut switch = Switch::default();
        for (names, is_on) in [(on, true), (off, false)] {
            for name in names {
                let at = |known: &[String]| known.iter().position(|one| one == name.get_ref());
                if let Some(place) = at(&known.alarms) {
                    if is_on { &mut switch.alarms_on } else { &mut switch.alarms_off }.push(place);
                } else if let Some(place) = at(&known.rules) {
                    if at(&known.measurements).is_some() {
                        self.fault(name, "a measurement and a rule have this name: which of them?");
                    }
                    if is_on { &mut switch.rules_on } else { &mut switch.rules_off }.push(place);
                } else {
                    let place = self.named("measurement, alarm or rule", name, &known.measurements);
                    if is_on { &mut switch.measurements_on } else { &mut switch.measurements_off }
                        .push(place);
                }
            }
        }
        for (name, moment) in retime {
            let Some(place) = known.schedules.iter().position(|(one, _)| one == name) else {
                let names: Vec<&str> = known.schedules.iter().map(|(name, _)| name.as_str()).collect();
                let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let name = name.escape_debug();
                self.fault(moment, format!("unknown schedule {name}; defined: {list}"));
                continue;
            };
            let when = match *moment.get_ref() {
                Moment::Every(ns) => When::Every(self.every(moment, ns)),
                // On the days of the schedule itself.
                Moment::At(second) => When::At { second, days: known.schedules[place].1 },
            };
            switch.retimed.push((place, when));
        }
        switch
    }

    fn every<T>(&mut self, at: &At<T>, ns: u64) -> u64 {
        if ns < SECOND {
            self.fault(at, "give \"1s\" or more");
        }
        ns.max(1)
    }

    pub(super) fn schedule(&mut self, at: &At<raw::Schedule>, known: &Known) -> Schedule {
        let raw = at.get_ref();
        let days = raw.days.as_ref();
        let bits = raw.bits();
        let when = match (&raw.every, &raw.at) {
            (Some(every), None) => {
                let Time(ns) = every.value;
                When::Every(self.every(every, ns))
            }
            (None, Some(clock)) => When::At { second: clock.get_ref().0, days: bits },
            _ => {
                self.found
                    .push((at.start, "no time: expected every = \"10m\", or at = \"22:00\" (UTC)".into()));
                When::Every(SECOND)
            }
        };
        if let Some(days) = days {
            if raw.at.is_none() {
                self.fault(days, "only valid with at");
            } else if bits == 0 {
                self.fault(days, "never: give days, as in [\"mon\", \"fri\"]");
            }
        }
        let switches = !(raw.activate.is_empty() && raw.deactivate.is_empty() && raw.retime.is_empty());
        if !switches && !raw.flush {
            let reason = "nothing is done then: give activate, deactivate, retime or flush = true";
            self.found.push((at.start, reason.into()));
        }
        let switch = self.switch((&raw.activate, &raw.deactivate), &raw.retime, known);
        Schedule { name: raw.name.get_ref().clone(), when, switch, flush: raw.flush }
    }
}
