//! The Rust side of `bpf/lib/rules.h`: compiled rules, whose essay says how they are looked up.
//!
//! As in [`crate::layout`], the C header is the source and a test compares the two.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::members::Members;
use crate::search::{self, Search};

/// Most wildcard rules of a set, and most of its clauses (`WL_RULES_MAX`).
pub const MAX_RULES: usize = 4096;
/// Words of a set of clauses (`WL_RULE_WORDS`).
pub const WORDS: usize = MAX_RULES / 64;
/// Most shapes of precise rules in one set (`WL_RULE_SHAPES`).
pub const MAX_SHAPES: usize = 8;
/// Wildcard rules that one packet can hit (`WL_RULE_HITS`); beyond, [`judged_flags::MORE`] is set.
pub const MAX_HITS: u32 = 16;
/// Marks a class's number in [`Node::next`] and in roots (`WL_RULE_LEAF`).
pub const LEAF: u32 = 0x8000_0000;
/// Sets of a group, of which one is in use (`WL_RULE_SETS`).
pub const PER_GROUP: usize = 2;
/// The VLAN of a packet without a tag (`WL_RULE_NO_VLAN`).
pub const NO_VLAN: u16 = 0x1000;
/// Dimensions that there is room for (`WL_RULE_DIMS`).
pub const DIMS: usize = 16;
/// Dimensions that there are (`WL_RULE_DIMS_USED`).
pub const DIMS_USED: usize = 15;
/// Devices that the rules of a group may send packets to (`WL_EXITS`).
pub const MAX_EXITS: usize = 8;
/// Tests of named sets, in one set of rules (`WL_RULE_MEMBERS`).
pub const MAX_MEMBERS: usize = 8;
/// Names of patterns and of plug-ins that one set of rules asks for (`WL_RULE_PATTERNS`).
pub const MAX_PATTERNS: usize = 8;
/// Plug-ins that an instance has places for (`WL_RULE_PLUGINS`).
pub const MAX_PLUGINS: usize = 4;

/// Dimensions: fields of a packet that rules ask about (`enum wl_rule_dim`, which says what each takes).
pub mod dim {
    /// Source address: 4 bytes from [`super::Field::root`], 16 from [`super::Field::root6`].
    pub const SRC: usize = 0;
    /// Destination address, the same way.
    pub const DST: usize = 1;
    /// Source port: 2 bytes.
    pub const SRC_PORT: usize = 2;
    /// Destination port: 2 bytes.
    pub const DST_PORT: usize = 3;
    /// IP protocol: 1 byte.
    pub const PROTO: usize = 4;
    /// What sort of packet it is, see [`super::kind`]: 1 byte, never absent.
    pub const KIND: usize = 5;
    /// TCP flags: 1 byte.
    pub const TCP_FLAGS: usize = 6;
    /// Outermost VLAN id or [`super::NO_VLAN`]: 2 bytes, never absent.
    pub const VLAN: usize = 7;
    /// IPv4 type of service or IPv6 traffic class: 1 byte.
    pub const TOS: usize = 8;
    /// Length on the wire, at most 65535: 2 bytes, never absent.
    pub const LENGTH: usize = 9;
    /// RX queue: 2 bytes, never absent.
    pub const QUEUE: usize = 10;
    /// EtherType: 2 bytes.
    pub const ETHERTYPE: usize = 11;
    /// ICMP or ICMPv6 type: 1 byte.
    pub const ICMP_TYPE: usize = 12;
    /// Tests of named sets that hold, a bit each ([`super::Set::member`]): 1 byte, never absent.
    pub const SETS: usize = 13;
    /// Names of patterns of which one was found, and of plug-ins that match, a bit each: 1 byte, never absent. The payload is searched only where
    /// that decides something.
    pub const PAYLOAD: usize = 14;
}

/// The byte of dimension [`dim::KIND`].
pub mod kind {
    /// No network layer.
    pub const L3_NONE: u8 = 0x00;
    /// IPv4.
    pub const L3_IPV4: u8 = 0x01;
    /// IPv6.
    pub const L3_IPV6: u8 = 0x02;
    /// ARP.
    pub const L3_ARP: u8 = 0x03;
    /// The mask of the network layer.
    pub const L3: u8 = 0x03;
    /// One fragment of a datagram, the first one included.
    pub const FRAGMENT: u8 = 0x04;
    /// Not the first fragment.
    pub const LATER: u8 = 0x08;
    /// The packet is leaving the device.
    pub const EGRESS: u8 = 0x10;
    /// It has a tunnel that was entered.
    pub const TUNNEL: u8 = 0x20;
}

