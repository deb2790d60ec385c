//! Choices among settings.

use wirelane_bpf::instance::steering;

/// Steering: how packets are distributed to the workers of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// By the symmetric flow hash: both directions of a conversation, and all fragments of a datagram, meet at
    /// one worker.
    #[default]
    Flow,
    /// By the RX queue: queue modulo number of workers.
    Queue,
    /// Each lane (RX queue or CPU) in turn to all workers, whatever the packet is.
    RoundRobin,
    /// To every worker: each gets all packets. The ledger counts copies.
    Copy,
    /// By the outermost VLAN id; packets without a tag go to one worker.
    Vlan,
    /// By the source address.
    Source,
    /// By the destination address.
    Destination,
}

impl Steering {
    /// Whether flows are steered by a table of buckets, so that load can be moved.
    pub(super) fn has_buckets(self) -> bool {
        !matches!(self, Steering::Queue | Steering::RoundRobin | Steering::Copy)
    }

    pub(crate) fn code(self) -> u32 {
        match self {
            Steering::Flow => steering::FLOW,
            Steering::Queue => steering::QUEUE,
            Steering::RoundRobin => steering::ROUND_ROBIN,
            Steering::Copy => steering::COPY,
            Steering::Vlan => steering::VLAN,
            Steering::Source => steering::SOURCE,
            Steering::Destination => steering::DESTINATION,
        }
    }
}

/// Whether load moves from busy to idle workers or RX queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Packets are steered by the initial table, which does not change.
    #[default]
    Static,
    /// The table follows the load: buckets of flows move from busy to idle workers, without reordering a flow.
    ///
    /// With [`Steering::Queue`] the table is the card's: entries of its RSS table move from busy to idle RX queues, for
    /// as long as the capture lasts. This affects all receivers of the device, and it is restored at the end, like the
    /// settings that [`crate::Builder::polling`] changes. **Packets of the flows of an entry can be reordered when it
    /// moves**: packets on the new queue can overtake those that wait in the old queue. So it is meant for lasting
    /// imbalance: the table is set once a second at most, 30 times at first and once a minute over time, and an entry
    /// that has moved stays for three seconds or more. Entries move among the captured queues only, and each captured
    /// queue keeps at least one entry.
    Adaptive,
}

/// Congestion control: which flows to refuse when a worker falls behind.
///
/// From `low` on, new flows are refused before any copy; flows that were admitted stay admitted, so that they are whole.
/// From the middle between `low` and `high` on, admitted flows are given up, too, and at `high` all of them. While flows
/// are refused, new ones are admitted below `low` only where the ring does not fill. A flow that was refused stays
/// refused until it is idle for 15 s, or until nothing has been refused for 15 s. Refused packets are `shed` in the
/// ledger. Without congestion control a ring fills up, and packets that do not fit are `lost`, from all flows alike.
///
/// The flows are in a table of 4 MiB, half a million of them; what does not fit is forgotten, refused flows first. A flow
/// is known by its hash, so the fragments of a datagram, which have no ports, are a flow of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Percentage of a ring that is unread; at least 1.
    pub low: u8,
    /// The same percentage for `high`; more than `low`.
    pub high: u8,
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        Watermarks { low: 50, high: 90 }
    }
}

impl Watermarks {
    /// The watermarks in bytes of a ring.
    pub(crate) fn of(self, ring_size: usize) -> (u32, u32) {
        let part = |percent: u8| (ring_size as u64 * u64::from(percent) / 100) as u32;
        (part(self.low), part(self.high))
    }
}

/// One of several equal parts of all flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Less than `of`.
    pub(crate) number: u32,
    pub(crate) of: u32,
    /// Seed of the hash by which flows are divided.
    pub(crate) seed: u32,
}

/// The hook at which packets are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// tc, which leaves the device's offloads to the host. With [`crate::Builder::exclusive`], whose packets the host does
    /// not get, and for RX queues (`eth1@2`): native XDP where the driver can, else generic XDP, with a warning.
    #[default]
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the network stack.
    Generic,
    /// tc: behind XDP, and beside other programs. By link (TCX) since Linux 6.6, before by [`HookChoice::Clsact`].
    Tc,
    /// tc by a filter on a clsact qdisc, as older kernels need it.
    Clsact,
}

/// Direction of the captured packets of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Received and transmitted packets of a device; received packets of an RX queue (`eth1@2`), of the loopback device
    /// (which receives all that it transmits), and where only received packets are possible: with
    /// [`crate::Builder::exclusive`], [`crate::Builder::device_wide`], [`crate::Builder::egress_devices`], the card's clock and engine
    /// `xsk`.
    #[default]
    Auto,
    /// Received packets.
    Rx,
    /// Transmitted packets: always by tc.
    Tx,
    /// Received and transmitted packets.
    Both,
}

/// The way of packets to user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// `ring` where it works, else `packet`, with a warning that says why.
    #[default]
    Auto,
    /// Wirelane's own rings, filled by a program on the device's hook.
    Ring,
    /// AF_XDP sockets, one per RX queue: takes the packets from the host stack.
    Xsk,
    /// AF_PACKET sockets with rings: needs CAP_NET_RAW only.
    Packet,
}

/// Source of packet timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The kernel's clock, read for every packet.
    #[default]
    Packet,
    /// The kernel's clock, read once for all packets that the kernel handles in one go, up to 64 (Linux 6.11): less
    /// work per packet. If another capture on the device reads the clock for every packet, this capture uses those
    /// readings.
    Batch,
    /// The card's clock, where the driver reports it for the packet; otherwise the kernel's.
    Card,
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Clock::Packet => "packet",
            Clock::Batch => "batch",
            Clock::Card => "card",
        })
    }
}
