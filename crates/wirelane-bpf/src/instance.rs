//! The Rust side of `bpf/instance.h`: what a capture program and its users share.
//!
//! As in [`crate::layout`], the C header is the source and a test compares the two. Fields that a lane writes
//! while user space reads are read through atomics made from raw pointers (see [`Ring`] and [`Tally`]).

use crate::flow_cache::{FlowSet, Splits, WAYS};
use crate::rules::{MAX_EXITS, MAX_PLUGINS};

/// `WL_INTERFACE_VERSION`: instances of different versions do not mix.
pub const INTERFACE_VERSION: u32 = 14;
/// Most groups of one device.
pub const MAX_GROUPS: usize = 16;
/// Most workers of one group.
pub const MAX_WORKERS: usize = 64;
/// Most RX queues of one device.
pub const MAX_QUEUES: usize = 256;
/// Entries of a group's bucket table, between flow hash and worker.
pub const BUCKETS: usize = 512;
/// log2 of [`SEGMENT`].
pub const SEGMENT_SHIFT: u32 = 20;
/// Bytes of a segment; a ring is a power of two of them.
pub const SEGMENT: usize = 1 << SEGMENT_SHIFT;
/// Bytes behind a segment into which a record that crosses its end spills.
pub const SLACK: usize = 128 * 1024;
/// Most steering programs of one instance.
pub const MAX_PROGRAMS: usize = 4;
/// Counters that a plug-in has.
pub const PLUGIN_COUNTERS: usize = 8;
/// Bytes of one element of a map that holds the object of a steering program or a plug-in.
pub const PROGRAM_PART: usize = 4096;
/// Longest snap length.
pub const MAX_SNAP: usize = SLACK - 64;
/// Bytes of one element of a group's data map.
pub const ELEMENT: usize = SEGMENT + SLACK;
/// Readers' ends that fit into the first element.
pub const MAX_READERS: usize = SEGMENT / size_of::<Reader>();
/// Places in one element of a flow cache's lists.
pub const FLOW_LISTED: usize = 128;
/// Fewest sets of a flow cache.
pub const FLOW_LEAST_SETS: usize = FLOW_LISTED / WAYS;
/// Bytes of an element of a group's flow caches.
pub const FLOW_ELEMENT: usize = size_of::<FlowSet>();
/// [`Reader::wake_at`] of a worker that is not asleep.
pub const AWAKE: u64 = u64::MAX;
/// Name of the capture program on XDP, by which a running instance is recognised.
pub const PROGRAM_XDP: &str = "wirelane_xdp";
/// The same, where it asks for the card's metadata. The kernel keeps 15 characters of a name.
pub const PROGRAM_XDP_METADATA: &str = "wirelane_xdp_md";
/// Name of the program of engine xsk.
pub const PROGRAM_XSK: &str = "wirelane_xsk";
/// Name of the capture program on tc ingress.
pub const PROGRAM_INGRESS: &str = "wirelane_in";
/// Name of the capture program on tc egress.
pub const PROGRAM_EGRESS: &str = "wirelane_out";
/// Name of the step from a clsact filter to one of the two.
pub const PROGRAM_CLSACT: &str = "wirelane_clsact";

/// `struct wl_instance`: what the instance is, and which groups are active.
#[derive(Debug)]
#[repr(C)]
pub struct Instance {
    /// One bit per active group.
    pub active: u64,
    /// Packets of an RX queue or CPU that did not exist when the program was loaded.
    pub stray: u64,
    /// [`INTERFACE_VERSION`] of the loader.
    pub version: u32,
    /// Number of lanes.
    pub lanes: u32,
    /// Number of RX queues.
    pub queues: u32,
    /// The device.
    pub ifindex: u32,
    /// 1: lanes are CPUs, 0: lanes are RX queues.
    pub per_cpu: u32,
    /// Seed of the flow hash.
    pub seed: u32,
    /// One bit per group that is content with one reading of the clock per batch.
    pub batch_clock: u64,
    /// One bit per group that wants the card's clock.
    pub card_clock: u64,
    /// One bit per group with [`group_flags::WIDE`].
    pub wide: u64,
    /// One bit per group whose workers merge lanes by time.
    pub ordered: u64,
    #[doc(hidden)]
    pub pad: [u64; 7],
}

/// `struct wl_mark`: the packet that a lane has at hand. Written by the lane.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Mark {
    /// 0: none; [`MARK_UNSTAMPED`]; or its stamp.
    pub in_flight: u64,
    /// Stamp of the latest packet.
    pub latest: u64,
    #[doc(hidden)]
    pub pad: [u64; 6],
}