/// One step of a walk (`struct wl_rule_node`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// By the value of the byte: the next node, or [`LEAF`] and a class.
    pub next: [u32; 256],
}

/// The clauses that a value of one dimension satisfies (`struct wl_rule_class`). Class 0 has all of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Class {
    /// Bit w: `words[w]` is not 0.
    pub summary: u64,
    /// Bit w: `words[w]` has a clause whose home is the class's dimension; of class 0, one that has no home.
    pub home: u64,
    /// Bit per clause.
    pub words: [u64; WORDS],
    #[doc(hidden)]
    pub pad: [u64; 6],
}

impl Class {
    /// No clause.
    pub const EMPTY: Class = Class { summary: 0, home: 0, words: [0; WORDS], pad: [0; 6] };

    /// Puts a clause, below [`MAX_RULES`], into the class. It is at home there, as it may be in several.
    pub fn add(&mut self, clause: usize) {
        self.words[clause / 64] |= 1 << (clause % 64);
        self.summary |= 1 << (clause / 64);
        self.home |= 1 << (clause / 64);
    }
}

/// Values of [`Rule::verdict`] (`enum wl_rule_verdict`).
pub mod verdict {
    /// Nothing: later rules, or the default, do.
    pub const NONE: u8 = 0;
    /// Delivered.
    pub const PASS: u8 = 1;
    /// Dropped: `filtered` in the ledger.
    pub const DROP: u8 = 2;
    /// Counted by the rule, and no more: `absorbed` in the ledger.
    pub const ABSORB: u8 = 3;
    /// Delivered as a digest ([`crate::layout::record_kind::DIGEST`]).
    pub const DIGEST: u8 = 4;
    /// Sent to an exit in the place of the host: `absorbed` in the ledger.
    pub const REDIRECT: u8 = 5;
    /// What the first of [`super::Rule::plugin`] says that matches.
    pub const PLUGIN: u8 = 6;
    /// Added to its RTP stream where that is measured in the kernel: `absorbed` in the ledger; else delivered.
    pub const MEASURE: u8 = 7;
}

/// Bits of [`Rule::flags`] and [`Precise::flags`].
pub mod rule_flags {
    /// The rules behind it are looked at too.
    pub const CONTINUE: u8 = 0x01;
    /// Sampled by packet, not by flow.
    pub const SAMPLE_PACKET: u8 = 0x02;
    /// `tag` goes into the record.
    pub const TAG: u8 = 0x04;
    /// A hit makes a precise rule (wildcard rules only).
    pub const INSERT: u8 = 0x08;
    /// Made by the wildcard rule whose id it has (precise rules only).
    pub const MADE: u8 = 0x10;
}

/// A wildcard rule, less its conditions (`struct wl_rule`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// From 1 on.
    pub id: u32,
    /// Of its counters, below [`Set::slots`].
    pub slot: u32,
    /// See [`verdict`].
    pub verdict: u8,
    /// See [`rule_flags`].
    pub flags: u8,
    /// The last of its clauses, which lie one behind the other.
    pub last_clause: u16,
    /// Bytes of the packet in the record; 0: all.
    pub truncate: u32,
    /// One in so many goes on to the action; 0 and 1: all.
    pub sample: u32,
    /// Valid with [`rule_flags::TAG`].
    pub tag: u32,
    /// With [`rule_flags::INSERT`]: the shape of the rule that is made, one of the set's. See [`shape`].
    pub insert_shape: u32,
    /// Its idle time in seconds; 0: it stays.
    pub insert_idle_s: u32,
    /// Its life in seconds; 0: it stays.
    pub insert_hard_s: u32,
    /// Its verdict.
    pub insert_verdict: u8,
    /// Its flags: [`rule_flags::CONTINUE`] and [`rule_flags::TAG`], with this rule's tag.
    pub insert_flags: u8,
    /// Bit per exit: a copy is sent there.
    pub mirror: u8,
    /// [`verdict::REDIRECT`]: the bit of the exit; else 0.
    pub to: u8,
    /// [`verdict::PLUGIN`]: places of plug-ins, from 1, in the order in which the rule has them; 0 behind the last.
    pub plugin: [u8; MAX_PLUGINS],
    #[doc(hidden)]
    pub pad: [u8; 20],
}

