//! Encoders, checked by an independent parser (`netflow_parser`).

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netflow_parser::{NetflowPacket, NetflowParser};
use proptest::prelude::*;
use serde_json::Value;
use wirelane::Capture;
use wirelane_analysis::flows::{EndReason, Flow, FlowKey, FlowRecord, KEY_EGRESS, NO_VLAN, flow_flags};
use wirelane_bpf::flow::applications;

use super::carrier::Backlog;
use super::encode::{Context, Encoder, ExportSettings, Message};
use super::ipfix::Ipfix;
use super::netflow5::Netflow5;
use super::netflow9::Netflow9;
use super::{Exporters, Naming, OutputCounts, Target};
use crate::OutputOptions;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;

pub(super) fn naming() -> Naming {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1];
    file.write_all(&header.map(u32::to_le_bytes).concat()).unwrap();
    Naming::new(Capture::open_file(file.path()).unwrap().interfaces(), vec![7])
}

/// A flow as compared by the tests: addresses, ports, protocol, packets, bytes, milliseconds of its first and last
/// packet.
type Seen = (IpAddr, IpAddr, u16, u16, u8, u64, u64, u64, u64);

fn seen(flow: &FlowRecord) -> Seen {
    let (from, to) = (flow.source().unwrap(), flow.destination().unwrap());
    let (first, last) = (flow.flow.first_ns / 1_000_000, flow.flow.last_ns / 1_000_000);
    let ports = (flow.source_port(), flow.destination_port());
    (from, to, ports.0, ports.1, flow.key.proto, flow.flow.packets, flow.flow.bytes, first, last)
}

fn flows() -> impl Strategy<Value = Vec<FlowRecord>> {
    let numbers = (1..1000u64, 40..1500u64, 0..100 * SECOND, 0..60 * SECOND);
    let flow = (
        any::<[u8; 16]>(),
        any::<(u16, u16)>(),
        prop_oneof![Just(4u8), Just(6u8), Just(0u8)],
        0..3usize,
        numbers,
    );
    let flow = flow.prop_map(|(address, (src_port, dst_port), l3, proto, (packets, length, at, lasted))| {
        let mut key = FlowKey { l3, vlan: NO_VLAN, ..FlowKey::default() };
        if l3 == 0 {
            key.eth_type = 0x0806;
        } else {
            let width = if l3 == 4 { 4 } else { 16 };
            key.src[..width].copy_from_slice(&address[..width]);
            key.dst[..width].copy_from_slice(&address[16 - width..]);
            (key.src_port, key.dst_port, key.proto) = (src_port, dst_port, [6, 17, 132][proto]);
        }
        let flow = Flow {
            packets,
            bytes: packets * length,
            wire_bytes: packets * (length + 14),
            first_ns: START + at,
            last_ns: START + at + lasted,
            min_length: length as u32,
            max_length: length as u32,
            ..Flow::default()
        };
        FlowRecord { key, flow, reverse: None, reason: EndReason::Idle }
    });
    prop::collection::vec(flow, 1..120)
}

/// The messages of these flows, and the number of flows that the format could represent.
fn encoded(
    encoder: &mut dyn Encoder,
    settings: &ExportSettings,
    flows: &[FlowRecord],
) -> (Vec<Message>, usize) {
    let (naming, counts) = (naming(), OutputCounts::default());
    let context = Context { settings, naming: &naming, counts: &counts, now_ns: START + 200 * SECOND };
    let mut out = Vec::new();
    let placed = flows.iter().filter(|flow| encoder.flow(flow, &context, &mut out)).count();
    encoder.end(&context, &mut out);
    (out, placed)
}

/// A message as the parser reads it; the parser must read all of it.
fn parsed(parser: &mut NetflowParser, message: &Message) -> NetflowPacket {
    let result = parser.parse_bytes(&message.bytes);
    assert!(result.error.is_none(), "{:?}", result.error);
    let [packet] = &result.packets[..] else { panic!("{} packets", result.packets.len()) };
    packet.clone()
}

