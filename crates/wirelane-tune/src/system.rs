//! Access to settings: this machine, or a simulated one in tests.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::setting::{Setting, hex, table_of, table_text, unhex};
use crate::{Error, Result};
use wirelane_netdev::ethtool_set::EthtoolSet;
use wirelane_netdev::irq::Sysfs;
use wirelane_netdev::netdev::{NapiThread, Netdev};
use wirelane_netdev::topology::cpulist;
use wirelane_netdev::{Device, sys, threads};

/// Reads and writes settings. An error of kind `NotFound` means that the target does not exist (any more): a queue
/// without thread, a removed device.
pub trait System {
    fn get(&self, setting: &Setting) -> io::Result<String>;
    fn set(&self, setting: &Setting, value: &str) -> io::Result<()>;
}

/// A device that no longer exists.
pub struct Vanished;

impl System for Vanished {
    fn get(&self, _: &Setting) -> io::Result<String> {
        Err(ErrorKind::NotFound.into())
    }

    fn set(&self, _: &Setting, _: &str) -> io::Result<()> {
        Err(ErrorKind::NotFound.into())
    }
}

/// One device of this machine, in the network namespace in which this was opened.
#[derive(Debug)]
pub struct LiveSystem {
    device: Device,
    sysfs: Option<Sysfs>,
    ethtool: EthtoolSet,
}

impl LiveSystem {
    pub fn open(device: Device) -> Result<LiveSystem> {
        let ethtool = EthtoolSet::open(&device.name)
            .map_err(|source| Error::kernel("opening a socket for ethtool", source))?;
        let sysfs = Sysfs::of(&device.name, device.ifindex, device.mac);
        Ok(LiveSystem { device, sysfs, ethtool })
    }

    fn file(&self, path: &str) -> io::Result<PathBuf> {
        let sysfs = self.sysfs.as_ref().ok_or_else(|| {
            io::Error::new(
                ErrorKind::Unsupported,
                "/sys shows another network namespace: run this with 'ip netns exec', which mounts a fitting one",
            )
        })?;
        Ok(sysfs.file(path))
    }

    fn read(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.file(path)?)?.trim().to_owned())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        fs::write(self.file(path)?, value)
    }

    /// The current polling thread of a queue: threads are created and removed with NAPI instances.
    fn thread(&self, queue: u32) -> io::Result<u32> {
        let device = Device::open(&self.device.name).map_err(io::Error::other)?;
        let threads = threads::of_device(&device);
        let found = threads.iter().find(|(of, _)| *of == queue);
        found.map(|(_, pid)| *pid).ok_or_else(|| {
            io::Error::new(ErrorKind::NotFound, format!("queue {queue} has no polling thread"))
        })
    }

    /// The NAPI instance of a queue: its id and polling mode.
    fn napi(&self, queue: u32) -> io::Result<(Netdev, u32, Option<u32>)> {
        let mut netdev = Netdev::open().ok_or_else(|| io::Error::from(ErrorKind::Unsupported))?;
        let queues = netdev.queues(self.device.ifindex, self.device.rx_queues.len() as u32);
        let one = queues.iter().find(|one| one.queue == queue).ok_or_else(|| {
            io::Error::new(ErrorKind::NotFound, format!("queue {queue} has no NAPI instance"))
        })?;
        let (id, threaded) = (one.napi_id, one.threaded);
        Ok((netdev, id, threaded))
    }

    fn set_table(&self, value: &str) -> io::Result<()> {
        let entries = self.ethtool.rss()?.table.len();
        let table = table_of(value, entries).ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
        if value.starts_with("even ") {
            // A table that is left to the driver continues to follow the number of channels, like one that was never
            // set; if that results in another table, it is set entry by entry.
            self.ethtool.set_rss_table(&[])?;
            if self.ethtool.rss()?.table == table {
                return Ok(());
            }
        }
        self.ethtool.set_rss_table(&table)
    }
}

