//! Counters of a device, for frequent and cheap reading.

use serde::Serialize;

use super::ethtool::Ethtool;
use super::link::Link;
use super::netlink::{Client, attributes, u64_at};
use super::own_counters::OwnCounter;
use crate::{Error, Result};

// linux/if_link.h; libc has no constants for RTM_GETSTATS.
const IFLA_STATS_LINK_64: u16 = 1;
/// Bytes of `struct if_stats_msg`.
const IF_STATS_MSG: usize = 12;

/// Counters of a device since it was created (`struct rtnl_link_stats64`, linux/if_link.h, where each is
/// defined). Drivers count at different points: rely on differences, not on absolute values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Packets received that the device handed to the host.
    pub rx_packets: u64,
    /// Bytes of the received packets.
    pub rx_bytes: u64,
    /// Packets given to the device for sending and sent.
    pub tx_packets: u64,
    /// Bytes of the sent packets.
    pub tx_bytes: u64,
    /// Packets received in error: the sum of the error counters of a driver.
    pub rx_errors: u64,
    /// Packets that could not be sent because of errors.
    pub tx_errors: u64,
    /// Packets received and then dropped by the host for lack of buffers, or by the driver's XDP path.
    pub rx_dropped: u64,
    /// Packets dropped on their way to the device.
    pub tx_dropped: u64,
    /// Packets with an invalid length.
    pub rx_length_errors: u64,
    /// Packets that overran the device's own buffer.
    pub rx_over_errors: u64,
    /// Packets with a wrong checksum.
    pub rx_crc_errors: u64,
    /// Packets lost to a full FIFO.
    pub rx_fifo_errors: u64,
    /// Packets that the device missed because the host gave it no buffers in time.
    pub rx_missed_errors: u64,
    /// Packets that had no receiver on the host.
    pub rx_nohandler: u64,
    /// Packets that the device dropped because it had no buffer for them, where the driver counts them in none of the
    /// above but in a counter of its own (vmxnet3: `pkts rx OOB` of `ethtool -S`).
    pub rx_without_buffer: u64,
}

impl Statistics {
    /// Packets that the device lost before any program could see them. The kernel recommends that drivers count these
    /// in `rx_missed_errors` (linux/if_link.h); drivers that count in `rx_fifo_errors` or `rx_over_errors` instead
    /// should leave the others zero, and some have a counter of their own.
    pub fn missed(&self) -> u64 {
        self.rx_missed_errors + self.rx_fifo_errors + self.rx_over_errors + self.rx_without_buffer
    }

    /// Reads a `struct rtnl_link_stats64`. Older kernels send a shorter one; missing counters stay zero.
    pub(super) fn read(bytes: &[u8]) -> Statistics {
        let at = |index: usize| u64_at(bytes, index * 8).unwrap_or(0);
        Statistics {
            rx_packets: at(0),
            tx_packets: at(1),
            rx_bytes: at(2),
            tx_bytes: at(3),
            rx_errors: at(4),
            tx_errors: at(5),
            rx_dropped: at(6),
            tx_dropped: at(7),
            rx_length_errors: at(10),
            rx_over_errors: at(11),
            rx_crc_errors: at(12),
            rx_fifo_errors: at(14),
            rx_missed_errors: at(15),
            rx_nohandler: at(23),
            rx_without_buffer: 0,
        }
    }
}

/// Queries the kernel about devices repeatedly, over one socket. It stays in the network namespace in which it was
/// opened.
#[derive(Debug)]
pub struct Monitor {
    client: Client,
    ethtool: Option<Ethtool>,
    /// Devices that were asked for, and the counter of their drivers' own, if there is one.
    known: Vec<(u32, Option<OwnCounter>)>,
}

impl Monitor {
    /// Opens a monitor in the current network namespace. No privilege is needed.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not open a netlink socket.
    pub fn open() -> Result<Monitor> {
        let client = Client::open(libc::NETLINK_ROUTE)
            .map_err(|source| Error::kernel("opening a route netlink socket", source))?;
        // Without IPv4 there may be no socket for it.
        Ok(Monitor { client, ethtool: Ethtool::open().ok(), known: Vec::new() })
    }