/// The records in a message, each with its fields by name, including those of options.
fn records(packet: &NetflowPacket) -> Vec<BTreeMap<String, Value>> {
    let value = serde_json::to_value(packet).unwrap();
    let version = value.as_object().unwrap().values().next().unwrap();
    let mut found = Vec::new();
    for set in version["flowsets"].as_array().unwrap() {
        let Some(body) = set.get("body") else {
            found.push(set.as_object().unwrap().clone().into_iter().collect());
            continue;
        };
        for fields in
            ["Data", "OptionsData"].iter().filter_map(|kind| body.get(kind)?["fields"].as_array()).flatten()
        {
            let pairs = fields.get("options_fields").unwrap_or(fields).as_array().unwrap();
            let pair = |pair: &Value| (name(&pair[0]), scalar(&pair[1]));
            found.push(pairs.iter().map(pair).collect());
        }
    }
    found
}

fn name(of: &Value) -> String {
    match of {
        Value::String(name) => name.clone(),
        other => {
            let (kind, name) = other.as_object().unwrap().iter().next().unwrap();
            let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
            if kind == "IANA" { name } else { format!("{kind} {name}") }
        }
    }
}

fn scalar(of: &Value) -> Value {
    match of {
        Value::Object(one) if one.len() == 1 => scalar(one.values().next().unwrap()),
        other => other.clone(),
    }
}

/// The first of these fields that a record has.
fn pick<'r>(record: &'r BTreeMap<String, Value>, names: &[&str]) -> &'r Value {
    names
        .iter()
        .find_map(|name| record.get(*name))
        .unwrap_or_else(|| panic!("none of {names:?} in {record:?}"))
}

/// Records of IP flows in the form that tests compare.
fn flows_in(packet: &NetflowPacket) -> Vec<Seen> {
    let header = serde_json::to_value(packet).unwrap();
    let header = header.as_object().unwrap().values().next().unwrap()["header"].clone();
    // Reference of the times; IPFIX times are absolute.
    let boot_ms =
        header["unix_secs"].as_u64().map_or(0, |secs| secs * 1000 - header["sys_up_time"].as_u64().unwrap());
    let ms = |value: &Value| match value.as_u64() {
        Some(ms) => boot_ms + ms,
        None => {
            boot_ms + value["secs"].as_u64().unwrap() * 1000 + value["nanos"].as_u64().unwrap() / 1_000_000
        }
    };
    let seen = |record: &BTreeMap<String, Value>| {
        let number = |names: &[&str]| pick(record, names).as_u64().unwrap();
        let address = |names: &[&str]| pick(record, names).as_str().unwrap().parse().unwrap();
        let proto = match pick(record, &["protocol_type", "Protocol", "ProtocolIdentifier"]).as_str().unwrap()
        {
            "Tcp" => 6,
            "Udp" => 17,
            "Sctp" => 132,
            other => panic!("{other}"),
        };
        (
            address(&["src_addr", "Ipv4SrcAddr", "Ipv6SrcAddr", "SourceIpv4address", "SourceIpv6address"]),
            address(&[
                "dst_addr",
                "Ipv4DstAddr",
                "Ipv6DstAddr",
                "DestinationIpv4address",
                "DestinationIpv6address",
            ]),
            number(&["src_port", "L4SrcPort", "SourceTransportPort"]) as u16,
            number(&["dst_port", "L4DstPort", "DestinationTransportPort"]) as u16,
            proto,
            number(&["d_pkts", "InPkts", "PacketDeltaCount"]),
            number(&["d_octets", "InBytes", "OctetDeltaCount"]),
            ms(pick(record, &["first", "FirstSwitched", "FlowStartMilliseconds"])),
            ms(pick(record, &["last", "LastSwitched", "FlowEndMilliseconds"])),
        )
    };
    let has_addresses = |record: &&BTreeMap<String, Value>| {
        record.keys().any(|name| {
            name.to_lowercase().contains("src_addr")
                || name.ends_with("SrcAddr")
                || name.starts_with("SourceIpv")
        })
    };
    records(packet).iter().filter(has_addresses).map(seen).collect()
}

