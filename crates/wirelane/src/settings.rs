//! What a capture is asked for, with a default for everything.

use std::path::PathBuf;
use std::sync::Arc;

use wirelane_datapath::instance::{MAX_QUEUES, MAX_SNAP, MAX_WORKERS, SEGMENT, group_flags, steering};
use wirelane_datapath::rules::MAX_PLUGINS;

use crate::device::{Selected, Selector, XdpMode};
use crate::engine::ring::attach::{Hook, Tc};
use crate::engine::ring::group::Wish;
use crate::engine::ring::program::{Kind, Plugin, UserProgram};
use crate::filter;
use crate::flow_cache::KernelFlows;
use crate::in_force::RulesRoom;
use crate::rules::{RuleSet, plugins};
use crate::tune::Polling;
use crate::{Error, Result};

/// Which worker of a capture gets a packet.
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
    /// Whether buckets lie between packets and workers, so that load can be moved.
    fn has_buckets(self) -> bool {
        !matches!(self, Steering::Queue | Steering::RoundRobin | Steering::Copy)
    }

    fn code(self) -> u32 {
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
    /// Packets go where the steering's table said at the start.
    #[default]
    Static,
    /// The table follows the load: buckets of flows move from busy to idle workers, without reordering a flow.
    ///
    /// With [`Steering::Queue`] the table is the card's: entries of its RSS table move from busy to idle RX queues, for
    /// as long as the capture lasts. That is for all who receive from the device, and it is put back at the end, as
    /// what [`crate::Builder::polling`] changes. **Packets of the flows of an entry can be reordered when it moves**: those
    /// that wait in the old queue are overtaken by those that follow on the new one. So it is done for unevenness
    /// that lasts: the table is set once a second at most, 30 times at first and once a minute over time, and an
    /// entry that has moved stays for three seconds or more. Entries move among the captured queues only, and none of
    /// them is left without one.
    Adaptive,
}

/// Congestion control: what is done about a worker that falls behind.
///
/// From `low` on, a growing share of all flows is refused before any copy, and at `high` all of them; the same flows
/// as long as the share does not change much, so that the others stay whole. What was refused is `shed` in the
/// ledger. Without it a ring fills up, and what finds no room is `lost`, from all flows alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Percentage of a ring that is unread.
    pub low: u8,
    /// The same, more than `low`.
    pub high: u8,
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        Watermarks { low: 50, high: 90 }
    }
}

impl Watermarks {
    /// In bytes of a ring.
    fn of(self, ring_size: usize) -> (u32, u32) {
        let part = |percent: u8| (ring_size as u64 * u64::from(percent) / 100) as u32;
        (part(self.low), part(self.high))
    }
}

/// One of several equal parts of all flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Below `of`.
    pub(crate) number: u32,
    pub(crate) of: u32,
    /// Of the hash that flows are divided by.
    pub(crate) seed: u32,
}

/// Where packets are taken from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// Native XDP where the driver can, else generic XDP, with a warning; tc with [`crate::Builder::exits`].
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

/// Which packets of a device are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Received ones.
    #[default]
    Rx,
    /// Those on their way out: always by tc.
    Tx,
    /// All.
    Both,
}

/// How packets reach user space.
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

/// Whether the card's driver is to put packets into our memory itself; engine `xsk` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// The kernel copies: works with every driver.
    #[default]
    Never,
    /// Where the driver can.
    Auto,
    /// Or the capture fails.
    Require,
}

/// What packets are stamped with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The kernel's clock, read for every packet.
    #[default]
    Packet,
    /// The kernel's clock, read once for all packets that the kernel handles in one go, up to 64 (Linux 6.11):
    /// less work a packet. If another capture on the device reads it for every packet, this one profits.
    Batch,
    /// The card's clock, where the driver says for the packet what it was; the kernel's where it does not.
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

/// Bytes of a ring where nothing else is asked for.
pub const DEFAULT_RING_SIZE: usize = 4 << 20;
/// Most memory that rings take where no ring size is asked for.
const DEFAULT_MEMORY: usize = 256 << 20;
/// Bytes that a lane writes to a ring between two publications of its head (measured: per-packet publication
/// costs half the throughput, 2 KiB next to nothing).
const PUBLISH_EVERY: u32 = 2048;

/// Nanoseconds that a plug-in may take on the average: what some thousand instructions take.
const PLUGIN_BUDGET: u32 = 5000;

