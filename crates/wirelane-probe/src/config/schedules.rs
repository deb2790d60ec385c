//! Schedules, and what is switched by them and by actions.

use std::collections::BTreeMap;

use super::check::{Check, Names, SECOND};
use super::raw::{self, Moment, Time};
use crate::placed::At;

/// What is switched on and off, by places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Measurements that become active.
    pub measurements_on: Vec<usize>,
    /// Measurements that do not stay active.
    pub measurements_off: Vec<usize>,
    /// Alarms that become active.
    pub alarms_on: Vec<usize>,
    /// Alarms that do not stay active; those that are raised are cleared.
    pub alarms_off: Vec<usize>,
    /// Rules that become active.
    pub rules_on: Vec<usize>,
    /// Rules that no packet fits from then on.
    pub rules_off: Vec<usize>,
    /// Schedules that have other times from then on.
    pub retimed: Vec<(usize, When)>,
}

/// When a schedule's time comes, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At each multiple of so many nanoseconds since 1970.
    Every(u64),
    /// At this second of the days of the week that have a bit, Monday the lowest.
    At {
        /// Of the day.
        second: u32,
        /// Bits.
        days: u8,
    },
}

/// One schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// When.
    pub when: When,
    /// What is switched then.
    pub switch: Switch,
    /// Whether totals are shown then, and begun anew.
    pub flush: bool,
}

/// The names that are switched by.
pub(super) struct Known {
    pub measurements: Names,
    pub alarms: Names,
    pub rules: Names,
    /// With the days of the week that each is due on, as in [`When::At`].
    pub schedules: Vec<(String, u8)>,
}

impl raw::Schedule {
    /// The days of the week that it names, or all of them: as in [`When::At`].
    pub(super) fn bits(&self) -> u8 {
        let days = self.days.as_ref();
        days.map_or(0x7f, |days| days.value.iter().fold(0, |bits, day| bits | 1 << *day as u8))
    }
}

impl Check<'_> {
    /// What is switched, of these names.
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
                // On the days that it has.
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
