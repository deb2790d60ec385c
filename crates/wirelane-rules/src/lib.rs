//! Rules: what becomes of a packet that a capture's filter wants, and what is counted of it.
//!
//! No kernel and no capture is needed: a rule set is read, checked, compiled to flat tables and explained here.
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
//! A packet meets the **exact-match** rules first: exact values, found by hash. Then the **wildcard** rules in the order of
//! their ids. Each rule that it hits is counted. A rule with [`Then::Stop`] ends the search, and its action is what
//! becomes of the packet; with [`Then::Continue`] the action is provisional, and that of a later hit replaces it.
//! Where no action was hit, the set's default decides.

mod addresses;
mod bloom;
mod check;
mod compile;
mod condition;
pub mod egress_devices;
mod error;
mod exact;
mod file;
mod mistake;
mod named;
mod names;
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
pub use self::error::{Error, Result};
pub use self::exact::shapes;
pub use self::exact::{ExactFields, ExactRule, ExactVlan, Shape};
pub use self::mistake::Mistake;
pub use self::named::exact_bytes;
pub use self::named::{Entries, Flows, NamedSet, SetLine};
pub use self::patterns::{Application, Pattern, PatternLine, Patterns};
pub use self::reference::{ExactEntry, Explanation, Finding, Found, FoundPattern, Reference, SetTest};
pub use self::stats::{
    Changed, ExactLine, Hits, PluginLine, RuleLine, RuleStats, Searches, add as add_counts,
};

/// The most wildcard rules of a set, and the most clauses that they are made of (`WL_RULES_MAX`). A rule is one clause,
/// unless it has conditions on either side ([`Test::Host`], [`Test::Port`]), each of which doubles its clauses.
pub const MOST_RULES: usize = 4096;

/// Everything that decides about the packets of one group.
///
/// [`RuleSet::default`] has no rules and passes everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuleSet {
    /// What becomes of a packet that no rule decided about.
    #[serde(default)]
    pub default: Policy,
    /// Wildcard rules. Their order is that of their ids, whatever it is here.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Exact-match rules, met before the others.
    #[serde(default)]
    pub exact: Vec<ExactRule>,
    /// Sets that rules ask by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<NamedSet>,
    /// Patterns that payloads are searched for, which rules ask for by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<Patterns>,
}

/// What becomes of a packet that no rule decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It is delivered.
    #[default]
    Pass,
    /// It is not delivered: `filtered` in the ledger.
    Drop,
}

/// A wildcard rule: what it asks of a packet, and what becomes of one that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// From 1; no two rules of a set have the same, exact-match rules included. The lowest is met first.
    pub id: u32,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All must hold. A rule without conditions fits every packet.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// What becomes of a packet that fits.
    pub action: Action,
    /// Whether later rules are asked too.
    pub then: Then,
    /// Deliver at most so many bytes of the packet. Of several rules hit, the smallest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<u32>,
    /// Take only some of the packets that fit; the others are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// A number for the record. Of several rules hit, the last counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<u32>,
    /// Make an exact-match rule of the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insert: Option<Insert>,
    /// Send a copy of the packet to this egress device (`Builder::egress_devices` of the library). Of several rules hit, each does; an egress device
    /// gets a packet once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// With [`Action::Redirect`]: the egress device that the packet is sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl Rule {
    /// A rule without conditions and modifiers, which goes on to later rules only if its action says nothing about the
    /// packet.
    pub fn new(id: u32, action: Action) -> Rule {
        Rule {
            id,
            name: None,
            conditions: Vec::new(),
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

    /// What it sends, and where to.
    fn sends(&self) -> egress_devices::Sends<'_> {
        egress_devices::Sends { action: self.action, mirror: self.mirror.as_deref(), to: self.to.as_deref() }
    }

    /// Its action, with the devices that it sends packets to: `redirect to eth2`.
    pub fn does(&self) -> String {
        self.sends().words()
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is delivered.
    Pass,
    /// It is not delivered: `filtered` in the ledger.
    Drop,
    /// It is counted by the rule and not delivered: `absorbed` in the ledger.
    Count,
    /// A record without its bytes is delivered, with what its headers say ([`crate::Record::digest`]).
    Digest,
    /// The rule says nothing about it, and only counts and applies its modifiers.
    None,
    /// It goes to the egress device that the rule names ([`Rule::to`]), and not to the host: `absorbed` in the ledger.
    Redirect,
    /// What the plug-in says that matches it, of several the one that the rule names first ([`Test::Plugin`]): that it
    /// is delivered, dropped, counted, or delivered as a digest.
    Plugin,
    /// It is added to its RTP stream, where that is measured in the kernel ([`crate::Meter`]): `absorbed` in the
    /// ledger. Else it is delivered. For exact-match rules, which a meter makes; rule files have no word for it.
    Measure,
}

/// Whether later rules are asked once a packet has hit a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// No.
    Stop,
    /// Yes, and what one of them says replaces what this one says.
    Continue,
}

impl Then {
    /// What holds for a rule that does not say: only one that says nothing about the packet goes on.
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

/// Taking one packet of so many, always the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// One of so many; at least 1, which is all.
    pub one_in: u32,
    /// What is chosen.
    pub by: SampleBy,
}

/// What a sample is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleBy {
    /// Whole flows, both directions, by their hash.
    #[default]
    Flow,
    /// Single packets, by what does not change on their way (RFC 5475, 6.2: hash-based selection).
    Packet,
}

/// The exact-match rule that a wildcard rule makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Insert {
    /// Which fields of the packet it has.
    pub shape: Shape,
    /// What becomes of the packets that it fits; not [`Action::Redirect`] or [`Action::Plugin`]. It has the tag of the rule that made it.
    pub action: Action,
    /// Whether wildcard rules are asked too.
    pub then: Then,
    /// It ends when it was not hit for so many seconds; 0: never.
    #[serde(default)]
    pub idle_s: u32,
    /// It ends so many seconds after it was made; 0: never.
    #[serde(default)]
    pub hard_s: u32,
}
