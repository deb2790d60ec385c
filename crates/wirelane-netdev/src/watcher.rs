//! Watches for changes of a device during a capture.
//!
//! It uses only netlink, over sockets that are opened before: a process that has given up its rights still may.

use super::link::Link;
use super::netdev::{family, genl_attributes};
use super::netlink::{Client, push_attribute, u32_at};
use super::{Device, MacAddress, XdpMode};
use crate::{Error, Result};

// linux/ethtool_netlink.h (since Linux 5.6; Documentation/networking/ethtool-netlink.rst)
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_A_CHANNELS_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;

/// The properties of a device that may change during a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its name.
    pub name: String,
    /// Whether it is set up.
    pub up: bool,
    /// Largest packet without link-layer header, in bytes.
    pub mtu: u32,
    /// Its Ethernet address, if it has one.
    pub mac: Option<MacAddress>,
    /// Whether a generic XDP program is attached.
    pub generic_xdp: bool,
    /// Active RX queues; `None` if the driver does not report them.
    pub rx_queues: Option<u32>,
}

impl State {
    /// The state of a device at the beginning of the capture.
    pub fn of(device: &Device) -> State {
        State {
            name: device.name.clone(),
            up: device.up,
            mtu: device.mtu,
            mac: device.mac,
            generic_xdp: device.xdp.iter().any(|program| program.mode == XdpMode::Generic),
            rx_queues: Some(device.rx_queues.len() as u32),
        }
    }

    /// Whether this seems to be the same device, although its index may differ.
    pub fn is_same(&self, other: &State) -> bool {
        (&self.name, self.mac) == (&other.name, other.mac)
    }
}

/// Reads devices of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watcher {
    route: Client,
    /// A generic netlink socket, and the number of the family `ethtool`.
    ethtool: Option<(Client, u16)>,
}

impl Watcher {
    /// Opens a watcher in the current network namespace. No privilege is needed.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not open a netlink socket.
    pub fn open() -> Result<Watcher> {
        let route = Client::open(libc::NETLINK_ROUTE)
            .map_err(|source| Error::kernel("opening a route netlink socket", source))?;
        let ethtool = Client::open(libc::NETLINK_GENERIC).ok().and_then(|mut client| {
            let family = family(&mut client, "ethtool")?;
            Some((client, family))
        });
        Ok(Watcher { route, ethtool })
    }

    /// The current state of the device with this index; `None` if this network namespace does not have it (any more).
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn look(&mut self, ifindex: u32) -> Result<Option<State>> {
        let link = Link::by_index(&mut self.route, ifindex)
            .map_err(|source| Error::kernel(format!("looking up device {ifindex}"), source))?;
        Ok(link.map(|link| State {
            rx_queues: self.rx_queues(ifindex),
            up: link.flags & libc::IFF_UP as u32 != 0,
            name: link.name,
            mtu: link.mtu,
            mac: link.mac,
            generic_xdp: link.xdp.iter().any(|program| program.mode == XdpMode::Generic),
        }))
    }

    fn rx_queues(&mut self, ifindex: u32) -> Option<u32> {
        let (client, family) = self.ethtool.as_mut()?;
        let mut header = Vec::new();
        push_attribute(&mut header, ETHTOOL_A_HEADER_DEV_INDEX, &ifindex.to_ne_bytes());
        let mut body = vec![ETHTOOL_MSG_CHANNELS_GET, 1, 0, 0];
        push_attribute(&mut body, ETHTOOL_A_CHANNELS_HEADER | libc::NLA_F_NESTED as u16, &header);
        let mut queues = None;
        let asked = client.request(*family, 0, &body, |body| queues = active(genl_attributes(body)));
        // Many drivers report no channels (EOPNOTSUPP).
        asked.ok().and(queues)
    }
}

/// Receive-only channels plus combined channels.
fn active<'a>(attributes: impl Iterator<Item = (u16, &'a [u8])>) -> Option<u32> {
    let mut sum = 0u32;
    for (kind, value) in attributes {
        if matches!(kind, ETHTOOL_A_CHANNELS_RX_COUNT | ETHTOOL_A_CHANNELS_COMBINED_COUNT) {
            sum = sum.checked_add(u32_at(value, 0)?)?;
        }
    }
    (sum > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attributes;

    #[test]
    fn the_loopback_device_is_there_and_another_is_not() {
        let mut watcher = Watcher::open().unwrap();
        let state = watcher.look(1).unwrap().unwrap();
        assert_eq!(state.name, "lo");
        assert!(state.mtu > 0);
        assert_eq!(watcher.look(0x7fff_fff0).unwrap(), None);
    }

    #[test]
    fn channels_that_receive_are_added_up() {
        let mut body = Vec::new();
        for (kind, count) in [(2u16, 8u32), (6, 3), (7, 5), (8, 1), (9, 2)] {
            push_attribute(&mut body, kind, &count.to_ne_bytes());
        }
        assert_eq!(active(attributes(&body)), Some(5));
        assert_eq!(active(attributes(&[])), None);
    }
}
