//! A set of rules that is to come into force, before it is compiled for a device.

use std::sync::Arc;

use wirelane_bpf::rules::{FlatSet, rule_flags};
use wirelane_bpf::search::Search;

use super::capacity::RulesCapacity;
use super::counter_slots::CounterSlots;
use super::entry;
use crate::error::Result;
use wirelane_rules::plugins::Placed;
use wirelane_rules::{Condition, NamedSet, Room, RuleSet, Shape, Test};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct PendingRuleset {
    /// Its wildcard rules. Exact-match rules are put into the tables on their own.
    pub(super) set: RuleSet,
    /// Shapes that exact-match rules in force have.
    pub(super) shapes: Vec<Shape>,
    pub(super) epoch: u32,
    pub(super) version: u64,
    /// The counters of its rules.
    pub(super) slots: CounterSlots,
    /// What payloads are searched by, so that it is made once for all devices.
    pub(super) _search: Arc<Search>,
}

impl PendingRuleset {
    /// Compiles it for the packets of a device, in a capture with these egress devices, and with these plug-ins there.
    ///
    /// # Errors
    /// [`crate::Error::Rules`] for what is wrong with it, [`crate::Error::BadOption`] where there is no room for it.
    pub(crate) fn compile(
        &self,
        device: &str,
        egress_devices: &[String],
        plugins: &[Placed],
        room: &RulesCapacity,
    ) -> Result<FlatSet> {
        let most = Room { nodes: room.nodes, classes: room.classes };
        let mut flat = self.set.compile_for(device, egress_devices, plugins, &self.shapes, most)?;
        let set = &mut *flat.set;
        set.version = self.version as u32;
        set.slots = room.slots() as u32;
        set.search_slot = room.search_slot() as u32;
        for shape in &mut set.shape[..set.shapes as usize] {
            *shape = entry::in_epoch(*shape, self.epoch);
        }
        for rule in &mut set.rule[..set.rules as usize] {
            rule.slot = self.slots.of(rule.id).unwrap_or(0) as u32;
            if rule.flags & rule_flags::INSERT != 0 {
                rule.insert_shape = entry::in_epoch(rule.insert_shape, self.epoch);
            }
        }
        Ok(flat)
    }

    /// The named sets that its rules ask, by their tests.
    pub(crate) fn named(&self) -> Vec<&NamedSet> {
        self.set.named_tests().into_iter().map(|(_, set)| set).collect()
    }

    /// The devices that its rules name.
    pub(super) fn devices(&self) -> Vec<&str> {
        let conditions = self.set.rules.iter().flat_map(|rule| &rule.conditions);
        let mut names: Vec<&str> = conditions
            .filter_map(|Condition { test, .. }| match test {
                Test::Device(names) => Some(names.iter().map(String::as_str)),
                _ => None,
            })
            .flatten()
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether a packet can make an exact-match rule.
    pub(super) fn inserts(&self) -> bool {
        self.set.rules.iter().any(|rule| rule.insert.is_some())
    }
}
