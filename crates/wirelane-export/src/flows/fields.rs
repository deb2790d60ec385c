//! IPFIX information elements and NetFlow 9 fields, which have the same numbers where NetFlow 9 defines them (IANA
//! registry of IPFIX information elements; RFC 3954).

use wirelane_analysis::flows::{Flow, FlowRecord};
use wirelane_bpf::layout::tunnel;

/// An element in a template: its number and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub id: u16,
    pub bytes: u16,
    /// Enterprise number: 0 for IANA's elements, [`REVERSE_PEN`] for IANA's elements of the reverse direction, or that
    /// of an enterprise.
    pub pen: u32,
}

/// A field from IANA's registry.
pub(crate) const fn field(id: u16, bytes: u16) -> Field {
    Field { id, bytes, pen: 0 }
}

/// The same field of the reverse direction (RFC 5103).
pub(super) const fn reverse(id: u16, bytes: u16) -> Field {
    Field { id, bytes, pen: REVERSE_PEN }
}

/// An enterprise's field; NetFlow 9 does not have such elements, and its field number is in [`ie`] itself.
pub(super) const fn enterprise(pen: u32, id: u16, bytes: u16) -> Field {
    Field { id, bytes, pen }
}

/// Enterprise number of elements of the reverse direction (RFC 5103, 6.1).
const REVERSE_PEN: u32 = 29_305;
/// Cisco's enterprise number, for an element missing in IANA's registry: the round trip.
pub(super) const CISCO: u32 = 9;
/// ntop's enterprise number, for elements missing in IANA's registry: retransmitted and reordered segments, a tunnel's
/// id.
pub(super) const NTOP: u32 = 35_632;
/// Bytes of an application's name, padded with zeros; the longest name has 11.
pub(super) const APPLICATION_NAME: u16 = 12;

/// Names of the element numbers.
pub(crate) mod ie {
    pub const OCTETS: u16 = 1;
    pub const PACKETS: u16 = 2;
    pub const PROTOCOL: u16 = 4;
    pub const TOS: u16 = 5;
    pub const TCP_FLAGS: u16 = 6;
    pub const SRC_PORT: u16 = 7;
    pub const SRC_IPV4: u16 = 8;
    pub const INGRESS_INTERFACE: u16 = 10;
    pub const DST_PORT: u16 = 11;
    pub const DST_IPV4: u16 = 12;
    pub const EGRESS_INTERFACE: u16 = 14;
    pub const LAST_SWITCHED: u16 = 21;
    pub const FIRST_SWITCHED: u16 = 22;
    pub const MIN_LENGTH: u16 = 25;
    pub const MAX_LENGTH: u16 = 26;
    pub const SRC_IPV6: u16 = 27;
    pub const DST_IPV6: u16 = 28;
    pub const ICMP_IPV4: u16 = 32;
    pub const SAMPLING_INTERVAL: u16 = 34;
    pub const SAMPLING_ALGORITHM: u16 = 35;
    pub const EXPORTED_OCTETS: u16 = 40;
    pub const EXPORTED_MESSAGES: u16 = 41;
    pub const EXPORTED_FLOWS: u16 = 42;
    pub const MIN_TTL: u16 = 52;
    pub const MAX_TTL: u16 = 53;
    pub const VLAN: u16 = 58;
    pub const IP_VERSION: u16 = 60;
    pub const DIRECTION: u16 = 61;
    pub const MPLS_TOP: u16 = 70;
    pub const APPLICATION_ID: u16 = 95;
    pub const APPLICATION_NAME: u16 = 96;
    pub const END_REASON: u16 = 136;
    pub const OBSERVATION_POINT: u16 = 138;
    pub const ICMP_IPV6: u16 = 139;
    pub const OBSERVATION_DOMAIN: u16 = 149;
    pub const START_MS: u16 = 152;
    pub const END_MS: u16 = 153;
    pub const START_NS: u16 = 156;
    pub const END_NS: u16 = 157;
    pub const NOT_SENT_FLOWS: u16 = 165;
    pub const NOT_SENT_PACKETS: u16 = 166;
    pub const NOT_SENT_OCTETS: u16 = 167;
    pub const TCP_SEQUENCE: u16 = 184;
    pub const BIFLOW_DIRECTION: u16 = 239;
    pub const ETHERNET_TYPE: u16 = 256;
    pub const SELECTOR_ID: u16 = 302;
    pub const SELECTOR_ALGORITHM: u16 = 304;
    pub const SAMPLED_PACKETS: u16 = 305;
    pub const SAMPLING_SPACE: u16 = 306;
    pub const LAYER2_SEGMENT: u16 = 351;
    pub const LAYER2_OCTETS: u16 = 352;
    pub const JITTER_MS: u16 = 385;
    pub const JITTER_NS: u16 = 387;

