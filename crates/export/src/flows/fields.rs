//! The information elements of IPFIX, and the fields of NetFlow 9, whose numbers are the same as far as these go (the
//! IANA registry of IPFIX information elements; RFC 3954).

use wirelane_analysis::flows::{Flow, FlowRecord};

/// An element in a template: its number and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub id: u16,
    pub bytes: u16,
    /// Of the other direction (RFC 5103).
    pub reverse: bool,
}

pub(super) const fn field(id: u16, bytes: u16) -> Field {
    Field { id, bytes, reverse: false }
}

pub(super) const fn reverse(id: u16, bytes: u16) -> Field {
    Field { id, bytes, reverse: true }
}

/// The enterprise number of elements of the other direction (RFC 5103, 6.1).
const REVERSE_PEN: u32 = 29_305;

/// Names for the numbers.
pub(super) mod ie {
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
    pub const END_REASON: u16 = 136;
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
    pub const LAYER2_OCTETS: u16 = 352;
}

/// The field specifiers of a template.
pub(super) fn specifiers(out: &mut Vec<u8>, fields: &[Field]) {
    for field in fields {
        let enterprise = if field.reverse { 0x8000 } else { 0 };
        out.extend((field.id | enterprise).to_be_bytes());
        out.extend(field.bytes.to_be_bytes());
        if field.reverse {
            out.extend(REVERSE_PEN.to_be_bytes());
        }
    }
}

/// A flow as its fields are asked for.
pub(super) struct Values<'a> {
    pub flow: &'a FlowRecord,
    /// SNMP index of the device.
    pub interface: u32,
    /// When the exporter began, in UTC milliseconds: what NetFlow 9 counts from.
    pub boot_ms: u64,
}

impl Values<'_> {
    /// Appends a record with these fields.
    pub fn record(&self, out: &mut Vec<u8>, fields: &[Field]) {
        for field in fields {
            self.put(out, field);
        }
    }

    fn put(&self, out: &mut Vec<u8>, field: &Field) {
        let key = &self.flow.key;
        let direction = match (&self.flow.reverse, field.reverse) {
            (Some(reverse), true) => reverse,
            _ => &self.flow.flow,
        };
        let icmp = self.flow.icmp().map_or(0, |(kind, code)| u64::from(u16::from_be_bytes([kind, code])));
        let number = match field.id {
            ie::SRC_IPV4 => return out.extend(&key.src[..4]),
            ie::DST_IPV4 => return out.extend(&key.dst[..4]),
            ie::SRC_IPV6 => return out.extend(&key.src),
            ie::DST_IPV6 => return out.extend(&key.dst),
            ie::SRC_PORT => self.flow.source_port().into(),
            ie::DST_PORT => self.flow.destination_port().into(),
            ie::PROTOCOL => key.proto.into(),
            ie::INGRESS_INTERFACE => self.interface.into(),
            ie::ICMP_IPV4 | ie::ICMP_IPV6 => icmp,
            // 0 is a priority without a VLAN (IEEE 802.1Q), which is what no tag means too.
            ie::VLAN => self.flow.vlan().unwrap_or(0).into(),
            ie::IP_VERSION => key.l3.into(),
            ie::DIRECTION => self.flow.is_egress().into(),
            ie::END_REASON => self.flow.reason as u64,
            ie::ETHERNET_TYPE => key.eth_type.into(),
            ie::BIFLOW_DIRECTION => 1,
            // A label of the stack (RFC 3032): 20 bits, and 4 of which nothing is known.
            ie::MPLS_TOP => u64::from(self.flow.mpls_label().unwrap_or(0)) << 4,
            id => of_direction(id, direction, self.boot_ms),
        };
        integer(out, number, field.bytes);
    }
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

/// A number in as many bytes as the template says; the largest that they hold where it is larger.
pub(super) fn integer(out: &mut Vec<u8>, number: u64, bytes: u16) {
    let bytes = usize::from(bytes.min(8));
    let most = if bytes < 8 { (1 << (8 * bytes)) - 1 } else { u64::MAX };
    out.extend_from_slice(&number.min(most).to_be_bytes()[8 - bytes..]);
}

/// Nanoseconds since 1970 as NTP has time (RFC 5905): seconds since 1900, and the fraction in 2^-32.
fn ntp(ns: u64) -> u64 {
    let seconds = (ns / 1_000_000_000).wrapping_add(2_208_988_800);
    // Rounded up, so that cutting the fraction off again gives the same nanosecond.
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
