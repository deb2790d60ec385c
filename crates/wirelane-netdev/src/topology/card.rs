//! A network card as seen by the planner: its NUMA node, its queues, the CPUs that serve them, and the settings that
//! its driver supports.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::cpulist::{self, CpuSet};
use crate::ethtool_set::{Channels, EthtoolSet, OffloadState, RingSize, Rss};
use crate::irq::{Sysfs, queue_of_irq};
use crate::netdev::Netdev;
use crate::{Device, Irq};
use crate::{Error, Result};

/// One RX queue of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CardQueue {
    /// Its number.
    pub queue: u32,
    /// The interrupt that signals its packets.
    pub irq: Option<u32>,
    /// The CPUs that the interrupt is allowed on.
    pub irq_cpus: CpuSet,
    /// The CPUs that the interrupt is delivered to.
    pub irq_effective: CpuSet,
    /// Its NAPI instance, if the kernel reports it.
    pub napi_id: Option<u32>,
    /// Process id of the kernel thread that polls it.
    pub thread: Option<u32>,
    /// The CPUs that this thread is allowed on.
    pub thread_cpus: CpuSet,
    /// The CPUs to which the stack steers its packets (RPS).
    pub rps_cpus: CpuSet,
    /// Entries of its flow table (RFS); 0 is off.
    pub rps_flows: u32,
}

/// A change that the card or the stack makes to packets before they are captured (ethtool -k).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offload {
    /// The kernel's name of the feature: `rx-gro`.
    pub name: String,
    /// Whether it is on.
    pub on: bool,
    /// Whether it cannot be changed.
    pub fixed: bool,
}

/// A network card.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Card {
    /// The device's name.
    pub device: String,
    /// Its driver.
    pub driver: Option<String>,
    /// The NUMA node it is attached to.
    pub node: Option<u32>,
    /// Its active RX queues.
    pub queues: Vec<CardQueue>,
    /// Whether NAPI polls in kernel threads.
    pub threaded: Option<bool>,
    /// Whether the kernel can switch a NAPI instance to a busy-polling thread (Linux 6.19).
    pub busy_threads: bool,
    /// Number of empty polls for which interrupts stay masked (napi_defer_hard_irqs).
    pub defer_hard_irqs: Option<u64>,
    /// Nanoseconds after which held packets are flushed (gro_flush_timeout).
    pub gro_flush_timeout: Option<u64>,
    /// Its channels, if the driver reports them.
    pub channels: Option<Channels>,
    /// Its RX rings, if the driver reports them.
    pub ring: Option<RingSize>,
    /// Its RSS configuration, if the driver reports it.
    pub rss: Option<Rss>,
    /// Its offloads that change packets.
    pub offloads: Vec<Offload>,
}

impl Card {
    /// Reads the properties that sysfs and procfs show of a device, below `root`. Properties from ethtool and netlink
    /// are absent.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if the tree has no such device.
    pub fn read(root: &Path, device: &str) -> Result<Card> {
        let sysfs = Sysfs::under(root, device);
        let queues = sysfs.rx_queues().ok_or_else(|| Error::UnknownDevice {
            name: device.to_owned(),
            known: root.join("sys/class/net").display().to_string(),
        })?;
        let mut card = Card { device: device.to_owned(), node: sysfs.numa_node(), ..Card::default() };
        let irqs = sysfs.irqs();
        for queue in 0..queues {
            let irq = irqs.iter().find(|irq| queue_of_irq(&irq.name, device) == Some(queue));
            card.queues.push(CardQueue::new(queue, irq));
        }
        card.read_files(&sysfs);
        Ok(card)
    }

