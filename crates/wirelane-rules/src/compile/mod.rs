//! Compiles a rule set to the tables that `bpf/lib/rules.h` describes.
//!
//! ```text
//!  Rule -> clauses.rs: Clause, what it asks of each dimension, as ranges.rs: Ranges
//!            |-> pivots.rs: which of its demands leads to a clause
//!            `-> intervals: from where on which values mean which clauses -> tables.rs: classes, and a tree of nodes
//! ```

pub(super) mod clauses;
mod intervals;
mod pivots;
pub(super) mod ranges;
mod tables;

use wirelane_bpf::members::{Members, of};
use wirelane_bpf::rules as flat;
use wirelane_bpf::rules::{DIMS_USED, FlatSet, Node, Set, dim, rule_flags, verdict};

use self::clauses::{Clause, Clauses};
use self::pivots::Pivots;
use self::tables::{Full, Tables, set};
use super::exact::shapes;
use super::plugins::Placed;
use super::{Action, Policy, Rule, RuleSet, SampleBy, Shape, Then};
use crate::{Error, Result};

/// Size of the tables of a compiled set, exact or as an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Nodes ([`FlatSet::nodes`]).
    pub nodes: usize,
    /// Classes ([`FlatSet::classes`]).
    pub classes: usize,
}

impl Room {
    /// No limit.
    pub const UNLIMITED: Room = Room { nodes: usize::MAX, classes: usize::MAX };

    /// The size of a compiled set.
    pub fn of(set: &FlatSet) -> Room {
        Room { nodes: set.nodes.len(), classes: set.classes.len() }
    }

    /// Memory in bytes.
    pub fn bytes(self) -> usize {
        let (nodes, classes) = (size_of::<Node>(), size_of::<flat::Class>());
        self.nodes.saturating_mul(nodes).saturating_add(self.classes.saturating_mul(classes))
    }
}

impl RuleSet {
    /// Compiles the set for the packets of this device, to tables of at most this size. The tables do not contain
    /// exact-match rules, but contain their shapes and `others`, the shapes of rules that may be added while the set is
    /// in use.
    ///
    /// Rules are sorted by id, and the slot of each is its index in that order, on every device. If rules test
    /// payloads, the slot after the last rule is that of the payload search ([`Set::search_slot`]). Egress devices are
    /// numbered as in [`RuleSet::egress_devices`].
    ///
    /// # Errors
    /// [`Error::Rules`]: the set is invalid ([`RuleSet::check`]). [`Error::BadOption`]: the tables would be larger than
    /// `most`; the message has their size.
    pub fn compile(&self, device: &str, others: &[Shape], most: Room) -> Result<FlatSet> {
        self.compile_for(device, &self.egress_devices(), &[], others, most)
    }

    /// Compiles the set for a capture with these egress devices, and with these plug-ins on this device.
    ///
    /// # Errors
    /// As [`RuleSet::compile`].
    pub fn compile_for(
        &self,
        device: &str,
        egress_devices: &[String],
        plugins: &[Placed],
        others: &[Shape],
        most: Room,
    ) -> Result<FlatSet> {
        self.check()?;
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let mut maker = Clauses::new(rules.iter().copied());
        let clauses: Vec<Clause> =
            rules.iter().enumerate().flat_map(|(index, rule)| maker.of(index, rule, Some(device))).collect();
        let shapes = shapes(self, others)?;
        let mut head = Set::empty();
        head.default_verdict = default_of(self.default).into();
        head.rules = rules.len() as u32;
        head.slots = head.rules;
        if !self.pattern_names().is_empty() {
            // One more slot, for the payload search.
            head.search_slot = head.rules;
            head.slots += 1;
        }
        head.clauses = clauses.len() as u32;
        head.shapes = shapes.len() as u32;
        for (place, shape) in head.shape.iter_mut().zip(&shapes) {
            *place = shape.0;
        }
        for (slot, (flat, rule)) in head.rule.iter_mut().zip(&rules).enumerate() {
            *flat = flat::Rule { slot: slot as u32, ..flat_rule(rule, egress_devices, plugins) };
        }
        for (number, clause) in clauses.iter().enumerate() {
            head.rule_of[number] = clause.rule as u16;
            head.rule[clause.rule].last_clause = number as u16;
        }
        let Built { used, dims, nodes, classes } =
            build(&clauses, most).map_err(|_| too_large(room(&clauses), most))?;
        head.used = used;
        head.dims = dims;
        let mut members = Members::default();
        for (test, (what, named)) in self.named_tests().into_iter().enumerate() {
            head.member[test] = what | named.entries.key() | if named.confirm { of::EXACT } else { 0 };
            head.prefix[test] = named.entries.prefixes();
            members.put(test, named.entries.membership());
        }
        let search = self.search();
        head.search_root = search.roots;
        head.search_reach = search.reach;
        head.plugin = self.plugin_bits(plugins);
        Ok(FlatSet { set: head, nodes, classes, members, search })
    }

    /// Upper bound of the size of the set's tables, compiled for any device. The bound is exact if no rule is
    /// restricted to devices, unless the tables would have more than a million nodes.
    ///
    /// # Errors
    /// As [`RuleSet::check`].
    pub fn room(&self) -> Result<Room> {
        self.check()?;
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let mut maker = Clauses::new(rules.iter().copied());
        let clauses: Vec<Clause> =
            rules.iter().enumerate().flat_map(|(index, rule)| maker.of(index, rule, None)).collect();
        Ok(room(&clauses))
    }
}

