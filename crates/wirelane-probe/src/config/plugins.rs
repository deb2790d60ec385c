//! Plug-ins, and measurements of their counters.

use super::check::{Check, Names};
use super::raw;
use super::{Analysis, Measurement, Plugin};
use crate::placed::At;

/// Maximum number of plug-ins of a capture.
const MOST_PLUGINS: usize = 4;
/// Maximum number of counters: those that a plug-in names, and the two that each plug-in has.
const MOST_COUNTERS: usize = 10;

impl Check<'_> {
    pub(super) fn plugins(&mut self, raw: &[At<raw::Plugin>]) -> Vec<Plugin> {
        self.once("plug-in", raw.iter().map(|one| &one.get_ref().name));
        for one in raw {
            let raw = one.get_ref();
            if raw.name.get_ref().contains('.') {
                self.fault(&raw.name, "a plug-in's name is of letters, digits, '-' and '_'");
            }
            let file = raw.file.get_ref();
            if file.is_empty() || file.contains('\0') {
                self.fault(&raw.file, "give an object file, as clang makes it for target bpf");
            }
        }
        if let Some(at) = raw.get(MOST_PLUGINS) {
            self.fault(at, format!("at most {MOST_PLUGINS} plug-ins are allowed"));
        }
        let plugin = |one: &At<raw::Plugin>| Plugin {
            name: one.get_ref().name.get_ref().clone(),
            file: one.get_ref().file.get_ref().clone(),
        };
        raw.iter().map(plugin).collect()
    }

    /// A measurement of plug-in counters.
    pub(super) fn of_plugin(
        &mut self,
        at: &At<raw::Measurement>,
        name: &At<String>,
        plugins: &[Plugin],
    ) -> Measurement {
        let raw = at.get_ref();
        let known: Names = plugins.iter().map(|one| one.name.clone()).collect();
        let plugin = self.named("plug-in", name, &known);
        let not_here = "a plug-in counts what it likes: its measurement has counters, and none of this";
        let places = [
            raw.rule.as_ref().map(|at| at.start),
            raw.key.first().map(|at| at.start),
            raw.prefix.as_ref().map(|at| at.start),
            raw.prefix6.as_ref().map(|at| at.start),
            raw.values.as_ref().map(|at| at.start),
            raw.keys.as_ref().map(|at| at.start),
            raw.precision.as_ref().map(|at| at.start),
            raw.bin.as_ref().map(|at| at.start),
            raw.analysis.as_ref().map(|at| at.start),
        ];
        self.found.extend(places.into_iter().flatten().map(|start| (start, not_here.to_owned())));
        let counters = raw.counters.as_ref().map_or(&[][..], |counters| &counters.value);
        if let Some(counters) = raw.counters.as_ref().filter(|counters| counters.value.is_empty()) {
            self.fault(counters, "no counters: name some, or leave this out for all of them");
        }
        for (place, name) in counters.iter().enumerate() {
            if counters[..place].iter().any(|one| one.value == name.value) {
                self.fault(name, format!("{} is there twice", name.value.escape_debug()));
            }
        }
        if let Some(at) = counters.get(MOST_COUNTERS) {
            self.fault(at, format!("a plug-in has {MOST_COUNTERS} counters at most"));
        }
        Measurement {
            name: raw.name.get_ref().clone(),
            plugin: Some(plugin),
            counters: counters.iter().map(|name| name.value.clone()).collect(),
            rule: None,
            key: Vec::new(),
            prefix: 32,
            prefix6: 128,
            values: Vec::new(),
            keys: 1,
            show: 1,
            precision: wirelane_bpf::sketch::MIN_BITS,
            bin_ns: 1,
            analysis: Analysis::Auto,
            active: raw.active.unwrap_or(true),
        }
    }

    /// A counter that an alarm observes. Whether the plug-in has it is checked when the plug-in is loaded.
    pub(super) fn counter(&mut self, name: &At<String>, of: Option<&Measurement>) {
        match of {
            Some(of) if of.plugin.is_none() => {
                self.fault(name, format!("{} is not of a plug-in: give value", of.name));
            }
            Some(of) if !of.counters.is_empty() && !of.counters.contains(name.get_ref()) => {
                self.fault(name, format!("the measurement has {}", of.counters.join(", ")));
            }
            _ => {}
        }
    }
}
