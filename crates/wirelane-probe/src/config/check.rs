//! Builds a [`Config`] from the tables of the file, or reports each mistake with its position.

use std::path::Path;

use wirelane::rules::{RuleSet, Test};
use wirelane_bpf::sketch::{MAX_BITS, MIN_BITS};

use super::kernel;
use super::raw::{self, Raw};
use super::schedules::Known;
use super::{
    Action, Analysis, Config, Field, LONGEST, MOST_KEYS, MOST_MEASUREMENTS, MOST_MEMORY, MOST_RULES,
    Measurement, Mistakes, Value,
};
use crate::cell::Shape;
use crate::placed::{At, mistakes, read};

pub(super) const SECOND: u64 = 1_000_000_000;
/// Maximum number of bins of an interval.
const MOST_BINS: u64 = 10_000;
/// Maximum number of alarms, of actions and of schedules.
const MOST: usize = 256;

/// Reads a configuration.
pub(super) fn parse(text: &str, path: &Path) -> Result<Config, Mistakes> {
    let mut check = Check { text, path, found: Vec::new() };
    if text.len() > LONGEST {
        check
            .found
            .push((0, format!("this has {} bytes, and a configuration {LONGEST} at most", text.len())));
        return Err(check.finish());
    }
    // First, as it also rejects texts that are nested too deeply to be read at all.
    let rules = match RuleSet::parse_conditions(text, path) {
        Ok(rules) => rules,
        Err(wirelane::rules::Error::Rules { mistakes }) => return Err(Mistakes(mistakes)),
        Err(error) => {
            check.found.push((0, error.to_string()));
            return Err(check.finish());
        }
    };
    let raw: Raw = match read(text) {
        Ok(raw) => raw,
        Err(fault) => {
            check.found.push((fault.at.unwrap_or(0), fault.reason));
            return Err(check.finish());
        }
    };
    let config = check.config(raw, rules);
    if check.found.is_empty() { Ok(config) } else { Err(check.finish()) }
}

pub(super) struct Check<'t> {
    text: &'t str,
    path: &'t Path,
    pub(super) found: Vec<(usize, String)>,
}

/// Names of the tables of a kind, by index.
pub(super) type Names = Vec<String>;

