//! Flows as goflow2's `FlowMessage`: see `proto/flow.proto`.

use std::net::IpAddr;

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray};
use prost::Message;

use crate::{Error, Result};

/// EtherTypes of IPv4 and IPv6.
const ETHER_TYPES: [u32; 2] = [0x0800, 0x86dd];

/// One direction of a flow.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FlowMessage {
    #[prost(uint64, tag = "3")]
    sampling_rate: u64,
    #[prost(bytes = "vec", tag = "6")]
    src_addr: Vec<u8>,
    #[prost(bytes = "vec", tag = "7")]
    dst_addr: Vec<u8>,
    #[prost(uint64, tag = "9")]
    bytes: u64,
    #[prost(uint64, tag = "10")]
    packets: u64,
    #[prost(uint32, tag = "18")]
    in_if: u32,
    #[prost(uint32, tag = "19")]
    out_if: u32,
    #[prost(uint32, tag = "20")]
    proto: u32,
    #[prost(uint32, tag = "21")]
    src_port: u32,
    #[prost(uint32, tag = "22")]
    dst_port: u32,
    #[prost(uint32, tag = "23")]
    ip_tos: u32,
    #[prost(uint32, tag = "25")]
    ip_ttl: u32,
    #[prost(uint32, tag = "26")]
    tcp_flags: u32,
    #[prost(uint32, tag = "29")]
    vlan_id: u32,
    #[prost(uint32, tag = "30")]
    etype: u32,
    #[prost(uint32, tag = "31")]
    icmp_type: u32,
    #[prost(uint32, tag = "32")]
    icmp_code: u32,
    #[prost(uint32, repeated, tag = "81")]
    mpls_label: Vec<u32>,
    #[prost(uint64, tag = "110")]
    time_received_ns: u64,
    #[prost(uint64, tag = "111")]
    time_flow_start_ns: u64,
    #[prost(uint64, tag = "112")]
    time_flow_end_ns: u64,
    #[prost(string, tag = "1000")]
    probe: String,
    #[prost(string, tag = "1001")]
    device: String,
    #[prost(string, tag = "1002")]
    application: String,
    #[prost(string, tag = "1003")]
    application_by: String,
    #[prost(string, tag = "1004")]
    community_id: String,
    #[prost(string, tag = "1005")]
    end_reason: String,
    #[prost(string, tag = "1006")]
    tunnel: String,
    #[prost(uint64, tag = "1007")]
    tunnel_id: u64,
    #[prost(uint64, tag = "1008")]
    tcp_rtt_ns: u64,
    #[prost(uint64, tag = "1009")]
    wire_bytes: u64,
    #[prost(bool, tag = "1010")]
    reverse: bool,
    #[prost(uint64, tag = "1011")]
    fragments: u64,
    #[prost(uint64, tag = "1012")]
    tcp_retransmitted: u64,
    #[prost(uint64, tag = "1013")]
    tcp_reordered: u64,
}

impl FlowMessage {
    /// Whether it is the other direction of the flow of the message before.
    pub(super) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// The bytes of the message; `delimited`: with their number, a varint, in front.
    pub(super) fn bytes(&self, delimited: bool) -> Vec<u8> {
        match delimited {
            true => self.encode_length_delimited_to_vec(),
            false => self.encode_to_vec(),
        }
    }
}

/// A column of a batch.
fn column<'a, T: 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T> {
    let found = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
    found.ok_or_else(|| Error::Bug(format!("flows have no column {name} of the expected type")))
}

/// Texts of a column; a missing one is empty.
pub(super) struct Texts<'a>(&'a StringArray);

impl<'a> Texts<'a> {
    pub(super) fn new(batch: &'a RecordBatch, name: &str) -> Result<Texts<'a>> {
        column(batch, name).map(Texts)
    }

    pub(super) fn at(&self, row: usize) -> &'a str {
        if self.0.is_valid(row) { self.0.value(row) } else { "" }
    }
}

