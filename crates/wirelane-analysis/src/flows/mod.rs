//! Flows: statistics of the packets of one direction of a conversation.
//!
//! ```text
//! Record -> FlowReader -> headers -> FlowCache -> FlowRecord -> exporters
//!           parse once               look up, cut, update
//!           (bpf/lib)          (bpf/lib/flow.h, the same that a kernel's cache would run)
//! ```
//!
//! One cache for each worker. Steering by flow brings both directions of a conversation to the same worker, so caches
//! share no data. Every packet is in exactly one flow, and every flow is handed out exactly once, whatever ends it: the
//! sums over all [`FlowRecord`]s are those of the packets that were read.
//!
//! # Key of a flow
//! The 5-tuple, VLAN, device and direction; inside tunnels, if enabled, also the kind and id of the tunnel.
//! * ICMP has its type and code in the destination port.
//! * Fragments except the first have no ports: they are a flow of their own, with ports 0. The first fragment belongs
//!   to the flow of its ports. All fragments of a datagram are steered to the worker of their addresses, which may
//!   differ from the worker of the flow: then they are a flow of that worker.
//! * Packets other than IP are a flow for each EtherType.
//! * Tunnels with an id for each direction (GTP-U) have two flows, even if biflows are enabled.
//!
//! # Memory
//! A cache has a fixed memory limit. If it is full, the lightest of the flows that were idle longest is handed out
//! ([`EndReason::Resources`]): so the flows of a flood evict each other, and the flows with traffic stay.
mod application;
mod busiest;
mod cache;
mod community_id;
pub(crate) mod lists;
mod reader;
mod record;
mod settings;
mod totals;

pub use application::{Application, Evidence, applications};
pub use busiest::{Busiest, BusyFlow};
pub use cache::FlowCache;
pub use community_id::community_id;
pub use reader::{FlowReader, speaks};
pub use record::{FlowRecord, reverse_key};
pub use settings::{CacheSettings, LEAST_MEMORY};
pub use totals::Totals;
pub use wirelane_bpf::flow::{
    EndReason, Flow, FlowKey, FlowPacket, KEY_EGRESS, NO_VLAN, Timeouts, flow_flags,
};
