//! Rules: the verdict on each packet that passed a capture's filter, and per-rule counters.
//!
//! The crate needs no kernel and no capture: it reads, checks, compiles and explains rule sets.
//!
//! ```text
//!  rule file -> file/ -> RuleSet -> compile/ -> flat tables -.-> the kernel: bpf/lib/rules.h
//!     |           |         |  |                             `-> natively, the same code
//!     |           |         |  `-> check.rs, possible.rs: what is wrong with a set
//!     |           |         `-> reference/: the same answered from the conditions, for `explain` and for tests
//!     |           `-> Mistakes: every mistake of a file, with line and column
//!     `-> other rule files, lists of addresses
//! ```
//!
//! A packet is first looked up in the **exact-match** rules: exact values, found by hash. Then the **wildcard** rules
//! are evaluated in the order of their ids. Each rule that matches is counted. A rule with [`Then::Stop`] ends the
//! evaluation, and its action is the verdict; with [`Then::Continue`] the action is provisional, and is replaced by
//! that of a later match. If no matching rule has an action, the set's default policy applies.

mod addresses;
mod after;
mod bloom;
mod check;
mod compile;
mod condition;
pub mod egress_devices;
mod entries;
mod error;
mod exact;
mod file;
mod mistake;
mod named;
mod names;
mod networks;
pub mod parameters;
mod patterns;
pub mod plugins;
mod possible;
mod reference;
mod stats;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};

pub use self::addresses::Addresses;
pub use self::addresses::Part;
pub use self::bloom::BloomSize;
pub use self::compile::Room;
pub use self::compile::action_of;
pub use self::condition::{Condition, Kind, TcpTest, Test, Vlan, Way};
pub use self::entries::{Ends, Entries, Flows};
pub use self::error::{Error, Result};
pub use self::exact::shapes;
pub use self::exact::{ExactFields, ExactRule, ExactVlan, Shape};
pub use self::mistake::Mistake;
pub use self::named::exact_bytes;
pub use self::named::{NamedSet, SetLine};
pub use self::networks::Networks;
pub use self::parameters::{Parameter, ParameterValue};
pub use self::patterns::{Application, Pattern, PatternLine, Patterns};
pub use self::reference::{ExactEntry, Explanation, Finding, Found, FoundPattern, Reference, SetTest};
pub use self::stats::{
    Changed, ExactLine, Hits, PluginLine, RuleLine, RuleStats, Searches, add as add_counts,
};

/// Maximum number of wildcard rules of a set, and of the clauses that they are compiled to (`WL_RULES_MAX`). A rule is
/// one clause, unless it has conditions on either side ([`Test::Host`], [`Test::Port`]) or is for both ways
/// ([`Rule::both_ways`]), each of which doubles its clauses.
pub const MOST_RULES: usize = 4096;

/// The rules of one group, with a default policy.
///
/// [`RuleSet::default`] has no rules and passes everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuleSet {
    /// Policy for a packet that no rule decided about.
    #[serde(default)]
    pub default: Policy,
    /// Wildcard rules, in any order; they are evaluated in the order of their ids.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Exact-match rules, evaluated before the wildcard rules.
    #[serde(default)]
    pub exact: Vec<ExactRule>,
    /// Named sets that rules refer to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<NamedSet>,
    /// Payload patterns that rules refer to by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Patterns>,
    /// Parameters of plug-ins and of the steering program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
}

/// Policy for a packet that no rule decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Deliver the packet.
    #[default]
    Pass,
    /// Do not deliver the packet: `filtered` in the ledger.
    Drop,
}

