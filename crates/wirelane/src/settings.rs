//! What a capture is asked for, with a default for everything.

use wirelane_datapath::instance::{MAX_QUEUES, MAX_SNAP, MAX_WORKERS, group_flags, steering};

use crate::device::{Selected, Selector, XdpMode};
use crate::engine::ring::attach::Hook;
use crate::engine::ring::group::Wish;
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
}

/// Where packets are taken from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookChoice {
    /// Native XDP where the driver can, else generic XDP, with a warning.
    #[default]
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the network stack.
    Generic,
    /// tc (TCX, Linux 6.6): behind XDP, and beside other programs.
    Tc,
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

/// See [`crate::Builder`], which documents each setting.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) selectors: Vec<Selector>,
    pub(crate) snap_len: usize,
    /// 0: by [`DEFAULT_RING_SIZE`] and [`DEFAULT_MEMORY`].
    pub(crate) ring_size: usize,
    pub(crate) workers: usize,
    pub(crate) cores: Vec<usize>,
    pub(crate) steering: Steering,
    pub(crate) take: bool,
    pub(crate) inner: bool,
    pub(crate) immediate: bool,
    pub(crate) promiscuous: bool,
    pub(crate) hook: HookChoice,
    pub(crate) direction: Direction,
    pub(crate) clock: Clock,
    pub(crate) engine: Engine,
    pub(crate) zero_copy: ZeroCopy,
    /// Microseconds; engine `xsk` only.
    pub(crate) busy_poll: Option<u32>,
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
            steering: Steering::Flow,
            take: false,
            inner: false,
            immediate: false,
            promiscuous: true,
            hook: HookChoice::Auto,
            direction: Direction::Rx,
            clock: Clock::Packet,
            engine: Engine::Auto,
            zero_copy: ZeroCopy::Never,
            busy_poll: None,
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
        Ok(())
    }

    /// What a device's instance is asked for. `lanes` and the queues are the device's.
    pub(crate) fn wish(&self, selected: &Selected, lanes: usize, hook: Hook) -> Wish {
        let ring_size = self.bytes_per_ring(lanes * self.workers);
        // The whole device means every queue that it can ever have.
        let queues = if hook == Hook::Egress {
            vec![0]
        } else if selected.is_whole_device() {
            (0..selected.device.max_rx_queues.clamp(1, MAX_QUEUES as u32)).collect()
        } else {
            selected.queues.clone()
        };
        Wish {
            queues,
            snap_len: self.snap_len as u32,
            workers: self.workers,
            ring_size,
            steering: match self.steering {
                Steering::Flow => steering::FLOW,
                Steering::Queue => steering::QUEUE,
            },
            flags: if self.take { group_flags::TAKE } else { 0 }
                | if self.inner { group_flags::INNER } else { 0 }
                | if self.clock == Clock::Card { group_flags::CARD_CLOCK } else { 0 },
            clock: self.clock,
            publish_every: if self.immediate { 0 } else { PUBLISH_EVERY },
        }
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
            HookChoice::Auto => None,
            HookChoice::Native => Some(Hook::Xdp(XdpMode::Native)),
            HookChoice::Generic => Some(Hook::Xdp(XdpMode::Generic)),
            HookChoice::Tc => Some(Hook::Ingress),
        };
        match self.direction {
            Direction::Rx => vec![rx],
            Direction::Tx => vec![Some(Hook::Egress)],
            Direction::Both => vec![rx, Some(Hook::Egress)],
        }
    }

    /// The core of a worker.
    pub(crate) fn core_of(&self, worker: usize) -> Option<usize> {
        (!self.cores.is_empty()).then(|| self.cores[worker % self.cores.len()])
    }
}