/// Where the walk of a dimension begins (`struct wl_rule_field`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Field {
    /// A node, or [`LEAF`] and a class.
    pub root: u32,
    /// The same for IPv6, in [`dim::SRC`] and [`dim::DST`].
    pub root6: u32,
    /// The class (without [`LEAF`]) of packets that lack the field; of [`dim::PAYLOAD`]: of the clauses that ask about
    /// it.
    pub absent: u32,
    #[doc(hidden)]
    pub pad: u32,
}

/// Which fields of a packet a precise rule has: [`PreciseKey::shape`] and [`Set::shape`].
pub mod shape {
    /// Source address.
    pub const SRC: u32 = 0x001;
    /// Destination address.
    pub const DST: u32 = 0x002;
    /// Source port.
    pub const SRC_PORT: u32 = 0x004;
    /// Destination port.
    pub const DST_PORT: u32 = 0x008;
    /// IP protocol.
    pub const PROTO: u32 = 0x010;
    /// Outermost VLAN id.
    pub const VLAN: u32 = 0x020;
    /// Top MPLS label.
    pub const MPLS: u32 = 0x040;
    /// Tunnel id.
    pub const TUNNEL: u32 = 0x080;
    /// Both directions: found with source and destination exchanged, too.
    pub const BOTH: u32 = 0x100;
}

/// A compiled set (`struct wl_rule_set`); its nodes and classes lie beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Set {
    /// Counts the group's sets.
    pub version: u32,
    /// Clauses of the set.
    pub clauses: u32,
    /// Wildcard rules of the set.
    pub rules: u32,
    /// [`verdict::PASS`] or [`verdict::DROP`].
    pub default_verdict: u32,
    /// Bit per dimension that some clause asks about.
    pub used: u32,
    /// How many shapes of precise rules there are.
    pub shapes: u32,
    /// Counters of each lane, of which a rule's slot is one.
    pub slots: u32,
    /// Of them: what searching payloads has done. Its [`Counts::inserted`] are packets in which a pattern was found, its
    /// [`Counts::refused`] those of which not all was searched.
    pub search_slot: u32,
    /// Where each dimension's walk begins.
    pub dims: [Field; DIMS],
    /// Shapes of precise rules, in the order in which they are looked for. See [`shape`].
    pub shape: [u32; MAX_SHAPES],
    /// By clause: index into `rule`.
    pub rule_of: [u16; MAX_RULES],
    /// The wildcard rules.
    pub rule: [Rule; MAX_RULES],
    /// Tests of named sets, see [`crate::members::of`]; 0 behind the last one.
    pub member: [u8; MAX_MEMBERS],
    /// Where the automata begin ([`crate::search::Search::roots`]).
    pub search_root: [u32; 2],
    /// No pattern counts that ends behind so many bytes of the payload; 0: there are none.
    pub search_reach: u32,
    /// By place: the bit of [`dim::PAYLOAD`] that the plug-in there sets; 0: it is not asked.
    pub plugin: [u8; MAX_PLUGINS],
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
        // SAFETY: allocated above as a Box of a Set is, owned by nobody else; a Set is integers and arrays of integers,
        // for which zeros are a valid value.
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
    /// Its nodes; [`Node::next`] and [`Field`] name them by their index.
    pub nodes: Vec<Node>,
    /// Its classes, the same way. The first is class 0: it has all clauses.
    pub classes: Vec<Class>,
    /// What its tests of named sets are answered by where they are asked natively.
    pub members: Members,
    /// What payloads are searched by.
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

/// What a wildcard rule has done in one lane (`struct wl_rule_counts`). Written by the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Packets that hit it.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Time of the first of them, nanoseconds; 0: none yet.
    pub first_ns: u64,
    /// Time of the last of them.
    pub last_ns: u64,
    /// Precise rules that it has made.
    pub inserted: u64,
    /// Precise rules that it could not make, as the table was full.
    pub refused: u64,
    #[doc(hidden)]
    pub pad: [u64; 2],
}

/// [`Counts`] that are being written: by one lane, in the kernel or natively.
///
/// C writes each field as one aligned word (volatile), which is what a relaxed store is on the machines that are
/// served; so other threads may read them at any time, through atomics, each field for itself.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LiveCounts([AtomicU64; 8]);

