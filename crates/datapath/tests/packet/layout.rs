//! The Rust mirrors of the shared structs against what the C compiler says.

use std::mem::offset_of;

use wirelane_datapath::layout::{Ip, Parsed, RecordHeader};
use wirelane_datapath::native::{Field, layout};

macro_rules! mirror {
    ($fields:ident, $c:literal, $rust:ty { $($field:ident),* $(,)? }) => {
        $fields.push(Field { name: $c, offset: 0, size: size_of::<$rust>() });
        let whole = <$rust>::default();
        $($fields.push(Field {
            name: concat!($c, ".", stringify!($field)),
            offset: offset_of!($rust, $field),
            size: size_of_val(&whole.$field),
        });)*
    };
}

#[test]
fn rust_and_c_agree_on_every_field() {
    let mut rust = Vec::new();
    mirror!(
        rust,
        "wl_ip",
        Ip {
            src,
            dst,
            src_port,
            dst_port,
            l3,
            proto,
            flags,
            tos,
            ttl,
            tcp_flags,
            icmp_type,
            icmp_code,
            l3_off,
            l4_off,
            payload_off,
            tcp_window,
            l3_len,
            frag_id,
            tcp_seq,
            tcp_ack,
            frag_off,
            pad,
        }
    );
    mirror!(
        rust,
        "wl_parsed",
        Parsed {
            outer,
            inner,
            eth_type,
            vlan_tci,
            vlan_count,
            mpls_count,
            mpls_label,
            tunnel_id,
            flags,
            tunnel,
            link,
            pad,
        }
    );
    mirror!(
        rust,
        "wl_record",
        RecordHeader {
            ts_ns,
            cap_len,
            wire_len,
            hash,
            rule_id,
            queue,
            flags,
            l3_off,
            l4_off,
            payload_off,
            vlan_tci,
            l3,
            proto,
            kind,
            link,
        }
    );
    assert_eq!(rust, layout(), "left: crates/datapath/src/layout.rs, right: kernel/packet/types.h");
}

/// With every byte in a field of the table, a field that one side has and the other lacks cannot hide.
#[test]
fn the_table_covers_every_byte() {
    for whole in layout().iter().filter(|field| !field.name.contains('.')) {
        let prefix = format!("{}.", whole.name);
        let fields = layout();
        let mut next = 0;
        for field in fields.iter().filter(|field| field.name.starts_with(&prefix)) {
            assert_eq!(field.offset, next, "{}: a gap or an overlap before it", field.name);
            next = field.offset + field.size;
        }
        assert_eq!(next, whole.size, "{}: bytes at its end are in no field", whole.name);
    }
}
