//! The Rust side of `bpf/lib/rules.h`: compiled rules; the head of that file explains the lookup.
//!
//! Structs and constants are generated from the C header, as in [`crate::layout`].

pub use crate::abi::{
    Evaluated, ExactKey, ExactValue, Rule, RuleClass as Class, RuleCounts as Counts, RuleFacts as Facts,
    RuleField as Field, RuleNode as Node, RuleSet as Set,
};
use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::members::Members;
use crate::search::{self, Search};

/// Maximum number of wildcard rules of a set, and of its clauses (`WL_RULES_MAX`).
pub const MAX_RULES: usize = crate::abi::WL_RULES_MAX as usize;
/// Words of a set of clauses (`WL_RULE_WORDS`).
pub const WORDS: usize = crate::abi::WL_RULE_WORDS as usize;
/// Maximum number of shapes of exact-match rules in one set (`WL_RULE_SHAPES`).
pub const MAX_SHAPES: usize = crate::abi::WL_RULE_SHAPES as usize;
/// Maximum number of wildcard rules that one packet can hit (`WL_RULE_HITS`); beyond, [`evaluated_flags::MORE`] is set.
pub const MAX_HITS: u32 = crate::abi::WL_RULE_HITS;
/// Maximum number of ids in [`Rule::after`] (`WL_RULE_AFTER`).
pub const MAX_AFTER: usize = crate::abi::WL_RULE_AFTER as usize;
/// Maximum number of wildcard rules of a set that have such ids (`WL_RULE_AFTERS`).
pub const MAX_AFTERS: usize = crate::abi::WL_RULE_AFTERS as usize;
/// Marks a class's number in [`Node::next`] and in roots (`WL_RULE_LEAF`).
pub const LEAF: u32 = crate::abi::WL_RULE_LEAF;
/// Sets of a group, one of them in use (`WL_RULE_SETS`).
pub const PER_GROUP: usize = crate::abi::WL_RULE_SETS as usize;
/// The VLAN of a packet without a tag (`WL_RULE_NO_VLAN`).
pub const NO_VLAN: u16 = crate::abi::WL_RULE_NO_VLAN as u16;
/// Maximum number of dimensions (`WL_RULE_DIMS`).
pub const DIMS: usize = crate::abi::WL_RULE_DIMS as usize;
/// Number of dimensions in use (`WL_RULE_DIMS_USED`).
pub const DIMS_USED: usize = crate::abi::WL_RULE_DIMS_USED as usize;
/// Maximum number of devices that the rules of a group may send packets to (`WL_EGRESS_DEVICES`).
pub const MAX_EGRESS_DEVICES: usize = crate::abi::WL_EGRESS_DEVICES as usize;
/// Maximum number of tests of named sets in one set of rules (`WL_RULE_MEMBERS`).
pub const MAX_MEMBERS: usize = crate::abi::WL_RULE_MEMBERS as usize;
/// Maximum number of prefix lengths of a named set of networks, for each IP version (`WL_RULE_PREFIXES`).
pub const MAX_PREFIXES: usize = crate::abi::WL_RULE_PREFIXES as usize;
/// Maximum number of names of patterns and of plug-ins in one set of rules (`WL_RULE_PATTERNS`).
pub const MAX_PATTERNS: usize = crate::abi::WL_RULE_PATTERNS as usize;
/// Number of slots for plug-ins in an instance (`WL_RULE_PLUGINS`).
pub const MAX_PLUGINS: usize = crate::abi::WL_RULE_PLUGINS as usize;

/// Dimensions: fields of a packet that rules test (`enum wl_rule_dim`, which defines each).
pub mod dim {
    /// Source address: 4 bytes from [`super::Field::root`], 16 from [`super::Field::root6`].
    pub const SRC: usize = crate::abi::WL_DIM_SRC as usize;
    /// Destination address, likewise.
    pub const DST: usize = crate::abi::WL_DIM_DST as usize;
    /// Source port: 2 bytes.
    pub const SRC_PORT: usize = crate::abi::WL_DIM_SRC_PORT as usize;
    /// Destination port: 2 bytes.
    pub const DST_PORT: usize = crate::abi::WL_DIM_DST_PORT as usize;
    /// IP protocol: 1 byte.
    pub const PROTO: usize = crate::abi::WL_DIM_PROTO as usize;
    /// Kind of packet, see [`super::kind`]: 1 byte, never absent.
    pub const KIND: usize = crate::abi::WL_DIM_KIND as usize;
    /// TCP flags: 1 byte.
    pub const TCP_FLAGS: usize = crate::abi::WL_DIM_TCP_FLAGS as usize;
    /// Outermost VLAN id or [`super::NO_VLAN`]: 2 bytes, never absent.
    pub const VLAN: usize = crate::abi::WL_DIM_VLAN as usize;
    /// IPv4 type of service or IPv6 traffic class: 1 byte.
    pub const TOS: usize = crate::abi::WL_DIM_TOS as usize;
    /// Length on the wire, at most 65535: 2 bytes, never absent.
    pub const LENGTH: usize = crate::abi::WL_DIM_LENGTH as usize;
    /// RX queue: 2 bytes, never absent.
    pub const QUEUE: usize = crate::abi::WL_DIM_QUEUE as usize;
    /// EtherType: 2 bytes.
    pub const ETHERTYPE: usize = crate::abi::WL_DIM_ETHERTYPE as usize;
    /// ICMP or ICMPv6 type: 1 byte.
    pub const ICMP_TYPE: usize = crate::abi::WL_DIM_ICMP_TYPE as usize;
    /// Tests of named sets that hold, a bit each ([`super::Set::member`]): 1 byte, never absent.
    pub const SETS: usize = crate::abi::WL_DIM_SETS as usize;
    /// Names of patterns that were found, and of plug-ins that match, a bit each: 1 byte, never absent. The payload is
    /// searched only if the result matters.
    pub const PAYLOAD: usize = crate::abi::WL_DIM_PAYLOAD as usize;
}

