//! The packet functions, as C compiled natively with ASan and UBSan: any bytes, any link type.
//!
//! Input: a byte for the link type, a byte of options (1: follow tunnels), the packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_bpf::flow::application_of;
use wirelane_bpf::layout::{Ip, LinkType, NO_OFFSET, RecordHeader, flags};
use wirelane_bpf::native::{self, BUCKETS, Steering};

fuzz_target!(|data: &[u8]| {
    let [link, options, packet @ ..] = data else { return };
    let link = LinkType::from_code(*link);
    let follow = options & 1 != 0;
    // Exact allocation, so that ASan detects a read beyond its end wherever the input is.
    let packet: Box<[u8]> = packet.into();
    let parsed = native::parse(link, &packet, follow);
    assert_eq!(parsed, native::parse(link, &packet, follow), "a packet has one result");
    let within = |ip: &Ip| {
        for offset in [ip.l3_off, ip.l4_off, ip.payload_off] {
            assert!(
                offset == NO_OFFSET || usize::from(offset) <= packet.len(),
                "offset {offset}: {parsed:?}"
            );
        }
        // Headers that are present follow each other.
        let mut last = 0;
        for offset in [ip.l3_off, ip.l4_off, ip.payload_off].into_iter().filter(|at| *at != NO_OFFSET) {
            assert!(offset >= last, "out of order: {parsed:?}");
            last = offset;
        }
    };
    within(&parsed.outer);
    if parsed.flags & flags::TUNNEL != 0 {
        assert!(follow, "a tunnel was entered that nobody asked for");
        within(&parsed.inner);
    }
    for ip in [&parsed.outer, &parsed.inner] {
        if ip.payload_off != NO_OFFSET {
            let payload: Box<[u8]> = packet[usize::from(ip.payload_off)..].into();
            let length = ip.l3_len.max(payload.len() as u32);
            let known = application_of(&payload, length, ip);
            assert!(known < 64, "{known}");
            assert_eq!(application_of(&[], 0, ip), 0, "nothing is not certain");
        }
    }
    for inner in [false, true] {
        let hash = native::packet_hash(&parsed, inner, 7);
        let mut record = RecordHeader::default();
        native::fill_record(&mut record, &parsed, inner, 7);
        assert_eq!(record.hash, hash);
        let mut buckets = [0; BUCKETS];
        buckets.iter_mut().enumerate().for_each(|(at, worker)| *worker = (at * 7) as u16);
        for steering in
            [Steering::Flow, Steering::Queue, Steering::Vlan, Steering::Source, Steering::Destination]
        {
            let hash = native::steering_hash(steering, &parsed, inner, 7);
            assert!(native::steer(steering, &buckets, hash, 3, 5) < 5);
        }
    }
    // Both directions of a conversation have the same hash.
    let mut back = parsed.outer;
    std::mem::swap(&mut back.src, &mut back.dst);
    std::mem::swap(&mut back.src_port, &mut back.dst_port);
    assert_eq!(native::flow_hash(&back, 7), native::flow_hash(&parsed.outer, 7));
});
