//! A set of rules that is to be activated, before it is compiled for a device.

use std::sync::Arc;

use wirelane_bpf::rules::{FlatSet, rule_flags};
use wirelane_bpf::search::Search;

use super::capacity::RulesCapacity;
use super::counter_slots::CounterSlots;
use super::entry;
use crate::error::Result;
use wirelane_rules::plugins::Placed;
use wirelane_rules::{Condition, NamedSet, Room, RuleSet, Shape, Test};

/// Shape of a rule for a destination of media ([`crate::Meter`]).
pub(crate) const OF_A_PLACE: Shape = Shape::DST.with(Shape::DST_PORT).with(Shape::PROTOCOL);

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct PendingRuleset {
    /// The set's wildcard rules. Exact-match rules are inserted into the tables separately.
    pub(super) set: RuleSet,
    /// Shapes of the exact-match rules in force.
    pub(super) shapes: Vec<Shape>,
    pub(super) epoch: u32,
    pub(super) version: u64,
    /// The counters of the set's rules.
    pub(super) slots: CounterSlots,
    /// The payload search automaton, built once for all devices.
    pub(super) _search: Arc<Search>,
}

impl PendingRuleset {
    /// Compiles the set for the packets of a device, in a capture with these egress devices and plug-ins.
    ///
    /// # Errors
    /// [`crate::Error::Rules`] for invalid rules, [`crate::Error::BadOption`] where capacity is missing.
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

    /// The named sets that the set's rules use, in the order of their tests.
    pub(crate) fn named(&self) -> Vec<&NamedSet> {
        self.set.named_tests().into_iter().map(|(_, set)| set).collect()
    }

    /// The devices that the set's rules name.
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

    /// Whether all rules have the shape of a meter's rules: RTP streams can be looked up before the rules.
    pub(crate) fn is_of_places(&self) -> bool {
        self.set.rules.is_empty() && self.shapes == [OF_A_PLACE]
    }

    /// Whether a packet can make an exact-match rule.
    pub(super) fn inserts(&self) -> bool {
        self.set.rules.iter().any(|rule| rule.insert.is_some())
    }
}