/// The byte of dimension [`dim::KIND`].
pub mod kind {
    /// No network layer.
    pub const L3_NONE: u8 = crate::abi::WL_KIND_L3_NONE as u8;
    /// IPv4.
    pub const L3_IPV4: u8 = crate::abi::WL_KIND_L3_IPV4 as u8;
    /// IPv6.
    pub const L3_IPV6: u8 = crate::abi::WL_KIND_L3_IPV6 as u8;
    /// ARP.
    pub const L3_ARP: u8 = crate::abi::WL_KIND_L3_ARP as u8;
    /// The mask of the network layer.
    pub const L3: u8 = crate::abi::WL_KIND_L3 as u8;
    /// One fragment of a datagram, the first one included.
    pub const FRAGMENT: u8 = crate::abi::WL_KIND_FRAGMENT as u8;
    /// Not the first fragment.
    pub const LATER: u8 = crate::abi::WL_KIND_LATER as u8;
    /// The packet is leaving the device.
    pub const EGRESS: u8 = crate::abi::WL_KIND_EGRESS as u8;
    /// A tunnel was entered.
    pub const TUNNEL: u8 = crate::abi::WL_KIND_TUNNEL as u8;
}

impl Class {
    /// No clause.
    pub const EMPTY: Class = Class { summary: 0, pivot: 0, words: [0; WORDS], pad: [0; 6] };

    /// Adds a clause, below [`MAX_RULES`], to the class. The class's dimension becomes its pivot; a clause may have
    /// several.
    pub fn add(&mut self, clause: usize) {
        self.words[clause / 64] |= 1 << (clause % 64);
        self.summary |= 1 << (clause / 64);
        self.pivot |= 1 << (clause / 64);
    }
}

/// Values of [`Rule::verdict`] (`enum wl_rule_verdict`).
pub mod verdict {
    /// None: later rules, or the default, decide.
    pub const NONE: u8 = crate::abi::WL_VERDICT_NONE as u8;
    /// Delivered.
    pub const PASS: u8 = crate::abi::WL_VERDICT_PASS as u8;
    /// Dropped: `filtered` in the ledger.
    pub const DROP: u8 = crate::abi::WL_VERDICT_DROP as u8;
    /// Counted by the rule only: `absorbed` in the ledger.
    pub const ABSORB: u8 = crate::abi::WL_VERDICT_ABSORB as u8;
    /// Delivered as a digest ([`crate::layout::record_kind::DIGEST`]).
    pub const DIGEST: u8 = crate::abi::WL_VERDICT_DIGEST as u8;
    /// Sent to an egress device instead of the host: `absorbed` in the ledger.
    pub const REDIRECT: u8 = crate::abi::WL_VERDICT_REDIRECT as u8;
    /// The verdict of the first matching plug-in of [`super::Rule::plugin`].
    pub const PLUGIN: u8 = crate::abi::WL_VERDICT_PLUGIN as u8;
    /// Added to its RTP stream if that is measured in the kernel: `absorbed` in the ledger; otherwise delivered.
    pub const MEASURE: u8 = crate::abi::WL_VERDICT_MEASURE as u8;
}

/// Bits of [`Rule::flags`] and [`ExactValue::flags`].
pub mod rule_flags {
    /// The rules after it are evaluated too.
    pub const CONTINUE: u8 = crate::abi::WL_RULE_CONTINUE as u8;
    /// Sampled by packet, not by flow.
    pub const SAMPLE_PACKET: u8 = crate::abi::WL_RULE_SAMPLE_PACKET as u8;
    /// `tag` goes into the record.
    pub const TAG: u8 = crate::abi::WL_RULE_TAG as u8;
    /// A hit inserts an exact-match rule (wildcard rules only).
    pub const INSERT: u8 = crate::abi::WL_RULE_INSERT as u8;
    /// Hit if none of [`super::Rule::after`] was hit (wildcard rules only).
    pub const AFTER_NONE: u8 = crate::abi::WL_RULE_AFTER_NONE as u8;
    /// Inserted by the wildcard rule whose id it has (exact-match rules only).
    pub const MADE: u8 = crate::abi::WL_RULE_MADE as u8;
}

