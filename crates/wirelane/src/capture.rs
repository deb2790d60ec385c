//! A capture: devices (or a file) on one side, workers on the other, the ledger between.

use std::path::Path;

use wirelane_datapath::instance::{MAX_SNAP, MAX_WORKERS, group_flags, steering};

use crate::device::{Selected, Selector, XdpMode};
use crate::engine::ring;
use crate::file::FileCapture;
use crate::ledger::Ledger;
use crate::live::LiveCapture;
use crate::privilege::{self, Capability};
use crate::worker::Worker;
use crate::{Error, Interfaces, Result};

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

/// How to capture. Every setting has a default that suits most captures.
#[derive(Clone, Debug)]
pub struct Builder {
    selectors: Vec<Selector>,
    snap_len: usize,
    ring_size: usize,
    workers: usize,
    cores: Vec<usize>,
    steering: Steering,
    take: bool,
    inner: bool,
    immediate: bool,
    promiscuous: bool,
    xdp: Option<XdpMode>,
}

/// Bytes of a ring where nothing else is asked for.
pub const DEFAULT_RING_SIZE: usize = 4 << 20;
/// Most memory that rings take where no ring size is asked for.
const DEFAULT_MEMORY: usize = 256 << 20;
/// Bytes that a lane writes to a ring between two publications of its head (measured: per-packet publication
/// costs half the throughput, 2 KiB next to nothing).
const PUBLISH_EVERY: u32 = 2048;

impl Builder {
    /// A capture on these devices and virtual devices.
    pub fn new(selectors: impl IntoIterator<Item = Selector>) -> Builder {
        Builder {
            selectors: selectors.into_iter().collect(),
            snap_len: MAX_SNAP,
            ring_size: 0,
            workers: 1,
            cores: Vec::new(),
            steering: Steering::Flow,
            take: false,
            inner: false,
            immediate: false,
            promiscuous: true,
            xdp: None,
        }
    }

    /// Keeps at most this many bytes of each packet; 0 means whole packets (up to 131,008 bytes).
    #[must_use]
    pub fn snap_len(mut self, bytes: usize) -> Builder {
        self.snap_len = if bytes == 0 { MAX_SNAP } else { bytes };
        self
    }

    /// Bytes of each ring (one per lane and worker), rounded up to a power of two of MiB. Default: 4 MiB, less
    /// where there are so many rings that they would take more than 256 MiB together.
    #[must_use]
    pub fn ring_size(mut self, bytes: usize) -> Builder {
        self.ring_size = bytes;
        self
    }

    /// Number of workers, 1 to 64; free of the number of RX queues. Default: 1.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers;
        self
    }

    /// The cores that workers are to be pinned to, in turn. Default: none, the scheduler places them.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Builder {
        self.cores = cores.into_iter().collect();
        self
    }

    /// Which worker gets a packet. Default: [`Steering::Flow`].
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Builder {
        self.steering = steering;
        self
    }

    /// Keeps captured packets from the host stack. Default: they go on to it.
    #[must_use]
    pub fn take(mut self, take: bool) -> Builder {
        self.take = take;
        self
    }

    /// Steers by, and reports, the headers inside tunnels. Default: the outer ones.
    #[must_use]
    pub fn inner_headers(mut self, inner: bool) -> Builder {
        self.inner = inner;
        self
    }

    /// Makes every packet visible at once and wakes the worker for it: lowest delay, about half the rate.
    #[must_use]
    pub fn immediate(mut self, immediate: bool) -> Builder {
        self.immediate = immediate;
        self
    }

    /// Puts the devices into promiscuous mode for as long as the capture lasts. Default: yes.
    #[must_use]
    pub fn promiscuous(mut self, promiscuous: bool) -> Builder {
        self.promiscuous = promiscuous;
        self
    }

    /// Asks for native or generic XDP. Default: native where the driver can, else generic, with a warning.
    #[must_use]
    pub fn xdp(mut self, mode: Option<XdpMode>) -> Builder {
        self.xdp = mode;
        self
    }

    /// Starts the capture: on return, every packet is seen.
    ///
    /// # Errors
    /// [`Error::MissingCapability`], [`Error::UnknownDevice`], [`Error::UnknownQueue`],
    /// [`Error::ForeignProgram`], [`Error::OtherVersion`], [`Error::TooManyGroups`], [`Error::BadOption`], or
    /// what the kernel said ([`Error::Kernel`], [`Error::Bpf`]).
    pub fn open(self) -> Result<Capture> {
        self.check()?;
        // Before the rights: a mistyped name is worth telling to everybody.
        let selected = Selector::resolve_all(&self.selectors)?;
        privilege::require(
            &[
                Capability::Bpf,
                Capability::NetAdmin,
                Capability::NetRaw,
                Capability::SysAdmin,
                Capability::Perfmon,
            ],
            "capturing with the ring engine",
        )?;
        LiveCapture::open(&self, selected).map(|live| Capture(Kind::Live(Box::new(live))))
    }

    fn check(&self) -> Result<()> {
        let bad = |option, reason: String| Err(Error::BadOption { option, reason });
        if self.selectors.is_empty() {
            return bad("-i", "name at least one device; `wirelane devices` lists them".into());
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return bad("--workers", format!("{} is not between 1 and {MAX_WORKERS}", self.workers));
        }
        if self.snap_len > MAX_SNAP {
            return bad("--snap-length", format!("{} is more than {MAX_SNAP}, the longest", self.snap_len));
        }
        if self.ring_size > 1 << 30 {
            return bad("--ring-size", format!("{} bytes: a ring has at most 1 GiB", self.ring_size));
        }
        if self.xdp == Some(XdpMode::Offloaded) {
            return bad("--xdp", "only native and generic XDP can capture".into());
        }
        Ok(())
    }

    /// What a device's instance is asked for. `lanes` and the queues are the device's.
    pub(crate) fn wish(&self, selected: &Selected, lanes: usize) -> ring::group::Wish {
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
        let queues = if selected.is_whole_device() {
            (0..selected.device.max_rx_queues.max(1)).collect()
        } else {
            selected.queues.clone()
        };
        ring::group::Wish {
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

    pub(crate) fn captured_len(&self) -> usize {
        self.snap_len
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers
    }

    pub(crate) fn core_of(&self, worker: usize) -> Option<usize> {
        (!self.cores.is_empty()).then(|| self.cores[worker % self.cores.len()])
    }

    pub(crate) fn wants_promiscuous(&self) -> bool {
        self.promiscuous
    }

    pub(crate) fn xdp_mode(&self) -> Option<XdpMode> {
        self.xdp
    }
}

/// A running capture: ask it for its workers once, and for its ledger at any time.
///
/// # Examples
/// Counts what arrives on two RX queues of `eth1` for a second:
/// ```no_run
/// use std::time::{Duration, Instant};
/// use wirelane::{Builder, Selector};
///
/// let selectors = Selector::parse_list("eth1@0-1")?;
/// let mut capture = Builder::new(selectors).workers(2).cores([0, 1]).snap_len(128).open()?;
/// let end = Instant::now() + Duration::from_secs(1);
/// std::thread::scope(|scope| {
///     for mut worker in capture.workers() {
///         scope.spawn(move || -> wirelane::Result<()> {
///             worker.pin()?;
///             let (mut packets, mut bytes) = (0u64, 0u64);
///             while Instant::now() < end {
///                 let Some(batch) = worker.next_batch(Duration::from_millis(100))? else { break };
///                 for record in batch {
///                     packets += 1;
///                     bytes += u64::from(record.wire_len());
///                 }
///             }
///             println!("worker {}: {packets} packets, {bytes} bytes", worker.index());
///             Ok(())
///         });
///     }
/// });
/// let ledger = capture.close()?;
/// println!("seen {} lost {} analysed {}", ledger.total.seen, ledger.total.lost, ledger.total.analysed);
/// # Ok::<(), wirelane::Error>(())
/// ```
#[derive(Debug)]
pub struct Capture(Kind);

#[derive(Debug)]
enum Kind {
    Live(Box<LiveCapture>),
    File(FileCapture),
}

/// One device (or file interface) of a capture: what [`crate::Record::device`] counts.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CaptureDevice {
    /// Its name.
    pub name: String,
    /// The RX queues that are captured.
    pub queues: Vec<u32>,
    /// How the capture program hangs on it; `None` for a file.
    pub xdp: Option<XdpMode>,
    /// Speed of its link in Mbit/s, where known.
    pub speed_mbps: Option<u32>,
}