/// A wildcard rule: its conditions, and the action on a matching packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// Id, from 1, unique within the set, exact-match rules included. Rules are evaluated from the lowest id on.
    pub id: u32,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Conditions, all of which must hold. A rule without conditions matches every packet.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Whether the rule matches packets of the other direction, too: those that satisfy the conditions if source and
    /// destination are exchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub both_ways: bool,
    /// Action on a matching packet.
    pub action: Action,
    /// Whether evaluation continues with later rules.
    pub then: Then,
    /// Maximum number of bytes of the packet to deliver. If several matching rules set one, the smallest applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<u32>,
    /// Sampling of the matching packets; packets outside of the sample are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Tag for the record. If several matching rules set one, the last applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<u32>,
    /// Exact-match rule to insert for a matching packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insert: Option<Insert>,
    /// Egress device for a copy of the packet (`Builder::egress_devices` of the library). Each matching rule sends a
    /// copy, but an egress device gets a packet only once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// With [`Action::Redirect`]: egress device for the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl Rule {
    /// A rule without conditions and modifiers. Evaluation continues with later rules only if the action does not
    /// decide about the packet.
    pub fn new(id: u32, action: Action) -> Rule {
        Rule {
            id,
            name: None,
            conditions: Vec::new(),
            both_ways: false,
            action,
            then: Then::after(action),
            truncate: None,
            sample: None,
            tag: None,
            insert: None,
            mirror: None,
            to: None,
        }
    }

    /// The rule's action with its egress devices.
    fn sends(&self) -> egress_devices::Sends<'_> {
        egress_devices::Sends { action: self.action, mirror: self.mirror.as_deref(), to: self.to.as_deref() }
    }

    /// The rule's action in words, with its egress devices: `redirect to eth2`.
    pub fn does(&self) -> String {
        self.sends().words()
    }
}

/// Action on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Deliver the packet.
    Pass,
    /// Do not deliver the packet: `filtered` in the ledger.
    Drop,
    /// Count the packet in the rule and do not deliver it: `absorbed` in the ledger.
    Count,
    /// Deliver a record with the parsed headers but without the packet's bytes (`Record::digest`).
    Digest,
    /// No decision: the rule only counts the packet and applies its modifiers.
    None,
    /// Send the packet to the egress device that the rule names ([`Rule::to`]) and not to the host: `absorbed` in the
    /// ledger.
    Redirect,
    /// Apply the verdict of the matching plug-in; if several match, of the one that the rule names first
    /// ([`Test::Plugin`]). The verdict is to deliver, drop or count the packet, or to deliver it as a digest.
    Plugin,
    /// Add the packet to its RTP stream if RTP is measured in the kernel (`Meter`): `absorbed` in the ledger.
    /// Otherwise deliver it. Only for exact-match rules, which a meter inserts; rule files have no keyword for it.
    Measure,
}

/// Whether evaluation continues with later rules after a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// Evaluation ends.
    Stop,
    /// Evaluation continues; the action of a later match replaces this one.
    Continue,
}

impl Then {
    /// The default for an action: only rules without a decision about the packet continue.
    pub fn after(action: Action) -> Then {
        match action {
            Action::None => Then::Continue,
            Action::Pass
            | Action::Drop
            | Action::Count
            | Action::Digest
            | Action::Redirect
            | Action::Plugin
            | Action::Measure => Then::Stop,
        }
    }
}

/// Sampling of one in N packets, with a deterministic selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// N; at least 1, which selects all packets.
    pub one_in: u32,
    /// Unit of selection.
    pub by: SampleBy,
}

/// Unit of selection of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleBy {
    /// Whole flows, both directions, by their flow hash.
    #[default]
    Flow,
    /// Single packets, by a hash of fields that do not change in transit (RFC 5475, 6.2: hash-based selection).
    Packet,
}

/// The exact-match rule that a wildcard rule inserts for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Insert {
    /// The fields of the packet that the inserted rule matches.
    pub shape: Shape,
    /// Action on the packets that the inserted rule matches; not [`Action::Redirect`] or [`Action::Plugin`]. The
    /// inserted rule has the tag of the wildcard rule.
    pub action: Action,
    /// Whether wildcard rules are evaluated too.
    pub then: Then,
    /// Idle timeout in seconds since the last hit; 0: none.
    #[serde(default)]
    pub idle_s: u32,
    /// Hard timeout in seconds since the rule was inserted; 0: none.
    #[serde(default)]
    pub hard_s: u32,
}
