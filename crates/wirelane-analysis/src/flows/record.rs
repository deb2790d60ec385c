//! A flow that has ended, as exporters receive it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wirelane::l3;
use wirelane_bpf::flow::{EndReason, Flow, FlowKey, KEY_EGRESS, NO_VLAN, flow_flags};

/// Flag of a key of both directions: they pass the device in different directions, one received and one transmitted.
pub(super) const KEY_TURNS: u8 = 0x80;

/// A flow that has ended: of one direction, or of both with [`FlowRecord::reverse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Key of the flow; for a biflow, that of the initiator.
    pub key: FlowKey,
    /// Statistics.
    pub flow: Flow,
    /// Statistics of the other direction of a biflow (RFC 5103).
    pub reverse: Option<Flow>,
    /// Reason for the end.
    pub reason: EndReason,
}

impl FlowRecord {
    /// Source address; `None` for packets other than IP.
    pub fn source(&self) -> Option<IpAddr> {
        address(&self.key, &self.key.src)
    }

    /// Destination address; `None` for packets other than IP.
    pub fn destination(&self) -> Option<IpAddr> {
        address(&self.key, &self.key.dst)
    }

    /// Source port; 0 without ports.
    pub fn source_port(&self) -> u16 {
        u16::from_be(self.key.src_port)
    }

    /// Destination port; 0 without ports. For ICMP: 256 times the type, plus the code.
    pub fn destination_port(&self) -> u16 {
        u16::from_be(self.key.dst_port)
    }

    /// Type and code of ICMP and ICMPv6.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        is_icmp(&self.key).then(|| {
            let [kind, code] = self.destination_port().to_be_bytes();
            (kind, code)
        })
    }

    /// Outermost VLAN id.
    pub fn vlan(&self) -> Option<u16> {
        (self.key.vlan != NO_VLAN).then_some(self.key.vlan)
    }

    /// Top MPLS label of the first packet that had one.
    pub fn mpls_label(&self) -> Option<u32> {
        (self.flow.flags & flow_flags::MPLS != 0).then_some(self.flow.mpls_label)
    }

    /// The same flow with times on another clock.
    #[must_use]
    pub fn in_time(mut self, of: impl Fn(u64) -> u64) -> FlowRecord {
        for flow in [Some(&mut self.flow), self.reverse.as_mut()].into_iter().flatten() {
            let set = |flag: u16| flow.flags & flag != 0;
            let (syn, ack, data) = (set(flow_flags::SYN), set(flow_flags::ACK), set(flow_flags::DATA));
            for (there, time) in [
                (true, &mut flow.first_ns),
                (true, &mut flow.last_ns),
                (syn, &mut flow.syn_ns),
                (ack, &mut flow.ack_ns),
                (data, &mut flow.first_data_ns),
                (data, &mut flow.last_data_ns),
            ] {
                if there {
                    *time = of(*time);
                }
            }
        }
        self
    }

    /// Whether the packets were leaving the device.
    pub fn is_egress(&self) -> bool {
        self.key.flags & KEY_EGRESS != 0
    }

    /// Time of the first packet in both directions.
    pub fn first_ns(&self) -> u64 {
        self.reverse.map_or(self.flow.first_ns, |reverse| reverse.first_ns.min(self.flow.first_ns))
    }

    /// Time of the last packet in both directions.
    pub fn last_ns(&self) -> u64 {
        self.reverse.map_or(self.flow.last_ns, |reverse| reverse.last_ns.max(self.flow.last_ns))
    }

    /// Packets of both directions.
    pub fn packets(&self) -> u64 {
        self.flow.packets + self.reverse.map_or(0, |reverse| reverse.packets)
    }

    /// Bytes of both directions, as IP headers state them.
    pub fn bytes(&self) -> u64 {
        self.flow.bytes + self.reverse.map_or(0, |reverse| reverse.bytes)
    }

    /// Wire bytes of both directions.
    pub fn wire_bytes(&self) -> u64 {
        self.flow.wire_bytes + self.reverse.map_or(0, |reverse| reverse.wire_bytes)
    }

    /// Round trip of the TCP handshake in nanoseconds, from the SYN to the ACK that completes it: both are sent by the
    /// initiator, so one direction is sufficient.
    pub fn rtt_ns(&self) -> Option<u64> {
        let wanted = flow_flags::SYN | flow_flags::SYNACK | flow_flags::ACK;
        let whole = self.flow.flags & wanted == flow_flags::SYN | flow_flags::ACK;
        if whole { self.flow.ack_ns.checked_sub(self.flow.syn_ns) } else { None }
    }
}

/// Whether the packets of a key are ICMP or ICMPv6.
pub(super) fn is_icmp(key: &FlowKey) -> bool {
    matches!((key.l3, key.proto), (l3::IPV4, 1) | (l3::IPV6, 58))
}

fn address(key: &FlowKey, bytes: &[u8; 16]) -> Option<IpAddr> {
    match key.l3 {
        l3::IPV4 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        l3::IPV6 => Some(Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

/// Type of the counterpart of an ICMP message that has a reply: of the reply, or of the request.
pub(super) fn icmp_counterpart(key: &FlowKey, kind: u8) -> Option<u8> {
    let pairs: &[(u8, u8)] = match key.l3 {
        l3::IPV4 => &[(8, 0), (13, 14), (15, 16), (10, 9), (17, 18)],
        _ => &[(128, 129), (130, 131), (133, 134), (135, 136), (139, 140), (144, 145)],
    };
    pairs.iter().find_map(|&(question, answer)| match kind {
        _ if kind == question => Some(answer),
        _ if kind == answer => Some(question),
        _ => None,
    })
}

/// Key of the other direction; `None` if there cannot be one: packets other than IP, ICMP messages without a reply.
pub fn reverse_key(key: &FlowKey) -> Option<FlowKey> {
    if key.l3 == l3::NONE {
        return None;
    }
    let mut reverse = FlowKey { src: key.dst, dst: key.src, ..*key };
    if key.flags & KEY_TURNS != 0 {
        reverse.flags ^= KEY_EGRESS;
    }
    if is_icmp(key) {
        let [kind, code] = key.dst_port.to_ne_bytes();
        reverse.dst_port = u16::from_ne_bytes([icmp_counterpart(key, kind)?, code]);
    } else {
        (reverse.src_port, reverse.dst_port) = (key.dst_port, key.src_port);
    }
    Some(reverse)
}
