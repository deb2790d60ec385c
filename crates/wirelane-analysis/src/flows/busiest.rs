//! The flows with most traffic since the last look, for a live view.

use std::collections::HashMap;

use wirelane_bpf::flow::{Flow, FlowKey};

/// A flow of one direction, and what it has carried since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyFlow {
    /// Whose packets they are.
    pub key: FlowKey,
    /// All that the flow has come to so far; of one that has ended and begun anew, the later.
    pub flow: Flow,
    /// Packets since the last look.
    pub packets: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
}

/// Flows that ended between two looks, of which this many are kept, those that carried most.
const GONE: usize = 1024;

/// What flows had come to at the last look, by their places in the cache.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// Packets and wire bytes.
    marks: Vec<(u64, u64)>,
    /// Those that have ended since.
    gone: Vec<BusyFlow>,
}

impl Watch {
    /// A flow begins at this place.
    pub fn begin(&mut self, at: u32) {
        let at = at as usize;
        if at >= self.marks.len() {
            self.marks.resize(at + 1, (0, 0));
        }
        self.marks[at] = (0, 0);
    }

    /// What has come since the last look.
    pub fn since(&self, at: u32, key: &FlowKey, flow: &Flow) -> BusyFlow {
        let (packets, wire_bytes) = self.marks.get(at as usize).copied().unwrap_or_default();
        // A flow's counters only grow; a part that replaces one begins a flow.
        BusyFlow {
            key: *key,
            flow: *flow,
            packets: flow.packets.saturating_sub(packets),
            wire_bytes: flow.wire_bytes.saturating_sub(wire_bytes),
        }
    }

    /// The flow at this place ends.
    pub fn end(&mut self, at: u32, key: &FlowKey, flow: &Flow) {
        let busy = self.since(at, key, flow);
        if busy.packets == 0 {
            return;
        }
        self.gone.push(busy);
        if self.gone.len() >= 2 * GONE {
            most(&mut self.gone, GONE);
        }
    }

    /// The next look counts from here.
    pub fn looked(&mut self, at: u32, flow: &Flow) {
        if let Some(mark) = self.marks.get_mut(at as usize) {
            *mark = (flow.packets, flow.wire_bytes);
        }
    }

    /// Those that have ended since the last look.
    pub fn take_gone(&mut self) -> Vec<BusyFlow> {
        std::mem::take(&mut self.gone)
    }
}

/// Leaves the flows that have carried most, in that order.
pub(super) fn most(flows: &mut Vec<BusyFlow>, number: usize) {
    let order = |flow: &BusyFlow| (std::cmp::Reverse(flow.wire_bytes), std::cmp::Reverse(flow.packets));
    if flows.len() > number && number > 0 {
        flows.select_nth_unstable_by_key(number - 1, order);
    }
    flows.truncate(number);
    flows.sort_by_key(order);
}

/// The same with what the parts of one flow, which was cut, have carried together.
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