fn sequence(packet: &NetflowPacket) -> u64 {
    let value = serde_json::to_value(packet).unwrap();
    let header = &value.as_object().unwrap().values().next().unwrap()["header"];
    ["flow_sequence", "sequence_number"].iter().find_map(|name| header[*name].as_u64()).unwrap()
}

/// Checks message sizes, the continuity of sequence numbers, and that the parser finds the encoded flows.
fn check(
    encoder: &mut dyn Encoder,
    most: usize,
    flows: &[FlowRecord],
    has_place: impl Fn(&FlowRecord) -> bool,
) {
    let (messages, placed) = encoded(encoder, &ExportSettings::default(), flows);
    let mut parser = NetflowParser::default();
    let (mut found, mut expected_sequence) = (Vec::new(), 0);
    for message in &messages {
        assert!(message.bytes.len() <= most, "{} bytes", message.bytes.len());
        let packet = parsed(&mut parser, message);
        assert_eq!(sequence(&packet), expected_sequence);
        expected_sequence += if packet.is_v9() { 1 } else { u64::from(message.records) };
        if !packet.is_v9() {
            assert_eq!(records(&packet).len(), message.records as usize);
        }
        found.extend(flows_in(&packet));
    }
    let mut expected: Vec<Seen> =
        flows.iter().filter(|flow| flow.key.l3 != 0 && has_place(flow)).map(seen).collect();
    assert_eq!(placed, flows.iter().filter(|flow| has_place(flow)).count());
    let sum = |number: fn(&Message) -> u64| messages.iter().map(number).sum::<u64>();
    assert_eq!(sum(|message| message.flows), placed as u64);
    let packets = flows.iter().filter(|flow| has_place(flow)).map(FlowRecord::packets).sum::<u64>();
    assert_eq!(sum(|message| message.packets), packets);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_parser_finds_every_flow(flows in flows(), most in 512..1500usize) {
        check(&mut Netflow5::new(most), most, &flows, |flow| flow.key.l3 == 4);
        check(&mut Netflow9::new(most, &ExportSettings::default()), most, &flows, |flow| flow.key.l3 != 0);
        check(&mut Ipfix::new(most, false, false, &ExportSettings::default()), most, &flows, |_| true);
    }
}

/// A flow with this many packets and bytes in each direction.
fn flow(packets: u64, bytes: u64) -> FlowRecord {
    let key = FlowKey {
        src: [1; 16],
        dst: [2; 16],
        src_port: 1000u16.to_be(),
        dst_port: 80u16.to_be(),
        l3: 4,
        proto: 6,
        vlan: 5,
        ..FlowKey::default()
    };
    let flow = Flow { packets, bytes, first_ns: START, last_ns: START + SECOND, ..Flow::default() };
    FlowRecord { key, flow, reverse: None, reason: EndReason::Ended }
}

/// 32-bit counters hold less than a flow may have: it becomes several records, and the sums are exact.
#[test]
fn netflow_5_splits_what_is_too_large() {
    let large = flow(5_000_000_000, 7_000_000_000_001);
    let (messages, placed) = encoded(&mut Netflow5::new(1400), &ExportSettings::default(), &[large]);
    let mut parser = NetflowParser::default();
    let found: Vec<Seen> =
        messages.iter().flat_map(|message| flows_in(&parsed(&mut parser, message))).collect();
    assert!(found.len() > 1 && placed == 1);
    assert_eq!(found.iter().map(|flow| flow.5).sum::<u64>(), 5_000_000_000);
    assert_eq!(found.iter().map(|flow| flow.6).sum::<u64>(), 7_000_000_000_001);
}

