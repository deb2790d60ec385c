//! The Rust side of `bpf/instance.h`: the state that a capture program and its users share.
//!
//! Structs and constants are generated from the C header, as in [`crate::layout`]. Fields that a lane writes
//! while user space reads are read through atomics made from raw pointers (see [`Ring`] and [`Tally`]).

pub use crate::abi::{
    Balance, EgressDevices, FlowHalf, Group, Instance, Mark, Plugin, Plugins, Reader, Ring, Tally,
};
use crate::flow_cache::FlowSet;

/// `WL_INTERFACE_VERSION`: instances of different versions do not mix.
pub const INTERFACE_VERSION: u32 = crate::abi::WL_INTERFACE_VERSION;
/// A bit of [`Group::rules`] (`WL_RULES_OF_PLACES`).
pub const RULES_OF_PLACES: u32 = crate::abi::WL_RULES_OF_PLACES;
/// Maximum number of groups of one device.
pub const MAX_GROUPS: usize = crate::abi::WL_MAX_GROUPS as usize;
/// Slots for groups of an instance whose first group is not one of many that share flows (`WL_FEW_GROUPS`).
pub const FEW_GROUPS: usize = crate::abi::WL_FEW_GROUPS as usize;
/// Maximum number of workers of one group.
pub const MAX_WORKERS: usize = crate::abi::WL_MAX_WORKERS as usize;
/// Maximum number of RX queues of one device.
pub const MAX_QUEUES: usize = crate::abi::WL_MAX_QUEUES as usize;
/// Entries of a group's bucket table, between flow hash and worker.
pub const BUCKETS: usize = crate::abi::WL_BUCKETS as usize;
/// log2 of [`SEGMENT`].
pub const SEGMENT_SHIFT: u32 = crate::abi::WL_SEGMENT_SHIFT;
/// Bytes of a segment; a ring is a power of two of segments.
pub const SEGMENT: usize = crate::abi::WL_SEGMENT as usize;
/// Bytes behind a segment into which a record that crosses its end spills.
pub const SLACK: usize = crate::abi::WL_SLACK as usize;
/// Maximum number of steering programs of one instance.
pub const MAX_PROGRAMS: usize = crate::abi::WL_MAX_PROGRAMS as usize;
/// Number of counters of a plug-in.
pub const PLUGIN_COUNTERS: usize = crate::abi::PLUGIN_MOST_COUNTERS as usize;
/// Maximum number of maps of a steering program or a plug-in.
pub const STATE_MAPS: usize = crate::abi::STATE_MAPS as usize;
/// Maximum length of the name of such a map.
pub const STATE_NAME: usize = crate::abi::STATE_NAME as usize;
/// Maximum size of the maps of a steering program or a plug-in.
pub const STATE_BYTES: u64 = (crate::abi::STATE_MIB as u64) << 20;
pub use crate::abi::plugin_rule as RuleChange;

/// Values of [`RuleChange::event`].
pub mod rule_event {
    /// The rule is in force from now on.
    pub const ADDED: u32 = crate::abi::PLUGIN_RULE_ADDED;
    /// The rule is in force no more.
    pub const REMOVED: u32 = crate::abi::PLUGIN_RULE_REMOVED;
    /// The same, as its time has passed.
    pub const EXPIRED: u32 = crate::abi::PLUGIN_RULE_EXPIRED;
}

/// Bits of [`RuleChange::flags`].
pub mod rule_flags {
    /// The rule names the plug-in.
    pub const NAMES: u32 = crate::abi::PLUGIN_RULE_NAMES;
    /// An exact-match rule.
    pub const EXACT: u32 = crate::abi::PLUGIN_RULE_EXACT;
    /// A packet made the rule.
    pub const MADE: u32 = crate::abi::PLUGIN_RULE_MADE;
}

/// Bytes of one element of a map that holds the object of a steering program or a plug-in.
pub const PROGRAM_PART: usize = crate::abi::WL_PROGRAM_PART as usize;
/// Maximum snap length in bytes.
pub const MAX_SNAP: usize = crate::abi::WL_MAX_SNAP as usize;
/// Bytes of one element of a group's data map.
pub const ELEMENT: usize = SEGMENT + SLACK;
/// Number of readers' ends in the first element.
pub const MAX_READERS: usize = crate::abi::WL_READERS as usize;
/// Slots in one element of a flow cache's lists.
pub const FLOW_LISTED: usize = crate::abi::WL_FLOW_LISTED as usize;
/// Minimum number of sets of a flow cache.
pub const FLOW_LEAST_SETS: usize = crate::abi::WL_FLOW_LEAST_SETS as usize;
/// In [`Group::flow_sets`]: the second of the group's caches is filled.
pub const FLOW_SECOND: u32 = crate::abi::WL_FLOW_SECOND;
/// Bytes of an element of a group's flow caches.
pub const FLOW_ELEMENT: usize = size_of::<FlowSet>();
/// [`Reader::wake_at`] of a worker that is not asleep.
pub const AWAKE: u64 = crate::abi::WL_AWAKE as u64;
/// Name of the capture program on XDP, by which a running instance is recognised.
pub const PROGRAM_XDP: &str = "wirelane_xdp";
/// Name of the capture program on XDP that uses the card's metadata. The kernel keeps 15 characters of a name.
pub const PROGRAM_XDP_METADATA: &str = "wirelane_xdp_md";
/// Name of the program of engine xsk.
pub const PROGRAM_XSK: &str = "wirelane_xsk";
/// Name of the capture program on tc ingress.
pub const PROGRAM_INGRESS: &str = "wirelane_in";
/// Name of the capture program on tc egress.
pub const PROGRAM_EGRESS: &str = "wirelane_out";
/// Name of the capture program on tc ingress of any number of devices.
pub const PROGRAM_INGRESS_MANY: &str = "wirelane_in_n";
/// Name of the capture program on tc egress of any number of devices.
pub const PROGRAM_EGRESS_MANY: &str = "wirelane_out_n";
/// Name of the program that tail-calls one of the two from a clsact filter.
pub const PROGRAM_CLSACT: &str = "wirelane_clsact";

