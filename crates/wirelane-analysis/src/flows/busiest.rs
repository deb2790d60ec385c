//! Flows with the most traffic since the last call, for a live view.

use std::cmp::Reverse;
use std::collections::HashMap;

use wirelane_bpf::flow::{Flow, FlowKey};

/// A flow of one direction, with its traffic since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyFlow {
    /// Key of the flow.
    pub key: FlowKey,
    /// Totals of the flow; if it has ended and begun anew, those of the later one.
    pub flow: Flow,
    /// Packets since the last call.
    pub packets: u64,
    /// Bytes on the wire since the last call.
    pub wire_bytes: u64,
}

/// Flows with the most traffic since the last call, and the sum of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busiest {
    /// The flows, in descending order of their traffic.
    pub flows: Vec<BusyFlow>,
    /// Packets of all other flows since the last call.
    pub other_packets: u64,
    /// Bytes on the wire of all other flows since the last call.
    pub other_wire_bytes: u64,
}

impl Busiest {
    /// Keeps this many flows with the most traffic, in that order, and adds the others up.
    pub(super) fn keep(&mut self, number: usize) {
        let order = |flow: &BusyFlow| (Reverse(flow.wire_bytes), Reverse(flow.packets));
        if self.flows.len() > number && number > 0 {
            self.flows.select_nth_unstable_by_key(number - 1, order);
        }
        for other in self.flows.drain(number.min(self.flows.len())..) {
            self.other_packets += other.packets;
            self.other_wire_bytes += other.wire_bytes;
        }
        self.flows.sort_by_key(order);
    }
}

/// Maximum number of flows that ended between two calls: those with the most traffic are retained, the others are added
/// up.
const GONE: usize = 1024;

/// Counters of flows at the last call, by index in the cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// Packets and wire bytes.
    marks: Vec<(u64, u64)>,
    /// Flows that ended since the last call.
    gone: Busiest,
}

impl Watch {
    /// Notes that a flow begins at this index.
    pub fn begin(&mut self, at: u32) {
        let at = at as usize;
        if at >= self.marks.len() {
            self.marks.resize(at + 1, (0, 0));
        }
        self.marks[at] = (0, 0);
    }

    /// Traffic since the last call.
    pub fn since(&self, at: u32, key: &FlowKey, flow: &Flow) -> BusyFlow {
        let (packets, wire_bytes) = self.marks.get(at as usize).copied().unwrap_or_default();
        // Counters of a flow only grow; a flow part that replaces one begins a flow.
        BusyFlow {
            key: *key,
            flow: *flow,
            packets: flow.packets.saturating_sub(packets),
            wire_bytes: flow.wire_bytes.saturating_sub(wire_bytes),
        }
    }

    /// Notes that the flow at this index ends.
    pub fn end(&mut self, at: u32, key: &FlowKey, flow: &Flow) {
        let busy = self.since(at, key, flow);
        if busy.packets == 0 {
            return;
        }
        self.gone.flows.push(busy);
        if self.gone.flows.len() >= 2 * GONE {
            self.gone.keep(GONE);
        }
    }

    /// Stores the counters for the next call.
    pub fn looked(&mut self, at: u32, flow: &Flow) {
        if let Some(mark) = self.marks.get_mut(at as usize) {
            *mark = (flow.packets, flow.wire_bytes);
        }
    }

    /// Flows that ended since the last call.
    pub fn take_gone(&mut self) -> Busiest {
        std::mem::take(&mut self.gone)
    }
}

/// Merges the parts of flows that were cut.
pub(super) fn together(flows: Vec<BusyFlow>) -> Vec<BusyFlow> {
    let mut by_key: HashMap<FlowKey, BusyFlow> = HashMap::with_capacity(flows.len());
    for flow in flows {
        let known = by_key.entry(flow.key).or_insert(BusyFlow { packets: 0, wire_bytes: 0, ..flow });
        known.packets += flow.packets;
        known.wire_bytes += flow.wire_bytes;
        if flow.flow.last_ns >= known.flow.last_ns {
            known.flow = flow.flow;
        }
    }
    by_key.into_values().collect()
}
