//! The Rust side of `bpf/lib/members.h`: named sets of addresses, networks, ports and flows, which tests of rules look up.

pub use crate::abi::Member;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::layout::l3;
use crate::rules::MAX_MEMBERS;

/// Values of [`crate::rules::Set::member`]: the key of a lookup in a set.
pub mod of {
    /// The source; together with [`DST`] either side.
    pub const SRC: u8 = crate::abi::WL_MEMBER_SRC as u8;
    /// The destination.
    pub const DST: u8 = crate::abi::WL_MEMBER_DST as u8;
    /// Both addresses and ports, and the protocol, in either direction.
    pub const FLOW: u8 = crate::abi::WL_MEMBER_FLOW as u8;
    /// The side's port, too.
    pub const PORT: u8 = crate::abi::WL_MEMBER_PORT as u8;
    /// The protocol, too.
    pub const PROTO: u8 = crate::abi::WL_MEMBER_PROTO as u8;
    /// The networks of the side's address, by the lengths in [`crate::rules::Set::prefix`].
    pub const NETWORK: u8 = crate::abi::WL_MEMBER_NETWORK as u8;
    /// Matches of the kernel's bloom filter are looked up in a table of all entries.
    pub const EXACT: u8 = crate::abi::WL_MEMBER_EXACT as u8;
}

impl Member {
    /// The entry of an address.
    pub fn address(address: IpAddr) -> Member {
        let (l3, first) = bytes(address);
        Member { first, l3, ..Member::default() }
    }

    /// The entry of an address with a port, and with a protocol unless `proto` is 0.
    pub fn end(address: IpAddr, port: u16, proto: u8) -> Member {
        Member { first_port: port.to_be(), proto, ..Member::address(address) }
    }

    /// The entry of a network, whose address has no bits behind its prefix.
    pub fn network(address: IpAddr, length: u32) -> Member {
        Member { prefix: length as u16 + 1, ..Member::address(address) }
    }

    /// The entry of a flow, the same for both directions. `None`: the addresses are of different families.
    pub fn flow(one: (IpAddr, u16), other: (IpAddr, u16), proto: u8) -> Option<Member> {
        let end = |(address, port): (IpAddr, u16)| {
            let (l3, bytes) = bytes(address);
            (bytes, port, l3)
        };
        let (first, second) = (end(one).min(end(other)), end(one).max(end(other)));
        (first.2 == second.2).then_some(Member {
            first: first.0,
            second: second.0,
            first_port: first.1.to_be(),
            second_port: second.1.to_be(),
            proto,
            l3: first.2,
            prefix: 0,
        })
    }

    /// The address and port of each end; the port is 0 for an address alone.
    pub fn ends(&self) -> [(IpAddr, u16); 2] {
        let address = |bytes: [u8; 16]| -> IpAddr {
            if self.l3 == l3::IPV6 {
                return bytes.into();
            }
            let [a, b, c, d, ..] = bytes;
            [a, b, c, d].into()
        };
        [
            (address(self.first), u16::from_be(self.first_port)),
            (address(self.second), u16::from_be(self.second_port)),
        ]
    }

    /// The entry's bytes in the kernel's layout.
    pub fn bytes(&self) -> [u8; size_of::<Member>()] {
        let mut bytes = [0; size_of::<Member>()];
        bytes[..16].copy_from_slice(&self.first);
        bytes[16..32].copy_from_slice(&self.second);
        bytes[32..34].copy_from_slice(&self.first_port.to_ne_bytes());
        bytes[34..36].copy_from_slice(&self.second_port.to_ne_bytes());
        bytes[36] = self.proto;
        bytes[37] = self.l3;
        bytes[38..40].copy_from_slice(&self.prefix.to_ne_bytes());
        bytes
    }
}

fn bytes(address: IpAddr) -> (u8, [u8; 16]) {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            (l3::IPV4, bytes)
        }
        IpAddr::V6(address) => (l3::IPV6, address.octets()),
    }
}

/// Membership test of a named set.
pub trait Membership: fmt::Debug + Send + Sync {
    /// Whether the set has this entry.
    fn has(&self, member: &Member) -> bool;
}

/// The named sets that the tests of a compiled set use, in their order. Equal if they are the same sets in memory.
#[derive(Clone, Debug, Default)]
pub struct Members([Option<Arc<dyn Membership>>; MAX_MEMBERS]);

impl Members {
    /// Sets the named set of a test.
    ///
    /// # Panics
    /// If `test` is not below [`MAX_MEMBERS`].
    pub fn put(&mut self, test: usize, set: Arc<dyn Membership>) {
        self.0[test] = Some(set);
    }

    /// Whether the set of a test has an entry; false for a test without a set.
    pub fn has(&self, test: usize, member: &Member) -> bool {
        self.0.get(test).and_then(Option::as_ref).is_some_and(|set| set.has(member))
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Members) -> bool {
        self.0.iter().zip(&other.0).all(|pair| match pair {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        })
    }
}

impl Eq for Members {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_the_same_either_way_round() {
        let end = |text: &str, port| (text.parse::<IpAddr>().unwrap(), port);
        for (one, other) in [
            (end("192.0.2.1", 9), end("192.0.2.2", 1)),
            (end("192.0.2.1", 256), end("192.0.2.1", 2)),
            (end("2001:db8::1", 1), end("2001:db8::", 2)),
        ] {
            let flow = Member::flow(one, other, 6).unwrap();
            assert_eq!(Some(flow), Member::flow(other, one, 6));
            let mut ends = [one, other];
            ends.sort();
            assert_eq!(flow.ends(), ends);
        }
        assert_eq!(Member::flow(end("192.0.2.1", 9), end("2001:db8::", 1), 6), None);
    }

    #[test]
    fn an_ipv4_address_is_not_the_ipv6_address_of_the_same_bytes() {
        let four = Member::address("192.0.2.1".parse().unwrap());
        let six = Member::address("c000:201::".parse().unwrap());
        assert_eq!(four.first, six.first);
        assert_ne!(four, six);
        assert_ne!(four.bytes(), six.bytes());
    }
}
