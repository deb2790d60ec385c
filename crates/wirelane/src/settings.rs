//! Settings of a capture, with defaults.

mod choices;
mod kernel;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wirelane_bpf::instance::{MAX_SNAP, MAX_WORKERS};
use wirelane_bpf::kernel::at_least;
use wirelane_bpf::native::MAX_OFFSET;
use wirelane_bpf::rules::MAX_PLUGINS;
use wirelane_control::{Purpose, SharedSocket};

use crate::active_rules::RulesCapacity;
use crate::error::{Error, Result};
use crate::flow_cache::KernelFlows;
use crate::hook::{Hook, Tc};
use crate::http_heads::KernelHttp;
use crate::kernel::is_realtime;

use wirelane_netdev::{Device, Selected, Selector, XdpMode};
use wirelane_rules::{RuleSet, plugins};
use wirelane_tune::Polling;

pub(crate) use choices::Share;
pub use choices::{Balance, Clock, Direction, Engine, HookChoice, Steering, Watermarks};
pub use wirelane_afxdp::ZeroCopy;

/// Bytes of a ring where no size is requested.
pub const DEFAULT_RING_SIZE: usize = 4 << 20;
/// Bytes of a packet that contain all headers that are parsed, and the beginning of the payload, which names the
/// application protocol (`WL_APPLICATION_WINDOW`). The longest header has 2,048 bytes (RFC 8200, section 4).
const HEADERS: usize = MAX_OFFSET + 1 + 2048 + 256;
/// Maximum memory of all rings together where no ring size is requested.
const DEFAULT_MEMORY: usize = 256 << 20;
/// Nanoseconds that a plug-in may take on average: the time of some thousand instructions.
const PLUGIN_BUDGET: u32 = 5000;

/// See [`crate::Builder`], which documents each setting.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) selectors: Vec<Selector>,
    /// Patterns of devices that come up during the capture.
    pub(crate) patterns: Vec<Selector>,
    pub(crate) snap_len: usize,
    /// Whether the application needs no more than [`HEADERS`] bytes of a packet.
    pub(crate) headers_only: bool,
    /// 0: derived from [`DEFAULT_RING_SIZE`] and [`DEFAULT_MEMORY`].
    pub(crate) ring_size: usize,
    pub(crate) workers: usize,
    pub(crate) cores: Vec<usize>,
    pub(crate) cores_auto: bool,
    pub(crate) polling: Option<Polling>,
    pub(crate) steering: Steering,
    /// Object file of the program that replaces `steering`.
    pub(crate) steering_program: Option<PathBuf>,
    /// The part of all flows to capture; `None`: all flows.
    pub(crate) share: Option<Share>,
    pub(crate) exclusive: bool,
    /// Whether refused packets are consumed too; with `exclusive` only.
    pub(crate) exclusive_all: bool,
    pub(crate) inner: bool,
    pub(crate) immediate: bool,
    /// Maximum time for which packets gather before a worker reads them.
    pub(crate) patience: Option<Duration>,
    /// Whether records are merged by timestamp.
    pub(crate) in_order: bool,
    /// Whether workers tell the time up to which they have yielded everything.
    pub(crate) across_workers: bool,
    /// Whether a filter may be set later without the rights to load programs.
    pub(crate) filter_later: bool,
    pub(crate) promiscuous: bool,
    pub(crate) hook: HookChoice,
    pub(crate) direction: Direction,
    pub(crate) clock: Clock,
    pub(crate) balance: Balance,
    pub(crate) congestion_control: Option<Watermarks>,
    /// A tcpdump expression; empty: all packets.
    pub(crate) filter: String,
    /// Rules for the packets that the filter accepts; `None`: the capture has no rules.
    pub(crate) rules: Option<Arc<RuleSet>>,
    pub(crate) rules_capacity: RulesCapacity,
    /// Whether packets that the rules drop are dropped for the whole device.
    pub(crate) device_wide: bool,
    /// Devices that rules may send packets to.
    pub(crate) egress_devices: Vec<String>,
    /// Plug-ins that rules may call: names and object files.
    pub(crate) plugins: Vec<(String, PathBuf)>,
    /// Nanoseconds that each plug-in may take on average.
    pub(crate) plugin_budget: u32,
    /// Whether `wirelane rules` can change the rules.
    pub(crate) control: bool,
    /// Whether to open a socket at which the capturing program answers requests.
    pub(crate) service: Option<Purpose>,
    /// A further socket for it.
    pub(crate) shared_socket: Option<SharedSocket>,
    pub(crate) engine: Engine,
    pub(crate) zero_copy: ZeroCopy,
    /// Microseconds; engine `xsk` only.
    pub(crate) busy_poll: Option<u32>,
    /// Settings of the in-kernel flow cache; `None`: no flows.
    pub(crate) flows: Option<KernelFlows>,
    /// Settings of the HTTP head selection in the kernel; `None`: off.
    pub(crate) http: Option<KernelHttp>,
    /// Whether plug-ins write records.
    pub(crate) plugin_records: bool,
    /// Number of RTP streams that can be measured in the kernel.
    pub(crate) streams: Option<usize>,
    /// Whether their packets are delivered, too.
    pub(crate) deliver_measured: bool,
}