/// [`Mark::in_flight`] of a packet that has no stamp yet.
pub const MARK_UNSTAMPED: u64 = 1;

/// Bits of [`Group::flags`].
pub mod group_flags {
    /// What the group gets does not go on to the host stack.
    pub const TAKE: u32 = 0x1;
    /// Steer by, and report, the headers inside tunnels.
    pub const INNER: u32 = 0x2;
    /// The card's timestamp where there is one.
    pub const CARD_CLOCK: u32 = 0x4;
    /// Buckets are counted, and may move.
    pub const ADAPTIVE: u32 = 0x8;
    /// What its rules drop, neither the host nor another group gets.
    pub const WIDE: u32 = 0x10;
    /// Packets become flows in the lane.
    pub const FLOWS: u32 = 0x20;
    /// What the group refuses does not go on to the host stack either.
    pub const TAKE_REST: u32 = 0x40;
    /// Bodies of HTTP, and all that is none, stay below.
    pub const HTTP: u32 = 0x80;
}

/// Values of [`Group::steering`].
pub mod steering {
    /// By the symmetric flow hash, through the bucket table.
    pub const FLOW: u32 = 0;
    /// By the RX queue.
    pub const QUEUE: u32 = 1;
    /// Each lane in turn to all workers.
    pub const ROUND_ROBIN: u32 = 2;
    /// To every worker.
    pub const COPY: u32 = 3;
    /// By the outermost VLAN id, through the bucket table.
    pub const VLAN: u32 = 4;
    /// By the source address, through the bucket table.
    pub const SOURCE: u32 = 5;
    /// By the destination address, through the bucket table.
    pub const DESTINATION: u32 = 6;
    /// By a program of the group's owner.
    pub const PROGRAM: u32 = 7;
}

/// `struct wl_group`: what a group wants and how it is steered. Written by its owner.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Group {
    /// Bitmap of the RX queues it wants.
    pub queues: [u64; MAX_QUEUES / 64],
    /// Longest captured length in bytes.
    pub snap_len: u32,
    /// Number of workers.
    pub workers: u32,
    /// Segments of each ring, a power of two.
    pub segments: u32,
    /// See [`steering`].
    pub steering: u32,
    /// See [`group_flags`].
    pub flags: u32,
    /// Bytes written to a ring between two publications of its head.
    pub publish_every: u32,
    /// For people: the process that owns it.
    pub owner_pid: u32,
    /// 1 or 2: which of its filters is in use; 0: none, all packets are wanted.
    pub filter: u32,
    /// [`steering::PROGRAM`]: the place of its program, below [`MAX_PROGRAMS`].
    pub program: u32,
    /// 1 or 2: which of its sets of rules is in use; 0: none, packets are not judged.
    pub rules: u32,
    /// For people: the owner's command, padded with zeros.
    pub owner: [u8; 16],
    /// When it joined, `CLOCK_MONOTONIC` nanoseconds.
    pub joined_ns: u64,
    /// Congestion control: unread bytes of a ring from which on packets are refused; 0 and 0: off.
    pub shed_low: u32,
    /// Unread bytes of a ring from which on all packets are refused.
    pub shed_high: u32,
    /// One bit for each place of a plug-in that is its own, below [`MAX_PLUGINS`].
    pub plugins: u32,
    /// Nanoseconds that one may take on the average.
    pub plugin_budget: u32,
    /// [`group_flags::FLOWS`]: sets of a flow cache, a power of two, [`FLOW_LEAST_SETS`] or more.
    pub flow_sets: u32,
    /// Epoch of the caches, from 1; its lowest bit is the half that is filled.
    pub flow_epoch: u32,
    /// One packet of how many is looked at; 0 and 1: all are.
    pub flow_sampling: u32,
    /// Equal parts of all flows, of which it wants one; 0: it wants all.
    pub shares: u32,
    /// This one, below `shares`.
    pub share: u32,
    /// Seed of the hash that they go by: the same at all groups that divide flows among them.
    pub share_seed: u32,
    /// [`group_flags::FLOWS`]: what a rule decides whose id is 1 to this comes up as it is, and becomes no flow.
    pub whole: u32,
    /// 0.
    pub pad: u32,
    /// Where parts of flows end.
    pub flow_splits: Splits,
    /// Worker of each bucket of the flow hash.
    pub buckets: [u16; BUCKETS],
}

