//! Conditions of a wildcard rule.

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Addresses, Application};

/// One condition of a rule: a field has one of some values, or none of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Condition {
    /// Inverts the test. A negated condition also holds for packets without the field: `not port 80` holds for an ICMP
    /// packet.
    #[serde(default)]
    pub negated: bool,
    /// Field and accepted values.
    pub test: Test,
}

impl Condition {
    /// The condition that `test` holds.
    pub fn is(test: Test) -> Condition {
        Condition { negated: false, test }
    }

    /// The condition that `test` does not hold.
    pub fn is_not(test: Test) -> Condition {
        Condition { negated: true, test }
    }
}

impl Test {
    /// Whether the test is about one side of a packet, and so differs for the other direction.
    pub(super) fn is_of_one_side(&self) -> bool {
        matches!(
            self,
            Test::Src(_)
                | Test::Dst(_)
                | Test::SrcPort(_)
                | Test::DstPort(_)
                | Test::SrcIn(_)
                | Test::DstIn(_)
        )
    }
}

/// A field and its accepted values, one of which must match. Fields of the network and transport header are those of
/// the headers that the group is configured to parse: the outer headers, or the headers inside of a tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Source address.
    Src(Arc<Addresses>),
    /// Destination address.
    Dst(Arc<Addresses>),
    /// Source or destination address.
    Host(Arc<Addresses>),
    /// Source port.
    SrcPort(Vec<RangeInclusive<u16>>),
    /// Destination port.
    DstPort(Vec<RangeInclusive<u16>>),
    /// Source or destination port.
    Port(Vec<RangeInclusive<u16>>),
    /// IP protocol of the transport header.
    Protocol(Vec<RangeInclusive<u8>>),
    /// EtherType after VLAN tags, MPLS and PPPoE.
    Ethertype(Vec<RangeInclusive<u16>>),
    /// Kind of packet.
    Kind(Vec<Kind>),
    /// Direction.
    Direction(Way),
    /// TCP flags.
    TcpFlags(Vec<TcpTest>),
    /// Type of an ICMP or ICMPv6 message.
    IcmpType(Vec<RangeInclusive<u8>>),
    /// Outermost VLAN tag.
    Vlan(Vec<Vlan>),
    /// Differentiated services code point (RFC 2474), 0 to 63.
    Dscp(Vec<RangeInclusive<u8>>),
    /// Bytes that the packet had on the wire. A packet of 65,535 bytes and more counts as one of 65,535.
    Length(Vec<RangeInclusive<u32>>),
    /// RX queue.
    Queue(Vec<RangeInclusive<u16>>),
    /// Name of the device.
    Device(Vec<String>),
    /// Source, in a named set ([`super::NamedSet`]): its address, with port and protocol if these are in the entries.
    SrcIn(Vec<String>),
    /// Destination, in a named set.
    DstIn(Vec<String>),
    /// Source or destination, in a named set.
    HostIn(Vec<String>),
    /// Addresses, ports and protocol in a named set, in either direction.
    FlowIn(Vec<String>),
    /// The payload contains one of the patterns with these names ([`super::Patterns`]).
    Payload(Vec<String>),
    /// A field of an application protocol in the payload.
    Application(Application),
    /// One of the plug-ins of these names matches the packet (`Builder::plugin`).
    Plugin(Vec<String>),
    /// The packet has hit one of the rules with these ids before: wildcard rules with lower ids, or exact-match rules.
    After(Vec<u32>),
}

/// Kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP.
    Arp,
    /// A fragment of a datagram, the first one included.
    Fragment,
    /// The first fragment of a datagram.
    FirstFragment,
    /// A fragment that is not the first.
    LaterFragment,
    /// The packet contains a tunnel whose inner headers were parsed.
    Tunnel,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Received.
    Rx,
    /// Transmitted.
    Tx,
}

/// A test of TCP flags: of the flags in `mask`, exactly those in `set` must be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TcpTest {
    /// Flags that must be set, as in the TCP header: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
    pub set: u8,
    /// Flags that are tested.
    pub mask: u8,
}

/// A test of the outermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vlan {
    /// No VLAN tag.
    Untagged,
    /// A VLAN id in this range, ends included; 0 is a priority tag.
    Ids(u16, u16),
}