impl Capture {
    /// Reads a pcap or pcapng file (`-` is standard input) by the `file` engine. Needs no privilege.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be opened, [`Error::CaptureFile`] where it does not begin as one.
    pub fn open_file(path: &Path) -> Result<Capture> {
        FileCapture::open(path).map(|file| Capture(Kind::File(file)))
    }

    /// `ring` or `file`.
    pub fn engine(&self) -> &'static str {
        match &self.0 {
            Kind::Live(_) => "ring",
            Kind::File(_) => "file",
        }
    }

    /// The devices, in the order of [`crate::Record::device`]. Interfaces of a file appear as they are read.
    pub fn devices(&self) -> Vec<CaptureDevice> {
        match &self.0 {
            Kind::Live(live) => live.devices(),
            Kind::File(file) => file.devices(),
        }
    }

    /// What stands behind a record's device and RX queue.
    pub fn interfaces(&self) -> Interfaces {
        match &self.0 {
            Kind::Live(live) => Interfaces::live(live.devices(), live.snap_len()),
            Kind::File(file) => Interfaces::file(file.lines()),
        }
    }

    /// The workers, the first time; none after that.
    pub fn workers(&mut self) -> Vec<Worker> {
        match &mut self.0 {
            Kind::Live(live) => live.workers(),
            Kind::File(file) => file.workers(),
        }
    }

    /// The ledger now. While packets flow, `seen` is the sum of its columns; after [`Capture::stop`] it is the
    /// lanes' own count, and the sums hold exactly.
    ///
    /// # Errors
    /// [`Error::Kernel`] where a device's statistics cannot be read.
    pub fn ledger(&self) -> Result<Ledger> {
        match &self.0 {
            Kind::Live(live) => live.ledger(),
            Kind::File(file) => Ok(file.ledger()),
        }
    }

    /// The devices that have disappeared since the capture began.
    pub fn gone(&self) -> Vec<String> {
        match &self.0 {
            Kind::Live(live) => live.gone(),
            Kind::File(_) => Vec::new(),
        }
    }

    /// No more packets: on return the lanes write nothing, and workers end once they have yielded what is in
    /// their rings.
    ///
    /// # Errors
    /// [`Error::Bpf`] where the kernel refuses to take the group out.
    pub fn stop(&self) -> Result<()> {
        match &self.0 {
            Kind::Live(live) => live.stop(),
            Kind::File(file) => {
                file.stop();
                Ok(())
            }
        }
    }

    /// Stops and returns the final ledger. Drop or finish the workers before: what they have not yielded by
    /// now is `in_flight`.
    ///
    /// # Errors
    /// As [`Capture::stop`] and [`Capture::ledger`].
    pub fn close(self) -> Result<Ledger> {
        self.stop()?;
        self.ledger()
    }
}
