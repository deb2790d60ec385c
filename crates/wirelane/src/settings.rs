//! What a capture is asked for, with a default for everything.

use wirelane_datapath::instance::{MAX_QUEUES, MAX_SNAP, MAX_WORKERS, group_flags, steering};

use crate::device::{Selected, Selector, XdpMode};
use crate::engine::ring::attach::{Hook, Tc};
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
        let rings = lanes * self.workers;
        let ring_size = match self.ring_size {
            0 => {
                let share = DEFAULT_MEMORY / rings;
                // The largest power of two within the share.
                DEFAULT_RING_SIZE.min(if share == 0 { 0 } else { 1 << share.ilog2() })
            }
            size => size,
        };
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
                | if self.inner { group_flags::INNER } else { 0 },
            publish_every: if self.immediate { 0 } else { PUBLISH_EVERY },
        }
    }

    /// The hooks to capture on, `None` standing for the best XDP that works.
    pub(crate) fn hooks(&self) -> Vec<Option<Hook>> {
        let rx = match self.hook {
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

    /// The core of a worker.
    pub(crate) fn core_of(&self, worker: usize) -> Option<usize> {
        (!self.cores.is_empty()).then(|| self.cores[worker % self.cores.len()])
    }
}
