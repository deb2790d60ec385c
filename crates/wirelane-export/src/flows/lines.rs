//! Flows as lines: JSON objects, and CSV.

use serde::Serialize;
use wirelane::Interfaces;
use wirelane::escape::{csv_cell, to_json};
use wirelane_analysis::flows::{EndReason, Evidence, Flow, FlowRecord, community_id, flow_flags};
use wirelane_bpf::layout::{l3, tunnel};

/// Names of the numbers in flows: devices of the capture, and their SNMP indices.
#[derive(Clone, Debug)]
pub struct Naming {
    interfaces: Interfaces,
    /// SNMP indices by the device's index in the capture; without one, that index plus one.
    indices: Vec<u32>,
}

impl Naming {
    /// The interfaces of a capture, and the kernel's indices of its devices, if they have any.
    pub fn new(interfaces: Interfaces, indices: Vec<u32>) -> Naming {
        Naming { interfaces, indices }
    }

    /// The device's name, without its RX queue; empty if a capture file does not contain it.
    pub fn device(&self, flow: &FlowRecord) -> String {
        let interface = self.interfaces.get(flow.key.device.into(), flow.flow.queue);
        interface.map(|interface| interface.device().to_owned()).unwrap_or_default()
    }

    /// The device's SNMP index.
    pub fn index(&self, flow: &FlowRecord) -> u32 {
        let device = usize::from(flow.key.device);
        let later = || self.interfaces.get(device, 0)?.ifindex;
        self.indices.get(device).copied().or_else(later).unwrap_or(device as u32 + 1)
    }
}

/// Name of an end reason.
pub fn reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Idle => "idle",
        EndReason::Active => "active",
        EndReason::Ended => "end",
        EndReason::Forced => "forced",
        EndReason::Resources => "resources",
    }
}

/// Name of the evidence for an application: `payload` or `port`.
pub fn evidence(by: Evidence) -> &'static str {
    match by {
        Evidence::Payload => "payload",
        Evidence::Port => "port",
    }
}

/// Name of a tunnel kind; `None` without a tunnel.
pub fn tunnel_name(kind: u8) -> Option<&'static str> {
    match kind {
        tunnel::IPIP => Some("ipip"),
        tunnel::GRE => Some("gre"),
        tunnel::VXLAN => Some("vxlan"),
        tunnel::GENEVE => Some("geneve"),
        tunnel::GTPU => Some("gtpu"),
        tunnel::ERSPAN => Some("erspan"),
        tunnel::PPTP => Some("pptp"),
        tunnel::L2TP => Some("l2tp"),
        tunnel::VXLAN_GPE => Some("vxlan-gpe"),
        tunnel::TEREDO => Some("teredo"),
        tunnel::MPLS => Some("mpls"),
        tunnel::ETHERIP => Some("etherip"),
        tunnel::LISP => Some("lisp"),
        tunnel::CAPWAP => Some("capwap"),
        tunnel::TZSP => Some("tzsp"),
        tunnel::GUE => Some("gue"),
        tunnel::AYIYA => Some("ayiya"),
        tunnel::NSH => Some("nsh"),
        _ => None,
    }
}

/// Whether a flow has ports: ICMP flows have type and code instead, and later fragments have no ports.
pub fn has_ports(record: &FlowRecord) -> bool {
    let key = &record.key;
    key.l3 != l3::NONE && record.icmp().is_none() && (key.src_port, key.dst_port) != (0, 0)
}

/// Nanoseconds since 1970 as seconds with nine decimals, which exceeds the precision of floating-point numbers.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The protocol's name, if it is one of the most common; else its number, or the EtherType's name.
pub fn protocol(record: &FlowRecord) -> String {
    match (record.key.l3, record.key.proto) {
        (l3::NONE, _) => match record.key.eth_type {
            0x0806 => "ARP".into(),
            0x88cc => "LLDP".into(),
            _ => "-".into(),
        },
        (_, 1) => "ICMP".into(),
        (_, 2) => "IGMP".into(),
        (_, 6) => "TCP".into(),
        (_, 17) => "UDP".into(),
        (_, 47) => "GRE".into(),
        (_, 50) => "ESP".into(),
        (_, 58) => "ICMP6".into(),
        (_, 132) => "SCTP".into(),
        (_, other) => other.to_string(),
    }
}

/// TCP flags as letters in the order of the header's bits, with a dot for each bit that is not set.
pub fn tcp_flags(flags: u8) -> String {
    let letters = ['C', 'E', 'U', 'A', 'P', 'R', 'S', 'F'];
    let letter = |(at, letter): (usize, &char)| if flags & (0x80 >> at) != 0 { *letter } else { '.' };
    letters.iter().enumerate().map(letter).collect()
}

/// Values of one direction.
#[derive(Serialize)]
struct Direction {
    packets: u64,
    bytes: u64,
    wire_bytes: u64,
    length_min: u32,
    length_mean: f64,
    length_max: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_min: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_max: Option<u8>,
    fragments: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_flags: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_first_seq: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_last_seq: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_retransmitted: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_reordered: Option<u32>,
}

impl Direction {
    fn of(flow: &Flow) -> Direction {
        let has = |flag: u16| flow.flags & flag != 0;
        let (ip, tcp) = (has(flow_flags::TTL), has(flow_flags::TCP));
        Direction {
            packets: flow.packets,
            bytes: flow.bytes,
            wire_bytes: flow.wire_bytes,
            length_min: flow.min_length,
            // Rounded to a hundredth of a byte. A flow has at least one packet.
            length_mean: (flow.bytes as f64 / flow.packets.max(1) as f64 * 100.0).round() / 100.0,
            length_max: flow.max_length,
            tos: ip.then_some(flow.tos),
            ttl_min: ip.then_some(flow.min_ttl),
            ttl_max: ip.then_some(flow.max_ttl),
            fragments: flow.fragments,
            tcp_flags: tcp.then(|| tcp_flags(flow.tcp_flags)),
            tcp_first_seq: tcp.then_some(flow.first_seq),
            tcp_last_seq: tcp.then_some(flow.last_seq),
            tcp_retransmitted: tcp.then_some(flow.retransmitted),
            tcp_reordered: tcp.then_some(flow.reordered),
        }
    }
}