    /// Cisco's element, and its number in NetFlow 9: a round trip in microseconds, all ones if unknown.
    pub const ROUND_TRIP: u16 = 4248;
    pub const ROUND_TRIP_9: u16 = 0x8000 + ROUND_TRIP;
    /// ntop's elements: for the packets of this direction, and of the reverse direction.
    pub const TUNNEL_ID: u16 = 106;
    pub const RETRANSMITTED: u16 = 109;
    pub const RETRANSMITTED_BACK: u16 = 110;
    pub const REORDERED: u16 = 111;
    pub const REORDERED_BACK: u16 = 112;
    /// First number of ntop's elements in NetFlow 9.
    const NTOP_9: u16 = 57_472;
    pub const TUNNEL_ID_9: u16 = NTOP_9 + TUNNEL_ID;
    pub const RETRANSMITTED_9: u16 = NTOP_9 + RETRANSMITTED;
    pub const REORDERED_9: u16 = NTOP_9 + REORDERED;
}

/// The ingress and egress interface of a flow that was seen at the device with this index. The device is the egress
/// interface of transmitted packets. The other interface is unknown, which is 0.
pub(super) fn interfaces(flow: &FlowRecord, device: u32) -> (u32, u32) {
    if flow.is_egress() { (0, device) } else { (device, 0) }
}

/// The field specifiers of a template.
pub(crate) fn specifiers(out: &mut Vec<u8>, fields: &[Field]) {
    for field in fields {
        let enterprise = if field.pen != 0 { 0x8000 } else { 0 };
        out.extend((field.id | enterprise).to_be_bytes());
        out.extend(field.bytes.to_be_bytes());
        if field.pen != 0 {
            out.extend(field.pen.to_be_bytes());
        }
    }
}

/// A flow, as the source of field values.
pub(super) struct Values<'a> {
    pub flow: &'a FlowRecord,
    /// SNMP indices of the ingress and egress interface ([`interfaces`]).
    pub interfaces: (u32, u32),
    /// Start of the exporter, in UTC milliseconds: the reference of NetFlow 9 times.
    pub boot_ms: u64,
}

impl Values<'_> {
    /// Appends a record with these fields.
    pub fn record(&self, out: &mut Vec<u8>, fields: &[Field]) {
        for field in fields {
            self.put(out, field);
        }
    }

    /// The value of an enterprise's element, in IPFIX and in NetFlow 9.
    fn of_enterprise(&self, field: &Field) -> Option<u64> {
        let (flow, back) = (&self.flow.flow, self.flow.reverse.as_ref());
        Some(match (field.pen, field.id) {
            (CISCO, ie::ROUND_TRIP) | (0, ie::ROUND_TRIP_9) => {
                let most = u64::from(u32::MAX);
                self.flow.rtt_ns().map_or(most, |ns| (ns / 1000).min(most - 1))
            }
            (NTOP, ie::TUNNEL_ID) | (0, ie::TUNNEL_ID_9) => self.flow.key.tunnel_id.into(),
            (NTOP, ie::RETRANSMITTED) | (0, ie::RETRANSMITTED_9) => flow.retransmitted.into(),
            (NTOP, ie::REORDERED) | (0, ie::REORDERED_9) => flow.reordered.into(),
            (NTOP, ie::RETRANSMITTED_BACK) => back.map_or(0, |back| back.retransmitted.into()),
            (NTOP, ie::REORDERED_BACK) => back.map_or(0, |back| back.reordered.into()),
            _ => return None,
        })
    }

    fn put(&self, out: &mut Vec<u8>, field: &Field) {
        let key = &self.flow.key;
        let direction = match (&self.flow.reverse, field.pen) {
            (Some(reverse), REVERSE_PEN) => reverse,
            _ => &self.flow.flow,
        };
        if let Some(number) = self.of_enterprise(field) {
            return integer(out, number, field.bytes);
        }
        let icmp = self.flow.icmp().map_or(0, |(kind, code)| u64::from(u16::from_be_bytes([kind, code])));
        let number = match field.id {
            ie::SRC_IPV4 => return out.extend(&key.src[..4]),
            ie::DST_IPV4 => return out.extend(&key.dst[..4]),
            ie::SRC_IPV6 => return out.extend(&key.src),
            ie::DST_IPV6 => return out.extend(&key.dst),
            ie::SRC_PORT => self.flow.source_port().into(),
            ie::DST_PORT => self.flow.destination_port().into(),
            ie::PROTOCOL => key.proto.into(),
            ie::INGRESS_INTERFACE => self.interfaces.0.into(),
            ie::EGRESS_INTERFACE => self.interfaces.1.into(),
            ie::ICMP_IPV4 | ie::ICMP_IPV6 => icmp,
            // 0 is a priority tag without a VLAN (IEEE 802.1Q), and also means no tag.
            ie::VLAN => self.flow.vlan().unwrap_or(0).into(),
            ie::IP_VERSION => key.l3.into(),
            ie::DIRECTION => self.flow.is_egress().into(),
            ie::END_REASON => self.flow.reason as u64,
            ie::ETHERNET_TYPE => key.eth_type.into(),
            ie::BIFLOW_DIRECTION => 1,
            // Observation points of the domain are RX queues of devices; this is the one of the first packet.
            ie::OBSERVATION_POINT => {
                u64::from(self.interfaces.0 | self.interfaces.1) << 16 | u64::from(self.flow.flow.queue)
            }
            ie::APPLICATION_ID => {
                application_id(self.flow.application().map_or(0, |known| known.number)).into()
            }
            // The type of segment comes first: 1 is VXLAN. Other types have no number.
            ie::LAYER2_SEGMENT if key.tunnel == tunnel::VXLAN => 1 << 56 | u64::from(key.tunnel_id),
            ie::LAYER2_SEGMENT => 0,
            // A label of the stack (RFC 3032): 20 bits, and 4 unknown bits.
            ie::MPLS_TOP => u64::from(self.flow.mpls_label().unwrap_or(0)) << 4,
            id => of_direction(id, direction, self.boot_ms),
        };
        integer(out, number, field.bytes);
    }
}