/// Numbers of a column, none of which is negative; a missing one is 0.
enum Numbers<'a> {
    Int(&'a Int32Array),
    Long(&'a Int64Array),
}

impl Numbers<'_> {
    fn new<'a>(batch: &'a RecordBatch, name: &str) -> Result<Numbers<'a>> {
        column(batch, name).map(Numbers::Int).or_else(|_| column(batch, name).map(Numbers::Long))
    }

    fn long(&self, row: usize) -> u64 {
        match self {
            Numbers::Int(values) if values.is_valid(row) => u64::from(values.value(row).cast_unsigned()),
            Numbers::Long(values) if values.is_valid(row) => values.value(row).cast_unsigned(),
            _ => 0,
        }
    }

    fn int(&self, row: usize) -> u32 {
        self.long(row) as u32
    }

    fn is_there(&self, row: usize) -> bool {
        match self {
            Numbers::Int(values) => values.is_valid(row),
            Numbers::Long(values) => values.is_valid(row),
        }
    }
}

/// Columns of one direction.
struct Direction<'a> {
    packets: Numbers<'a>,
    bytes: Numbers<'a>,
    wire_bytes: Numbers<'a>,
    tos: Numbers<'a>,
    ttl: Numbers<'a>,
    fragments: Numbers<'a>,
    tcp_flags: Texts<'a>,
    retransmitted: Numbers<'a>,
    reordered: Numbers<'a>,
}