/// Fields of a packet in the key of an exact-match rule: [`ExactKey::shape`] and [`Set::shape`].
pub mod shape {
    /// Source address.
    pub const SRC: u32 = crate::abi::WL_SHAPE_SRC;
    /// Destination address.
    pub const DST: u32 = crate::abi::WL_SHAPE_DST;
    /// Source port.
    pub const SRC_PORT: u32 = crate::abi::WL_SHAPE_SRC_PORT;
    /// Destination port.
    pub const DST_PORT: u32 = crate::abi::WL_SHAPE_DST_PORT;
    /// IP protocol.
    pub const PROTO: u32 = crate::abi::WL_SHAPE_PROTO;
    /// Outermost VLAN id.
    pub const VLAN: u32 = crate::abi::WL_SHAPE_VLAN;
    /// Top MPLS label.
    pub const MPLS: u32 = crate::abi::WL_SHAPE_MPLS;
    /// Tunnel id.
    pub const TUNNEL: u32 = crate::abi::WL_SHAPE_TUNNEL;
    /// Both directions: also matched with source and destination exchanged.
    pub const BOTH: u32 = crate::abi::WL_SHAPE_BOTH;
}

impl Set {
    /// A set without rules, which passes everything.
    pub fn empty() -> Box<Set> {
        // It is too large for a stack.
        let layout = Layout::new::<Set>();
        // SAFETY: a Set has a size, which is not 0.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Set>();
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: allocated above with the layout of a Box of a Set, owned by nobody else; a Set is integers and arrays
        // of integers, for which zeros are a valid value.
        let mut set = unsafe { Box::from_raw(memory) };
        set.default_verdict = verdict::PASS.into();
        set.search_slot = u32::MAX;
        set.search_root = [search::NONE; 2];
        set
    }
}

/// A compiled set with its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatSet {
    /// The set.
    pub set: Box<Set>,
    /// Its nodes; [`Node::next`] and [`Field`] refer to them by index.
    pub nodes: Vec<Node>,
    /// Its classes, likewise. The first is class 0: it has all clauses.
    pub classes: Vec<Class>,
    /// The named sets for native evaluation of its tests.
    pub members: Members,
    /// The automata that search payloads.
    pub search: Arc<Search>,
}

impl FlatSet {
    /// A set without rules, which passes everything.
    pub fn empty() -> FlatSet {
        FlatSet {
            set: Set::empty(),
            nodes: Vec::new(),
            classes: vec![Class::EMPTY],
            members: Members::default(),
            search: Arc::new(Search::none()),
        }
    }
}

/// [`Counts`] with a concurrent writer: one lane, in the kernel or natively.
///
/// C writes each field as one aligned word (volatile), which is a relaxed store on the supported machines; so other
/// threads may read them at any time, through atomics, each field separately.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LiveCounts([AtomicU64; 8]);

impl LiveCounts {
    /// The current values. Fields are read one after the other, so that they may belong to different packets.
    pub fn read(&self) -> Counts {
        // Relaxed: the lane's plain stores, the partner, publish nothing but themselves.
        let field = |at: usize| self.0[at].load(Ordering::Relaxed);
        Counts {
            packets: field(0),
            bytes: field(1),
            first_ns: field(2),
            last_ns: field(3),
            inserted: field(4),
            refused: field(5),
            pad: [0; 2],
        }
    }

    /// Sets them to 0. No evaluation may use them at the same time.
    pub fn clear(&self) {
        // Relaxed: as in `read`.
        self.0.iter().for_each(|field| field.store(0, Ordering::Relaxed));
    }
}

impl Evaluated {
    /// Adds a rule that was hit (`wl_rule_note_hit()`).
    pub fn add_hit(&mut self, id: u32) {
        match self.hit.get_mut(self.hit_count as usize) {
            Some(place) => (*place, self.hit_count) = (id, self.hit_count + 1),
            None => self.flags |= evaluated_flags::HITS,
        }
    }
}

/// Bits of [`Evaluated::flags`].
pub mod evaluated_flags {
    /// `tag` is valid.
    pub const TAGGED: u32 = crate::abi::WL_EVALUATED_TAGGED;
    /// More hits than [`super::MAX_HITS`]: later rules were not evaluated.
    pub const MORE: u32 = crate::abi::WL_EVALUATED_MORE;
    /// The payload was not searched completely.
    pub const HALF: u32 = crate::abi::WL_EVALUATED_HALF;
    /// More patterns were found than fit in `pattern`.
    pub const FOUND: u32 = crate::abi::WL_EVALUATED_FOUND;
    /// More rules were hit than fit in `hit`.
    pub const HITS: u32 = crate::abi::WL_EVALUATED_HITS;
}