impl Settings {
    /// Default settings for these devices.
    pub(crate) fn new(selectors: Vec<Selector>) -> Settings {
        Settings {
            selectors,
            patterns: Vec::new(),
            snap_len: MAX_SNAP,
            headers_only: false,
            ring_size: 0,
            workers: 1,
            cores: Vec::new(),
            cores_auto: false,
            polling: None,
            steering: Steering::Flow,
            steering_program: None,
            share: None,
            exclusive: false,
            exclusive_all: false,
            inner: false,
            immediate: false,
            patience: None,
            in_order: true,
            across_workers: false,
            filter_later: false,
            promiscuous: true,
            hook: HookChoice::Auto,
            direction: Direction::Auto,
            clock: Clock::Packet,
            balance: Balance::Static,
            congestion_control: None,
            filter: String::new(),
            rules: None,
            rules_capacity: RulesCapacity::default(),
            device_wide: false,
            egress_devices: Vec::new(),
            plugins: Vec::new(),
            plugin_budget: PLUGIN_BUDGET,
            plugin_records: false,
            control: false,
            service: None,
            shared_socket: None,
            engine: Engine::Auto,
            zero_copy: ZeroCopy::Never,
            busy_poll: None,
            flows: None,
            http: None,
            streams: None,
            deliver_measured: false,
        }
    }

