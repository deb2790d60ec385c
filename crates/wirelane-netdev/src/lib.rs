//! Network devices of Linux: discovery, state, RX queues, and settings.
//!
//! ```text
//! selector   eth1@0-3  ->  which device, which RX queues
//! Device     one look at a device: everything below, gathered once
//!   link       rtnetlink: name, index, state, queues, attached XDP programs   (any namespace)
//!   ethtool    driver, speed, active queues                                   (any namespace)
//!   netdev     generic netlink: XDP features, NAPI instances                  (any namespace, newer kernels)
//!   irq        sysfs, procfs: IRQs, NUMA node, threaded NAPI                  (only where sysfs matches)
//!   threads    which kernel thread polls which queue
//! ethtool_set  what can be set through ethtool: channels, rings, offloads, RSS
//! Monitor    counters and existence, asked again and again
//! Watcher    what may change about a device during a capture
//! Arrivals   devices that appear during a capture
//! Promiscuous
//! topology     CPUs, caches, NUMA nodes, and cards as a planner sees them
//! ```
//!
//! A capture depends only on the first two, which describe the network namespace of the calling thread. The other parts
//! are for display and tuning, and each of them may be absent.

mod arrivals;
mod error;
pub mod ethtool;
pub mod ethtool_set;
pub mod irq;
mod link;
pub mod netdev;
pub mod netlink;
mod own_counters;
mod promiscuous;
mod selector;
mod statistics;
pub mod sys;
pub mod threads;
pub mod topology;
mod watcher;

use std::fmt;

use libbpf_rs::query::ProgInfoIter;
use serde::{Serialize, Serializer};

pub use arrivals::{Arrival, Arrivals, Changes};
pub use error::{Error, Result};
pub use ethtool::{CardStamps, Duplex};
pub use irq::Irq;
pub use link::Link;
pub use netdev::XdpFeatures;
pub use own_counters::Missed;
pub use promiscuous::Promiscuous;
pub use selector::{Pattern, Selected, Selector};
pub use statistics::{Monitor, Statistics};
pub use topology::allowed_cpus;
pub use watcher::{State, Watcher};
pub use wirelane_bpf::layout::LinkType;

use ethtool::Ethtool;
use irq::{Sysfs, queue_of_irq};
use netdev::Netdev;
use own_counters::OwnCounter;

/// Receive timestamping by the clock of this device's card.
///
/// # Errors
/// [`crate::Error::Kernel`] if no socket can be opened.
pub fn card_clock(name: &str) -> Result<CardStamps> {
    let ethtool = Ethtool::open().map_err(|e| Error::kernel("opening a socket", e))?;
    Ok(ethtool.card_stamps(name))
}

/// A packet socket that receives no packets and costs none any time.
pub fn idle_packet_socket() -> std::io::Result<std::os::fd::OwnedFd> {
    // Protocol 0: no packets.
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The place where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the kernel's generic receive path, with any driver.
    Generic,
    /// On the card.
    Offloaded,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
            XdpMode::Offloaded => "offloaded",
        })
    }
}

/// An XDP program that is attached to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XdpProgram {
    /// The kernel's id of the program, as `bpftool prog show id` takes it.
    pub id: u32,
    /// The place where it runs.
    pub mode: XdpMode,
    /// Its name; `None` without CAP_SYS_ADMIN, which the kernel requires.
    pub name: Option<String>,
}

/// One active RX queue of a device: a virtual device.
#[derive(Clone, Debug, Serialize)]
pub struct RxQueue {
    /// Its name as a virtual device: `eth1@2`.
    pub virtual_device: String,
    /// Its number.
    pub queue: u32,
    /// Its interrupts. Reported by the kernel if possible, otherwise derived from the interrupts' names.
    pub irqs: Vec<Irq>,
    /// Id of its NAPI instance, if the kernel reports it (6.8 and newer; veth has one only while XDP is attached or GRO
    /// is on).
    pub napi_id: Option<u32>,
    /// Process id of the kernel thread that polls it, if NAPI is threaded and the kernel reports it.
    pub napi_thread: Option<u32>,
}

impl RxQueue {
    fn new(device: &str, queue: u32) -> RxQueue {
        RxQueue {
            virtual_device: format!("{device}@{queue}"),
            queue,
            irqs: Vec::new(),
            napi_id: None,
            napi_thread: None,
        }
    }
}

