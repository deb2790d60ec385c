//! The plug-ins of a group in its instance (`bpf/plugin.h`): their counts in each lane, and whether one has been
//! switched off.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use wirelane_bpf::instance::{PLUGIN_COUNTERS, Plugin as Counts, Plugins};

use super::instance::Instance;
use super::program::Plugin;
use super::rules::GroupRules;
use crate::active_rules::{PluginLine, Target as _};
use wirelane_bpf::rules::MAX_PLUGINS;
use wirelane_rules::plugins::Placed;

/// The plug-ins of a group, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupPlugins {
    placed: Vec<Placed>,
    /// Names of the counters of each plug-in.
    counters: Vec<Vec<String>>,
}

impl GroupPlugins {
    /// These plug-ins, in these slots.
    pub(super) fn new(plugins: &[Plugin], places: &[u32]) -> GroupPlugins {
        let placed = plugins.iter().zip(places);
        GroupPlugins {
            placed: placed
                .map(|(plugin, place)| Placed { name: plugin.name.clone(), place: *place })
                .collect(),
            counters: plugins.iter().map(|plugin| plugin.program.counters().to_vec()).collect(),
        }
    }

    pub(super) fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// A mask with one bit for each slot.
    pub(super) fn mask(&self) -> u32 {
        self.placed.iter().fold(0, |mask, one| mask | 1 << one.place)
    }

    /// By slot: the number of the plug-in, the first one where several share a slot.
    pub(super) fn numbers(&self) -> [u8; MAX_PLUGINS] {
        std::array::from_fn(|slot| {
            self.placed.iter().position(|one| one.place as usize == slot).unwrap_or(0) as u8
        })
    }

    /// Counts of each plug-in for a group, over all lanes.
    pub(super) fn lines(&self, instance: &Instance, group: usize) -> Vec<PluginLine> {
        let named = self.placed.iter().zip(&self.counters);
        named.map(|(placed, names)| line(placed, names, instance, group)).collect()
    }
}

/// Byte offset in [`Instance::plugins`] of a lane's counts of a group's plug-ins.
fn of(instance: &Instance, group: usize, lane: usize) -> usize {
    (group * instance.lanes + lane) * size_of::<Plugins>()
}

/// Resets the counts of a group, which must not be active.
pub(super) fn clear(instance: &Instance, group: usize) {
    for lane in 0..instance.lanes {
        instance.plugins.clear(of(instance, group, lane), size_of::<Plugins>());
    }
}

/// Counts of one plug-in, over all lanes.
fn line(placed: &Placed, names: &[String], instance: &Instance, group: usize) -> PluginLine {
    // Relaxed: the numbers are independent, and final once no lane writes any more.
    let sum = |field: usize| -> u64 {
        let at = |lane| of(instance, group, lane) + placed.place as usize * size_of::<Counts>() + field;
        (0..instance.lanes).map(|lane| instance.plugins.word(at(lane)).load(Ordering::Relaxed)).sum()
    };
    let mut counters = BTreeMap::new();
    for number in 0..PLUGIN_COUNTERS {
        let value = sum(offset_of!(Counts, counters) + number * size_of::<u64>());
        match names.get(number) {
            Some(name) => counters.insert(name.clone(), value),
            // A counter without a name is shown where it is not 0.
            None if value > 0 => counters.insert(format!("counter {number}"), value),
            None => None,
        };
    }
    PluginLine {
        name: placed.name.clone(),
        asked: sum(offset_of!(Counts, asked)),
        matched: sum(offset_of!(Counts, matched)),
        refused: sum(offset_of!(Counts, refused)),
        timed: sum(offset_of!(Counts, timed)),
        timed_ns: sum(offset_of!(Counts, ns)),
        off: sum(offset_of!(Counts, off)),
        records: sum(offset_of!(Counts, records)),
        unwritten: sum(offset_of!(Counts, unwritten)),
        counters,
    }
}

/// Checks whether the plug-ins of a capture have been switched off, and warns where one has: now and then, and at the
/// end.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<Watch>>);

/// The plug-ins of one group.
#[derive(Debug)]
struct Watch {
    rules: Arc<GroupRules>,
    /// Names of the plug-ins that a warning was logged for.
    said: Vec<String>,
}

impl Watches {
    /// Watches for these groups.
    pub(crate) fn of(groups: impl Iterator<Item = Arc<GroupRules>>) -> Watches {
        let with_plugins = groups.filter(|rules| !rules.plugins().is_empty());
        let watches = with_plugins.map(|rules| Watch { rules, said: Vec::new() });
        Watches(Mutex::new(watches.collect()))
    }

    /// Checks once.
    pub(crate) fn look(&self) {
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for Watch { rules, said } in watches.iter_mut() {
            for line in rules.plugin_lines() {
                if line.off == 0 || said.contains(&line.name) {
                    continue;
                }
                tracing::warn!(
                    "{}: the plug-in {} is too slow: it takes {} ns a packet (--plugin-budget says the limit); it is disabled and does not match any more",
                    rules.device(),
                    line.name,
                    line.mean_ns()
                );
                said.push(line.name);
            }
        }
    }
}
