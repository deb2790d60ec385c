//! The fields of a packet as evaluated by rules.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::{Ip, flags, ip_flags, l3};
use wirelane_bpf::members::{Member, Membership as _, of};
use wirelane_bpf::native;
use wirelane_bpf::rules::Facts;

use super::search::{Searched, search};
use crate::entries::Flow;
use crate::patterns::{self, Sought};
use crate::text::{direction, dscp, ethertype, protocol, tcp_flags};
use crate::{
    Condition, Entries, ExactFields, ExactVlan, Kind, NamedSet, Rule, SampleBy, Shape, Test, Vlan, Way,
};

/// A packet with all inputs of rules.
#[derive(Clone, Debug)]
pub(crate) struct Seen<'p> {
    /// The packet's bytes and the parser's results.
    pub packet: Packet<'p>,
    /// Metadata of the packet.
    pub facts: &'p Facts,
    /// The device.
    pub device: &'p str,
    /// The named sets that rules use.
    pub sets: &'p [NamedSet],
    /// The patterns that rules use.
    pub patterns: &'p [Sought],
    /// Result of the payload search, after the first test that needed it.
    pub searched: OnceCell<Searched>,
    /// Whether a rule has tested a plug-in. Plug-ins cannot run here, and count as not matching.
    pub plugged: Cell<bool>,
    /// Ids of the rules that the packet has hit so far.
    pub hits: RefCell<Vec<u32>>,
}

