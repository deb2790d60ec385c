//! How to start a capture.

use wirelane_datapath::instance::MAX_SNAP;

use crate::device::Selector;
use crate::settings::{Clock, Direction, Engine, HookChoice, Settings, Steering, ZeroCopy};
use crate::{Capture, Result};

/// How to capture. Every setting has a default that suits most captures.
#[derive(Clone, Debug)]
pub struct Builder(Settings);

impl Builder {
    /// A capture on these devices and virtual devices.
    pub fn new(selectors: impl IntoIterator<Item = Selector>) -> Builder {
        Builder(Settings::new(selectors.into_iter().collect()))
    }

    /// Keeps at most this many bytes of each packet; 0 means whole packets (up to 131,008 bytes).
    #[must_use]
    pub fn snap_len(mut self, bytes: usize) -> Builder {
        self.0.snap_len = if bytes == 0 { MAX_SNAP } else { bytes };
        self
    }

    /// Bytes of each ring (one per lane and worker), rounded up to a power of two of MiB. Default: 4 MiB, less
    /// where there are so many rings that they would take more than 256 MiB together.
    #[must_use]
    pub fn ring_size(mut self, bytes: usize) -> Builder {
        self.0.ring_size = bytes;
        self
    }

    /// Number of workers, 1 to 64; free of the number of RX queues. Default: 1.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Builder {
        self.0.workers = workers;
        self
    }

    /// The cores that workers are to be pinned to, in turn. Default: none, the scheduler places them.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Builder {
        self.0.cores = cores.into_iter().collect();
        self
    }

    /// Which worker gets a packet. Default: [`Steering::Flow`].
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Builder {
        self.0.steering = steering;
        self
    }

    /// Keeps captured packets from the host stack. Default: they go on to it.
    #[must_use]
    pub fn take(mut self, take: bool) -> Builder {
        self.0.take = take;
        self
    }

    /// Steers by, and reports, the headers inside tunnels. Default: the outer ones.
    #[must_use]
    pub fn inner_headers(mut self, inner: bool) -> Builder {
        self.0.inner = inner;
        self
    }

    /// Makes every packet visible at once and wakes the worker for it: lowest delay, about half the rate.
    #[must_use]
    pub fn immediate(mut self, immediate: bool) -> Builder {
        self.0.immediate = immediate;
        self
    }

    /// Puts the devices into promiscuous mode for as long as the capture lasts. Default: yes.
    #[must_use]
    pub fn promiscuous(mut self, promiscuous: bool) -> Builder {
        self.0.promiscuous = promiscuous;
        self
    }

    /// Where packets are taken from the kernel. Default: [`HookChoice::Auto`].
    #[must_use]
    pub fn hook(mut self, hook: HookChoice) -> Builder {
        self.0.hook = hook;
        self
    }

    /// Which packets are captured. Default: [`Direction::Rx`].
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Builder {
        self.0.direction = direction;
        self
    }

    /// What packets are stamped with. Default: [`Clock::Packet`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.0.clock = clock;
        self
    }

    /// How packets reach user space. Default: [`Engine::Auto`].
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Builder {
        self.0.engine = engine;
        self
    }

    /// Whether the driver is to put packets into our memory itself; engine `xsk` only. Default: never.
    #[must_use]
    pub fn zero_copy(mut self, zero_copy: ZeroCopy) -> Builder {
        self.0.zero_copy = zero_copy;
        self
    }

    /// Polls the card from the worker for up to so many microseconds, where packets are waited for, instead of by
    /// interrupt; engine `xsk` only. Default: not at all.
    #[must_use]
    pub fn busy_poll(mut self, microseconds: u32) -> Builder {
        self.0.busy_poll = Some(microseconds);
        self
    }

    /// Starts the capture: on return, every packet is seen.
    ///
    /// # Errors
    /// [`Unsupported`] where the kernel or the card cannot do what was asked for,
    /// [`MissingCapability`], [`UnknownDevice`], [`UnknownQueue`], [`ForeignProgram`], [`OtherVersion`],
    /// [`TooManyGroups`], [`BadOption`], or what the kernel said ([`Kernel`], [`Bpf`]).
    ///
    /// [`Unsupported`]: crate::Error::Unsupported
    /// [`MissingCapability`]: crate::Error::MissingCapability
    /// [`UnknownDevice`]: crate::Error::UnknownDevice
    /// [`UnknownQueue`]: crate::Error::UnknownQueue
    /// [`ForeignProgram`]: crate::Error::ForeignProgram
    /// [`OtherVersion`]: crate::Error::OtherVersion
    /// [`TooManyGroups`]: crate::Error::TooManyGroups
    /// [`BadOption`]: crate::Error::BadOption
    /// [`Kernel`]: crate::Error::Kernel
    /// [`Bpf`]: crate::Error::Bpf
    pub fn open(self) -> Result<Capture> {
        self.0.check()?;
        // Before the rights: a mistyped name is worth telling to everybody.
        let selected = Selector::resolve_all(&self.0.selectors)?;
        Capture::live(&self.0, selected)
    }
}