/// An application's id (RFC 6759): engine 6, whose numbers are defined by the exporter, with a number of
/// [`wirelane_analysis::flows::applications`], or 0 if unknown.
pub(super) fn application_id(number: u8) -> u32 {
    6 << 24 | u32::from(number)
}

fn of_direction(id: u16, flow: &Flow, boot_ms: u64) -> u64 {
    let uptime = |ns: u64| u64::from((ns / 1_000_000).wrapping_sub(boot_ms) as u32);
    match id {
        ie::OCTETS => flow.bytes,
        ie::PACKETS => flow.packets,
        ie::LAYER2_OCTETS => flow.wire_bytes,
        ie::TOS => flow.tos.into(),
        ie::TCP_FLAGS => flow.tcp_flags.into(),
        ie::MIN_LENGTH => flow.min_length.into(),
        ie::MAX_LENGTH => flow.max_length.into(),
        ie::MIN_TTL => flow.min_ttl.into(),
        ie::MAX_TTL => flow.max_ttl.into(),
        ie::TCP_SEQUENCE => flow.first_seq.into(),
        ie::START_MS => flow.first_ns / 1_000_000,
        ie::END_MS => flow.last_ns / 1_000_000,
        ie::START_NS => ntp(flow.first_ns),
        ie::END_NS => ntp(flow.last_ns),
        ie::FIRST_SWITCHED => uptime(flow.first_ns),
        ie::LAST_SWITCHED => uptime(flow.last_ns),
        _ => unreachable!("a template has a field {id} that nobody can fill"),
    }
}

/// Appends a number in the template's length; too large a number becomes the maximum of that length.
pub(crate) fn integer(out: &mut Vec<u8>, number: u64, bytes: u16) {
    let bytes = usize::from(bytes.min(8));
    let most = if bytes < 8 { (1 << (8 * bytes)) - 1 } else { u64::MAX };
    out.extend_from_slice(&number.min(most).to_be_bytes()[8 - bytes..]);
}

/// Converts nanoseconds since 1970 to an NTP time stamp (RFC 5905): seconds since 1900, and the fraction in 2^-32.
pub(crate) fn ntp(ns: u64) -> u64 {
    let seconds = (ns / 1_000_000_000).wrapping_add(2_208_988_800);
    // Rounded up, so that truncating the fraction again gives the same nanosecond.
    let fraction = ((ns % 1_000_000_000) << 32).div_ceil(1_000_000_000);
    seconds << 32 | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        for ns in [0, 1, 999_999_999, 1_700_000_000_123_456_789] {
            let time = ntp(ns);
            let back = (time >> 32).wrapping_sub(2_208_988_800) * 1_000_000_000
                + (((time & 0xffff_ffff) * 1_000_000_000) >> 32);
            assert_eq!(back, ns);
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_the_largest_that_does() {
        let mut out = Vec::new();
        for (number, bytes) in [(1, 1), (256, 1), (256, 2), (70_000, 2), (u64::MAX, 8)] {
            integer(&mut out, number, bytes);
        }
        assert_eq!(out, [[1, 0xff, 1, 0, 0xff, 0xff].as_slice(), &[0xff; 8]].concat());
    }
}