    /// Refuses contradictory settings before anything is changed on a device.
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
        let allowed = wirelane_netdev::allowed_cpus();
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
        if self.exclusive_all && !matches!(self.direction, Direction::Auto | Direction::Rx) {
            return bad(
                "exclusive_all",
                "is for received packets: what the host sends would not leave the device".into(),
            );
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
            return bad(
                "share",
                format!("{of} parts of all flows have no number {number}: numbers begin at 0"),
            );
        }
        self.rules_capacity.check()?;
        if self.device_wide && self.rules.is_none() {
            return bad(
                "--device-wide",
                "no rules: pass --rules, or reserve capacity with --rules-capacity".into(),
            );
        }
        if !self.egress_devices.is_empty() && matches!(self.hook, HookChoice::Native | HookChoice::Generic) {
            return bad("--mirror-to", "packets are sent on by tc, not by XDP: use --hook tc".into());
        }
        self.check_plugins()?;
        self.flows.map_or(Ok(()), |flows| kernel::check_flows(&flows, self))?;
        self.http.map_or(Ok(()), |http| kernel::check_http(&http, self))?;
        self.streams.map_or(Ok(()), |streams| kernel::check_streams(streams, self))?;
        if self.congestion_control.is_some_and(|w| w.low == 0 || w.low >= w.high || w.high > 100) {
            return bad(
                "--congestion-control",
                "two percentages of a ring from 1 to 100, the lower first, as in 50,90".into(),
            );
        }
        Ok(())
    }

    /// Checks plug-ins, and rules that call them, as [`Settings::check`] does.
    fn check_plugins(&self) -> Result<()> {
        let bad = |option, reason: String| Err(Error::BadOption { option, reason });
        if self.plugins.len() > MAX_PLUGINS {
            return bad("--plugin", format!("too many: {} (at most {MAX_PLUGINS})", self.plugins.len()));
        }
        for (at, (name, _)) in self.plugins.iter().enumerate() {
            plugins::may_be_named(name).map_err(|reason| Error::BadOption { option: "--plugin", reason })?;
            if self.plugins[..at].iter().any(|(other, _)| other == name) {
                return bad("--plugin", format!("two are called '{name}': give one another name"));
            }
        }
        if self.plugin_budget == 0 {
            return bad("--plugin-budget", "expected 1 ns or more".into());
        }
        let names: Vec<String> = self.plugins.iter().map(|(name, _)| name.clone()).collect();
        let Some(rules) = &self.rules else { return Ok(()) };
        rules.check_plugins(&names)?;
        Ok(rules.check_parameters(&names, self.steering_program.is_some())?)
    }

    /// Maximum bytes of a packet that engine `ring` copies.
    pub(crate) fn bytes_of_a_packet(&self) -> usize {
        if self.headers_only { self.snap_len.min(HEADERS) } else { self.snap_len }
    }

    /// Bytes of each ring, given the number of rings.
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

    /// The direction to capture on a device; never [`Direction::Auto`].
    ///
    /// # Errors
    /// [`Error::BadOption`] where transmitted packets of an RX queue are requested.
    pub(crate) fn direction_of(&self, selected: &Selected) -> Result<Direction> {
        let received = self.exclusive
            || self.exclusive_all
            || self.device_wide
            || !self.egress_devices.is_empty()
            || self.clock == Clock::Card
            || self.engine == Engine::Xsk;
        match self.direction {
            Direction::Auto if received || selected.by_queue || selected.device.loopback => Ok(Direction::Rx),
            Direction::Auto => Ok(Direction::Both),
            Direction::Tx if selected.by_queue => Err(Error::BadOption {
                option: "--direction",
                reason: format!(
                    "an RX queue has received packets only: use -i {} for transmitted packets",
                    selected.device.name
                ),
            }),
            direction => Ok(direction),
        }
    }

    /// The hooks to capture a device on, `None` standing for the best XDP that works.
    ///
    /// # Errors
    /// As [`Settings::direction_of`].
    pub(crate) fn hooks(&self, selected: &Selected) -> Result<Vec<Option<Hook>>> {
        let rx = match self.hook {
            // Native XDP disables offloads of many drivers: a host that shares a veth loses two thirds of its TCP
            // throughput. A kernel with PREEMPT_RT has no tc for us (engine/ring/lanes.rs).
            // tc cannot tell a veth's RX queues apart.
            HookChoice::Auto
                if self.egress_devices.is_empty()
                    && (self.exclusive
                        || is_realtime()
                        || selected.by_queue && selected.device.max_rx_queues > 1) =>
            {
                None
            }
            HookChoice::Auto => Some(Hook::Ingress),
            HookChoice::Native => Some(Hook::Xdp(XdpMode::Native)),
            HookChoice::Generic => Some(Hook::Xdp(XdpMode::Generic)),
            HookChoice::Tc | HookChoice::Clsact => Some(Hook::Ingress),
        };
        Ok(match self.direction_of(selected)? {
            Direction::Tx => vec![Some(Hook::Egress)],
            Direction::Both => vec![rx, Some(Hook::Egress)],
            Direction::Rx | Direction::Auto => vec![rx],
        })
    }

    /// The stand-in for devices that come up during the capture and match a pattern, with its hooks; `None`: they are not
    /// captured. They are attached by links at tc, which any number of devices can share.
    pub(crate) fn arrivals(&self) -> Option<(Selected, Vec<Hook>)> {
        let of_whole_devices = self.patterns.iter().filter(|pattern| pattern.queues.is_none());
        let patterns: Vec<String> = of_whole_devices.map(Selector::to_string).collect();
        let has_links = self.hook != HookChoice::Clsact && at_least(6, 6);
        if patterns.is_empty()
            || !has_links
            || !matches!(self.engine, Engine::Auto | Engine::Ring)
            // A device that rules send packets to could be among them.
            || !self.egress_devices.is_empty()
            || self.clock == Clock::Card
        {
            return None;
        }
        let device = Device::of_pattern(&patterns.join(","));
        let selected = Selected { device, queues: Vec::new(), by_queue: false };
        let hooks = self.hooks(&selected).ok()?;
        let at_tc = |hook| matches!(hook, Hook::Ingress | Hook::Egress).then_some(hook);
        let hooks = hooks.into_iter().map(|hook| hook.and_then(at_tc)).collect::<Option<Vec<_>>>()?;
        Some((selected, hooks))
    }

    /// Form of the attachment to tc's hooks, where [`Settings::hooks`] has any.
    pub(crate) fn tc(&self) -> Tc {
        if self.hook == HookChoice::Clsact { Tc::Clsact } else { Tc::Best }
    }

    /// Whether the capture has a control socket.
    pub(crate) fn is_managed(&self) -> bool {
        self.control && self.rules.is_some()
    }

    /// Whether buckets of flows move between workers.
    pub(crate) fn moves_buckets(&self) -> bool {
        self.balance == Balance::Adaptive && self.steering.has_buckets()
    }

    /// Whether entries of RSS tables move between RX queues.
    pub(crate) fn moves_entries(&self) -> bool {
        self.balance == Balance::Adaptive && self.steering == Steering::Queue
    }

    /// The core of a worker; `None`: not pinned.
    pub(crate) fn core_of(&self, worker: usize) -> Option<usize> {
        (!self.cores.is_empty()).then(|| self.cores[worker % self.cores.len()])
    }
}

