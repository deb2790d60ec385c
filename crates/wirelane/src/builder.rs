//! Builder of a capture.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wirelane_bpf::instance::MAX_SNAP;
use wirelane_control::{Purpose, SharedSocket};

use crate::active_rules::RulesCapacity;
use crate::capture::Capture;
use crate::error::Result;
use crate::flow_cache::KernelFlows;
use crate::http_heads::KernelHttp;
use crate::settings::{
    Balance, Clock, Direction, Engine, HookChoice, Settings, Share, Steering, Watermarks, ZeroCopy,
};
use wirelane_netdev::Selector;
use wirelane_privsep::Sandbox;
use wirelane_rules::RuleSet;
use wirelane_tune::Polling;

/// Builder of a capture. Every setting has a default that suits most captures.
#[derive(Clone, Debug)]
pub struct Builder(Settings);

impl Builder {
    /// A builder for a capture on these devices and virtual devices.
    pub fn new(selectors: impl IntoIterator<Item = Selector>) -> Builder {
        Builder(Settings::new(selectors.into_iter().collect()))
    }

    /// Warns of each device that appears or is set up during the capture and matches one of these patterns
    /// ([`Selector::patterns`]): the capture has no right to attach to it any more. Default: none.
    #[must_use]
    pub fn patterns(mut self, patterns: impl IntoIterator<Item = Selector>) -> Builder {
        self.0.patterns = patterns.into_iter().collect();
        self
    }

    /// Keeps at most this many bytes of each packet; 0 means whole packets (up to 131,008 bytes).
    #[must_use]
    pub fn snap_len(mut self, bytes: usize) -> Builder {
        self.0.snap_len = if bytes == 0 { MAX_SNAP } else { bytes };
        self
    }

    /// The application reads the headers of packets and the first bytes of their payload, and no more: engine `ring`
    /// copies at most 6,400 bytes of a packet, whatever the snap length. Headers are parsed no further than that, so only
    /// aggregates (GRO, GSO) of up to 64 KiB are affected, whose copies would cost the host a large part of its
    /// throughput. Default: no.
    #[must_use]
    pub fn headers_only(mut self, headers_only: bool) -> Builder {
        self.0.headers_only = headers_only;
        self
    }

    /// Bytes of each ring (one per lane and worker), rounded up to a power of two of MiB. Default: 4 MiB, less
    /// where there are so many rings that they would take more than 256 MiB together.
    #[must_use]
    pub fn ring_size(mut self, bytes: usize) -> Builder {
        self.0.ring_size = bytes;
        self
    }