/// A snapshot of a network device.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its primary name, even if it was opened by an alternative one.
    #[serde(rename = "device")]
    pub name: String,
    /// Its index. It stays the same when the device is renamed.
    pub ifindex: u32,
    /// Name of the driver; for virtual devices without one, their kind.
    pub driver: Option<String>,
    /// Its bus address: `0000:00:1f.6`.
    pub bus_info: Option<String>,
    /// Its Ethernet address, if it has one.
    pub mac: Option<MacAddress>,
    /// The link-layer type of its packets; [`LinkType::Other`] for hardware whose packets are not parsed.
    #[serde(skip)]
    pub link_type: LinkType,
    /// Largest packet without link-layer header, in bytes.
    pub mtu: u32,
    /// Whether it is a loopback device: packets that are sent on it are received on it.
    #[serde(skip)]
    pub loopback: bool,
    /// Whether it is set up.
    pub up: bool,
    /// Whether there is a link.
    pub carrier: bool,
    /// Speed of the link in Mbit/s, where known.
    pub speed_mbps: Option<u32>,
    /// Duplex of the link, where known.
    pub duplex: Option<Duplex>,
    /// The NUMA node that it is attached to, where known.
    pub numa_node: Option<u32>,
    /// Its active RX queues, numbered from 0.
    pub rx_queues: Vec<RxQueue>,
    /// The maximum number of TX queues.
    pub max_tx_queues: u32,
    /// The maximum number of RX queues.
    pub max_rx_queues: u32,
    /// The XDP programs that are attached to it.
    pub xdp: Vec<XdpProgram>,
    /// XDP features of its driver; `None` if the kernel does not report them (before 6.3). Generic XDP works on every
    /// device.
    pub xdp_features: Option<XdpFeatures>,
    /// Whether NAPI polls in kernel threads; `None` where that cannot be read.
    pub threaded_napi: Option<bool>,
    /// All its interrupts, including those that belong to no RX queue.
    pub irqs: Vec<Irq>,
    /// Its counters.
    pub statistics: Statistics,
}

impl Device {
    /// A stand-in for all devices that match a pattern: Ethernet devices, without index, driver and RX queues.
    pub fn of_pattern(pattern: &str) -> Device {
        Link { name: pattern.to_owned(), hardware: libc::ARPHRD_ETHER, ..Link::default() }.into()
    }

    /// Reads the device with this name or alternative name in the current network namespace. No privilege is needed.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] with the devices that exist; [`Error::Kernel`] if the kernel does not answer.
    pub fn open(name: &str) -> Result<Device> {
        match Link::find(name)? {
            Some(link) => Ok(Sources::open()?.look(link)),
            None => {
                let names: Vec<String> = Link::list()?.into_iter().map(|link| link.name).collect();
                Err(Error::UnknownDevice { name: name.to_owned(), known: names.join(", ") })
            }
        }
    }

    /// Reads the device with this index, whatever its current name; `None` if it does not exist.
    pub fn with_index(ifindex: u32) -> Result<Option<Device>> {
        match Link::with_index(ifindex)? {
            Some(link) => Ok(Some(Sources::open()?.look(link))),
            None => Ok(None),
        }
    }

    /// Reads all devices of the current network namespace, ordered by index.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn list() -> Result<Vec<Device>> {
        let mut sources = Sources::open()?;
        Ok(Link::list()?.into_iter().map(|link| sources.look(link)).collect())
    }

    /// A device with a name and no other properties.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn empty(name: &str) -> Device {
        Device::from(Link { name: name.to_owned(), ..Link::default() })
    }
}

/// The device's current counters. To read them often, keep a [`Monitor`].
///
/// # Errors
/// As [`Monitor::statistics`].
pub fn statistics(ifindex: u32) -> Result<Statistics> {
    Monitor::open()?.statistics(ifindex)
}

/// Whether the current network namespace has a device with this index. To check often, keep a [`Monitor`].
///
/// # Errors
/// As [`Monitor::exists`].
pub fn exists(ifindex: u32) -> Result<bool> {
    Monitor::open()?.exists(ifindex)
}

impl From<Link> for Device {
    fn from(link: Link) -> Device {
        let flag = |flag: i32| link.flags & flag as u32 != 0;
        Device {
            link_type: link.link_type(),
            loopback: link.is_loopback(),
            up: link.is_up(),
            carrier: link.carrier.unwrap_or_else(|| flag(libc::IFF_LOWER_UP)),
            name: link.name,
            ifindex: link.ifindex,
            driver: link.kind,
            bus_info: None,
            mac: link.mac,
            mtu: link.mtu,
            speed_mbps: None,
            duplex: None,
            numa_node: None,
            rx_queues: Vec::new(),
            max_tx_queues: link.tx_queues,
            max_rx_queues: link.rx_queues,
            xdp: link.xdp,
            xdp_features: None,
            threaded_napi: None,
            irqs: Vec::new(),
            statistics: link.statistics,
        }
    }
}