    /// The device's current counters: one system call for the request and one or two to read the answer
    /// (`RTM_GETSTATS`).
    ///
    /// # Errors
    /// [`Error::DeviceGone`] if no device has this index any more, [`Error::Kernel`] if the kernel does not answer.
    pub fn statistics(&mut self, ifindex: u32) -> Result<Statistics> {
        let mut body = vec![0; IF_STATS_MSG];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        body[8..12].copy_from_slice(&(1u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
        let mut statistics = None;
        let asked = self.client.request(libc::RTM_GETSTATS, 0, &body, |body| {
            statistics = attributes(body.get(IF_STATS_MSG..).unwrap_or_default())
                .find(|(kind, _)| *kind == IFLA_STATS_LINK_64)
                .map(|(_, value)| Statistics::read(value));
        });
        match (asked, statistics) {
            (Ok(()), Some(mut statistics)) => {
                statistics.rx_without_buffer = self.own_counter(ifindex)?;
                Ok(statistics)
            }
            (Err(error), _) if error.raw_os_error() == Some(libc::ENODEV) => {
                Err(Error::DeviceGone { device: format!("with index {ifindex}") })
            }
            (Err(source), _) => Err(Error::kernel("reading a device's counters", source)),
            (Ok(()), None) => Err(Error::kernel(
                "reading a device's counters",
                std::io::Error::new(std::io::ErrorKind::InvalidData, "none in the kernel's answer"),
            )),
        }
    }

    /// Lost packets by a counter of the driver's own; 0 for drivers without one, which are queried once.
    fn own_counter(&mut self, ifindex: u32) -> Result<u64> {
        let Some(ethtool) = &self.ethtool else { return Ok(0) };
        let known = self.known.iter().position(|(of, _)| *of == ifindex);
        if known.is_some_and(|known| self.known[known].1.is_none()) {
            return Ok(0);
        }
        // It may have been renamed.
        let Some(name) = Link::by_index(&mut self.client, ifindex)
            .map_err(|source| Error::kernel(format!("looking up device {ifindex}"), source))?
            .map(|link| link.name)
        else {
            return Ok(0);
        };
        let known = known.unwrap_or_else(|| {
            let driver = ethtool.driver(&name).and_then(|info| info.driver);
            self.known.push((ifindex, driver.as_deref().and_then(OwnCounter::of)));
            self.known.len() - 1
        });
        Ok(self.known[known].1.as_mut().map_or(0, |own| own.read(ethtool, &name)))
    }

    /// Whether there is a device with this index. A device that was deleted and created again under the same name has
    /// another index.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn exists(&mut self, ifindex: u32) -> Result<bool> {
        Ok(self.link(ifindex)?.is_some())
    }

    /// Whether the device exists and is set up (`ip link set up`).
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn is_up(&mut self, ifindex: u32) -> Result<bool> {
        Ok(self.link(ifindex)?.is_some_and(|link| link.flags & libc::IFF_UP as u32 != 0))
    }

    fn link(&mut self, ifindex: u32) -> Result<Option<Link>> {
        Link::by_index(&mut self.client, ifindex)
            .map_err(|source| Error::kernel(format!("looking up device {ifindex}"), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_at_the_kernels_offsets() {
        let bytes: Vec<u8> = (0u64..25).flat_map(u64::to_ne_bytes).collect();
        let statistics = Statistics::read(&bytes);
        assert_eq!(statistics.rx_packets, 0);
        assert_eq!(statistics.tx_dropped, 7);
        assert_eq!(statistics.rx_missed_errors, 15);
        assert_eq!(statistics.rx_nohandler, 23);
        assert_eq!(statistics.missed(), 15 + 14 + 11);
        assert_eq!(Statistics { rx_without_buffer: 7, ..statistics }.missed(), 15 + 14 + 11 + 7);
        assert_eq!(Statistics::read(&bytes[..64]).tx_dropped, 7);
        assert_eq!(Statistics::read(&[]), Statistics::default());
    }

    #[test]
    fn a_device_that_is_not_there_is_gone() {
        let mut monitor = Monitor::open().unwrap();
        assert!(monitor.exists(1).unwrap());
        assert!(!monitor.exists(0x7fff_fff0).unwrap());
        assert!(matches!(monitor.statistics(0x7fff_fff0), Err(Error::DeviceGone { .. })));
        // The socket stays usable after an error.
        monitor.statistics(1).unwrap();
    }
}