impl LiveCounts {
    /// What they are now. Fields are read one after the other, so that they may be of different packets.
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

    /// Sets them to 0. Nobody judges with them meanwhile.
    pub fn clear(&self) {
        // Relaxed: as in `read`.
        self.0.iter().for_each(|field| field.store(0, Ordering::Relaxed));
    }
}

/// What a precise rule is found by (`struct wl_precise_key`). Fields outside of its shape are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct PreciseKey {
    /// Source address; IPv4 in the first 4 bytes, the rest zero.
    pub src: [u8; 16],
    /// Destination address, the same way.
    pub dst: [u8; 16],
    /// Source port, network byte order.
    pub src_port: u16,
    /// Destination port, network byte order.
    pub dst_port: u16,
    /// Outermost VLAN id, [`NO_VLAN`] for packets without a tag.
    pub vlan: u16,
    /// IP protocol.
    pub proto: u8,
    /// [`crate::layout::l3::IPV4`] or `IPV6` with an address in the shape, else 0.
    pub l3: u8,
    /// Top MPLS label.
    pub mpls: u32,
    /// Tunnel id.
    pub tunnel: u32,
    /// See [`shape`].
    pub shape: u32,
}

/// A precise rule, with what it has done (`struct wl_precise`). Several lanes write it: additions are atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Precise {
    /// Packets that hit it.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Time of the first of them, nanoseconds; 0: none yet.
    pub first_ns: u64,
    /// Time of the last of them.
    pub last_ns: u64,
    /// When it was made, by the same clock.
    pub made_ns: u64,
    /// From 1 on; of a rule that was made by a wildcard rule, that rule's.
    pub id: u32,
    /// See [`verdict`].
    pub verdict: u8,
    /// See [`rule_flags`].
    pub flags: u8,
    /// As of [`Rule::mirror`].
    pub mirror: u8,
    /// As of [`Rule::to`].
    pub to: u8,
    /// Bytes of the packet in the record; 0: all.
    pub truncate: u32,
    /// One in so many goes on to the action; 0 and 1: all.
    pub sample: u32,
    /// Valid with [`rule_flags::TAG`].
    pub tag: u32,
    /// Expires when nothing has hit it for so many seconds; 0: never.
    pub idle_s: u32,
    /// Expires so many seconds after it was made; 0: never.
    pub hard_s: u32,
    #[doc(hidden)]
    pub pad2: u32,
}

/// Bits of [`Judged::flags`].
pub mod judged_flags {
    /// `tag` is valid.
    pub const TAGGED: u32 = 0x1;
    /// There were more hits than [`super::MAX_HITS`]: the rules behind were not looked at.
    pub const MORE: u32 = 0x2;
    /// Not all of the payload was searched that should have been.
    pub const HALF: u32 = 0x4;
    /// More patterns were found than there are in `pattern`.
    pub const FOUND: u32 = 0x8;
}

/// What was decided of a packet (`struct wl_judged`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Judged {
    /// See [`verdict`]; never [`verdict::NONE`].
    pub verdict: u32,
    /// The rule whose verdict holds, else the first that was hit, else 0.
    pub rule_id: u32,
    /// Bytes of the packet in the record; 0: all.
    pub truncate: u32,
    /// Valid with [`judged_flags::TAGGED`].
    pub tag: u32,
    /// See [`judged_flags`].
    pub flags: u32,
    /// Wildcard rules that were hit.
    pub hits: u32,
    /// Ids of patterns, as they were found; 0 behind the last.
    pub pattern: [u32; search::FOUND],
    /// Bit per exit: the packet is sent there.
    pub exits: u32,
    /// Of these, the one that it is redirected to; 0: none.
    pub to: u32,
}

/// What a packet is judged by beside what was parsed (`struct wl_rule_facts`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    /// The packet's time, nanoseconds.
    pub now_ns: u64,
    /// Bytes that it had on the wire.
    pub wire_len: u32,
    /// RX queue.
    pub queue: u32,
    /// Not 0: it is leaving the device.
    pub egress: u32,
    /// Seed of the flow hash.
    pub seed: u32,
    /// Of an aggregate (GRO, GSO): packets on the wire beside the first.
    pub more_packets: u32,
    /// And what their headers add to `wire_len`.
    pub more_bytes: u32,
}