/// Templates come first, and again after 20 messages, together with the sampling options.
#[test]
fn templates_and_sampling_are_sent_again() {
    let settings = ExportSettings { sampling: 10, ..ExportSettings::default() };
    let flows: Vec<FlowRecord> = (1..3000).map(|n| flow(n, n)).collect();
    for (encoder, selects) in [
        (&mut Netflow9::new(1400, &settings) as &mut dyn Encoder, false),
        (&mut Ipfix::new(1400, false, false, &settings), true),
    ] {
        let (messages, _) = encoded(encoder, &settings, &flows);
        let mut parser = NetflowParser::default();
        let (mut described, mut selected) = (Vec::new(), Vec::new());
        for (at, message) in messages.iter().enumerate() {
            for record in records(&parsed(&mut parser, message)) {
                if let Some(interval) = record.get("SamplingInterval") {
                    assert_eq!(*interval, 10);
                    described.push(at);
                }
                if let Some(space) = record.get("SamplingPacketSpace") {
                    assert_eq!(
                        (record["SamplingPacketInterval"].as_u64(), space.as_u64()),
                        (Some(1), Some(9))
                    );
                    selected.push(at);
                }
            }
        }
        assert!(selected.is_empty() || selected == described, "{selected:?}");
        assert_eq!(!selected.is_empty(), selects, "RFC 5477 is of IPFIX");
        assert!(messages.len() > 60, "{}", messages.len());
        // The first templates and options are in messages of their own.
        let alone = messages.iter().take_while(|message| message.settles).count();
        assert!(alone > 0 && messages[..alone].iter().all(|message| message.flows == 0));
        assert!(messages[alone].flows > 0 && messages[alone..].iter().all(|message| !message.settles));
        assert_eq!(described[..3], [0, alone + 20, alone + 41]);
        // Without the first message a collector cannot decode anything until the templates are repeated.
        let mut late = NetflowParser::default();
        let seen = messages[1..]
            .iter()
            .map(|message| late.parse_bytes(&message.bytes))
            .filter(|result| result.packets.iter().any(|packet| !records(packet).is_empty()))
            .count();
        assert!(seen >= messages.len() - 23, "{seen} of {}", messages.len());
    }
}

/// Both directions in one IPFIX record, and as two flows in formats without such records.
#[test]
fn the_way_back_is_in_the_same_record_or_in_one_of_its_own() {
    let mut both = flow(3, 300);
    both.reverse =
        Some(Flow { packets: 2, bytes: 5000, first_ns: START + 1, last_ns: START + 2, ..Flow::default() });
    let settings = ExportSettings { biflow: true, ..ExportSettings::default() };
    let mut parser = NetflowParser::default();
    let (messages, _) = encoded(&mut Ipfix::new(1400, false, false, &settings), &settings, &[both]);
    let all: Vec<_> = messages.iter().flat_map(|message| records(&parsed(&mut parser, message))).collect();
    let record = all.iter().find(|record| record.contains_key("OctetDeltaCount")).unwrap();
    assert_eq!(record["PacketDeltaCount"], 3);
    let reverse: Vec<_> = record.iter().filter(|(name, _)| name.to_lowercase().contains("reverse")).collect();
    assert!(reverse.iter().any(|(_, value)| **value == 5000), "{record:?}");
    assert_eq!(record["BiflowDirection"], 1, "from the initiator on");
    for encoder in
        [&mut Netflow5::new(1400) as &mut dyn Encoder, &mut Netflow9::new(1400, &ExportSettings::default())]
    {
        let (messages, placed) = encoded(encoder, &settings, &[both]);
        let mut parser = NetflowParser::default();
        let found: Vec<Seen> =
            messages.iter().flat_map(|message| flows_in(&parsed(&mut parser, message))).collect();
        assert_eq!(placed, 1);
        let ends: Vec<_> = found.iter().map(|flow| (flow.2, flow.3, flow.5, flow.6)).collect();
        assert_eq!(ends, [(1000, 80, 3, 300), (80, 1000, 2, 5000)]);
    }
}