/// See [`crate::Builder`], which documents each setting.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) selectors: Vec<Selector>,
    pub(crate) snap_len: usize,
    /// 0: by [`DEFAULT_RING_SIZE`] and [`DEFAULT_MEMORY`].
    pub(crate) ring_size: usize,
    pub(crate) workers: usize,
    pub(crate) cores: Vec<usize>,
    pub(crate) cores_auto: bool,
    pub(crate) polling: Option<Polling>,
    pub(crate) steering: Steering,
    /// The object file that steers instead.
    pub(crate) steering_program: Option<PathBuf>,
    /// Which part of all flows; `None`: all of them.
    pub(crate) share: Option<Share>,
    pub(crate) take: bool,
    pub(crate) inner: bool,
    pub(crate) immediate: bool,
    /// Records are merged by their stamps.
    pub(crate) in_order: bool,
    pub(crate) promiscuous: bool,
    pub(crate) hook: HookChoice,
    pub(crate) direction: Direction,
    pub(crate) clock: Clock,
    pub(crate) balance: Balance,
    pub(crate) congestion_control: Option<Watermarks>,
    /// A tcpdump expression; empty: all packets.
    pub(crate) filter: String,
    /// What becomes of packets that the filter wants; `None`: there are no rules.
    pub(crate) rules: Option<Arc<RuleSet>>,
    pub(crate) rules_room: RulesRoom,
    /// What they drop, nobody else on the device gets.
    pub(crate) device_wide: bool,
    /// The devices that they may send packets to.
    pub(crate) exits: Vec<String>,
    /// What they may ask: names and object files.
    pub(crate) plugins: Vec<(String, PathBuf)>,
    /// Nanoseconds that each of these may take on the average.
    pub(crate) plugin_budget: u32,
    /// Whether `wirelane rules` can change them.
    pub(crate) control: bool,
    pub(crate) engine: Engine,
    pub(crate) zero_copy: ZeroCopy,
    /// Microseconds; engine `xsk` only.
    pub(crate) busy_poll: Option<u32>,
    /// Packets become flows in the kernel.
    pub(crate) flows: Option<KernelFlows>,
}

impl Settings {
    /// The defaults, on these devices.
    pub(crate) fn new(selectors: Vec<Selector>) -> Settings {
        Settings {
            selectors,
            snap_len: MAX_SNAP,
            ring_size: 0,
            workers: 1,
            cores: Vec::new(),
            cores_auto: false,
            polling: None,
            steering: Steering::Flow,
            steering_program: None,
            share: None,
            take: false,
            inner: false,
            immediate: false,
            in_order: false,
            promiscuous: true,
            hook: HookChoice::Auto,
            direction: Direction::Rx,
            clock: Clock::Packet,
            balance: Balance::Static,
            congestion_control: None,
            filter: String::new(),
            rules: None,
            rules_room: RulesRoom::default(),
            device_wide: false,
            exits: Vec::new(),
            plugins: Vec::new(),
            plugin_budget: PLUGIN_BUDGET,
            control: false,
            engine: Engine::Auto,
            zero_copy: ZeroCopy::Never,
            busy_poll: None,
            flows: None,
        }
    }

