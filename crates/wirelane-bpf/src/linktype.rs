//! The numbers of link types in capture files (LINKTYPE_ values, <https://www.tcpdump.org/linktypes.html>) and the link
//! types that Wirelane parses.

use crate::layout::LinkType;

/// LINKTYPE_NULL.
pub const NULL: u32 = 0;
/// LINKTYPE_ETHERNET.
pub const ETHERNET: u32 = 1;
/// LINKTYPE_RAW.
pub const RAW: u32 = 101;
/// LINKTYPE_LOOP.
pub const LOOP: u32 = 108;
/// LINKTYPE_LINUX_SLL.
pub const LINUX_SLL: u32 = 113;
/// LINKTYPE_IPV4.
pub const IPV4: u32 = 228;
/// LINKTYPE_IPV6.
pub const IPV6: u32 = 229;
/// LINKTYPE_LINUX_SLL2.
pub const LINUX_SLL2: u32 = 276;

/// LINKTYPE numbers and the parser of their packets. If a link type has several numbers, the first one is written.
const NUMBERS: [(u32, LinkType); 47] = [
    (ETHERNET, LinkType::Ethernet),
    (RAW, LinkType::Raw),
    (IPV4, LinkType::Raw),
    (IPV6, LinkType::Raw),
    // Numbers that BSD systems wrote for raw IP before one was registered; libpcap reads them the same way.
    (12, LinkType::Raw),
    (14, LinkType::Raw),
    (LINUX_SLL, LinkType::Sll),
    (LINUX_SLL2, LinkType::Sll2),
    (NULL, LinkType::Null),
    (LOOP, LinkType::Loop),
    (9, LinkType::Ppp),
    (50, LinkType::Ppp),
    (204, LinkType::PppDirection),
    (166, LinkType::PppDirection),
    (51, LinkType::Pppoe),
    (104, LinkType::Chdlc),
    (205, LinkType::ChdlcDirection),
    (107, LinkType::FrameRelay),
    (206, LinkType::FrameRelayDirection),
    (105, LinkType::Wlan),
    (127, LinkType::Radiotap),
    (119, LinkType::Prism),
    (163, LinkType::Avs),
    (192, LinkType::Ppi),
    (6, LinkType::TokenRing),
    (10, LinkType::Fddi),
    (100, LinkType::Llc),
    (106, LinkType::Llc),
    (123, LinkType::SunAtm),
    (122, LinkType::FibreChannel),
    (242, LinkType::Ipoib),
    (239, LinkType::Nflog),
    (109, LinkType::Enc),
    (117, LinkType::Pflog),
    (138, LinkType::Firewire),
    (219, LinkType::Mpls),
    (197, LinkType::Erf),
    (240, LinkType::NetAnalyzer),
    (241, LinkType::NetAnalyzerPreamble),
    (274, LinkType::Mpacket),
    (281, LinkType::DsaBrcm),
    (282, LinkType::DsaBrcmPrepend),
    (284, LinkType::Dsa),
    (285, LinkType::Edsa),
    (258, LinkType::Pktap),
    (226, LinkType::Ipnet),
    (143, LinkType::Docsis),
];

impl LinkType {
    /// The parser for packets of this LINKTYPE number; [`LinkType::Other`] for those that are only carried.
    pub fn from_number(number: u32) -> LinkType {
        NUMBERS.iter().find(|(known, _)| *known == number).map_or(LinkType::Other, |(_, link)| *link)
    }

    /// The LINKTYPE number to write for packets of this type; `None` for [`LinkType::Other`], whose number is known
    /// only from the file.
    pub fn number(self) -> Option<u32> {
        NUMBERS.iter().find(|(_, known)| *known == self).map(|(number, _)| *number)
    }

    /// Whether the kernel programs parse it, too: the link types of devices. Others occur in files only.
    pub fn is_of_devices(self) -> bool {
        (self as u8) <= LinkType::Loop as u8
    }
}

/// The parser for packets of this LINKTYPE number; [`LinkType::Other`] for those that are only carried.
pub fn from_number(number: u32) -> LinkType {
    LinkType::from_number(number)
}

/// The LINKTYPE number to write for packets of this type; `None` for [`LinkType::Other`], whose number is known only
/// from the file.
pub fn number(link: LinkType) -> Option<u32> {
    link.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_type_that_has_a_number_comes_back_from_it() {
        for code in 0..=255u8 {
            let link = LinkType::from_code(code);
            match number(link) {
                Some(number) => assert_eq!(from_number(number), link),
                None => assert_eq!(link, LinkType::Other),
            }
        }
        assert!(LinkType::ALL.iter().all(|link| number(*link).is_some()));
        // LINKTYPE_USB_LINUX: carried, never mistaken for a parsed link type.
        assert_eq!(from_number(189), LinkType::Other);
    }
}