/// [`Mark::in_flight`] of a packet that has no stamp yet.
pub const MARK_UNSTAMPED: u64 = 1;

/// Bits of [`Group::flags`].
pub mod group_flags {
    /// Packets of the group do not go on to the host stack.
    pub const EXCLUSIVE: u32 = crate::abi::WL_GROUP_EXCLUSIVE;
    /// Steer by, and report, the headers inside tunnels.
    pub const INNER: u32 = crate::abi::WL_GROUP_INNER;
    /// The card's timestamp, if available.
    pub const CARD_CLOCK: u32 = crate::abi::WL_GROUP_CARD_CLOCK;
    /// Buckets are counted, and may move.
    pub const ADAPTIVE: u32 = crate::abi::WL_GROUP_ADAPTIVE;
    /// Packets that its rules drop are delivered neither to the host nor to another group.
    pub const WIDE: u32 = crate::abi::WL_GROUP_WIDE;
    /// Packets become flows in the lane.
    pub const FLOWS: u32 = crate::abi::WL_GROUP_FLOWS;
    /// Packets that the group refuses do not go on to the host stack either.
    pub const EXCLUSIVE_ALL: u32 = crate::abi::WL_GROUP_EXCLUSIVE_ALL;
    /// HTTP bodies, and all payload other than HTTP, are offloaded.
    pub const HTTP: u32 = crate::abi::WL_GROUP_HTTP;
    /// Plug-ins write records.
    pub const RECORDS: u32 = crate::abi::WL_GROUP_RECORDS;
    /// Packets that became part of a flow are delivered, too.
    pub const FLOWS_BESIDE: u32 = crate::abi::WL_GROUP_FLOWS_BESIDE;
    /// Packets that were added to their RTP stream are delivered, too.
    pub const STREAMS_BESIDE: u32 = crate::abi::WL_GROUP_STREAMS_BESIDE;
}

/// Bits of the features that a capture program is loaded with (`wl_config.features`).
pub mod features {
    /// Expressions of groups.
    pub const FILTERS: u32 = crate::abi::WL_HAS_FILTERS;
    /// Rules, sets, patterns and egress devices.
    pub const RULES: u32 = crate::abi::WL_HAS_RULES;
    /// Rules that measure RTP.
    pub const STREAMS: u32 = crate::abi::WL_HAS_STREAMS;
    /// [`super::group_flags::FLOWS`].
    pub const FLOWS: u32 = crate::abi::WL_HAS_FLOWS;
    /// [`super::group_flags::HTTP`].
    pub const HTTP: u32 = crate::abi::WL_HAS_HTTP;
    /// [`super::group_flags::ADAPTIVE`].
    pub const BALANCE: u32 = crate::abi::WL_HAS_BALANCE;
    /// Congestion control.
    pub const SHED: u32 = crate::abi::WL_HAS_SHED;
    /// Slots of devices in place of RX queues: [`super::PROGRAM_INGRESS_MANY`], [`super::PROGRAM_EGRESS_MANY`].
    pub const SLOTS: u32 = crate::abi::WL_HAS_SLOTS;
    /// Groups in other slots than the first; a share of flows, [`super::group_flags::WIDE`], steering other than
    /// [`super::steering::FLOW`].
    pub const GROUPS: u32 = crate::abi::WL_HAS_GROUPS;
    /// All that a group may need.
    pub const ALL: u32 = FILTERS | RULES | STREAMS | FLOWS | HTTP | BALANCE | SHED | GROUPS;

    /// Whether the simple programs (`bpf/offer_first.h`) have these features.
    pub const fn are_simple(features: u32) -> bool {
        features & !SLOTS == 0
    }
}

/// Values of [`Group::steering`].
pub mod steering {
    /// By the symmetric flow hash, through the bucket table.
    pub const FLOW: u32 = crate::abi::WL_STEER_FLOW;
    /// By the RX queue.
    pub const QUEUE: u32 = crate::abi::WL_STEER_QUEUE;
    /// Round-robin over all workers, in each lane.
    pub const ROUND_ROBIN: u32 = crate::abi::WL_STEER_ROUND_ROBIN;
    /// To every worker.
    pub const COPY: u32 = crate::abi::WL_STEER_COPY;
    /// By the outermost VLAN id, through the bucket table.
    pub const VLAN: u32 = crate::abi::WL_STEER_VLAN;
    /// By the source address, through the bucket table.
    pub const SOURCE: u32 = crate::abi::WL_STEER_SOURCE;
    /// By the destination address, through the bucket table.
    pub const DESTINATION: u32 = crate::abi::WL_STEER_DESTINATION;
    /// By a program of the group's owner.
    pub const PROGRAM: u32 = crate::abi::WL_STEER_PROGRAM;
}