impl Check<'_> {
    /// Records a mistake at this value.
    pub(super) fn fault<T>(&mut self, value: &At<T>, reason: impl Into<String>) {
        self.found.push((value.start, reason.into()));
    }

    fn finish(self) -> Mistakes {
        mistakes(self.text, self.path, self.found)
    }

    fn config(&mut self, raw: Raw, rules: RuleSet) -> Config {
        let interval = raw.interval.as_ref();
        let interval_ns = interval.map_or(SECOND, |time| time.get_ref().0);
        if let Some(interval) = interval.filter(|_| !(SECOND / 100..=86_400 * SECOND).contains(&interval_ns))
        {
            self.fault(interval, "an interval is from \"10ms\" to \"1day\"");
        }
        for (rule, at) in rules.rules.iter().zip(&raw.rule) {
            let asked = |test: fn(&Test) -> bool| rule.conditions.iter().any(|one| test(&one.test));
            if asked(|test| matches!(test, Test::Device(_))) {
                self.fault(at, "rules of a probe cannot use devices: use the key \"device\"");
            }
            if asked(|test| matches!(test, Test::Plugin(_))) {
                self.fault(at, "rules of a probe are evaluated in the worker and cannot use plug-ins: use a measurement with plugin");
            }
        }
        if let Some(at) = raw.rule.get(MOST_RULES) {
            self.fault(at, format!("at most {MOST_RULES} rules are allowed"));
        }
        let plugins = self.plugins(&raw.plugin);
        let measurements: Vec<Measurement> = raw
            .measurement
            .iter()
            .map(|one| match &one.get_ref().plugin {
                Some(plugin) => self.of_plugin(one, plugin, &plugins),
                None => self.measurement(one, &rules, interval_ns),
            })
            .collect();
        if measurements.is_empty() {
            self.found.push((self.text.len(), "no [[measurement]]: there is nothing to do".into()));
        }
        if let Some(at) = raw.measurement.get(MOST_MEASUREMENTS) {
            self.fault(at, format!("at most {MOST_MEASUREMENTS} measurements are allowed"));
        }
        let memory: usize =
            measurements.iter().map(|one| Shape::new(one, interval_ns).most_bytes(one.keys)).sum();
        if let Some(at) = raw.measurement.first().filter(|_| memory > MOST_MEMORY) {
            let reason = format!(
                "all measurements together could take {} MiB in each worker, and may take {}: give them fewer keys, or \
                 less precision",
                memory >> 20,
                MOST_MEMORY >> 20
            );
            self.fault(at, reason);
        }
        let measured: Names = measurements.iter().map(|one| one.name.clone()).collect();
        self.once("measurement", raw.measurement.iter().map(|one| &one.get_ref().name));
        let alarmed: Names = raw.alarm.iter().map(|one| one.get_ref().name.get_ref().clone()).collect();
        self.once("alarm", raw.alarm.iter().map(|one| &one.get_ref().name));
        for alarm in raw.alarm.iter().filter(|one| measured.contains(one.get_ref().name.get_ref())) {
            self.fault(
                &alarm.get_ref().name,
                "a measurement has this name, and actions ask for both by their names",
            );
        }
        let acting: Names = raw.action.iter().map(|one| one.get_ref().name.get_ref().clone()).collect();
        self.once("action", raw.action.iter().map(|one| &one.get_ref().name));
        self.once("schedule", raw.schedule.iter().map(|one| &one.get_ref().name));
        for (count, at) in [
            (raw.alarm.len(), raw.alarm.get(MOST).map(|at| at.start)),
            (raw.action.len(), raw.action.get(MOST).map(|at| at.start)),
            (raw.schedule.len(), raw.schedule.get(MOST).map(|at| at.start)),
        ] {
            if let Some(at) = at {
                self.found.push((at, format!("there are {count} of these, and may be {MOST}")));
            }
        }
        let ruled: Names = rules.rules.iter().filter_map(|rule| rule.name.clone()).collect();
        let timed = |one: &At<raw::Schedule>| (one.get_ref().name.get_ref().clone(), one.get_ref().bits());
        let known = Known {
            measurements: measured,
            alarms: alarmed,
            rules: ruled,
            schedules: raw.schedule.iter().map(timed).collect(),
        };
        let actions: Vec<Action> = raw.action.iter().map(|one| self.action(one, &known)).collect();
        for (one, at) in measurements.iter().zip(&raw.measurement) {
            let Some(asked) = &at.get_ref().analysis else { continue };
            if asked.value == Analysis::Kernel
                && let Some(reason) = kernel::obstacle(&measurements, &rules, &actions, one)
            {
                self.fault(asked, format!("this cannot be \"kernel\": {reason}"));
            }
        }
        let alarms = raw.alarm.iter().map(|one| self.alarm(one, &measurements, &acting)).collect();
        let schedules = raw.schedule.iter().map(|one| self.schedule(one, &known)).collect();
        Config { capture: raw.capture, interval_ns, rules, plugins, measurements, alarms, actions, schedules }
    }

    /// Checks that the names of a kind are unique, and of 1 to 64 letters, digits, '-', '_' and '.'.
    pub(super) fn once<'n>(&mut self, kind: &str, names: impl Iterator<Item = &'n At<String>>) {
        let mut known: Vec<&str> = Vec::new();
        for name in names {
            let text = name.get_ref().as_str();
            let good = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if text.is_empty() || text.len() > 64 || !good {
                self.fault(name, "a name is of up to 64 letters, digits, '-', '_' and '.'");
            } else if known.contains(&text) {
                self.fault(name, format!("another {kind} has this name"));
            }
            known.push(text);
        }
    }

    /// Index of a name; an unknown name is a mistake.
    pub(super) fn named(&mut self, kind: &str, name: &At<String>, known: &[String]) -> usize {
        known.iter().position(|one| one == name.get_ref()).unwrap_or_else(|| {
            let list = if known.is_empty() {
                "none is defined".to_owned()
            } else {
                format!("defined: {}", known.join(", "))
            };
            self.fault(name, format!("unknown {kind}; {list}"));
            0
        })
    }

    fn measurement(&mut self, at: &At<raw::Measurement>, rules: &RuleSet, interval_ns: u64) -> Measurement {
        let raw = at.get_ref();
        let known: Names = rules.rules.iter().filter_map(|rule| rule.name.clone()).collect();
        let rule = raw.rule.as_ref().map(|name| self.named("rule", name, &known));
        let key: Vec<Field> = raw.key.iter().map(|field| field.value).collect();
        self.key(&raw.key);
        if let Some(counters) = &raw.counters {
            self.fault(counters, "only valid with plugin = \"NAME\"");
        }
        let asked = raw.values.as_ref().map_or(&[][..], |values| &values.value);
        let values: Vec<Value> = asked.iter().map(|value| value.value).collect();
        match &raw.values {
            None => self.found.push((at.start, "missing field `values`".into())),
            Some(none) if values.is_empty() => {
                self.fault(none, "no values: expected at least one, as in [\"packets\"]");
            }
            Some(_) => {}
        }
        for (place, value) in asked.iter().enumerate() {
            let one = value.value;
            if values[..place].contains(&one) {
                self.fault(value, format!("{} is there twice", one.name()));
            }
            self.value(value, &key);
        }
        let keys = raw.keys.as_ref().map_or(10_000, |keys| keys.value);
        if let Some(at) = raw.keys.as_ref().filter(|_| !(1..=MOST_KEYS).contains(&keys)) {
            self.fault(at, format!("give 1 to {MOST_KEYS} keys"));
        }
        if let Some(at) = raw.keys.as_ref().filter(|_| key.is_empty()) {
            self.fault(at, "without a key there is one, and no more");
        }
        for (prefix, most) in [(&raw.prefix, 32), (&raw.prefix6, 128)] {
            let Some(prefix) = prefix else { continue };
            if prefix.value > most {
                self.fault(prefix, format!("a network of these addresses has 0 to {most} bits"));
            }
            if !key.iter().any(|field| matches!(field, Field::SrcNet | Field::DstNet)) {
                self.fault(prefix, "only valid for networks: add the key \"src-net\" or \"dst-net\"");
            }
        }
        let sketches = values.iter().any(|value| value.distinct().is_some());
        let precision = raw.precision.as_ref().map_or(if key.is_empty() { 14 } else { 10 }, |one| one.value);
        if let Some(at) = &raw.precision {
            if !(MIN_BITS..=MAX_BITS).contains(&precision) {
                self.fault(at, format!("give {MIN_BITS} to {MAX_BITS} bits: 10 are 1 KiB and an error of 3.25 %, 14 are 16 KiB and 0.81 %"));
            }
            if !sketches {
                self.fault(at, "only valid for estimated values: add a value \"flows\" or \"distinct-...\"");
            }
        }
        let bins = values.iter().any(|value| matches!(value, Value::PeakPackets | Value::PeakBytes));
        let bin_ns = raw.bin.as_ref().map_or(1_000_000, |bin| bin.get_ref().0);
        if let Some(at) = &raw.bin
            && !bins
        {
            self.fault(at, "only valid for peaks: add a value \"peak-packets\" or \"peak-bytes\"");
        }
        let parts = bin_ns > 0 && interval_ns.is_multiple_of(bin_ns) && interval_ns / bin_ns <= MOST_BINS;
        if bins && !parts {
            let reason = format!("a bin is a part of an interval, which has {MOST_BINS} of them at most");
            let at = raw.bin.as_ref().map_or(at.start, |bin| bin.start);
            self.found.push((at, reason));
        }
        let within = |bits: u32| bits.clamp(MIN_BITS, MAX_BITS);
        Measurement {
            name: raw.name.get_ref().clone(),
            plugin: None,
            counters: Vec::new(),
            rule,
            keys: if key.is_empty() { 1 } else { keys.clamp(1, MOST_KEYS) },
            key,
            prefix: raw.prefix.as_ref().map_or(24, |one| one.value).min(32),
            prefix6: raw.prefix6.as_ref().map_or(48, |one| one.value).min(128),
            values,
            show: raw.show.unwrap_or(10),
            precision: within(precision),
            // Without peaks there are no bins: the interval must not be part of such a measurement, as a changed
            // interval would make it a different measurement.
            bin_ns: if bins && !parts { interval_ns.max(1) } else { bin_ns },
            analysis: raw.analysis.as_ref().map_or(Analysis::default(), |one| one.value),
            active: raw.active.unwrap_or(true),
        }
    }

    /// Checks that fields can form a key together.
    fn key(&mut self, key: &[At<Field>]) {
        /// Parts of a packet that a field covers: two fields of a key must not cover the same part.
        fn takes(field: Field) -> u16 {
            match field {
                Field::Src | Field::SrcNet => 1,
                Field::Dst | Field::DstNet => 2,
                Field::Pair => 3,
                Field::SrcPort => 4,
                Field::DstPort => 8,
                Field::Port => 16,
                Field::Protocol => 32,
                Field::Flow => 1 | 2 | 4 | 8 | 32,
                Field::Vlan => 64,
                Field::Queue => 128,
                Field::Device => 256,
                Field::Application => 512,
            }
        }
        let mut taken = 0;
        for field in key {
            let one = takes(field.value);
            if taken & one != 0 {
                self.fault(
                    field,
                    format!("\"{}\" repeats a field of the key before it", field.get_ref().name()),
                );
            }
            taken |= one;
        }
    }

    /// Checks that a value is meaningful with this key.
    fn value(&mut self, value: &At<Value>, key: &[Field]) {
        let one = value.value;
        let needs = match one {
            Value::OneWay if !key.iter().any(|field| matches!(field, Field::Pair | Field::Flow)) => {
                "the key \"pair\" or \"flow\", as it is about both directions"
            }
            Value::Macs if key != [Field::Src] => "the key \"src\" and no other: whose addresses?",
            Value::Keys | Value::Entropy if key.is_empty() => "a key: of what?",
            _ => return,
        };
        self.fault(value, format!("\"{}\" needs {needs}", one.name()));
    }
}
