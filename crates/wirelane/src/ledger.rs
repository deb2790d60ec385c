//! The ledger: the outcome of every packet.
//!
//! `seen = filtered + absorbed + shed + lost + delivered`, and `delivered = analysed + in_flight`, exactly, at every
//! close. `nic_missed` is separate: packets that the card itself dropped, which no program has seen.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::active_rules::PluginLine;
use crate::balance::BalanceReport;
use crate::egress_devices::EgressLine;
use crate::flow_cache::FlowCacheLine;

/// One line of the ledger, in packets unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Reached the device's hook, on an RX queue that the group captures.
    pub seen: u64,
    /// Rejected by a filter or rule.
    pub filtered: u64,
    /// Of `filtered`: dropped for the whole device by the rules of another capture ([`crate::Builder::device_wide`]),
    /// before this capture's rules were evaluated.
    pub blocked: u64,
    /// Only counted, by a rule with that action ([`crate::Builder::rules`]).
    pub absorbed: u64,
    /// Of `absorbed`: packets that became flows in the kernel or were skipped by their sampling
    /// ([`crate::Builder::kernel_flows`]), of which [`Ledger::flow_cache`] has the sum; packets of HTTP that stayed in
    /// the kernel ([`crate::Builder::kernel_http`]); and packets that were measured there ([`crate::Capture::meter`]).
    /// Packets that are also for other analyses ([`crate::KernelFlows::deliver`]) are `delivered` or `lost` instead.
    #[serde(skip)]
    pub offloaded: u64,
    /// Wire bytes of `offloaded`.
    #[serde(skip)]
    pub offloaded_bytes: u64,
    /// Packets that were measured in the kernel and were also for other analyses ([`crate::KernelFlows::deliver`],
    /// [`crate::Builder::deliver_measured`]): they are `absorbed`, `delivered`, `shed` or `lost`.
    #[serde(skip)]
    pub measured: u64,
    /// Refused by congestion control.
    pub shed: u64,
    /// Did not fit into the ring.
    pub lost: u64,
    /// Written to a ring.
    pub delivered: u64,
    /// Yielded to the application.
    pub analysed: u64,
    /// Written to a ring, not yielded yet: `delivered - analysed`.
    pub in_flight: u64,
    /// Wire bytes of `analysed`.
    pub bytes: u64,
    /// Aggregates (GRO, GSO) that the hook saw. Each is one record, and counts here as its packets on the wire.
    pub aggregates: u64,
    /// Dropped by the card, from its own statistics; `None` for a line of less than a whole device.
    pub nic_missed: Option<u64>,
}

impl Counters {
    /// Whether every packet is counted exactly once.
    pub fn balances(&self) -> bool {
        self.seen == self.filtered + self.absorbed + self.shed + self.lost + self.delivered
            && self.delivered == self.analysed + self.in_flight
    }

    /// The difference to an earlier state of the same line.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let delivered = self.delivered.wrapping_sub(earlier.delivered);
        let analysed = self.analysed.wrapping_sub(earlier.analysed);
        Counters {
            seen: self.seen.wrapping_sub(earlier.seen),
            filtered: self.filtered.wrapping_sub(earlier.filtered),
            blocked: self.blocked.wrapping_sub(earlier.blocked),
            absorbed: self.absorbed.wrapping_sub(earlier.absorbed),
            offloaded: self.offloaded.wrapping_sub(earlier.offloaded),
            offloaded_bytes: self.offloaded_bytes.wrapping_sub(earlier.offloaded_bytes),
            measured: self.measured.wrapping_sub(earlier.measured),
            shed: self.shed.wrapping_sub(earlier.shed),
            lost: self.lost.wrapping_sub(earlier.lost),
            delivered,
            analysed,
            // A state, not a rate: the records in the rings now.
            in_flight: self.in_flight,
            bytes: self.bytes.wrapping_sub(earlier.bytes),
            aggregates: self.aggregates.wrapping_sub(earlier.aggregates),
            nic_missed: match (self.nic_missed, earlier.nic_missed) {
                (Some(now), Some(then)) => Some(now.wrapping_sub(then)),
                (now, _) => now,
            },
        }
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.seen += other.seen;
        self.filtered += other.filtered;
        self.blocked += other.blocked;
        self.absorbed += other.absorbed;
        self.offloaded += other.offloaded;
        self.offloaded_bytes += other.offloaded_bytes;
        self.measured += other.measured;
        self.shed += other.shed;
        self.lost += other.lost;
        self.delivered += other.delivered;
        self.analysed += other.analysed;
        self.in_flight += other.in_flight;
        self.bytes += other.bytes;
        self.aggregates += other.aggregates;
        if let Some(missed) = other.nic_missed {
            *self.nic_missed.get_or_insert(0) += missed;
        }
    }
}