impl<'p> Seen<'p> {
    /// The IP headers that are evaluated: the inner ones or the outer ones.
    pub(super) fn ip(&self) -> &'p Ip {
        let Packet { parsed, inner, .. } = self.packet;
        if inner && parsed.flags & flags::TUNNEL != 0 { &parsed.inner } else { &parsed.outer }
    }

    /// The result of the payload search.
    pub(super) fn searched(&self) -> &Searched {
        self.searched.get_or_init(|| search(self, self.patterns))
    }

    /// Whether plug-ins would be called, if there are any: only together with a payload search.
    pub(super) fn asks_plugins(&self) -> bool {
        self.plugged.get() || self.searched.get().is_some()
    }

    /// Whether a rule matches, in either direction if it is for both ways.
    pub(super) fn fits(&self, rule: &Rule) -> bool {
        self.fits_as(rule, false) || rule.both_ways && self.fits_as(rule, true)
    }

    /// Whether a rule matches the packet as it is, or with source and destination `exchanged`. The payload is searched
    /// only if all other conditions hold, and earlier hits are asked for at the end.
    pub(super) fn fits_as(&self, rule: &Rule, exchanged: bool) -> bool {
        let order = |condition: &&Condition| match &condition.test {
            Test::After(_) => 2,
            test => u8::from(patterns::asked(test).is_some()),
        };
        let mut conditions: Vec<&Condition> = rule.conditions.iter().collect();
        conditions.sort_by_key(order);
        conditions.into_iter().all(|condition| self.satisfies(condition, exchanged))
    }

    fn is_ip(&self) -> bool {
        matches!(self.ip().l3, l3::IPV4 | l3::IPV6)
    }

    /// Source and destination address of an IP packet.
    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let ip = self.ip();
        let four = |octets: &[u8; 16]| Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]);
        match ip.l3 {
            l3::IPV4 => Some((four(&ip.src).into(), four(&ip.dst).into())),
            l3::IPV6 => Some((Ipv6Addr::from(ip.src).into(), Ipv6Addr::from(ip.dst).into())),
            _ => None,
        }
    }

    /// Source and destination port, if known.
    fn ports(&self) -> Option<(u16, u16)> {
        let ip = self.ip();
        (ip.flags & ip_flags::PORTS != 0).then(|| (u16::from_be(ip.src_port), u16::from_be(ip.dst_port)))
    }

    fn protocol(&self) -> Option<u8> {
        self.is_ip().then_some(self.ip().proto)
    }

    fn tos(&self) -> Option<u8> {
        self.is_ip().then_some(self.ip().tos)
    }

    fn tcp_flags(&self) -> Option<u8> {
        (self.ip().flags & ip_flags::TCP != 0).then_some(self.ip().tcp_flags)
    }

    fn icmp_type(&self) -> Option<u8> {
        (self.ip().flags & ip_flags::ICMP != 0).then_some(self.ip().icmp_type)
    }

    fn ethertype(&self) -> Option<u16> {
        (self.packet.parsed.eth_type != 0).then_some(self.packet.parsed.eth_type)
    }

    /// The VLAN id of the outermost tag.
    fn vlan(&self) -> Option<u16> {
        (self.packet.parsed.flags & flags::VLAN != 0).then_some(self.packet.parsed.vlan_tci[0] & 0xfff)
    }

    fn way(&self) -> Way {
        if self.facts.egress != 0 { Way::Tx } else { Way::Rx }
    }

    fn is(&self, kind: Kind) -> bool {
        let ip = self.ip();
        let (fragment, later) = (ip.flags & ip_flags::FRAGMENT != 0, ip.flags & ip_flags::LATER != 0);
        match kind {
            Kind::Ipv4 => ip.l3 == l3::IPV4,
            Kind::Ipv6 => ip.l3 == l3::IPV6,
            Kind::Arp => ip.l3 == l3::ARP,
            Kind::Fragment => fragment,
            Kind::FirstFragment => fragment && !later,
            Kind::LaterFragment => later,
            Kind::Tunnel => self.packet.parsed.flags & flags::TUNNEL != 0,
        }
    }

    /// Whether a condition holds for the packet as it is, or with source and destination exchanged.
    pub(super) fn satisfies(&self, condition: &Condition, exchanged: bool) -> bool {
        self.passes(&condition.test, exchanged) != condition.negated
    }

    fn passes(&self, test: &Test, exchanged: bool) -> bool {
        let (mut addresses, mut ports) = (self.addresses(), self.ports());
        if exchanged {
            addresses = addresses.map(|(src, dst)| (dst, src));
            ports = ports.map(|(src, dst)| (dst, src));
        }
        let ends = ends(addresses, ports);
        match test {
            Test::Src(list) => addresses.is_some_and(|(src, _)| list.contains(src)),
            Test::Dst(list) => addresses.is_some_and(|(_, dst)| list.contains(dst)),
            Test::Host(list) => addresses.is_some_and(|(src, dst)| list.contains(src) || list.contains(dst)),
            Test::SrcPort(ranges) => ports.is_some_and(|(src, _)| any(ranges, src)),
            Test::DstPort(ranges) => ports.is_some_and(|(_, dst)| any(ranges, dst)),
            Test::Port(ranges) => ports.is_some_and(|(src, dst)| any(ranges, src) || any(ranges, dst)),
            Test::Protocol(ranges) => self.protocol().is_some_and(|number| any(ranges, number)),
            Test::Ethertype(ranges) => self.ethertype().is_some_and(|number| any(ranges, number)),
            Test::Kind(kinds) => kinds.iter().any(|kind| self.is(*kind)),
            Test::Direction(way) => self.way() == *way,
            Test::TcpFlags(tests) => {
                self.tcp_flags().is_some_and(|flags| tests.iter().any(|test| flags & test.mask == test.set))
            }
            Test::IcmpType(ranges) => self.icmp_type().is_some_and(|number| any(ranges, number)),
            Test::Vlan(tags) => tags.iter().any(|tag| match (tag, self.vlan()) {
                (Vlan::Untagged, vlan) => vlan.is_none(),
                (Vlan::Ids(first, last), vlan) => vlan.is_some_and(|id| (*first..=*last).contains(&id)),
            }),
            Test::Dscp(ranges) => self.tos().is_some_and(|tos| any(ranges, tos >> 2)),
            Test::Length(ranges) => any(ranges, self.facts.wire_len.min(0xffff)),
            Test::Queue(ranges) => ranges.iter().any(|range| {
                (u32::from(*range.start())..=u32::from(*range.end())).contains(&self.facts.queue)
            }),
            Test::Device(names) => names.iter().any(|name| name == self.device),
            Test::After(ids) => self.hits.borrow().iter().any(|id| ids.contains(id)),
            Test::SrcIn(names) => ends.is_some_and(|[src, _]| self.listed(names, src)),
            Test::DstIn(names) => ends.is_some_and(|[_, dst]| self.listed(names, dst)),
            Test::HostIn(names) => ends.is_some_and(|ends| ends.iter().any(|end| self.listed(names, *end))),
            Test::Plugin(_) => {
                self.plugged.set(true);
                // The kernel calls plug-ins and searches the payload in one step.
                if !self.patterns.is_empty() {
                    self.searched();
                }
                false
            }
            Test::Payload(names) => self.searched().has(names),
            Test::Application(application) => self.searched().has(&[application.name()]),
            Test::FlowIn(names) => self.flow().is_some_and(|flow| {
                self.named(names).any(|set| match &set.entries {
                    Entries::Flow(flows) => flows.has(&flow),
                    _ => false,
                })
            }),
        }
    }

    /// The sets with these names.
    fn named(&self, names: &[String]) -> impl Iterator<Item = &'p NamedSet> {
        self.sets.iter().filter(move |set| names.contains(&set.name))
    }

    /// Whether one of these sets contains one side of the packet.
    fn listed(&self, names: &[String], (address, port): End) -> bool {
        let end = |proto| port.map(|port| Member::end(address, port, proto));
        self.named(names).any(|set| match &set.entries {
            Entries::Address(list) => list.contains(address),
            Entries::Network(networks) => networks.contains(address),
            Entries::AddressPort(ends) => end(0).is_some_and(|end| ends.has(&end)),
            Entries::AddressPortProtocol(ends) => {
                let end = self.protocol().and_then(end);
                end.is_some_and(|end| ends.has(&end))
            }
            Entries::Flow(_) => false,
        })
    }

    /// One side of the packet, with what entries of these sets have.
    fn shown_end(&self, names: &[String], (address, port): End) -> String {
        let has = |what| self.named(names).any(|set| set.entries.key() & what != 0);
        let of = self
            .protocol()
            .filter(|_| has(of::PROTO))
            .map_or_else(String::new, |number| protocol(number) + " ");
        match port.filter(|_| has(of::PORT)) {
            Some(port) => format!("{of}{}", SocketAddr::new(address, port)),
            None => address.to_string(),
        }
    }

    /// The packet's flow, as an entry of a set of flows.
    fn flow(&self) -> Option<Member> {
        let fields =
            Shape::SRC.with(Shape::DST).with(Shape::SRC_PORT).with(Shape::DST_PORT).with(Shape::PROTOCOL);
        let ExactFields { src, dst, src_port, dst_port, protocol, .. } = self.fields(fields)?;
        Member::flow((src?, src_port?), (dst?, dst_port?), protocol?)
    }

    /// The packet's value of the field that a test uses, with source and destination exchanged or not; `None`: the
    /// packet has no such field.
    pub(super) fn has(&self, test: &Test, exchanged: bool) -> Option<String> {
        let (mut addresses, mut ports) = (self.addresses(), self.ports());
        if exchanged && test.is_of_one_side() {
            addresses = addresses.map(|(src, dst)| (dst, src));
            ports = ports.map(|(src, dst)| (dst, src));
        }
        let ends = ends(addresses, ports);
        match test {
            Test::Src(_) => addresses.map(|(src, _)| src.to_string()),
            Test::Dst(_) => addresses.map(|(_, dst)| dst.to_string()),
            Test::SrcIn(names) => ends.map(|[src, _]| self.shown_end(names, src)),
            Test::DstIn(names) => ends.map(|[_, dst]| self.shown_end(names, dst)),
            Test::HostIn(names) => ends.map(|ends| ends.map(|end| self.shown_end(names, end)).join(" and ")),
            Test::Payload(_) | Test::Application(_) => Some(self.found()).filter(|found| !found.is_empty()),
            Test::Plugin(_) => None,
            Test::FlowIn(_) => self.flow().map(|flow| Flow::from(flow).to_string()),
            Test::Host(_) => addresses.map(|(src, dst)| format!("{src} and {dst}")),
            Test::SrcPort(_) => ports.map(|(src, _)| src.to_string()),
            Test::DstPort(_) => ports.map(|(_, dst)| dst.to_string()),
            Test::Port(_) => ports.map(|(src, dst)| format!("{src} and {dst}")),
            Test::Protocol(_) => self.protocol().map(protocol),
            Test::Ethertype(_) => self.ethertype().map(ethertype),
            Test::Kind(_) => self.kinds(),
            Test::Direction(_) => Some(direction(self.way()).to_owned()),
            Test::TcpFlags(_) => self.tcp_flags().map(|flags| match tcp_flags(flags).as_str() {
                "" => "none of them".to_owned(),
                letters => letters.to_owned(),
            }),
            Test::IcmpType(_) => self.icmp_type().map(|number| number.to_string()),
            Test::Vlan(_) => self.vlan().map(|id| id.to_string()),
            Test::Dscp(_) => self.tos().map(|tos| dscp(tos >> 2)),
            Test::Length(_) => Some(self.facts.wire_len.to_string()),
            Test::Queue(_) => Some(self.facts.queue.to_string()),
            Test::After(_) => {
                let hits: Vec<String> = self.hits.borrow().iter().map(u32::to_string).collect();
                Some(format!("hit {}", hits.join(", "))).filter(|_| !hits.is_empty())
            }
            Test::Device(_) => Some(self.device.to_owned()).filter(|device| !device.is_empty()),
        }
    }

    /// The patterns found in the payload, by name and id.
    fn found(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for found in &self.searched().found {
            let word = found.words();
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(", ")
    }

    /// The packet's kinds, without the more general ones.
    fn kinds(&self) -> Option<String> {
        let there = crate::names::KINDS.iter().filter(|(_, kind)| {
            let wider = *kind == Kind::Fragment;
            !wider && self.is(*kind)
        });
        let names: Vec<&str> = there.map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// The fields of a shape, if the packet has all of them.
    pub(super) fn fields(&self, shape: Shape) -> Option<ExactFields> {
        let ip = self.ip();
        let (addresses, is_ip, later) = (self.addresses(), self.is_ip(), ip.flags & ip_flags::LATER != 0);
        let mut fields = ExactFields { both_ways: shape.has(Shape::BOTH_WAYS), ..Default::default() };
        if shape.has(Shape::SRC) {
            fields.src = Some(addresses?.0);
        }
        if shape.has(Shape::DST) {
            fields.dst = Some(addresses?.1);
        }
        // Ports of a packet without ports are 0, except for later fragments, whose ports are unknown.
        let ports = self.ports().unwrap_or((0, 0));
        let ports = (is_ip && !later).then_some(ports);
        if shape.has(Shape::SRC_PORT) {
            fields.src_port = Some(ports?.0);
        }
        if shape.has(Shape::DST_PORT) {
            fields.dst_port = Some(ports?.1);
        }
        if shape.has(Shape::PROTOCOL) {
            fields.protocol = Some(self.protocol()?);
        }
        if shape.has(Shape::VLAN) {
            fields.vlan = Some(self.vlan().map_or(ExactVlan::Untagged, ExactVlan::Id));
        }
        if shape.has(Shape::MPLS) {
            fields.mpls =
                Some((self.packet.parsed.flags & flags::MPLS != 0).then_some(self.packet.parsed.mpls_label)?);
        }
        if shape.has(Shape::TUNNEL) {
            fields.tunnel = Some(
                (self.packet.parsed.flags & flags::TUNNEL != 0).then_some(self.packet.parsed.tunnel_id)?,
            );
        }
        Some(fields)
    }

    /// The fields of a shape that a packet of the other direction would have.
    pub(super) fn fields_back(&self, shape: Shape) -> Option<ExactFields> {
        let (sources, destinations) = (Shape::SRC.0 | Shape::SRC_PORT.0, Shape::DST.0 | Shape::DST_PORT.0);
        // The bit of a destination field is the next higher one of its source field.
        let exchanged = (shape.0 & sources) << 1 | (shape.0 & destinations) >> 1;
        let asked = Shape(shape.0 & !(sources | destinations) | exchanged);
        self.fields(asked).map(ExactFields::exchanged)
    }

    /// Whether a sample of one in N packets includes the packet (`wl_rule_chooses()`, `bpf/lib/evaluate.h`).
    pub(super) fn is_chosen(&self, one_in: u32, by: SampleBy) -> bool {
        let mix = |value: u64| {
            let value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value ^ value >> 32
        };
        if one_in <= 1 {
            return true;
        }
        let hash = native::packet_hash(self.packet.parsed, self.packet.inner, self.facts.seed);
        let mut value = mix(0x94d0_49bb_1331_11eb ^ u64::from(hash));
        if by == SampleBy::Packet {
            let ip = self.ip();
            let parts = [
                u64::from(ip.tcp_seq) << 32 | u64::from(ip.tcp_ack),
                u64::from(ip.frag_id) << 32 | u64::from(ip.frag_off) << 16 | u64::from(ip.ident),
                u64::from(self.facts.wire_len),
            ];
            value = parts.into_iter().fold(value, |value, part| mix(value.wrapping_add(part)));
        }
        value = (value ^ value >> 32).wrapping_mul(0x94d0_49bb_1331_11eb);
        value = (value ^ value >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The first of N equal parts of the range of hashes.
        ((value >> 32) * u64::from(one_in)) >> 32 == 0
    }

    /// A short description of the packet: its addresses, ports, protocol, and so on, as far as present.
    pub(super) fn words(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        let mut add = |field: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{field} {value}")));
        };
        add("src", self.addresses().map(|(src, _)| src.to_string()));
        add("dst", self.addresses().map(|(_, dst)| dst.to_string()));
        add("src-port", self.ports().map(|(src, _)| src.to_string()));
        add("dst-port", self.ports().map(|(_, dst)| dst.to_string()));
        add("protocol", self.protocol().map(protocol));
        add("tcp-flags", self.tcp_flags().map(tcp_flags));
        add("icmp-type", self.icmp_type().map(|number| number.to_string()));
        add("ethertype", self.ethertype().map(ethertype));
        add("kind", self.kinds());
        add("vlan", self.vlan().map(|id| id.to_string()));
        add("dscp", self.tos().map(|tos| dscp(tos >> 2)));
        add("length", Some(self.facts.wire_len.to_string()));
        add("queue", Some(self.facts.queue.to_string()));
        add("direction", Some(direction(self.way()).to_owned()));
        words.join(", ")
    }
}

/// One side of a packet: its address, and its port if known.
type End = (IpAddr, Option<u16>);

fn ends(addresses: Option<(IpAddr, IpAddr)>, ports: Option<(u16, u16)>) -> Option<[End; 2]> {
    let (src, dst) = addresses?;
    Some([(src, ports.map(|(src, _)| src)), (dst, ports.map(|(_, dst)| dst))])
}

fn any<T: PartialOrd>(ranges: &[std::ops::RangeInclusive<T>], value: T) -> bool {
    ranges.iter().any(|range| range.contains(&value))
}
