//! The Rust mirrors of the structs of flows against what the C compiler says.

use std::mem::offset_of;

use wirelane_bpf::flow::{
    EndReason, Flow, FlowKey, FlowPacket, KEY_EGRESS, KEY_PORTS, NO_VLAN, REORDER_NS, Timeouts, applications,
    flow_flags,
};
use wirelane_bpf::flow_cache::{FlowPart, FlowSet, FlowTag, Splits, WAYS};
use wirelane_bpf::native::{Field, flow_constants, flow_layout};

macro_rules! mirror {
    ($fields:ident, $c:literal, $rust:ty { $($field:ident),* $(,)? }) => {
        $fields.push(Field { name: $c, offset: 0, size: size_of::<$rust>() });
        $($fields.push(Field {
            name: concat!($c, ".", stringify!($field)),
            offset: offset_of!($rust, $field),
            size: size_of_field(|whole: &$rust| &whole.$field),
        });)*
    };
}

fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

#[test]
fn rust_and_c_agree_on_flows() {
    let mut rust = Vec::new();
    #[rustfmt::skip]
    mirror!(rust, "wl_flow_key", FlowKey {
        src, dst, src_port, dst_port, l3, proto, eth_type, vlan, device, tunnel_id, tunnel, flags, pad,
    });
    #[rustfmt::skip]
    mirror!(rust, "wl_flow", Flow {
        packets, bytes, wire_bytes, first_ns, last_ns, syn_ns, ack_ns, first_data_ns, last_data_ns, first_seq,
        last_seq, first_data_seq, next_seq, retransmitted, reordered, fragments, min_length, max_length, mpls_label,
        queue, flags, tos, min_ttl, max_ttl, tcp_flags, first_tcp_flags, application, pad,
    });
    #[rustfmt::skip]
    mirror!(rust, "wl_flow_packet", FlowPacket {
        ts_ns, wire_len, tunnel_id, mpls_label, eth_type, vlan_tci, flags, device, queue, tunnel, application,
        segment_size,
        headers,
        pad,
    });
    mirror!(rust, "wl_flow_timeouts", Timeouts { active_ns, idle_ns, ended_ns });
    mirror!(rust, "wl_flow_splits", Splits { gap_ns, grid_shift, pad, period_ns, origin_ns });
    mirror!(rust, "wl_flow_part", FlowPart { key, flow });
    mirror!(rust, "wl_flow_tag", FlowTag { epoch, hash });
    mirror!(rust, "wl_flow_set", FlowSet { tags, parts });
    assert_eq!(flow_layout(), rust);
    for (name, size) in rust.iter().filter(|f| !f.name.contains('.')).map(|f| (f.name, f.size)) {
        assert!(size.is_multiple_of(8), "{name} has {size} bytes");
        let fields: usize =
            rust.iter().filter(|f| f.name.starts_with(&format!("{name}."))).map(|f| f.size).sum();
        assert_eq!(fields, size, "{name} has padding that is no field");
    }
}

/// The C names of what is recognised by its first bytes: their numbers are exported.
const APPLICATIONS: [(&str, u64); 24] = [
    ("WL_APP_UNKNOWN", applications::UNKNOWN as u64),
    ("WL_APP_TLS", applications::TLS as u64),
    ("WL_APP_DTLS", applications::DTLS as u64),
    ("WL_APP_HTTP", applications::HTTP as u64),
    ("WL_APP_HTTP2", applications::HTTP2 as u64),
    ("WL_APP_SSH", applications::SSH as u64),
    ("WL_APP_DNS", applications::DNS as u64),
    ("WL_APP_MDNS", applications::MDNS as u64),
    ("WL_APP_LLMNR", applications::LLMNR as u64),
    ("WL_APP_QUIC", applications::QUIC as u64),
    ("WL_APP_SIP", applications::SIP as u64),
    ("WL_APP_RTSP", applications::RTSP as u64),
    ("WL_APP_STUN", applications::STUN as u64),
    ("WL_APP_BITTORRENT", applications::BITTORRENT as u64),
    ("WL_APP_SMB1", applications::SMB1 as u64),
    ("WL_APP_SMB2", applications::SMB2 as u64),
    ("WL_APP_RDP", applications::RDP as u64),
    ("WL_APP_NTP", applications::NTP as u64),
    ("WL_APP_DHCP", applications::DHCP as u64),
    ("WL_APP_MQTT", applications::MQTT as u64),
    ("WL_APP_SMTP", applications::SMTP as u64),
    ("WL_APP_POSTGRESQL", applications::POSTGRESQL as u64),
    ("WL_APP_SSDP", applications::SSDP as u64),
    ("WL_APP_BGP", applications::BGP as u64),
];

#[test]
fn rust_and_c_agree_on_the_numbers_of_flows() {
    let rust = [
        ("WL_FLOW_NO_VLAN", NO_VLAN.into()),
        ("WL_FLOW_KEY_EGRESS", KEY_EGRESS.into()),
        ("WL_FLOW_KEY_PORTS", KEY_PORTS.into()),
        ("WL_FLOW_SYN", flow_flags::SYN.into()),
        ("WL_FLOW_SYNACK", flow_flags::SYNACK.into()),
        ("WL_FLOW_ACK", flow_flags::ACK.into()),
        ("WL_FLOW_TCP", flow_flags::TCP.into()),
        ("WL_FLOW_DATA", flow_flags::DATA.into()),
        ("WL_FLOW_MPLS", flow_flags::MPLS.into()),
        ("WL_FLOW_TTL", flow_flags::TTL.into()),
        ("WL_FLOW_REORDER_NS", REORDER_NS),
        ("WL_FLOW_WAYS", WAYS as u64),
        ("WL_FLOW_GOES_ON", 0),
        ("WL_FLOW_IDLE", EndReason::Idle as u64),
        ("WL_FLOW_ACTIVE", EndReason::Active as u64),
        ("WL_FLOW_ENDED", EndReason::Ended as u64),
        ("WL_FLOW_FORCED", EndReason::Forced as u64),
        ("WL_FLOW_RESOURCES", EndReason::Resources as u64),
    ];
    let rust: Vec<_> = rust.into_iter().chain(APPLICATIONS).collect();
    assert_eq!(flow_constants(), rust);
}