/// The line of one virtual device: one RX queue of a device (or one interface of a file).
#[derive(Clone, Debug, Serialize)]
pub struct VirtualDeviceLine {
    /// Name of the device, or of the file's interface.
    pub device: String,
    /// The RX queue; 0 for transmitted packets.
    pub queue: u32,
    /// Whether the line counts transmitted packets; in JSON, `direction` is `egress` or `ingress`.
    #[serde(rename = "direction", serialize_with = "direction")]
    pub egress: bool,
    /// Position of the device in [`crate::Capture::devices`].
    #[serde(skip)]
    pub index: usize,
    /// Counters of the virtual device.
    #[serde(flatten)]
    pub counters: Counters,
}

fn direction<S: Serializer>(egress: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *egress { "egress" } else { "ingress" })
}

impl VirtualDeviceLine {
    /// The name of the virtual device: `eth1@2`, or `eth1@tx`.
    pub fn name(&self) -> String {
        crate::interfaces::virtual_name(&self.device, self.queue, self.egress)
    }
}

/// The line of one worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerLine {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// The core that the worker is pinned to.
    pub core: Option<usize>,
    /// Counters of the worker. `seen` counts the packets steered to it: `lost + delivered`.
    #[serde(flatten)]
    pub counters: Counters,
    /// Number of times the worker went to sleep without packets.
    pub sleeps: u64,
    /// Number of times a lane woke the worker.
    pub wakes: u64,
}

/// The whole ledger of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Ledger {
    /// Sum over all devices.
    #[serde(flatten)]
    pub total: Counters,
    /// Per virtual device.
    pub virtual_devices: Vec<VirtualDeviceLine>,
    /// Per worker.
    pub workers: Vec<WorkerLine>,
    /// Counts of adaptive steering; `None` where steering is static.
    pub balance: Option<BalanceReport>,
    /// Parts of `lost`, by cause, where the engine has several causes: `packet` and `xsk`. Their sum is `lost`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_by: BTreeMap<&'static str, u64>,
    /// Packets that rules have sent to each egress device ([`crate::Builder::egress_devices`]), over all devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress_devices: Vec<EgressLine>,
    /// Counts of the in-kernel flow caches ([`crate::Builder::kernel_flows`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_cache: Option<FlowCacheLine>,
    /// Counts of each plug-in ([`crate::Builder::plugin`]).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginLine>,
    /// Records of all plug-ins; `None` without plug-ins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_records: Option<PluginRecordsLine>,
}

/// Records that plug-ins write, which are no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PluginRecordsLine {
    /// Written to a ring.
    pub written: u64,
    /// Taken out of the rings by workers.
    pub read: u64,
    /// Written, not yet taken out.
    pub in_flight: u64,
    /// Not written: a ring had no space, or the capture has not asked for records.
    pub lost: u64,
}

impl PluginRecordsLine {
    /// The sums of these plug-ins, of whose records workers have taken out `read`.
    pub(crate) fn new(plugins: &[PluginLine], read: u64) -> PluginRecordsLine {
        // A lane counts a record after it has written it, so a worker may be ahead of the lane.
        let written = plugins.iter().map(|line| line.records).sum::<u64>().max(read);
        let lost = plugins.iter().map(|line| line.unwritten).sum();
        PluginRecordsLine { written, read, in_flight: written - read, lost }
    }
}

impl Ledger {
    /// Whether every line balances and the virtual devices add up to the total.
    pub fn balances(&self) -> bool {
        let lines = self.virtual_devices.iter().map(|line| &line.counters);
        let seen: u64 = lines.clone().map(|line| line.seen).sum();
        let workers = self.workers.iter().map(|line| &line.counters);
        self.total.balances()
            && lines.clone().all(Counters::balances)
            && workers.clone().all(Counters::balances)
            && self.total.seen == seen
            && (self.lost_by.is_empty() || self.total.lost == self.lost_by.values().sum::<u64>())
            && self.total.delivered == workers.map(|line| line.delivered).sum::<u64>()
    }
}