/// The device is the ingress interface of received packets and the egress interface of transmitted ones; in a flow of
/// both directions, one may be received and the other transmitted.
#[test]
fn the_device_is_the_interface_that_packets_went_through() {
    let settings = ExportSettings::default();
    let mut parser = NetflowParser::default();
    for (flags, expected) in [(0, (7, 0)), (KEY_EGRESS, (0, 7))] {
        let mut one = flow(3, 300);
        one.key.flags = flags;
        for encoder in [
            &mut Netflow5::new(1400) as &mut dyn Encoder,
            &mut Netflow9::new(1400, &settings),
            &mut Ipfix::new(1400, false, false, &settings),
        ] {
            let (messages, _) = encoded(encoder, &settings, &[one]);
            let all: Vec<_> =
                messages.iter().flat_map(|message| records(&parsed(&mut parser, message))).collect();
            let record =
                all.iter().find(|record| record.contains_key("src_addr") || !flows_keys(record).is_empty());
            let number = |names: &[&str]| pick(record.unwrap(), names).as_u64().unwrap();
            let found = (
                number(&["input", "InputSnmp", "IngressInterface"]),
                number(&["output", "OutputSnmp", "EgressInterface"]),
            );
            assert_eq!(found, expected, "{record:?}");
        }
    }
}

/// Over UDP, data follow the first templates only after a delay.
#[test]
fn data_wait_for_the_first_templates_to_be_read() {
    let collector = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_nonblocking(true).unwrap();
    for (scheme, data) in [("ipfix", 16), ("netflow9", 20)] {
        let target = format!("{scheme}://{}", collector.local_addr().unwrap());
        let targets = [Target::parse(&target).unwrap()];
        let settings = ExportSettings::default();
        let mut exporters = Exporters::open(&targets, settings, OutputOptions::default(), None).unwrap();
        exporters.start(naming());
        exporters.flows(&(1..200).map(|n| flow(n, n)).collect::<Vec<_>>());
        let (mut bytes, mut sets) = ([0; 2000], Vec::new());
        let mut read = || {
            sets.clear();
            while let Ok(length) = collector.recv(&mut bytes) {
                assert!(length > data);
                sets.push(u16::from_be_bytes([bytes[data], bytes[data + 1]]));
            }
            sets.clone()
        };
        // The sets at the start of the first message are templates, and the message contains nothing else.
        let first = read();
        assert!(first.len() == 1 && first[0] < 256, "{first:?}");
        assert!(exporters.rest(Duration::from_secs(9)) <= Duration::from_millis(200));
        exporters.finish();
        assert!(read().len() > 5);
        assert_eq!((exporters.counts()[0].flows, exporters.counts()[0].unsent_flows), (199, 0));
    }
}

/// The backlog of a collector is bounded, and messages beyond the bound are counted.
#[test]
fn a_backlog_that_is_full_counts_what_comes() {
    let mut backlog = Backlog::default();
    let mut counts = OutputCounts::default();
    for flows in 1..=4 {
        let message =
            Message { bytes: vec![0; 400], flows, packets: 10 * flows, octets: 100, ..Message::default() };
        backlog.push(message, 1000, &mut counts);
    }
    assert_eq!((backlog.bytes, backlog.queue.len()), (800, 2));
    assert_eq!((counts.unsent_flows, counts.unsent_packets, counts.unsent_bytes), (7, 70, 200));
    assert_eq!(backlog.pop().map(|message| message.flows), Some(1));
    backlog.push(Message { bytes: vec![0; 600], ..Message::default() }, 1000, &mut counts);
    assert_eq!((backlog.bytes, counts.unsent_flows), (1000, 7));
}

