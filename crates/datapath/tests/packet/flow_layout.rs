//! The Rust mirrors of the structs of flows against what the C compiler says.

use std::mem::offset_of;

use wirelane_datapath::flow::{
    EndReason, Flow, FlowKey, FlowPacket, KEY_EGRESS, NO_VLAN, REORDER_NS, Timeouts, flow_flags,
};
use wirelane_datapath::flow_cache::{FlowPart, FlowSet, FlowTag, Splits, WAYS};
use wirelane_datapath::native::{Field, flow_constants, flow_layout};

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
        queue, flags, tos, min_ttl, max_ttl, tcp_flags, first_tcp_flags, pad,
    });
    #[rustfmt::skip]
    mirror!(rust, "wl_flow_packet", FlowPacket {
        ts_ns, wire_len, tunnel_id, mpls_label, eth_type, vlan_tci, flags, device, queue, tunnel, pad,
    });
    mirror!(rust, "wl_flow_timeouts", Timeouts { active_ns, idle_ns, ended_ns });
    mirror!(rust, "wl_flow_splits", Splits { gap_ns, grid_shift, pad });
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

#[test]
fn rust_and_c_agree_on_the_numbers_of_flows() {
    let rust = [
        ("WL_FLOW_NO_VLAN", NO_VLAN.into()),
        ("WL_FLOW_KEY_EGRESS", KEY_EGRESS.into()),
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
    assert_eq!(flow_constants(), rust);
}
