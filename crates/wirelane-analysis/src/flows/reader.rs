//! Converts a record to the input of a flow cache.

use wirelane::{Ip, Record, RecordHeader, flags, l3};
use wirelane_bpf::flow::{FlowPacket, application_of};
use wirelane_bpf::layout::{NO_OFFSET, Parsed};
use wirelane_bpf::native;

/// Reads the headers of records.
#[derive(Clone, Debug)]
pub struct FlowReader {
    inner: bool,
    parsed: Parsed,
}

impl FlowReader {
    /// A reader of the headers inside tunnels with `inner`, otherwise of the outer ones.
    pub fn new(inner: bool) -> FlowReader {
        FlowReader { inner, parsed: Parsed::default() }
    }

    /// Headers of a record, inner or outer, and its other fields for a flow. `ts_ns`: its time in UTC.
    pub fn read(&mut self, record: &Record<'_>, ts_ns: u64) -> (&Ip, FlowPacket) {
        let header = record.header();
        let (segment_size, headers) = record.segment_size();
        let mut packet = FlowPacket {
            ts_ns,
            wire_len: header.wire_len,
            segment_size,
            headers,
            device: record.device() as u16,
            queue: record.queue(),
            ..FlowPacket::default()
        };
        if let Some(digest) = record.digest() {
            return digested(&mut self.parsed, header, digest, packet);
        }
        self.parsed = native::parse(record.link_type(), record.data(), self.inner);
        let parsed = &self.parsed;
        let inside = self.inner && parsed.flags & flags::TUNNEL != 0;
        packet.flags = parsed.flags | (header.flags & flags::EGRESS) | if inside { flags::INNER } else { 0 };
        packet.tunnel_id = parsed.tunnel_id;
        packet.tunnel = parsed.tunnel;
        packet.mpls_label = parsed.mpls_label;
        packet.eth_type = parsed.eth_type;
        packet.vlan_tci = parsed.vlan_tci[0];
        let ip = if inside { &parsed.inner } else { &parsed.outer };
        packet.application = speaks(record.data(), header.wire_len, ip);
        (ip, packet)
    }
}

/// Application protocol of a packet of this length on the wire with these headers, detected in the payload of its
/// datagram without Ethernet padding: a number of [`super::applications`]; 0 if uncertain.
#[inline]
pub fn speaks(data: &[u8], wire_len: u32, ip: &Ip) -> u8 {
    if ip.payload_off == NO_OFFSET {
        return 0;
    }
    let at = u32::from(ip.payload_off);
    let end = if ip.l3_len == 0 { wire_len } else { u32::from(ip.l3_off).saturating_add(ip.l3_len) };
    let length = end.saturating_sub(at);
    let captured = data.get(at as usize..).unwrap_or_default();
    application_of(&captured[..captured.len().min(length as usize)], length, ip)
}

/// The EtherType of ARP.
const ARP: u16 = 0x0806;

/// Fields of a digest (from a rule), which has no packet bytes: MPLS labels, tunnel ids, EtherTypes except that of ARP,
/// and the application protocol are unknown.
fn digested<'p>(
    place: &'p mut Parsed,
    header: &RecordHeader,
    digest: &Ip,
    mut packet: FlowPacket,
) -> (&'p Ip, FlowPacket) {
    const KNOWN: u16 = flags::VLAN | flags::EGRESS | flags::INNER;
    packet.flags = header.flags & KNOWN;
    packet.vlan_tci = header.vlan_tci;
    packet.eth_type = if digest.l3 == l3::ARP { ARP } else { 0 };
    place.outer = *digest;
    (&place.outer, packet)
}