/// Upper bound of the size of these clauses' tables.
///
/// Tables for a subset of the clauses, those of one device, are never larger: they distinguish no more values.
fn room(clauses: &[Clause]) -> Room {
    match build(clauses, Room { nodes: MOST_BUILT, classes: usize::MAX }) {
        Ok(built) => Room { nodes: built.nodes.len(), classes: built.classes.len() },
        Err(Full) => intervals::room(clauses),
    }
}

/// Maximum number of nodes that are built only to count them: 1 GiB.
const MOST_BUILT: usize = 1 << 20;

/// Error for tables that do not fit.
fn too_large(needed: Room, most: Room) -> Error {
    let mib = |room: Room| room.bytes().div_ceil(1 << 20);
    Error::BadOption {
        option: "rules",
        reason: format!(
            "they need up to {} nodes and {} classes ({} MiB), and there is room for {} and {} ({} MiB); addresses \
             that lie far apart take the most: ask for more room, or for fewer of them",
            needed.nodes,
            needed.classes,
            mib(needed),
            most.nodes,
            most.classes,
            mib(most),
        ),
    }
}

/// The tables of a set, and the root of each dimension.
struct Built {
    /// Bit per dimension that a clause tests.
    used: u32,
    dims: [flat::Field; flat::DIMS],
    nodes: Vec<Node>,
    classes: Vec<flat::Class>,
}

fn build(clauses: &[Clause], most: Room) -> std::result::Result<Built, Full> {
    let mut tables = Tables::new(clauses.len(), Pivots::new(clauses), most.classes, most.nodes)?;
    let (mut used, mut dims) = (0, [flat::Field::default(); flat::DIMS]);
    for (dim, place) in dims.iter_mut().enumerate().take(DIMS_USED) {
        if clauses.iter().any(|clause| clause.demands[dim].is_some()) {
            used |= 1 << dim;
            *place = field(&mut tables, clauses, dim)?;
        }
    }
    let (nodes, classes) = tables.finish();
    Ok(Built { used, dims, nodes, classes })
}

/// Builds the tree of a dimension and returns its roots.
fn field(tables: &mut Tables, clauses: &[Clause], dim: usize) -> std::result::Result<flat::Field, Full> {
    let mut absent = [0; flat::WORDS];
    for (number, clause) in clauses.iter().enumerate() {
        let demand = &clause.demands[dim];
        let absent_too = match dim {
            dim::PAYLOAD => demand.is_some(),
            _ => demand.as_ref().is_none_or(|demand| demand.absent),
        };
        if absent_too {
            set(&mut absent, number);
        }
    }
    let absent = tables.class(dim, &absent)?;
    let mut roots = [0; 2];
    for (root, tree) in roots.iter_mut().zip(intervals::trees(dim)) {
        let segments = intervals::segments(clauses, dim, tree, |bits| tables.class(dim, bits))?;
        *root = tables.tree(&segments, tree.1)?;
    }
    Ok(flat::Field { root: roots[0], root6: roots[1], absent, pad: 0 })
}

/// The verdict code of a default policy.
pub(super) fn default_of(policy: Policy) -> u8 {
    match policy {
        Policy::Pass => verdict::PASS,
        Policy::Drop => verdict::DROP,
    }
}

/// The verdict code of an action.
pub(super) fn verdict_of(action: Action) -> u8 {
    match action {
        Action::None => verdict::NONE,
        Action::Pass => verdict::PASS,
        Action::Drop => verdict::DROP,
        Action::Count => verdict::ABSORB,
        Action::Digest => verdict::DIGEST,
        Action::Redirect => verdict::REDIRECT,
        Action::Plugin => verdict::PLUGIN,
        Action::Measure => verdict::MEASURE,
    }
}

/// The action of a verdict code.
pub fn action_of(code: u8) -> Action {
    match code {
        verdict::PASS => Action::Pass,
        verdict::DROP => Action::Drop,
        verdict::ABSORB => Action::Count,
        verdict::DIGEST => Action::Digest,
        verdict::REDIRECT => Action::Redirect,
        verdict::PLUGIN => Action::Plugin,
        verdict::MEASURE => Action::Measure,
        _ => Action::None,
    }
}

/// The flag of a rule after which evaluation continues.
pub(super) fn flag_of(then: Then) -> u8 {
    match then {
        Then::Continue => rule_flags::CONTINUE,
        Then::Stop => 0,
    }
}

/// The kernel's representation of a rule, without its conditions.
fn flat_rule(rule: &Rule, egress_devices: &[String], plugins: &[Placed]) -> flat::Rule {
    let (mirror, to) = rule.sends().bits(egress_devices);
    let flag = |there: bool, flag: u8| if there { flag } else { 0 };
    let tag = flag(rule.tag.is_some(), rule_flags::TAG);
    let by_packet = rule.sample.is_some_and(|sample| sample.by == SampleBy::Packet);
    let (after, none) = rule.after();
    let mut flat = flat::Rule {
        id: rule.id,
        verdict: verdict_of(rule.action),
        flags: flag_of(rule.then)
            | tag
            | flag(by_packet, rule_flags::SAMPLE_PACKET)
            | flag(none, rule_flags::AFTER_NONE),
        truncate: rule.truncate.unwrap_or(0),
        sample: rule.sample.map_or(0, |sample| sample.one_in),
        tag: rule.tag.unwrap_or(0),
        mirror,
        to,
        plugin: rule.plugin_places(plugins),
        after,
        ..flat::Rule::default()
    };
    if let Some(insert) = &rule.insert {
        flat.flags |= rule_flags::INSERT;
        flat.insert_shape = insert.shape.0;
        flat.insert_idle_s = insert.idle_s;
        flat.insert_hard_s = insert.hard_s;
        flat.insert_verdict = verdict_of(insert.action);
        flat.insert_flags = flag_of(insert.then) | tag;
    }
    flat
}