impl<'a> Direction<'a> {
    fn new(batch: &'a RecordBatch, prefix: &str) -> Result<Direction<'a>> {
        let numbers = |name: &str| Numbers::new(batch, &format!("{prefix}{name}"));
        Ok(Direction {
            packets: numbers("packets")?,
            bytes: numbers("bytes")?,
            wire_bytes: numbers("wire_bytes")?,
            tos: numbers("tos")?,
            ttl: numbers("ttl_min")?,
            fragments: numbers("fragments")?,
            tcp_flags: Texts::new(batch, &format!("{prefix}tcp_flags"))?,
            retransmitted: numbers("tcp_retransmitted")?,
            reordered: numbers("tcp_reordered")?,
        })
    }

    fn fill(&self, row: usize, message: &mut FlowMessage) {
        message.packets = self.packets.long(row);
        message.bytes = self.bytes.long(row);
        message.wire_bytes = self.wire_bytes.long(row);
        message.ip_tos = self.tos.int(row);
        message.ip_ttl = self.ttl.int(row);
        message.fragments = self.fragments.long(row);
        // A letter for each flag that was seen, a dot for each other one, the most significant first.
        let flags = self.tcp_flags.at(row).bytes();
        message.tcp_flags = flags.fold(0, |flags, letter| flags << 1 | u32::from(letter != b'.'));
        message.tcp_retransmitted = self.retransmitted.long(row);
        message.tcp_reordered = self.reordered.long(row);
    }
}

/// The messages of a batch of flows: one for each direction.
pub(super) fn flows(batch: &RecordBatch, mut each: impl FnMut(FlowMessage) -> Result<()>) -> Result<()> {
    let numbers = |name: &str| Numbers::new(batch, name);
    let texts = |name: &str| Texts::new(batch, name);
    let (start, duration, interface) =
        (numbers("start_ns")?, numbers("duration_ns")?, numbers("interface_index")?);
    let (vlan, mpls, tunnel_id) = (numbers("vlan")?, numbers("mpls_label")?, numbers("tunnel_id")?);
    let (version, protocol) = (numbers("ip_version")?, numbers("protocol")?);
    let ports = [numbers("src_port")?, numbers("dst_port")?];
    let icmp = [numbers("icmp_type")?, numbers("icmp_code")?];
    let rtt = numbers("tcp_rtt_ns")?;
    let addresses = [texts("src")?, texts("dst")?];
    let (direction, ether_type) = (texts("direction")?, texts("ether_type")?);
    let names = ["probe", "device", "application", "application_by", "community_id", "end_reason", "tunnel"];
    let [probe, device, application, application_by, community_id, end_reason, tunnel] = names.map(texts);
    let (probe, device, application) = (probe?, device?, application?);
    let (application_by, community_id, end_reason, tunnel) =
        (application_by?, community_id?, end_reason?, tunnel?);
    let (forward, reverse) = (Direction::new(batch, "")?, Direction::new(batch, "reverse_")?);
    for row in 0..batch.num_rows() {
        let [src_addr, dst_addr] = addresses.each_ref().map(|texts| address(texts.at(row)));
        let end = start.long(row) + duration.long(row);
        let index = interface.int(row);
        let (in_if, out_if) = if direction.at(row) == "egress" { (0, index) } else { (index, 0) };
        let etype = match version.int(row) {
            0 => {
                let digits = ether_type.at(row).strip_prefix("0x");
                digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
            }
            4 => ETHER_TYPES[0],
            _ => ETHER_TYPES[1],
        };
        let mut message = FlowMessage {
            sampling_rate: 1,
            src_addr,
            dst_addr,
            in_if,
            out_if,
            proto: protocol.int(row),
            src_port: ports[0].int(row),
            dst_port: ports[1].int(row),
            vlan_id: vlan.int(row),
            etype,
            icmp_type: icmp[0].int(row),
            icmp_code: icmp[1].int(row),
            mpls_label: mpls.is_there(row).then(|| mpls.int(row)).into_iter().collect(),
            time_received_ns: end,
            time_flow_start_ns: start.long(row),
            time_flow_end_ns: end,
            probe: probe.at(row).to_owned(),
            device: device.at(row).to_owned(),
            application: application.at(row).to_owned(),
            application_by: application_by.at(row).to_owned(),
            community_id: community_id.at(row).to_owned(),
            end_reason: end_reason.at(row).to_owned(),
            tunnel: tunnel.at(row).to_owned(),
            tunnel_id: tunnel_id.long(row),
            tcp_rtt_ns: rtt.long(row),
            ..FlowMessage::default()
        };
        forward.fill(row, &mut message);
        let other = reverse.packets.is_there(row).then(|| {
            let mut other = message.clone();
            std::mem::swap(&mut other.src_addr, &mut other.dst_addr);
            std::mem::swap(&mut other.src_port, &mut other.dst_port);
            std::mem::swap(&mut other.in_if, &mut other.out_if);
            other.reverse = true;
            reverse.fill(row, &mut other);
            other
        });
        each(message)?;
        other.map_or(Ok(()), &mut each)?;
    }
    Ok(())
}

/// Bytes of an address; none of what is not one.
fn address(text: &str) -> Vec<u8> {
    match text.parse() {
        Ok(IpAddr::V4(address)) => address.octets().to_vec(),
        Ok(IpAddr::V6(address)) => address.octets().to_vec(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    /// Names, types and numbers are those of the published schema.
    #[test]
    fn the_message_has_the_fields_of_the_schema() {
        let lines = |text: &'static str| text.lines().map(str::trim);
        let mut found = Vec::new();
        let (mut kind, mut tag) = (String::new(), "");
        let own = include_str!("message.rs");
        let own = own.split_once("pub(super) struct FlowMessage {").unwrap().1.split_once("\n}").unwrap().0;
        for line in lines(own) {
            if let Some(rest) = line.strip_prefix("#[prost(") {
                let words = rest.split(", ").collect::<Vec<_>>();
                let repeated = if words.contains(&"repeated") { "repeated " } else { "" };
                kind = format!("{repeated}{}", words[0].split(' ').next().unwrap());
                tag = rest.rsplit('"').nth(1).unwrap();
            } else if let Some((name, _)) = line.split_once(": ") {
                found.push(format!("{kind} {name} = {tag}"));
            }
        }
        let is_field = |line: &str| line.contains(" = ") && !line.starts_with("syntax");
        let fields = lines(crate::PROTO).filter(|line| is_field(line));
        let fields: Vec<_> = fields.map(|line| line.split_once(';').unwrap().0.to_owned()).collect();
        assert_eq!(found, fields);
        assert_eq!(found.len(), 35);
    }
}
