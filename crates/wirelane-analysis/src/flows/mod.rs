//! Flows: what the packets of one direction of a conversation come to.
//!
//! ```text
//! Record -> FlowReader -> headers -> FlowCache -> FlowRecord -> exporters
//!           parse once               look up, cut, update
//!           (bpf/lib)          (bpf/lib/flow.h, the same that a kernel's cache would run)
//! ```
//!
//! One cache for each worker. Steering by flow brings both directions of a conversation to the same worker, so caches
//! share nothing. Every packet is in exactly one flow, and every flow is handed out exactly once, whatever ends it: the sums
//! over all [`FlowRecord`]s are those of the packets that were read.
//!
//! # What makes packets one flow
//! The 5-tuple, VLAN, device and direction; inside tunnels, where that was asked for, the tunnel's kind and id too.
//! * ICMP has its type and code in the place of the destination port.
//! * A fragment but the first has no ports: such fragments are a flow of their own, with ports 0. The first
//!   fragment belongs to the flow of its ports. All fragments of a datagram go to
//!   the worker of its addresses, which may be another than the flow's: its fragments are then a flow of that worker.
//! * What is no IP is a flow for each EtherType.
//! * Tunnels whose directions have ids of their own (GTP-U) have two flows, also where both directions are to be one.
//!
//! # Memory
//! A cache takes what it is given and no more. Where it is full, the lightest of those flows that have been silent longest
//! is handed out ([`EndReason::Resources`]): so a flood of new flows costs each other their places, and the flows that
//! carry traffic stay.
mod application;
mod busiest;
mod cache;
mod community_id;
pub(crate) mod lists;
mod reader;
mod record;
mod totals;

pub use application::{Application, Evidence, applications};
pub use busiest::BusyFlow;
pub use cache::{CacheSettings, FlowCache, LEAST_MEMORY};
pub use community_id::community_id;
pub use reader::{FlowReader, speaks};
pub use record::{FlowRecord, reverse_key};
pub use totals::Totals;
pub use wirelane_bpf::flow::{
    EndReason, Flow, FlowKey, FlowPacket, KEY_EGRESS, NO_VLAN, Timeouts, flow_flags,
};
