//! The numbers that capture files give to link types (LINKTYPE_ values, <https://www.tcpdump.org/linktypes.html>)
//! and the link types that Wirelane parses.

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

/// How packets of this LINKTYPE number are parsed; [`LinkType::Other`] for those that are only carried.
///
/// 12 and 14 are what BSD systems wrote for raw IP before LINKTYPE_RAW had a number of its own; libpcap reads
/// them the same way.
pub fn from_number(number: u32) -> LinkType {
    match number {
        ETHERNET => LinkType::Ethernet,
        RAW | IPV4 | IPV6 | 12 | 14 => LinkType::Raw,
        LINUX_SLL => LinkType::Sll,
        LINUX_SLL2 => LinkType::Sll2,
        NULL => LinkType::Null,
        LOOP => LinkType::Loop,
        _ => LinkType::Other,
    }
}

/// The LINKTYPE number to write for packets of this type; `None` for [`LinkType::Other`], whose number only the
/// file that it came from knows.
pub fn number(link: LinkType) -> Option<u32> {
    match link {
        LinkType::Ethernet => Some(ETHERNET),
        LinkType::Raw => Some(RAW),
        LinkType::Sll => Some(LINUX_SLL),
        LinkType::Sll2 => Some(LINUX_SLL2),
        LinkType::Null => Some(NULL),
        LinkType::Loop => Some(LOOP),
        LinkType::Other => None,
    }
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
        // ieee80211_radio: carried, never mistaken for something that is parsed.
        assert_eq!(from_number(127), LinkType::Other);
    }
}