    /// Number of workers, 1 to 64; independent of the number of RX queues. Default: 1.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Builder {
        self.0.workers = workers;
        self
    }

    /// The cores that workers are pinned to, in turn. Default: none, the scheduler chooses.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Builder {
        (self.0.cores_auto, self.0.cores) = (false, cores.into_iter().collect());
        self
    }

    /// Chooses the workers' cores as `wirelane tune` does: beside the CPUs that serve the RX queues, on the card's NUMA
    /// node, away from busy CPUs. Replaces [`Builder::cores`].
    #[must_use]
    pub fn cores_auto(mut self) -> Builder {
        (self.0.cores_auto, self.0.cores) = (true, Vec::new());
        self
    }

    /// Polling of the devices' RX queues for as long as the capture lasts. The previous state is restored at its
    /// end, also if the process is killed, by a process that is forked here (`wl-broker`); if that process is killed
    /// too, by the next capture on the device or by [`wirelane_tune::restore`]. Start the capture before threads, whose
    /// locks a forked process inherits: the forked process logs nothing and takes no lock except the allocator's. Each
    /// queue's thread or interrupt is bound beside the worker that it feeds; workers without [`Builder::cores`] are
    /// placed too. Default: no change.
    #[must_use]
    pub fn polling(mut self, polling: Polling) -> Builder {
        self.0.polling = Some(polling);
        self
    }

    /// Distribution of packets to workers. Default: [`Steering::Flow`].
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Builder {
        (self.0.steering, self.0.steering_program) = (steering, None);
        self
    }

    /// Chooses the worker by a program of yours, in the kernel: an object file that clang has compiled for BPF from a
    /// source that includes `<wirelane/steer.h>`, which documents the program's input and limits. A packet that the
    /// program refuses is `filtered` in the ledger. Replaces [`Builder::steering`]; engine `ring` only.
    ///
    /// Up to four different programs can steer one device at a time; groups with the same one share it.
    #[must_use]
    pub fn steering_program(mut self, object: impl Into<PathBuf>) -> Builder {
        self.0.steering_program = Some(object.into());
        self
    }

    /// Captures one of `of` equal parts of all flows, the one with this number, counted from 0: several captures with
    /// different numbers and the same seed divide a device's flows among them. Both directions of a conversation, and
    /// all fragments of a datagram, are in one part. Packets of other parts are `filtered` in the ledger, before filter
    /// and rules are evaluated. Engine `ring` only. Default: all flows.
    #[must_use]
    pub fn share(mut self, number: u32, of: u32, seed: u32) -> Builder {
        self.0.share = Some(Share { number, of, seed });
        self
    }

    /// Yields the records of a worker in the order of their timestamps, over all RX queues, CPUs, directions and
    /// devices. Records are held back for some 30 us, until no other lane can have an earlier one; by engine `packet`
    /// for up to 4 ms plus the kernel's timer, where a worker has several sockets. Engine `xsk` does not merge.
    /// Default: yes. Without merging, each lane's records come in the lane's order, which costs the lanes and the
    /// worker less.
    #[must_use]
    pub fn in_order(mut self, in_order: bool) -> Builder {
        self.0.in_order = in_order;
        self
    }

    /// Has each worker tell the time up to which it has yielded everything ([`Worker::caught_up`](crate::Worker::caught_up)),
    /// so that records of several workers can be merged. Default: no. It needs [`Builder::in_order`].
    #[must_use]
    pub fn across_workers(mut self, across: bool) -> Builder {
        self.0.across_workers = across;
        self
    }

    /// Keeps captured packets from the host stack. Default: the host stack receives them too.
    #[must_use]
    pub fn exclusive(mut self, exclusive: bool) -> Builder {
        self.0.exclusive = exclusive;
        self
    }

    /// Keeps all received packets from the host stack, also those that the filter, the rules or the share refuse, and
    /// those that are lost: for a device that only captures, for example on a mirror port. Processing a packet in the
    /// stack costs several times as much as capturing it. Other captures on the device still get their packets. Engine
    /// `ring`, and `xsk`, which does so anyway. Default: no.
    #[must_use]
    pub fn exclusive_all(mut self, exclusive_all: bool) -> Builder {
        self.0.exclusive |= exclusive_all;
        self.0.exclusive_all = exclusive_all;
        self
    }

    /// Steers by, and reports, the headers inside tunnels. Default: the outer headers.
    #[must_use]
    pub fn inner_headers(mut self, inner: bool) -> Builder {
        self.0.inner = inner;
        self
    }

    /// Makes every packet visible at once and wakes the worker for it: lowest latency, about half the rate.
    #[must_use]
    pub fn immediate(mut self, immediate: bool) -> Builder {
        self.0.immediate = immediate;
        self
    }

    /// Maximum time for which packets gather in the rings before a waiting worker looks at them, unless a ring is a quarter full:
    /// fewer wake-ups, and so less CPU time at low packet rates; a thread that waits by [`crate::Worker::readiness`] is
    /// still woken at once. Engine `ring` only, and without [`Builder::immediate`]. Default: a lone packet wakes its
    /// worker, and under load sleeps are as long as they pay, up to 5 ms.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Builder {
        self.0.patience = Some(patience);
        self
    }

    /// Puts the devices into promiscuous mode for as long as the capture lasts. Default: yes.
    #[must_use]
    pub fn promiscuous(mut self, promiscuous: bool) -> Builder {
        self.0.promiscuous = promiscuous;
        self
    }

    /// The hook at which packets are captured. Default: [`HookChoice::Auto`].
    #[must_use]
    pub fn hook(mut self, hook: HookChoice) -> Builder {
        self.0.hook = hook;
        self
    }

    /// Direction of the captured packets. Default: [`Direction::Auto`].
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Builder {
        self.0.direction = direction;
        self
    }

    /// Source of packet timestamps. Default: [`Clock::Packet`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.0.clock = clock;
        self
    }

    /// Whether load moves between workers, or with [`Steering::Queue`] between RX queues. Default: [`Balance::Static`].
    #[must_use]
    pub fn balance(mut self, balance: Balance) -> Builder {
        self.0.balance = balance;
        self
    }

    /// Refuses whole flows where a worker falls behind. Default: `None`, no congestion control.
    #[must_use]
    pub fn congestion_control(mut self, watermarks: Option<Watermarks>) -> Builder {
        self.0.congestion_control = watermarks;
        self
    }

    /// The packets to capture, as a tcpdump expression (pcap-filter(7)). Other packets are counted as
    /// [`filtered`](crate::ledger::Counters::filtered), before they are steered or copied, and go on to the host stack.
    /// Default: empty, all packets. Names in the expression are looked up when the capture starts.
    #[must_use]
    pub fn filter(mut self, expression: impl Into<String>) -> Builder {
        self.0.filter = expression.into();
        self
    }

    /// Whether [`crate::Capture::set_filter`] works without the rights to load programs, which a confined capture has
    /// given up. Such a filter is interpreted, the others are instructions of the kernel program. Costs the kernel some
    /// time at the start. Default: no.
    /// Engine `ring` only; with the others it always works.
    #[must_use]
    pub fn filter_later(mut self, filter_later: bool) -> Builder {
        self.0.filter_later = filter_later;
        self
    }

    /// Rules for the packets that the filter accepts: they decide which packets are delivered, how many bytes of each,
    /// and which are counted ([`crate::rules`]). Packets that a rule drops are
    /// [`filtered`](crate::ledger::Counters::filtered), packets that a rule only counts are
    /// [`absorbed`](crate::ledger::Counters::absorbed), before they are steered or copied. Dropped packets go on to the
    /// host stack unless the rules are [`Builder::device_wide`]; with [`Builder::exclusive`], counted packets are kept
    /// from the stack like delivered ones. Default: none.
    #[must_use]
    pub fn rules(mut self, rules: RuleSet) -> Builder {
        self.0.rules = Some(Arc::new(rules));
        self
    }

    /// Sets the capacity for rules that are added while the capture runs ([`Capture::set_rules`]), also where it starts
    /// without rules. Default: twice the need of the first rules, and enough for ordinary sets.
    #[must_use]
    pub fn rules_capacity(mut self, room: RulesCapacity) -> Builder {
        self.0.rules_capacity = room;
        self.0.rules.get_or_insert_default();
        self
    }

    /// Makes the rules hold for the whole device: a packet that they drop, by a rule, by sampling or by the default,
    /// reaches neither the host stack nor another capture's workers, where it is
    /// [`blocked`](crate::ledger::Counters::blocked). This applies to the captured RX queues and direction; with
    /// several such captures on a device, packets that the first one drops are not evaluated by the next ones. Packets
    /// that [`Builder::filter`] refuses are not evaluated and go on. The effect ends with the process, however the
    /// process ends. Engine `ring` only. Default: no, rules affect this capture only.
    #[must_use]
    pub fn device_wide(mut self, wide: bool) -> Builder {
        self.0.device_wide = wide;
        self
    }

    /// The devices that rules may send packets to ([`crate::rules::Rule::mirror`], [`crate::rules::Rule::to`]), at most
    /// 8, also for rules that are added while the capture runs. Their names are resolved when the capture starts.
    /// [`crate::Ledger::egress_devices`] counts the packets that the kernel has sent there, and those that it could not
    /// send. Needs engine `ring` and tc, which [`HookChoice::Auto`] then selects. Default: none.
    #[must_use]
    pub fn egress_devices(mut self, devices: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        self.0.egress_devices = devices.into_iter().map(Into::into).collect();
        self.0.rules.get_or_insert_default();
        self
    }

    /// Loads a plug-in, a function of yours that rules use by this name as a condition
    /// ([`crate::rules::Test::Plugin`]), also rules that are added while the capture runs: an object file that clang
    /// has compiled for BPF from a source that includes `<wirelane/plugin.h>`, which documents a plug-in's input and
    /// limits. Up to four; a device has slots for four different ones, and groups with the same one share its slot.
    /// Their counts are in [`crate::RuleStats::plugins`]. Engine `ring` only. Default: none.
    #[must_use]
    pub fn plugin(mut self, name: impl Into<String>, object: impl Into<PathBuf>) -> Builder {
        self.0.plugins.push((name.into(), object.into()));
        self.0.rules.get_or_insert_default();
        self
    }

    /// Delivers the records that plug-ins write (`plugin_record()`), among those of packets: [`crate::Record::plugin`]. Those for
    /// which a ring has no space are counted ([`crate::PluginLine::unwritten`]). Default: off; then all are counted there.
    #[must_use]
    pub fn plugin_records(mut self, records: bool) -> Builder {
        self.0.plugin_records = records;
        self
    }

    /// Nanoseconds that each plug-in may take on average. A slower plug-in is switched off in the lane (RX queue or
    /// CPU) where it is slow: it matches nothing there any more. Default: 5000.
    #[must_use]
    pub fn plugin_budget(mut self, nanoseconds: u32) -> Builder {
        self.0.plugin_budget = nanoseconds;
        self
    }

    /// Lets `wirelane rules` change the rules while the capture runs, where it has any: by a socket
    /// that only root and the user who starts the capture can connect to ([`crate::control`]). Default: no.
    #[must_use]
    pub fn control(mut self, control: bool) -> Builder {
        self.0.control = control;
        self
    }

    /// Opens a socket at which the capturing program answers requests of other processes ([`crate::Capture::service`]);
    /// only root and the user who starts the capture can connect to it ([`crate::control`]). Default: none.
    #[must_use]
    pub fn service(mut self, purpose: Option<Purpose>) -> Builder {
        self.0.service = purpose;
        self
    }

    /// Opens a further socket for the requests of [`Builder::service`], to which others can connect. Default: none.
    #[must_use]
    pub fn shared_socket(mut self, socket: Option<SharedSocket>) -> Builder {
        self.0.shared_socket = socket;
        self
    }

    /// The way of packets to user space. Default: [`Engine::Auto`].
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Builder {
        self.0.engine = engine;
        self
    }

    /// Whether the driver writes packets directly into our memory; engine `xsk` only. Default: never.
    #[must_use]
    pub fn zero_copy(mut self, zero_copy: ZeroCopy) -> Builder {
        self.0.zero_copy = zero_copy;
        self
    }

    /// Polls the card from the worker for up to this many microseconds while it waits for packets, instead of waiting
    /// for an interrupt; engine `xsk` only. Default: no polling.
    #[must_use]
    pub fn busy_poll(mut self, microseconds: u32) -> Builder {
        self.0.busy_poll = Some(microseconds);
        self
    }

    /// Aggregates flows in the kernel: the capture's records are parts of flows ([`crate::Record::flow`]), and packets
    /// only for some rules ([`KernelFlows::whole`]). Packets that become part of a flow are `absorbed` in the ledger
    /// ([`crate::Ledger::flow_cache`]), unless they are delivered, too ([`KernelFlows::deliver`]). Parts of a flow come in the order of their packets, and merging them gives the
    /// totals of the packets. Engine `ring` only. Default: off.
    #[must_use]
    pub fn kernel_flows(mut self, flows: KernelFlows) -> Builder {
        self.0.flows = Some(flows);
        self
    }

    /// Selects heads of HTTP in the kernel, on any port: delivers packets that contain part of a head, the last packet
    /// of each body, packets that begin and end connections, retransmitted and reordered packets, and doubtful ones.
    /// All else is offloaded, `absorbed` in the ledger: bodies, and packets without HTTP or TCP. Bytes of a connection
    /// that stay in the kernel are reported by records that are not packets ([`crate::Record::http`]) before its next
    /// packet, and at its end by [`crate::Worker::http_offload`]. Engine `ring` only. Default: off.
    #[must_use]
    pub fn kernel_http(mut self, http: KernelHttp) -> Builder {
        self.0.http = Some(http);
        self
    }

    /// Allows measuring RTP streams in the kernel, up to this many at a time ([`crate::Capture::meter`]); takes 576
    /// bytes for each, and needs rules ([`Builder::rules`]). Engine `ring` only. Default: none.
    #[must_use]
    pub fn kernel_streams(mut self, streams: usize) -> Builder {
        self.0.streams = Some(streams);
        self
    }

    /// Whether packets that were measured in the kernel are also delivered, marked by [`crate::Record::is_measured`]: for
    /// other analyses of the same packets. Default: no, they are `absorbed`.
    #[must_use]
    pub fn deliver_measured(mut self, deliver: bool) -> Builder {
        self.0.deliver_measured = deliver;
        self
    }

    /// Starts the capture: on return, every packet is seen.
    ///
    /// # Errors
    /// [`Unsupported`] where the kernel or the card lacks a requested feature,
    /// [`MissingCapability`], [`UnknownDevice`], [`UnknownQueue`], [`ForeignProgram`], [`OtherVersion`],
    /// [`TooManyGroups`], [`BadOption`], [`Filter`], [`Rules`], or a kernel error ([`Kernel`], [`Bpf`]).
    ///
    /// [`Unsupported`]: crate::Error::Unsupported
    /// [`MissingCapability`]: wirelane_privsep::Error::MissingCapability
    /// [`UnknownDevice`]: wirelane_netdev::Error::UnknownDevice
    /// [`UnknownQueue`]: wirelane_netdev::Error::UnknownQueue
    /// [`ForeignProgram`]: crate::Error::ForeignProgram
    /// [`OtherVersion`]: crate::Error::OtherVersion
    /// [`TooManyGroups`]: crate::Error::TooManyGroups
    /// [`BadOption`]: crate::Error::BadOption
    /// [`Filter`]: crate::Error::Filter
    /// [`Rules`]: crate::Error::Rules
    /// [`Kernel`]: crate::Error::Kernel
    /// [`Bpf`]: crate::Error::Bpf
    pub fn open(self) -> Result<Capture> {
        self.start(None)
    }

    /// Starts the capture, and gives up the process's rights once all privileged work is done and before the capture's
    /// own thread starts. The process must have no other threads at this moment.
    ///
    /// # Errors
    /// As [`Builder::open`] and [`Sandbox::apply`].
    pub fn open_confined(self, confinement: &Sandbox) -> Result<Capture> {
        self.start(Some(confinement))
    }

    fn start(self, confinement: Option<&Sandbox>) -> Result<Capture> {
        self.0.check()?;
        // Before the check of rights: a mistyped name should be reported to every user.
        let selected = Selector::resolve_all(&self.0.selectors)?;
        Capture::live(&self.0, selected, confinement)
    }
}