/// Fields of a record other than counters of packets and bytes, and the name for the application's id.
#[test]
fn round_trip_application_and_tunnel_are_exported() {
    let mut one = flow(3, 300);
    one.flow.flags = flow_flags::SYN | flow_flags::ACK | flow_flags::TCP;
    (one.flow.syn_ns, one.flow.ack_ns) = (START, START + 12_345_678);
    (one.flow.retransmitted, one.flow.reordered, one.flow.application) = (7, 8, applications::MQTT);
    (one.flow.queue, one.key.tunnel, one.key.tunnel_id) = (5, 3, 0x00ab_cdef);
    let settings = ExportSettings { inner: true, ..ExportSettings::default() };
    for encoder in [
        &mut Netflow9::new(1400, &settings) as &mut dyn Encoder,
        &mut Ipfix::new(1400, false, false, &settings),
    ] {
        let (messages, _) = encoded(encoder, &settings, &[one]);
        let mut parser = NetflowParser::default();
        let all: Vec<_> =
            messages.iter().flat_map(|message| records(&parsed(&mut parser, message))).collect();
        let record = all.iter().find(|record| !flows_keys(record).is_empty()).unwrap();
        // The parser returns numbers for fields that it knows, and bytes for others.
        let segment = 1u64 << 56 | 0x00ab_cdef;
        let queue = 7u64 << 16 | 5;
        for (number, bytes) in [(12_345, 4), (7, 4), (8, 4), (0x00ab_cdef, 4), (queue, 8), (segment, 8)] {
            let as_bytes = serde_json::to_value(&number.to_be_bytes()[8 - bytes..]).unwrap();
            let found = record.values().any(|value| *value == as_bytes || value.as_u64() == Some(number));
            assert!(found, "{number} in {record:?}");
        }
        let named = all
            .iter()
            .find(|record| record.get("ApplicationName").is_some_and(|name| name.as_str() == Some("MQTT")));
        let named = named.unwrap_or_else(|| panic!("no name in {all:?}"));
        let id =
            |record: &BTreeMap<String, Value>| pick(record, &["ApplicationTag", "ApplicationId"]).to_string();
        assert_eq!(id(named), id(record));
    }
}

/// Names of the source address fields, which only records of flows have.
fn flows_keys(record: &BTreeMap<String, Value>) -> Vec<&String> {
    record.keys().filter(|name| name.ends_with("SrcAddr") || name.starts_with("SourceIpv")).collect()
}

/// A connected collector that reads nothing: flows beyond the backlog are counted one by one, and nothing blocks.
/// Battery: F6
#[test]
fn a_collector_that_does_not_read_costs_what_finds_no_room() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("ipfix://{}?transport=tcp", listener.local_addr().unwrap());
    let settings =
        ExportSettings { backlog: 64 << 10, wait: Duration::from_millis(100), ..ExportSettings::default() };
    let targets = [Target::parse(&target).unwrap()];
    let mut exporters = Exporters::open(&targets, settings, OutputOptions::default(), None).unwrap();
    exporters.start(naming());
    let batch: Vec<FlowRecord> = (1..500).map(|n| flow(n, 100 * n)).collect();
    let (mut flows, mut stream) = (0, None);
    let begun = Instant::now();
    while exporters.counts()[0].unsent_flows == 0 {
        exporters.flows(&batch);
        flows += batch.len() as u64;
        stream = stream.or_else(|| listener.accept().ok());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", exporters.counts());
    }
    exporters.flows(&batch);
    flows += batch.len() as u64;
    exporters.finish();
    let counts = &exporters.counts()[0];
    assert_eq!(counts.flows + counts.unsent_flows, flows, "{counts:?}");
    assert_eq!((counts.connections, counts.waiting), (1, 0), "{counts:?}");
    assert!(counts.flows > 0 && counts.unsent_flows > 0, "{counts:?}");
}