/// A flow as a JSON object; missing values are omitted.
#[derive(Serialize)]
struct Line {
    flow: u64,
    start: String,
    end: String,
    duration_s: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    device: String,
    interface_index: u32,
    queue: u16,
    direction: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mpls_label: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ether_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_version: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    #[serde(flatten)]
    forward: Direction,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_rtt_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    community_id: Option<String>,
    end_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reverse: Option<Direction>,
}

impl Line {
    fn of(number: u64, record: &FlowRecord, naming: &Naming) -> Line {
        let key = &record.key;
        let ip = key.l3 != l3::NONE;
        let ports = has_ports(record);
        let (source, destination) = (record.source_port(), record.destination_port());
        let application = record.application();
        Line {
            flow: number,
            start: seconds(record.first_ns()),
            end: seconds(record.last_ns()),
            duration_s: (record.last_ns() - record.first_ns()) as f64 / 1e9,
            device: naming.device(record),
            interface_index: naming.index(record),
            queue: record.flow.queue,
            direction: if record.is_egress() { "egress" } else { "ingress" },
            vlan: record.vlan(),
            mpls_label: record.mpls_label(),
            tunnel: tunnel_name(key.tunnel),
            tunnel_id: (key.tunnel != tunnel::NONE).then_some(key.tunnel_id),
            ether_type: (!ip).then(|| format!("0x{:04x}", key.eth_type)),
            ip_version: ip.then_some(key.l3),
            src: record.source().map(|address| address.to_string()),
            dst: record.destination().map(|address| address.to_string()),
            protocol: ip.then_some(key.proto),
            src_port: ports.then_some(source),
            dst_port: ports.then_some(destination),
            icmp_type: record.icmp().map(|(kind, _)| kind),
            icmp_code: record.icmp().map(|(_, code)| code),
            forward: Direction::of(&record.flow),
            tcp_rtt_ns: record.rtt_ns(),
            application: application.map(|application| application.name),
            application_by: application.map(|application| evidence(application.by)),
            community_id: community_id(key),
            end_reason: reason(record.reason),
            reverse: record.reverse.as_ref().map(Direction::of),
        }
    }
}

/// Appends a JSON object and a newline.
pub(crate) fn push_json_line(out: &mut Vec<u8>, object: &impl Serialize) {
    // Lines can always be serialized.
    out.extend_from_slice(to_json(object).unwrap_or_default().as_bytes());
    out.push(b'\n');
}

/// Appends a flow as a JSON object and a newline; `number`: number of the flow in the capture, from 1.
pub fn json_line(out: &mut Vec<u8>, number: u64, record: &FlowRecord, naming: &Naming) {
    push_json_line(out, &Line::of(number, record, naming));
}

/// The header line of CSV files.
pub const CSV_HEADER: &str = "start,end,device,queue,direction,vlan,mpls_label,tunnel,tunnel_id,ether_type,src,dst,\
protocol,src_port,dst_port,icmp_type,icmp_code,packets,bytes,wire_bytes,length_min,length_mean,length_max,tos,ttl_min,ttl_max,\
fragments,tcp_flags,tcp_first_seq,tcp_last_seq,tcp_retransmitted,tcp_reordered,tcp_rtt_ns,application,application_by,community_id,\
end_reason,reverse_packets,reverse_bytes,reverse_wire_bytes,reverse_tcp_flags\n";

/// Appends a flow as a CSV line (RFC 4180, with LF line ends); missing values are empty.
pub fn csv_line(out: &mut Vec<u8>, record: &FlowRecord, naming: &Naming) {
    fn show<T: ToString>(value: Option<T>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let line = Line::of(0, record, naming);
    let (f, r) = (line.forward, line.reverse);
    let cells = [
        line.start,
        line.end,
        // A capture file may contain any interface name.
        csv_cell(&line.device).into_owned(),
        line.queue.to_string(),
        line.direction.into(),
        show(line.vlan),
        show(line.mpls_label),
        show(line.tunnel),
        show(line.tunnel_id),
        show(line.ether_type),
        show(line.src),
        show(line.dst),
        show(line.protocol),
        show(line.src_port),
        show(line.dst_port),
        show(line.icmp_type),
        show(line.icmp_code),
        f.packets.to_string(),
        f.bytes.to_string(),
        f.wire_bytes.to_string(),
        f.length_min.to_string(),
        f.length_mean.to_string(),
        f.length_max.to_string(),
        show(f.tos),
        show(f.ttl_min),
        show(f.ttl_max),
        f.fragments.to_string(),
        show(f.tcp_flags),
        show(f.tcp_first_seq),
        show(f.tcp_last_seq),
        show(f.tcp_retransmitted),
        show(f.tcp_reordered),
        show(line.tcp_rtt_ns),
        show(line.application),
        show(line.application_by),
        show(line.community_id),
        line.end_reason.into(),
        show(r.as_ref().map(|r| r.packets)),
        show(r.as_ref().map(|r| r.bytes)),
        show(r.as_ref().map(|r| r.wire_bytes)),
        show(r.and_then(|r| r.tcp_flags)),
    ];
    out.extend_from_slice(cells.join(",").as_bytes());
    out.push(b'\n');
}
