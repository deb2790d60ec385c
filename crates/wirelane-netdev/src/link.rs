//! Network devices by rtnetlink (rtnetlink(7), linux/if_link.h).

use std::io;

use super::netlink::{Client, attributes, push_attribute, text, u16_at, u32_at};
use super::{LinkType, MacAddress, Statistics, XdpMode, XdpProgram};
use crate::{Error, Result};

/// Bytes of `struct ifinfomsg`.
const IFINFO: usize = 16;

// linux/if_link.h; libc has no constants for the attributes inside IFLA_XDP.
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// linux/if_arp.h; libc has no constant for it.
const ARPHRD_RAWIP: u16 = 519;

/// One device, with all fields of a single netlink answer.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its flags (`IFF_*`).
    pub flags: u32,
    /// `ARPHRD_*`: the link-layer type of its packets.
    pub(super) hardware: u16,
    pub(super) mtu: u32,
    pub(super) mac: Option<MacAddress>,
    pub(super) carrier: Option<bool>,
    /// Kind of a virtual device, as in `ip link add type KIND`.
    pub(super) kind: Option<String>,
    pub(super) rx_queues: u32,
    pub(super) tx_queues: u32,
    pub(super) xdp: Vec<XdpProgram>,
    pub(super) statistics: Statistics,
}

impl Link {
    /// The device with this name or alternative name in the current network namespace; `None` if it does not exist.
    pub fn find(name: &str) -> Result<Option<Link>> {
        // A longer name can only be an alternative one, for which the kernel has another attribute.
        let kind = if name.len() < super::sys::NAME_SIZE { libc::IFLA_IFNAME } else { libc::IFLA_ALT_IFNAME };
        let mut body = vec![0; IFINFO];
        let mut value = name.as_bytes().to_vec();
        value.push(0);
        push_attribute(&mut body, kind, &value);
        let mut client = open()?;
        Link::get_one(&mut client, &body)
            .map_err(|source| Error::kernel(format!("looking up device {name}"), source))
    }

    /// The device with this index; `None` if it does not exist.
    pub fn by_index(client: &mut Client, ifindex: u32) -> io::Result<Option<Link>> {
        let mut body = vec![0; IFINFO];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        Link::get_one(client, &body)
    }

    /// The device with this index in the current network namespace; `None` if it does not exist.
    pub(super) fn with_index(ifindex: u32) -> Result<Option<Link>> {
        Link::by_index(&mut open()?, ifindex)
            .map_err(|source| Error::kernel(format!("looking up device {ifindex}"), source))
    }

    /// All devices of the current network namespace, by index.
    pub fn list() -> Result<Vec<Link>> {
        list(&mut open()?).map_err(|source| Error::kernel("listing the network devices", source))
    }

    /// Whether it is set up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// The link-layer type of its packets.
    pub(super) fn link_type(&self) -> LinkType {
        match self.hardware {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LinkType::Ethernet,
            libc::ARPHRD_NONE
            | ARPHRD_RAWIP
            | libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT => LinkType::Raw,
            _ => LinkType::Other,
        }
    }

    /// Whether it is a loopback device.
    pub(super) fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }

    fn get_one(client: &mut Client, body: &[u8]) -> io::Result<Option<Link>> {
        let mut found = None;
        match client.request(libc::RTM_GETLINK, 0, body, |body| found = Link::read(body)) {
            Ok(()) => Ok(found),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device of a message's body.
    pub(super) fn read(body: &[u8]) -> Option<Link> {
        let mut link = Link {
            ifindex: u32_at(body, 4)?,
            flags: u32_at(body, 8)?,
            rx_queues: 1,
            tx_queues: 1,
            ..Link::default()
        };
        // An interface's link-layer address is a MAC address only if the hardware type is Ethernet.
        link.hardware = u16_at(body, 2)?;
        let ethernet = link.hardware == libc::ARPHRD_ETHER;
        for (kind, value) in attributes(body.get(IFINFO..)?) {
            match kind {
                libc::IFLA_IFNAME => link.name = text(value),
                libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
                libc::IFLA_ADDRESS if ethernet => link.mac = value.try_into().ok().map(MacAddress),
                libc::IFLA_CARRIER => link.carrier = value.first().map(|up| *up != 0),
                libc::IFLA_NUM_RX_QUEUES => link.rx_queues = u32_at(value, 0)?,
                libc::IFLA_NUM_TX_QUEUES => link.tx_queues = u32_at(value, 0)?,
                libc::IFLA_STATS64 => link.statistics = Statistics::read(value),
                libc::IFLA_XDP => link.xdp = read_xdp(value),
                libc::IFLA_LINKINFO => {
                    link.kind = attributes(value)
                        .find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)
                        .map(|(_, value)| text(value));
                }
                _ => {}
            }
        }
        Some(link)
    }
}