impl System for LiveSystem {
    fn get(&self, setting: &Setting) -> io::Result<String> {
        match setting {
            Setting::Channels => {
                let now = self.ethtool.channels()?;
                Ok(format!("rx {} tx {} combined {}", now.rx.0, now.tx.0, now.combined.0))
            }
            Setting::RxRing => Ok(self.ethtool.rx_ring()?.now.to_string()),
            Setting::Offload { name } => {
                let all = self.ethtool.offloads()?;
                let one = all.iter().find(|one| one.name == *name).ok_or(ErrorKind::NotFound)?;
                Ok(if one.on { "on" } else { "off" }.to_owned())
            }
            Setting::RssTable => Ok(table_text(&self.ethtool.rss()?.table)),
            Setting::RssKey => Ok(hex(&self.ethtool.rss()?.key)),
            Setting::IrqAffinity { irq } => list(&fs::read_to_string(irq_file(*irq))?),
            Setting::Threaded => self.read("threaded"),
            Setting::QueueThread { queue } => match self.napi(*queue)?.2 {
                Some(0) => Ok("off".into()),
                Some(1) => Ok("on".into()),
                Some(2) => Ok("busy-poll".into()),
                _ => Err(ErrorKind::Unsupported.into()),
            },
            Setting::ThreadAffinity { queue } => Ok(cpulist::format(&sys::affinity(self.thread(*queue)?)?)),
            Setting::Rps { queue } => {
                let mask = self.read(&format!("queues/rx-{queue}/rps_cpus"))?;
                let set = cpulist::parse_mask(&mask).ok_or(ErrorKind::InvalidData)?;
                Ok(cpulist::format(&set))
            }
            Setting::DeferHardIrqs => self.read("napi_defer_hard_irqs"),
            Setting::GroFlushTimeout => self.read("gro_flush_timeout"),
        }
    }

    fn set(&self, setting: &Setting, value: &str) -> io::Result<()> {
        let nonsense = || io::Error::new(ErrorKind::InvalidData, format!("'{value}' is not a valid value"));
        match setting {
            Setting::Channels => {
                let mut channels = self.ethtool.channels()?;
                let words: Vec<&str> = value.split(' ').collect();
                let ["rx", rx, "tx", tx, "combined", combined] = words[..] else { return Err(nonsense()) };
                for (to, from) in
                    [(&mut channels.rx, rx), (&mut channels.tx, tx), (&mut channels.combined, combined)]
                {
                    to.0 = from.parse().map_err(|_| nonsense())?;
                }
                self.ethtool.set_channels(&channels)
            }
            Setting::RxRing => self.ethtool.set_rx_ring(value.parse().map_err(|_| nonsense())?),
            Setting::Offload { name } => self.ethtool.set_offload(name, value == "on"),
            Setting::RssTable => self.set_table(value),
            Setting::RssKey => self.ethtool.set_rss_key(&unhex(value).ok_or_else(nonsense)?),
            Setting::IrqAffinity { irq } => fs::write(irq_file(*irq), value),
            Setting::Threaded => self.write("threaded", value),
            Setting::QueueThread { queue } => {
                let how = match value {
                    "off" => NapiThread::Off,
                    "on" => NapiThread::On,
                    "busy-poll" => NapiThread::BusyPoll,
                    _ => return Err(nonsense()),
                };
                let (mut netdev, id, _) = self.napi(*queue)?;
                netdev.set_threaded(id, how)
            }
            Setting::ThreadAffinity { queue } => {
                let cpus = cpulist::parse(value).ok_or_else(nonsense)?;
                sys::set_affinity(self.thread(*queue)?, &cpus)
            }
            Setting::Rps { queue } => {
                let cpus = cpulist::parse(value).ok_or_else(nonsense)?;
                self.write(&format!("queues/rx-{queue}/rps_cpus"), &cpulist::format_mask(&cpus))
            }
            Setting::DeferHardIrqs => self.write("napi_defer_hard_irqs", value),
            Setting::GroFlushTimeout => self.write("gro_flush_timeout", value),
        }
    }
}

fn irq_file(irq: u32) -> PathBuf {
    Path::new("/proc/irq").join(irq.to_string()).join("smp_affinity_list")
}

/// A list of CPUs in canonical form, for comparison.
fn list(text: &str) -> io::Result<String> {
    cpulist::parse(text).map(|set| cpulist::format(&set)).ok_or_else(|| ErrorKind::InvalidData.into())
}