#[cfg(test)]
mod tests {
    use wirelane_bpf::layout::{LinkType, flags};
    use wirelane_bpf::native::parse;

    use super::*;

    /// IPv6 with destination options headers of these lengths in bytes, TCP, and 8,000 bytes of payload.
    fn deep(options: &[usize]) -> Vec<u8> {
        let mut packet = vec![2; 12];
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        let length = options.iter().sum::<usize>() + 20 + 8000;
        packet.extend((length as u16).to_be_bytes());
        packet.extend([if options.is_empty() { 6 } else { 60 }, 64]);
        packet.extend([0xfd; 32]);
        for (at, bytes) in options.iter().enumerate() {
            let next = if at + 1 == options.len() { 6 } else { 60 };
            packet.extend([next, (bytes / 8 - 1) as u8]);
            packet.resize(packet.len() + bytes - 2, 1);
        }
        packet.extend([0, 80, 31, 64, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        packet.resize(packet.len() + 8000, b'x');
        packet
    }

    #[test]
    fn the_bytes_for_headers_hold_all_headers_that_are_parsed() {
        let chains: [&[usize]; 6] =
            [&[], &[2048], &[2048, 1984], &[2048, 2048], &[2048, 1984, 2048], &[2048, 1992, 2048, 2048]];
        for options in chains {
            let packet = deep(options);
            let [whole, cut] =
                [&packet[..], &packet[..HEADERS]].map(|data| parse(LinkType::Ethernet, data, false));
            assert_eq!((whole.outer, whole.flags), (cut.outer, cut.flags), "{options:?}");
        }
        assert_ne!(parse(LinkType::Ethernet, &deep(&[2048, 1984])[..4090], false).flags & flags::CUT, 0);
    }
}
