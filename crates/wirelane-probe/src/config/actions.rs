//! Validation of alarms and actions, and their conversion to the configuration.

use super::check::{Check, Names, SECOND};
use super::raw::{self, On};
use super::schedules::Known;
use super::{Action, ActionKind, Alarm, Measurement, Threshold, Value};
use crate::placed::At;

impl Check<'_> {
    pub(super) fn alarm(
        &mut self,
        at: &At<raw::Alarm>,
        measurements: &[Measurement],
        acting: &[String],
    ) -> Alarm {
        let raw = at.get_ref();
        let measured: Names = measurements.iter().map(|one| one.name.clone()).collect();
        let measurement = self.named("measurement", &raw.measurement, &measured);
        let of = measurements.get(measurement);
        let value = self.looked_at(at, of);
        let alone = value.is_of_all() || of.is_some_and(|of| of.key.is_empty());
        let given = [&raw.above, &raw.below, &raw.rises, &raw.falls];
        if given.iter().filter(|one| one.is_some()).count() != 1 {
            self.found.push((at.start, "no condition: expected one of above, below, rises and falls".into()));
        }
        for number in given.into_iter().chain([&raw.clear, &raw.least]).flatten() {
            if !number.get_ref().is_finite() || number.value < 0.0 {
                self.fault(number, "give a number that is not negative");
            }
        }
        for silent in [&raw.below, &raw.falls].into_iter().flatten().filter(|_| !alone) {
            let reason =
                "a key that falls silent is not there any more: this is for measurements without a key";
            self.fault(silent, reason);
        }
        let number = |one: &Option<At<f64>>| one.as_ref().map(|one| one.value);
        let (clear, least) = (number(&raw.clear), number(&raw.least));
        let by_mean = raw.rises.is_some() || raw.falls.is_some();
        if let Some(clear) = raw.clear.as_ref().filter(|_| by_mean) {
            self.fault(
                clear,
                "only valid with above and below: alarms with rises or falls clear by themselves",
            );
        }
        if let Some(least) = raw.least.as_ref().filter(|_| !by_mean) {
            self.fault(least, "only valid with rises and falls");
        }
        let threshold = match (number(&raw.above), number(&raw.below), number(&raw.rises), number(&raw.falls))
        {
            (Some(above), ..) => Threshold::Above(above, clear.unwrap_or(above)),
            (_, Some(below), ..) => Threshold::Below(below, clear.unwrap_or(below)),
            (_, _, Some(rises), _) => Threshold::Rises(rises, least.unwrap_or(1.0)),
            (.., falls) => Threshold::Falls(falls.unwrap_or_default(), least.unwrap_or(1.0)),
        };
        let wrong = match threshold {
            Threshold::Above(above, clear) => clear > above,
            Threshold::Below(below, clear) => clear < below,
            _ => false,
        };
        if let Some(clear) = raw.clear.as_ref().filter(|_| wrong) {
            self.fault(
                clear,
                "it would be cleared when it is raised: clear must be less than above, or more than below",
            );
        }
        let over = raw.over.as_ref().map_or(1, |over| over.value);
        if let Some(at) = &raw.over {
            if !by_mean {
                self.fault(at, "only valid with rises and falls");
            } else if !(1..=3600).contains(&over) || (over > 1 && !alone) {
                self.fault(at, "give 1 to 3600 intervals; of measurements with a key the mean is over 1");
            }
        }
        let mut times = |one: &Option<At<u32>>| {
            let times = one.as_ref().map_or(1, |one| one.value);
            if let Some(at) = one.as_ref().filter(|_| !(1..=10_000).contains(&times)) {
                self.fault(at, "give 1 to 10000 intervals");
            }
            times
        };
        let (raise_after, clear_after) = (times(&raw.raise_after), times(&raw.clear_after));
        Alarm {
            name: raw.name.get_ref().clone(),
            measurement,
            value,
            counter: raw.counter.as_ref().map(|name| name.get_ref().clone()),
            threshold,
            raise_after,
            clear_after,
            over,
            actions: raw.actions.iter().map(|name| self.named("action", name, acting)).collect(),
            active: raw.active.unwrap_or(true),
        }
    }

    /// Value that an alarm observes.
    fn looked_at(&mut self, at: &At<raw::Alarm>, of: Option<&Measurement>) -> Value {
        let raw = at.get_ref();
        let value = match (&raw.value, &raw.counter) {
            (None, Some(name)) => {
                self.counter(name, of);
                return Value::Counters;
            }
            (Some(value), None) => value,
            (Some(_), Some(name)) => {
                self.fault(name, "give value, or counter of a measurement with plugin");
                return Value::Counters;
            }
            (None, None) => {
                self.found.push((at.start, "missing field `value`".into()));
                return Value::Packets;
            }
        };
        let asked = value.value;
        if !asked.is_number() {
            self.fault(value, format!("\"{}\" is not one number", asked.name()));
        } else if let Some(of) = of.filter(|of| of.plugin.is_some()) {
            self.fault(value, format!("{} is of a plug-in: give counter = \"NAME\"", of.name));
        } else if let Some(of) = of.filter(|of| !of.values.contains(&asked)) {
            let known: Vec<&str> =
                of.values.iter().filter(|one| one.is_number()).map(|one| one.name()).collect();
            let reason = format!("the measurement has no \"{}\"; it has {}", asked.name(), known.join(", "));
            self.fault(value, reason);
        }
        asked
    }

    pub(super) fn action(&mut self, at: &At<raw::Action>, known: &Known) -> Action {
        let raw = at.get_ref();
        let switches = !(raw.activate.is_empty() && raw.deactivate.is_empty() && raw.retime.is_empty());
        let kinds =
            [raw.log == Some(true), raw.run.is_some(), switches, raw.record.is_some(), raw.export.is_some()];
        if kinds.iter().filter(|one| **one).count() != 1 {
            let reason = "an action does one thing: log = true, or run = [\"PROGRAM\", ...], or activate, deactivate and retime, or \
                          record = { folder = \"DIR\" }, or export = \"TARGET\"";
            self.found.push((at.start, reason.into()));
        }
        if let Some(digest) = &raw.digest {
            if raw.record.is_none() {
                self.fault(digest, "only valid with record: the digest of a recorded file");
            } else if digest.get_ref() != "sha256" {
                self.fault(digest, "expected \"sha256\"");
            }
        }
        let timeout_ns = raw.timeout.as_ref().map_or(10 * SECOND, |time| time.get_ref().0);
        if let Some(at) = &raw.timeout {
            if raw.run.is_none() {
                self.fault(at, "only valid with run");
            } else if !(SECOND / 100..=3600 * SECOND).contains(&timeout_ns) {
                self.fault(at, "give \"10ms\" to \"1h\"");
            }
        }
        let kind = if let Some(run) = &raw.run {
            ActionKind::Run { words: self.words(run), timeout_ns }
        } else if let Some(record) = &raw.record {
            ActionKind::Record(self.recording(record, raw.digest.is_some(), &known.rules))
        } else if let Some(export) = &raw.export {
            ActionKind::Export(self.target(export))
        } else if switches {
            ActionKind::Switch(self.switch((&raw.activate, &raw.deactivate), &raw.retime, known))
        } else {
            ActionKind::Log
        };
        let on = raw.on.as_ref();
        if let Some(on) = on.filter(|on| on.get_ref().is_empty()) {
            self.fault(on, "never: give \"raise\", \"clear\" or both");
        }
        // By default switches and recordings run on raise only: two switches that ran on both would undo each other at
        // once.
        let by_default = |what: On| what == On::Raise || !(switches || raw.record.is_some());
        let does = |what: On| on.map_or(by_default(what), |on| on.get_ref().contains(&what));
        Action {
            name: raw.name.get_ref().clone(),
            kind,
            on_raise: does(On::Raise),
            on_clear: does(On::Clear),
        }
    }

    /// Words of a command, which runs without a shell.
    fn words(&mut self, run: &At<Vec<At<String>>>) -> Vec<String> {
        const KNOWN: [&str; 6] = ["alarm", "measurement", "state", "key", "value", "time"];
        match run.get_ref().first() {
            None => self.fault(run, "give a program, and its arguments"),
            Some(program) if !program.get_ref().starts_with('/') => {
                self.fault(program, "give the program's whole path, from '/' on");
            }
            Some(_) => {}
        }
        for word in run.get_ref() {
            let text = word.get_ref();
            if text.contains('\0') || text.len() > 4096 {
                self.fault(word, "an argument has up to 4096 bytes, and no NUL");
            }
            for part in text.split('{').skip(1) {
                let name = part.split('}').next().filter(|name| name.len() < part.len());
                if !name.is_some_and(|name| KNOWN.contains(&name)) {
                    let list: Vec<String> = KNOWN.iter().map(|name| format!("{{{name}}}")).collect();
                    self.fault(word, format!("braces are for {}", list.join(", ")));
                }
            }
        }
        run.value.iter().map(|word| word.get_ref().clone()).collect()
    }
}