/// `struct wl_tally`: one line of the ledger, written by one lane.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Tally {
    /// Packets that the group wanted to look at.
    pub seen: u64,
    /// Rejected by a filter or rule.
    pub filtered: u64,
    /// Taken by in-kernel analysis.
    pub absorbed: u64,
    /// Refused by congestion control.
    pub shed: u64,
    /// No room in the ring.
    pub lost: u64,
    /// Written to a ring.
    pub delivered: u64,
    /// Wire bytes of `seen`.
    pub seen_bytes: u64,
    /// The worker whose turn it is in round-robin steering.
    pub turn: u64,
    /// Of `filtered`: dropped by the rules of another group, for the whole device.
    pub blocked: u64,
    /// Of `absorbed`: what became flows in the lane, or was left out by sampling; or was added to RTP streams.
    pub kept: u64,
    /// Wire bytes of that.
    pub kept_bytes: u64,
    /// Aggregates (GRO, GSO) among `seen`, each of which counts as its packets on the wire.
    pub aggregates: u64,
    #[doc(hidden)]
    pub pad: [u64; 4],
}

/// `struct wl_ring`: the writer's end of a ring, written by its lane.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Ring {
    /// Position behind the last whole record.
    pub head: u64,
    /// The reader's tail as the lane last read it.
    pub cached_tail: u64,
    /// What `public_head` was last set to.
    pub published: u64,
    /// The `wake_at` that the bell was last rung for.
    pub rung_for: u64,
    /// Records written.
    pub delivered: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Times that the bell was rung.
    pub bells: u64,
    /// Timestamp of the record that `public_head` was last set for.
    pub published_ns: u64,
    /// The published head, on a cache line of its own.
    pub public_head: u64,
    #[doc(hidden)]
    pub pad2: [u64; 7],
    /// Records that congestion control refused.
    pub shed: u64,
    /// Of 256 parts of the flow-hash space, how many are refused now.
    pub shed_level: u64,
    /// Packets that went into the flow cache, or were left out by sampling.
    pub kept: u64,
    /// Parts of flows that were written to the ring.
    pub parts: u64,
    /// Packets that sampling has left out.
    pub unsampled: u64,
    /// Their wire bytes.
    pub unsampled_bytes: u64,
    /// Packets until the next one that is looked at.
    pub skip: u64,
    #[doc(hidden)]
    pub pad3: u64,
}

/// `struct wl_flow_half`: the first element of half a flow cache. Written by the lane.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FlowHalf {
    /// What `used` is of.
    pub epoch: u32,
    /// Places that were filled in that epoch, which the list behind it has.
    pub used: u32,
}

/// `struct wl_exits`: where the rules of a group send packets, as one lane has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Exits {
    /// The devices, 0 behind the last one. Written by the group's owner before the group is active.
    pub ifindex: [u32; MAX_EXITS],
    #[doc(hidden)]
    pub pad: [u64; 4],
    /// Packets and copies that the kernel took for the device. Written by the lane, as is the next.
    pub sent: [u64; MAX_EXITS],
    /// Those that it did not take.
    pub unsent: [u64; MAX_EXITS],
}

/// `struct wl_plugin`: what a plug-in has done for a group, in one lane. Written by the lane.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Plugin {
    /// Packets that it was asked about.
    pub asked: u64,
    /// Those that it said yes to.
    pub matched: u64,
    /// Packets that it would have been asked about, had it not been switched off.
    pub refused: u64,
    /// Runs that were timed.
    pub timed: u64,
    /// Nanoseconds that these took.
    pub ns: u64,
    /// 1: it has been switched off, as it was too slow.
    pub off: u64,
    #[doc(hidden)]
    pub part_ns: u64,
    #[doc(hidden)]
    pub parts: u64,
    /// Its own.
    pub counters: [u64; PLUGIN_COUNTERS],
}

/// `struct wl_plugins`: the plug-ins of a group by their place, as one lane has them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Plugins {
    /// By place in the instance.
    pub of: [Plugin; MAX_PLUGINS],
}

/// `struct wl_balance`: what a lane knows of an adaptive group's buckets. Written by the lane.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Balance {
    /// The worker that the lane sends each bucket to.
    pub worker: [u16; BUCKETS],
    /// Packets of each bucket since the group joined; wraps around.
    pub packets: [u32; BUCKETS],
}

/// `struct wl_reader`: the reader's end of a ring, the only memory that a worker writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Reader {
    /// Everything before this position may be overwritten.
    pub tail: u64,
    #[doc(hidden)]
    pub pad: [u64; 7],
    /// Ring the bell once the head has come this far; [`AWAKE`]: not asleep.
    pub wake_at: u64,
    #[doc(hidden)]
    pub pad2: [u64; 7],
}