/// Sources of the details: opened once for any number of devices.
struct Sources {
    ethtool: Ethtool,
    netdev: Option<Netdev>,
}

impl Sources {
    fn open() -> Result<Sources> {
        let ethtool =
            Ethtool::open().map_err(|source| Error::kernel("opening a socket for ethtool", source))?;
        Ok(Sources { ethtool, netdev: Netdev::open() })
    }

    fn look(&mut self, link: Link) -> Device {
        let mut device = Device::from(link);
        if let Some(info) = self.ethtool.driver(&device.name) {
            device.driver = info.driver.or(device.driver);
            if let Some(mut own) = device.driver.as_deref().and_then(OwnCounter::of) {
                device.statistics.rx_without_buffer = own.read(&self.ethtool, &device.name);
            }
            device.bus_info = info.bus_info;
        }
        (device.speed_mbps, device.duplex) = self.ethtool.link(&device.name);
        let sysfs = Sysfs::of(&device.name, device.ifindex, device.mac);
        let active = self
            .ethtool
            .rx_queues(&device.name)
            .or_else(|| sysfs.as_ref().and_then(Sysfs::rx_queues))
            .unwrap_or(device.max_rx_queues)
            .max(1);
        device.rx_queues = (0..active).map(|queue| RxQueue::new(&device.name, queue)).collect();
        if let Some(sysfs) = sysfs {
            device.numa_node = sysfs.numa_node();
            device.threaded_napi = sysfs.threaded_napi();
            device.irqs = sysfs.irqs();
        }
        let napi = match &mut self.netdev {
            Some(netdev) => {
                device.xdp_features = netdev.xdp_features(device.ifindex);
                netdev.queues(device.ifindex, active)
            }
            None => Vec::new(),
        };
        for queue in &mut device.rx_queues {
            let told = napi.iter().find(|napi| napi.queue == queue.queue);
            queue.napi_id = told.map(|napi| napi.napi_id);
            queue.napi_thread = told.and_then(|napi| napi.thread);
            let serves = |irq: &Irq| match told.and_then(|napi| napi.irq) {
                Some(number) => irq.irq == number,
                None => queue_of_irq(&irq.name, &device.name) == Some(queue.queue),
            };
            queue.irqs = device.irqs.iter().filter(|irq| serves(irq)).cloned().collect();
        }
        name_programs(&mut device.xdp);
        device
    }
}

/// Fills in the programs' names, which the kernel reports only to processes that may see all programs.
fn name_programs(programs: &mut [XdpProgram]) {
    if programs.is_empty() {
        return;
    }
    for info in ProgInfoIter::default() {
        for program in programs.iter_mut().filter(|program| program.id == info.id) {
            program.name = Some(info.name.to_string_lossy().into_owned()).filter(|name| !name.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_listed_with_its_queues() {
        let devices = Device::list().unwrap();
        let lo = devices.iter().find(|device| device.name == "lo").unwrap();
        assert_eq!((lo.ifindex, lo.rx_queues.len()), (1, 1));
        assert_eq!(lo.rx_queues[0].virtual_device, "lo@0");
        for device in &devices {
            let queues: Vec<u32> = device.rx_queues.iter().map(|queue| queue.queue).collect();
            assert_eq!(queues, (0..queues.len() as u32).collect::<Vec<_>>(), "{}", device.name);
        }
        assert!(exists(lo.ifindex).unwrap());
        assert!(statistics(lo.ifindex).is_ok());
    }

    #[test]
    fn an_unknown_device_is_answered_with_those_that_exist() {
        match Device::open("no-such-dev").unwrap_err() {
            Error::UnknownDevice { name, known } => {
                assert_eq!(name, "no-such-dev");
                assert!(known.split(", ").any(|device| device == "lo"), "{known}");
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_device_in_json_has_the_names_of_the_ledger() {
        let json = serde_json::to_value(Device::open("lo").unwrap()).unwrap();
        assert_eq!(json["device"], "lo");
        assert_eq!(json["rx_queues"][0]["virtual_device"], "lo@0");
        assert_eq!(json["mac"], serde_json::Value::Null);
        assert!(json["statistics"]["rx_packets"].is_u64());
    }
}
