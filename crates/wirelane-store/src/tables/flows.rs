//! The table of flows. Differences from JSON: `start` and `end` have other names, because SQL reserves one of them, and
//! `length_mean` is missing, because it is a quotient of other columns.

use std::collections::HashMap;

use wirelane_analysis::flows::{Flow, FlowRecord, community_id, flow_flags};
use wirelane_bpf::layout::{l3, tunnel};
use wirelane_export::flows::{Naming, evidence, has_ports, reason, tcp_flags, tunnel_name};

use super::{Described, Put, Row, Storable, Table, Type};

/// Columns: name, type, whether the value may be missing.
const COLUMNS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("device", Type::Text, true),
    ("interface_index", Type::Long, false),
    ("queue", Type::Int, false),
    ("direction", Type::Text, false),
    ("vlan", Type::Int, true),
    ("mpls_label", Type::Int, true),
    ("tunnel", Type::Text, true),
    ("tunnel_id", Type::Long, true),
    ("ether_type", Type::Text, true),
    ("ip_version", Type::Int, true),
    ("src", Type::Text, true),
    ("dst", Type::Text, true),
    ("protocol", Type::Int, true),
    ("src_port", Type::Int, true),
    ("dst_port", Type::Int, true),
    ("icmp_type", Type::Int, true),
    ("icmp_code", Type::Int, true),
    ("tcp_rtt_ns", Type::Long, true),
    ("application", Type::Text, true),
    ("application_by", Type::Text, true),
    ("community_id", Type::Text, true),
    ("end_reason", Type::Text, false),
];

/// Columns of one direction; those of the reverse direction are prefixed with `reverse_`, and may be missing.
const DIRECTION: &[Described] = &[
    ("packets", Type::Long, false),
    ("bytes", Type::Long, false),
    ("wire_bytes", Type::Long, false),
    ("length_min", Type::Long, false),
    ("length_max", Type::Long, false),
    ("tos", Type::Int, true),
    ("ttl_min", Type::Int, true),
    ("ttl_max", Type::Int, true),
    ("fragments", Type::Long, false),
    ("tcp_flags", Type::Text, true),
    ("tcp_first_seq", Type::Long, true),
    ("tcp_last_seq", Type::Long, true),
    ("tcp_retransmitted", Type::Long, true),
    ("tcp_reordered", Type::Long, true),
];

/// All columns.
pub(super) fn columns() -> Vec<(String, Type, bool)> {
    let own = COLUMNS.iter().chain(DIRECTION);
    let own = own.map(|(name, kind, nullable)| ((*name).to_owned(), *kind, *nullable));
    own.chain(DIRECTION.iter().map(|(name, kind, _)| (format!("reverse_{name}"), *kind, true))).collect()
}

/// Names that are looked up once, not for every flow.
#[derive(Debug)]
pub struct FlowNames {
    naming: Naming,
    devices: HashMap<(u16, u16), String>,
    tcp_flags: Vec<String>,
}

impl From<Naming> for FlowNames {
    fn from(naming: Naming) -> FlowNames {
        FlowNames { naming, devices: HashMap::new(), tcp_flags: (0..=u8::MAX).map(tcp_flags).collect() }
    }
}

impl Row<'_> {
    fn direction(&mut self, flow: Option<&Flow>, names: &FlowNames) {
        let has = |flag: u16| flow.filter(|flow| flow.flags & flag != 0);
        let (ip, tcp) = (has(flow_flags::TTL), has(flow_flags::TCP));
        self.wide(flow.map(|flow| flow.packets));
        self.wide(flow.map(|flow| flow.bytes));
        self.wide(flow.map(|flow| flow.wire_bytes));
        self.long(flow.map(|flow| flow.min_length));
        self.long(flow.map(|flow| flow.max_length));
        self.int(ip.map(|flow| flow.tos));
        self.int(ip.map(|flow| flow.min_ttl));
        self.int(ip.map(|flow| flow.max_ttl));
        self.long(flow.map(|flow| flow.fragments));
        self.text(tcp.map(|flow| names.tcp_flags[usize::from(flow.tcp_flags)].as_str()));
        self.long(tcp.map(|flow| flow.first_seq));
        self.long(tcp.map(|flow| flow.last_seq));
        self.long(tcp.map(|flow| flow.retransmitted));
        self.long(tcp.map(|flow| flow.reordered));
    }
}

impl Storable for FlowRecord {
    const TABLES: &'static [Table] = &[Table::Flows];
    type Naming = Naming;
    type Names = FlowNames;

    fn rows(&self, table: Table) -> u64 {
        u64::from(table == Table::Flows)
    }

    fn put(&self, names: &mut FlowNames, put: &mut Put<'_>) {
        let record = self;
        let key = &record.key;
        let naming = &names.naming;
        let known = names.devices.entry((key.device, record.flow.queue));
        known.or_insert_with(|| naming.device(record));
        let names = &*names;
        let device = names.devices[&(key.device, record.flow.queue)].as_str();
        let ip = key.l3 != l3::NONE;
        let ports = has_ports(record);
        let icmp = record.icmp();
        let (source, destination) = (record.source_port(), record.destination_port());
        let (first, last) = (record.first_ns(), record.last_ns());
        put(Table::Flows, last, &mut |row| {
            row.span(first, last);
            row.text((!device.is_empty()).then_some(device));
            row.long(Some(naming.index(record)));
            row.int(Some(record.flow.queue));
            row.text(Some(if record.is_egress() { "egress" } else { "ingress" }));
            row.int(record.vlan());
            // A label has 20 bits.
            row.int(record.mpls_label().map(|label| label as i32));
            row.text(tunnel_name(key.tunnel));
            row.long((key.tunnel != tunnel::NONE).then_some(key.tunnel_id));
            row.text((!ip).then(|| format!("0x{:04x}", key.eth_type)).as_deref());
            row.int(ip.then_some(key.l3));
            row.address(record.source());
            row.address(record.destination());
            row.int(ip.then_some(key.proto));
            row.int(ports.then_some(source));
            row.int(ports.then_some(destination));
            row.int(icmp.map(|(kind, _)| kind));
            row.int(icmp.map(|(_, code)| code));
            row.wide(record.rtt_ns());
            let application = record.application();
            row.text(application.map(|application| application.name));
            row.text(application.map(|application| evidence(application.by)));
            row.text(community_id(key).as_deref());
            row.text(Some(reason(record.reason)));
            row.direction(Some(&record.flow), names);
            row.direction(record.reverse.as_ref(), names);
        });
    }
}
