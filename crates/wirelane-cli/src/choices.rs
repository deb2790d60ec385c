//! Values of the shared options of capturing commands.

use wirelane::Watermarks;
use wirelane::tune::Polling;

/// Values of --engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineArg {
    /// 'file' with -r, else 'ring', or 'packet' (with a warning) if the kernel refuses that
    Auto,
    /// Wirelane's own rings, filled by a program in the kernel
    Ring,
    /// AF_XDP sockets, one per RX queue: needs the device for itself (--exclusive)
    Xsk,
    /// AF_PACKET sockets with rings: needs CAP_NET_RAW only
    Packet,
    /// A capture file, given with -r
    File,
}

/// Values of --hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HookArg {
    /// 'tc'; with --exclusive, and for RX queues (eth1@2), 'native' if the driver supports it, else 'generic'
    Auto,
    /// XDP in the driver: the fastest; many drivers disable offloads for it, which slows the host's own traffic
    Native,
    /// XDP in the network stack: any driver
    Generic,
    /// traffic control: any driver, beside other XDP programs, later in the stack
    Tc,
    /// tc by a filter on a clsact qdisc, which is what 'tc' means before Linux 6.6
    Clsact,
}

/// Values of --direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DirectionArg {
    /// 'both' of a device; 'rx' of an RX queue (eth1@2), of the loopback device, and with --exclusive, --device-wide,
    /// --mirror-to, --clock card or --engine xsk
    Auto,
    /// Received packets
    #[value(alias = "in")]
    Rx,
    /// Transmitted packets, always by tc
    #[value(alias = "out")]
    Tx,
    /// Received and transmitted packets
    #[value(alias = "inout")]
    Both,
}

/// Values of --priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PriorityArg {
    /// 'normal' where packets are recorded or kept from the host (--exclusive), else 'low'
    Auto,
    /// The host's other programs run first (SCHED_BATCH, nice 10): where the CPUs are busy, packets are lost instead of
    /// time of these programs
    Low,
    /// The same as of other programs
    Normal,
}

/// Values of --cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoresArg {
    /// Chosen by the planner.
    Auto,
    /// These, in turn.
    These(Vec<usize>),
}

/// Values of --polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PollingArg {
    /// By interrupts, each bound beside the worker that it feeds
    Interrupt,
    /// By a kernel thread for each queue, bound beside the worker that it feeds (threaded NAPI)
    Threaded,
    /// By a kernel thread for each queue that never sleeps (Linux 6.19)
    Busy,
}

impl PollingArg {
    /// The library's value.
    pub fn polling(self) -> Polling {
        match self {
            PollingArg::Interrupt => Polling::Interrupt,
            PollingArg::Threaded => Polling::Threaded,
            PollingArg::Busy => Polling::Busy,
        }
    }
}

/// Values of --clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ClockArg {
    /// The kernel's clock, read for every packet
    Packet,
    /// The kernel's clock, read once for up to 64 packets of a batch: faster (Linux 6.11)
    Batch,
    /// The card's clock, if it is set to stamp all received packets (hwstamp_ctl -r 1)
    Card,
}

/// Values of --zero-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ZeroCopyArg {
    /// The kernel copies
    Never,
    /// If the driver supports it
    Auto,
    /// Fail if the driver does not support it
    Require,
}

/// Values of --steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SteeringArg {
    /// By symmetric flow hash: both directions of a conversation meet at one worker
    Flow,
    /// By RX queue
    Queue,
    /// All workers in turn
    RoundRobin,
    /// Every worker gets every packet; the ledger counts copies
    Copy,
    /// By the outermost VLAN id
    Vlan,
    /// By the source address
    Source,
    /// By the destination address
    Destination,
}

/// Values of --balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BalanceArg {
    /// Flows stay with their first worker
    #[default]
    Static,
    /// Flows move from busy to idle workers without reordering; a flow that fills a worker gets it exclusively. With
    /// '--steering queue', entries of the card's RSS table move rarely, and their packets can be reordered then
    Adaptive,
}

/// The value of --congestion-control.
#[derive(Clone, Copy, Debug)]
pub struct CongestionControl(pub Option<Watermarks>);
