//! A device and hook of a live capture: its group, and its lines of the ledger.

use std::sync::Arc;

use crate::engine::ring::flows::GroupFlows;
use crate::engine::ring::group::Membership;
use crate::error::Result;
use crate::flow_cache::FlowCacheLine;
use crate::hook::Hook;
use crate::interfaces::Slots;
use crate::ledger::{Counters, VirtualDeviceLine};
use crate::tally::DeviceTally;
use wirelane_filter::Filter;
use wirelane_netdev::{Missed, Promiscuous, Selected};

/// One device and direction of the capture.
#[derive(Debug)]
pub(super) struct Part {
    /// The device, or the stand-in for those that come later.
    pub(super) selected: Selected,
    pub(super) membership: Membership,
    /// Counters of each worker for the part.
    pub(super) tallies: Vec<Arc<DeviceTally>>,
    /// Packets of unknown queues before the group joined, and when it left.
    pub(super) stray_before: u64,
    pub(super) stray_after: Option<u64>,
    /// The card's missed packets until the last query, which is the result when the device has disappeared.
    pub(super) missed: Missed,
    pub(super) _promiscuous: Option<Promiscuous>,
}

impl Part {
    pub(super) fn egress(&self) -> bool {
        self.membership.instance().hook == Hook::Egress
    }

    /// Whether devices that come later have it.
    pub(super) fn is_many(&self) -> bool {
        self.membership.instance().many().is_some()
    }

    /// The queues that always have a line, even without packets.
    pub(super) fn queues(&self) -> Vec<u32> {
        if self.egress() {
            return vec![0];
        }
        let known = self.membership.instance().queues as u32;
        self.selected.queues.iter().copied().filter(|queue| *queue < known).collect()
    }

    /// The ledger's lines of its virtual devices: those with packets, and all that were asked for. `index`: its number
    /// among devices. `later`: names of devices that come later, and the position of its hook among theirs.
    pub(super) fn lines(
        &self,
        index: usize,
        later: Option<(&Slots, usize)>,
        exact: bool,
    ) -> Vec<VirtualDeviceLine> {
        let asked = self.queues();
        let line = |queue: usize| {
            let counters = self.queue_line(queue, exact);
            let (is_asked, device, shown, index) = match later {
                Some((slots, hook)) => {
                    let (name, number) = slots.device(hook, queue)?;
                    (queue > 0, name, 0, number)
                }
                None => {
                    let name = self.selected.device.name.clone();
                    (asked.contains(&(queue as u32)), name, queue as u32, index)
                }
            };
            let line = VirtualDeviceLine { device, queue: shown, egress: self.egress(), index, counters };
            (is_asked || counters != Counters::default()).then_some(line)
        };
        (0..self.membership.instance().queues).filter_map(line).collect()
    }

    /// The ledger's line of one RX queue.
    fn queue_line(&self, queue: usize, exact: bool) -> Counters {
        let instance = self.membership.instance();
        let mut line = Counters::default();
        // Read the analysed counts first: they follow the delivered ones.
        for tally in &self.tallies {
            let (packets, bytes) = tally.of(queue);
            line.analysed += packets;
            line.bytes += bytes;
        }
        let slots = if instance.per_cpu { instance.lanes } else { 1 };
        for slot in (0..slots).map(|lane| lane * instance.queues + queue) {
            let tally = self.membership.tally(slot);
            line.seen += tally.seen;
            line.filtered += tally.filtered;
            line.blocked += tally.blocked;
            line.aggregates += tally.aggregates;
            line.absorbed += tally.absorbed;
            line.offloaded += tally.offloaded;
            line.offloaded_bytes += tally.offloaded_bytes;
            line.measured += tally.measured;
            line.shed += tally.shed;
            line.lost += tally.lost;
            line.delivered += tally.delivered;
        }
        if queue == 0 && self.selected.is_whole_device() {
            // These packets have no line of their own: their queue did not exist.
            let stray = self.stray_after.unwrap_or_else(|| instance.stray());
            let stray = stray.saturating_sub(self.stray_before);
            line.seen += stray;
            line.lost += stray;
        }
        if !exact {
            // The lane may be between two columns of a packet: its own sum is right for the packets before it.
            // A worker may have yielded a record before the lane has counted it.
            line.delivered = line.delivered.max(line.analysed);
            line.seen = line.filtered + line.absorbed + line.shed + line.lost + line.delivered;
        }
        line.in_flight = line.delivered.saturating_sub(line.analysed);
        line
    }

    /// The lanes' counts of the flow caches; `None`: flows are not made in the kernel.
    pub(super) fn flow_line(&self) -> Option<FlowCacheLine> {
        let flows = self.membership.flows()?;
        let mut line = flows.line();
        let instance = self.membership.instance();
        let lanes = if instance.per_cpu { instance.lanes } else { 1 };
        for slot in 0..lanes * instance.queues {
            let tally = self.membership.tally(slot);
            let (packets, bytes) = match flows.delivers {
                true => (tally.in_flows, tally.in_flows_bytes),
                false => (tally.offloaded, tally.offloaded_bytes),
            };
            line.packets += packets;
            line.bytes += bytes;
        }
        for worker in 0..self.tallies.len() {
            let tally = self.membership.worker_tally(worker);
            line.written += tally.parts;
            line.unsampled += tally.unsampled;
            line.unsampled_bytes += tally.unsampled_bytes;
        }
        line.parts += line.written;
        Some(line)
    }

    /// Counts of the packets steered to one worker.
    pub(super) fn worker_line(&self, worker: usize) -> Counters {
        let (analysed, bytes) = self.tallies[worker].sum();
        let tally = self.membership.worker_tally(worker);
        let (lost, shed) = (tally.lost, tally.shed);
        let delivered = tally.delivered.max(analysed);
        // Packets of the flow caches that are delivered, too, count once.
        let absorbed =
            if self.membership.flows().is_some_and(|flows| flows.delivers) { 0 } else { tally.offloaded };
        Counters {
            seen: delivered + lost + shed + absorbed,
            absorbed,
            offloaded: tally.offloaded,
            shed,
            lost,
            delivered,
            analysed,
            in_flight: delivered - analysed,
            bytes,
            ..Counters::default()
        }
    }
}

/// Changes the filter of each of these parts. On return no lane evaluates by a previous filter.
pub(super) fn change_filters<'a>(
    parts: impl Iterator<Item = (&'a mut Part, Option<&'a Filter>)>,
) -> Result<()> {
    let (mut changed, mut result) = (None, Ok(()));
    for (part, filter) in parts {
        match part.membership.change_filter(&part.selected.device, filter) {
            Ok(true) => changed = Some(&part.membership),
            Ok(false) => {}
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    // Waiting takes 10 ms and more, and is for all devices.
    changed.map_or(Ok(()), |membership| membership.settle()).and(result)
}

/// The flow caches of these parts.
pub(super) fn flows_of(parts: &[Part]) -> Vec<Arc<GroupFlows>> {
    parts.iter().filter_map(|part| part.membership.flows().cloned()).collect()
}