/// All devices of the client's network namespace, by index.
pub(super) fn list(client: &mut Client) -> io::Result<Vec<Link>> {
    let mut links = Vec::new();
    client
        .request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; IFINFO], |body| links.extend(Link::read(body)))?;
    links.sort_by_key(|link| link.ifindex);
    Ok(links)
}

fn open() -> Result<Client> {
    Client::open(libc::NETLINK_ROUTE)
        .map_err(|source| Error::kernel("opening a route netlink socket", source))
}

/// The programs in an `IFLA_XDP` attribute. Kernels since 4.18 list the program of each mode; older ones report only
/// the mode and one id, which are used if there is nothing else.
fn read_xdp(value: &[u8]) -> Vec<XdpProgram> {
    let mut programs = Vec::new();
    let (mut attached, mut only_id) = (0, 0);
    for (kind, value) in attributes(value) {
        let id = u32_at(value, 0).unwrap_or(0);
        let mode = match kind {
            IFLA_XDP_DRV_PROG_ID => XdpMode::Native,
            IFLA_XDP_SKB_PROG_ID => XdpMode::Generic,
            IFLA_XDP_HW_PROG_ID => XdpMode::Offloaded,
            IFLA_XDP_ATTACHED => {
                attached = value.first().copied().unwrap_or(0);
                continue;
            }
            IFLA_XDP_PROG_ID => {
                only_id = id;
                continue;
            }
            _ => continue,
        };
        if id != 0 {
            programs.push(XdpProgram { id, mode, name: None });
        }
    }
    let mode = match attached {
        1 => Some(XdpMode::Native),
        2 => Some(XdpMode::Generic),
        3 => Some(XdpMode::Offloaded),
        _ => None,
    };
    if let (true, Some(mode), 1..) = (programs.is_empty(), mode, only_id) {
        programs.push(XdpProgram { id: only_id, mode, name: None });
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, value) in list {
            push_attribute(&mut bytes, *kind, value);
        }
        bytes
    }

    #[test]
    fn a_link_message_is_read() {
        let mut body = vec![0; IFINFO];
        body[2..4].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
        let info = nested(&[(libc::IFLA_INFO_KIND, b"veth\0")]);
        let xdp = nested(&[(IFLA_XDP_ATTACHED, &[1]), (IFLA_XDP_DRV_PROG_ID, &42u32.to_ne_bytes())]);
        body.extend(nested(&[
            (libc::IFLA_IFNAME, b"eth1\0"),
            (libc::IFLA_MTU, &1500u32.to_ne_bytes()),
            (libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]),
            (libc::IFLA_CARRIER, &[1]),
            (libc::IFLA_NUM_RX_QUEUES, &4u32.to_ne_bytes()),
            (libc::IFLA_LINKINFO, &info),
            (libc::IFLA_XDP, &xdp),
        ]));
        let link = Link::read(&body).unwrap();
        assert_eq!((link.name.as_str(), link.ifindex, link.mtu, link.rx_queues), ("eth1", 7, 1500, 4));
        assert_eq!(link.mac.unwrap().to_string(), "02:00:00:00:00:09");
        assert_eq!(link.kind.as_deref(), Some("veth"));
        assert_eq!(link.xdp, [XdpProgram { id: 42, mode: XdpMode::Native, name: None }]);
        assert!(Link::read(&body[..10]).is_none());
    }

    #[test]
    fn programs_of_several_modes_are_all_named() {
        let id = |id: u32| id.to_ne_bytes();
        let both = nested(&[
            (IFLA_XDP_ATTACHED, &[4]),
            (IFLA_XDP_SKB_PROG_ID, &id(5)),
            (IFLA_XDP_HW_PROG_ID, &id(6)),
        ]);
        let modes: Vec<_> = read_xdp(&both).into_iter().map(|program| (program.id, program.mode)).collect();
        assert_eq!(modes, [(5, XdpMode::Generic), (6, XdpMode::Offloaded)]);
        let old = nested(&[(IFLA_XDP_ATTACHED, &[2]), (IFLA_XDP_PROG_ID, &id(9))]);
        assert_eq!(read_xdp(&old), [XdpProgram { id: 9, mode: XdpMode::Generic, name: None }]);
        assert_eq!(read_xdp(&nested(&[(IFLA_XDP_ATTACHED, &[0])])), []);
    }

    #[test]
    fn the_loopback_device_is_there_and_an_invented_one_is_not() {
        // lo exists in every network namespace, with index 1.
        let lo = Link::find("lo").unwrap().unwrap();
        assert_eq!((lo.name.as_str(), lo.ifindex, lo.mac), ("lo", 1, None));
        assert!(Link::find("no-such-dev").unwrap().is_none());
        assert!(Link::find("an-alternative-name-of-no-device").unwrap().is_none());
        assert!(Link::list().unwrap().iter().any(|link| link.name == "lo"));
    }
}