    /// Refuses what makes no sense, before anything is touched.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |option, reason: String| Err(Error::BadOption { option, reason });
        if self.selectors.is_empty() {
            return bad("-i", "name at least one device; `wirelane devices` lists them".into());
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return bad("--workers", format!("{} is not between 1 and {MAX_WORKERS}", self.workers));
        }
        let allowed = crate::send::allowed_cpus();
        if let Some(core) = self.cores.iter().find(|core| !allowed.contains(core)) {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            return bad(
                "--cores",
                format!("this process may not run on {core}, only on {}", allowed.join(",")),
            );
        }
        if self.snap_len > MAX_SNAP {
            return bad("--snap-length", format!("{} is more than {MAX_SNAP}, the longest", self.snap_len));
        }
        if self.ring_size > 1 << 30 {
            return bad("--ring-size", format!("{} bytes: a ring has at most 1 GiB", self.ring_size));
        }
        if self.balance == Balance::Adaptive {
            let fixed = matches!(self.steering, Steering::RoundRobin | Steering::Copy);
            if fixed || self.steering_program.is_some() {
                return bad(
                    "--balance",
                    "only steering by flow, VLAN or address has buckets that can move, and by queue the card's RSS \
                     table has entries; 'static' goes with all"
                        .into(),
                );
            }
            if self.steering == Steering::Queue && self.direction == Direction::Tx {
                return bad(
                    "--balance",
                    "the card's RSS table is for received packets: leave it out, or use --direction rx"
                        .into(),
                );
            }
        }
        if let Some(Share { number, of, .. }) = self.share
            && number >= of
        {
            return bad("share", format!("{of} parts of all flows have no number {number}: they begin at 0"));
        }
        self.rules_room.check()?;
        if self.device_wide && self.rules.is_none() {
            return bad(
                "--device-wide",
                "there are no rules: name them with --rules, or set room aside for some with --rules-room"
                    .into(),
            );
        }
        if !self.exits.is_empty() && matches!(self.hook, HookChoice::Native | HookChoice::Generic) {
            return bad("--exits", "packets are sent on by tc, not by XDP: use --hook tc".into());
        }
        self.check_plugins()?;
        self.flows.map_or(Ok(()), |flows| flows.check(self))?;
        if self.congestion_control.is_some_and(|w| w.low >= w.high || w.high > 100) {
            return bad(
                "--congestion-control",
                "two percentages of a ring, the lower first, as in 50,90".into(),
            );
        }
        Ok(())
    }

    /// The same of plug-ins, and of rules that ask them.
    fn check_plugins(&self) -> Result<()> {
        let bad = |option, reason: String| Err(Error::BadOption { option, reason });
        if self.plugins.len() > MAX_PLUGINS {
            return bad("--plugin", format!("{} are more than {MAX_PLUGINS}, the most", self.plugins.len()));
        }
        for (at, (name, _)) in self.plugins.iter().enumerate() {
            plugins::may_be_named(name).map_err(|reason| Error::BadOption { option: "--plugin", reason })?;
            if self.plugins[..at].iter().any(|(other, _)| other == name) {
                return bad("--plugin", format!("two are called '{name}': give one another name"));
            }
        }
        if self.plugin_budget == 0 {
            return bad("--plugin-budget", "no plug-in takes 0 ns: at least 1".into());
        }
        let names: Vec<String> = self.plugins.iter().map(|(name, _)| name.clone()).collect();
        self.rules.as_ref().map_or(Ok(()), |rules| rules.check_plugins(&names))
    }

    /// Its plug-ins, read from their files.
    ///
    /// # Errors
    /// As [`UserProgram::read`].
    pub(crate) fn read_plugins(&self) -> Result<Vec<Plugin>> {
        let read = |(name, path): &(String, PathBuf)| {
            Ok(Plugin { name: name.clone(), program: UserProgram::read(Kind::Plugin, path)? })
        };
        self.plugins.iter().map(read).collect()
    }

    /// What a device's instance is asked for. `lanes` and the queues are the device's.
    ///
    /// # Errors
    /// [`Error::Filter`].
    pub(crate) fn wish(&self, selected: &Selected, lanes: usize, hook: Hook) -> Result<Wish> {
        let ring_size = self.bytes_per_ring(lanes * self.workers);
        let rounded = ring_size.div_ceil(SEGMENT).next_power_of_two() * SEGMENT;
        // The whole device means every queue that it can ever have.
        let queues = if hook == Hook::Egress {
            vec![0]
        } else if selected.is_whole_device() {
            (0..selected.device.max_rx_queues.clamp(1, MAX_QUEUES as u32)).collect()
        } else {
            selected.queues.clone()
        };
        Ok(Wish {
            filter: filter::for_device(&self.filter, &selected.device)?,
            queues,
            snap_len: self.snap_len as u32,
            workers: self.workers,
            ring_size,
            steering: match self.steering_program {
                Some(_) => steering::PROGRAM,
                None => self.steering.code(),
            },
            share: self.share,
            flags: if self.take { group_flags::TAKE } else { 0 }
                | if self.inner { group_flags::INNER } else { 0 }
                | if self.clock == Clock::Card { group_flags::CARD_CLOCK } else { 0 }
                | if self.moves_buckets() { group_flags::ADAPTIVE } else { 0 }
                | if self.device_wide { group_flags::WIDE } else { 0 }
                | if self.flows.is_some() { group_flags::FLOWS } else { 0 },
            clock: self.clock,
            shed: self.congestion_control.map(|watermarks| watermarks.of(rounded)),
            publish_every: if self.immediate { 0 } else { PUBLISH_EVERY },
            program: None,
            plugins: Vec::new(),
            plugin_budget: self.plugin_budget,
            rules: None,
            exits: Vec::new(),
            flows: self.flows,
        })
    }

    /// Bytes of each of so many rings.
    pub(crate) fn bytes_per_ring(&self, rings: usize) -> usize {
        match self.ring_size {
            0 => {
                let share = DEFAULT_MEMORY / rings;
                // The largest power of two within the share.
                DEFAULT_RING_SIZE.min(if share == 0 { 0 } else { 1 << share.ilog2() })
            }
            size => size,
        }
    }

    /// The hooks to capture on, `None` standing for the best XDP that works.
    pub(crate) fn hooks(&self) -> Vec<Option<Hook>> {
        let rx = match self.hook {
            // XDP is not told what becomes of a packet that it sends.
            HookChoice::Auto if !self.exits.is_empty() => Some(Hook::Ingress),
            HookChoice::Auto => None,
            HookChoice::Native => Some(Hook::Xdp(XdpMode::Native)),
            HookChoice::Generic => Some(Hook::Xdp(XdpMode::Generic)),
            HookChoice::Tc | HookChoice::Clsact => Some(Hook::Ingress),
        };
        match self.direction {
            Direction::Rx => vec![rx],
            Direction::Tx => vec![Some(Hook::Egress)],
            Direction::Both => vec![rx, Some(Hook::Egress)],
        }
    }

    /// How tc's hooks are reached, where there are any among [`Settings::hooks`].
    pub(crate) fn tc(&self) -> Tc {
        if self.hook == HookChoice::Clsact { Tc::Clsact } else { Tc::Best }
    }

    /// Whether there is a control socket.
    pub(crate) fn is_managed(&self) -> bool {
        self.control && self.rules.is_some()
    }

    /// Whether buckets of flows move between workers.
    pub(crate) fn moves_buckets(&self) -> bool {
        self.balance == Balance::Adaptive && self.steering.has_buckets()
    }

    /// The core of a worker.
    pub(crate) fn core_of(&self, worker: usize) -> Option<usize> {
        (!self.cores.is_empty()).then(|| self.cores[worker % self.cores.len()])
    }
}