    /// Reads a device of this machine, in the network namespace of the calling thread. Without a matching sysfs (after
    /// `nsenter --net`) the properties from sysfs are absent.
    ///
    /// # Errors
    /// [`Error::Kernel`] if no socket can be opened.
    pub fn live(device: &Device) -> Result<Card> {
        let mut card = Card {
            device: device.name.clone(),
            driver: device.driver.clone(),
            node: device.numa_node,
            ..Card::default()
        };
        for queue in &device.rx_queues {
            let mut own = CardQueue::new(queue.queue, queue.irqs.first());
            (own.napi_id, own.thread) = (queue.napi_id, queue.napi_thread);
            card.queues.push(own);
        }
        card.find_threads(&crate::threads::of_device(device));
        if let Some(sysfs) = Sysfs::of(&device.name, device.ifindex, device.mac) {
            card.read_files(&sysfs);
        }
        card.busy_threads = Netdev::open().is_some_and(|mut netdev| netdev.has_busy_threads());
        let ethtool = EthtoolSet::open(&device.name)
            .map_err(|source| Error::kernel("opening a socket for ethtool", source))?;
        card.channels = ethtool.channels().ok();
        card.ring = ethtool.rx_ring().ok();
        card.rss = ethtool.rss().ok();
        card.offloads = ethtool
            .offloads()
            .unwrap_or_default()
            .into_iter()
            .map(|OffloadState { name, on, fixed, .. }| Offload { name, on, fixed })
            .collect();
        Ok(card)
    }

    /// The maximum number of RX queues that can be enabled.
    pub fn most_queues(&self) -> u32 {
        let now = self.queues.len() as u32;
        self.channels.map_or(now, |channels| channels.most_rx().max(now))
    }

    /// Whether its queues have no (visible) interrupts, as those of virtual devices. NAPI instances of such devices, if
    /// they have any, are created and removed with GRO and with captures.
    pub fn is_virtual(&self) -> bool {
        self.queues.iter().all(|queue| queue.irq.is_none())
    }

    fn find_threads(&mut self, threads: &[(u32, u32)]) {
        for queue in &mut self.queues {
            if let Some((_, pid)) = threads.iter().find(|(of, _)| *of == queue.queue) {
                queue.thread = Some(*pid);
                queue.thread_cpus = crate::sys::affinity(*pid).unwrap_or_default();
            }
        }
    }

    fn read_files(&mut self, sysfs: &Sysfs) {
        let number = |file: &str| fs::read_to_string(sysfs.file(file)).ok()?.trim().parse().ok();
        self.threaded = sysfs.threaded_napi();
        self.defer_hard_irqs = number("napi_defer_hard_irqs");
        self.gro_flush_timeout = number("gro_flush_timeout");
        for queue in &mut self.queues {
            let folder = format!("queues/rx-{}", queue.queue);
            let mask = fs::read_to_string(sysfs.file(&format!("{folder}/rps_cpus")));
            queue.rps_cpus = mask.ok().and_then(|mask| cpulist::parse_mask(&mask)).unwrap_or_default();
            queue.rps_flows =
                number(&format!("{folder}/rps_flow_cnt")).and_then(|n: u64| n.try_into().ok()).unwrap_or(0);
        }
    }
}

impl CardQueue {
    fn new(queue: u32, irq: Option<&Irq>) -> CardQueue {
        let set = |list: Option<&String>| list.and_then(|list| cpulist::parse(list)).unwrap_or_default();
        CardQueue {
            queue,
            irq: irq.map(|irq| irq.irq),
            irq_cpus: set(irq.and_then(|irq| irq.cpus.as_ref())),
            irq_effective: set(irq.and_then(|irq| irq.effective_cpus.as_ref())),
            ..CardQueue::default()
        }
    }

    /// The CPU that handles packets of this queue, if it is a single known one: the thread's, otherwise the
    /// interrupt's.
    pub fn served_on(&self) -> Option<usize> {
        let one = |set: &CpuSet| (set.len() == 1).then(|| set.first().copied()).flatten();
        if self.thread.is_some() {
            return one(&self.thread_cpus);
        }
        one(&self.irq_effective).or_else(|| one(&self.irq_cpus))
    }
}

impl Channels {
    /// Number of channels that receive.
    pub fn rx_queues(&self) -> u32 {
        self.rx.0 + self.combined.0
    }

    /// The maximum number of channels that can receive at once: combined or receive-only ones, depending on the driver.
    pub fn most_rx(&self) -> u32 {
        if self.combined.1 > 0 { self.combined.1 } else { self.rx.1 }
    }

    /// The same channels with `queues` of them receiving.
    #[must_use]
    pub fn with_rx(mut self, queues: u32) -> Channels {
        if self.combined.1 > 0 {
            self.combined.0 = queues.min(self.combined.1);
            self.rx.0 = 0;
        } else {
            self.rx.0 = queues.min(self.rx.1);
        }
        self
    }
}
