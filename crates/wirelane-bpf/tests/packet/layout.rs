//! The Rust mirrors of the shared structs against what the C compiler says. Long because each struct and field is listed.

use std::mem::offset_of;

use wirelane_bpf::filter::{self, Filter, Step, op};
use wirelane_bpf::instance::{
    self, Balance, Exits, FLOW_LEAST_SETS, FLOW_LISTED, FlowHalf, Group, Instance, Mark, Plugin, Plugins,
    Reader, Ring, Tally, group_flags, steering,
};
use wirelane_bpf::layout::{
    FOUND_MORE, FOUND_NOTE, Found, Ip, NOTE, Note, Parsed, RECORD_HEADER, RecordHeader, Tail, record_kind,
};
use wirelane_bpf::native::{self, Field, constants, layout};
use wirelane_bpf::{members, rules, search};

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
            ident,
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
    mirror!(rust, "wl_tail", Tail { tag, segment_size, headers });
    mirror!(rust, "wl_found", Found { id });
    mirror!(rust, "wl_note", Note { len, pad, bytes });
    mirror!(
        rust,
        "wl_instance",
        Instance {
            active,
            stray,
            version,
            lanes,
            queues,
            ifindex,
            per_cpu,
            seed,
            batch_clock,
            card_clock,
            wide,
            ordered,
            pad
        }
    );
    mirror!(rust, "wl_mark", Mark { in_flight, latest, pad });
    mirror!(
        rust,
        "wl_group",
        Group {
            queues,
            snap_len,
            workers,
            segments,
            steering,
            flags,
            publish_every,
            owner_pid,
            filter,
            program,
            rules,
            owner,
            joined_ns,
            shed_low,
            shed_high,
            plugins,
            plugin_budget,
            flow_sets,
            flow_epoch,
            flow_sampling,
            shares,
            share,
            share_seed,
            whole,
            pad,
            flow_splits,
            buckets
        }
    );
    mirror!(rust, "wl_step", Step { op, with_x, size, pad, yes, no, value, pad2 });
    mirror!(rust, "wl_filter", Filter { count, text_length, text, steps });
    mirror!(rust, "wl_rule_node", rules::Node { next });
    mirror!(rust, "wl_rule_class", rules::Class { summary, home, words, pad });
    mirror!(
        rust,
        "wl_rule",
        rules::Rule {
            id,
            slot,
            verdict,
            flags,
            last_clause,
            truncate,
            sample,
            tag,
            insert_shape,
            insert_idle_s,
            insert_hard_s,
            insert_verdict,
            insert_flags,
            mirror,
            to,
            plugin,
            pad
        }
    );
    mirror!(rust, "wl_rule_field", rules::Field { root, root6, absent, pad });
    mirror!(
        rust,
        "wl_rule_set",
        rules::Set {
            version,
            clauses,
            rules,
            default_verdict,
            used,
            shapes,
            slots,
            search_slot,
            dims,
            shape,
            rule_of,
            rule,
            member,
            search_root,
            search_reach,
            plugin
        }
    );
    mirror!(rust, "wl_search_node", search::Node { next, first, count });
    mirror!(rust, "wl_search_page", search::Page { node });
    mirror!(rust, "wl_search_output", search::Output { id, from, last, bits, needs, opens, closes });
    mirror!(rust, "wl_search_outputs", search::Outputs { output });
    mirror!(rust, "wl_member", members::Member { first, second, first_port, second_port, proto, l3, pad });
    mirror!(
        rust,
        "wl_rule_counts",
        rules::Counts { packets, bytes, first_ns, last_ns, inserted, refused, pad }
    );
    mirror!(
        rust,
        "wl_precise_key",
        rules::PreciseKey { src, dst, src_port, dst_port, vlan, proto, l3, mpls, tunnel, shape }
    );
    mirror!(
        rust,
        "wl_precise",
        rules::Precise {
            packets,
            bytes,
            first_ns,
            last_ns,
            made_ns,
            id,
            verdict,
            flags,
            mirror,
            to,
            truncate,
            sample,
            tag,
            idle_s,
            hard_s,
            pad2
        }
    );
    mirror!(
        rust,
        "wl_judged",
        rules::Judged { verdict, rule_id, truncate, tag, flags, hits, pattern, exits, to }
    );
    mirror!(
        rust,
        "wl_rule_facts",
        rules::Facts { now_ns, wire_len, queue, egress, seed, more_packets, more_bytes }
    );
    mirror!(
        rust,
        "wl_tally",
        Tally {
            seen,
            filtered,
            absorbed,
            shed,
            lost,
            delivered,
            seen_bytes,
            turn,
            blocked,
            kept,
            kept_bytes,
            aggregates,
            pad
        }
    );
    mirror!(
        rust,
        "wl_ring",
        Ring {
            head,
            cached_tail,
            published,
            rung_for,
            delivered,
            lost,
            bells,
            published_ns,
            public_head,
            pad2,
            shed,
            shed_level,
            kept,
            parts,
            unsampled,
            unsampled_bytes,
            skip,
            pad3
        }
    );
    mirror!(rust, "wl_flow_half", FlowHalf { epoch, used });
    mirror!(rust, "wl_exits", Exits { ifindex, pad, sent, unsent });
    mirror!(rust, "wl_plugin", Plugin { asked, matched, refused, timed, ns, off, part_ns, parts, counters });
    mirror!(rust, "wl_plugins", Plugins { of });
    mirror!(rust, "wl_balance", Balance { worker, packets });
    mirror!(rust, "wl_reader", Reader { tail, pad, wake_at, pad2 });
    assert_eq!(
        rust,
        layout(),
        "left: crates/wirelane-bpf/src/{{layout,instance,filter}}.rs, right: the C headers"
    );
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

#[test]
fn rust_and_c_agree_on_constants() {
    let rust = [
        ("WL_INTERFACE_VERSION", instance::INTERFACE_VERSION.into()),
        ("WL_MAX_GROUPS", instance::MAX_GROUPS as u64),
        ("WL_MAX_WORKERS", instance::MAX_WORKERS as u64),
        ("WL_MAX_QUEUES", instance::MAX_QUEUES as u64),
        ("WL_BUCKETS", instance::BUCKETS as u64),
        ("WL_SEGMENT_SHIFT", instance::SEGMENT_SHIFT.into()),
        ("WL_SEGMENT", instance::SEGMENT as u64),
        ("WL_SLACK", instance::SLACK as u64),
        ("WL_MAX_SNAP", instance::MAX_SNAP as u64),
        ("WL_READERS", instance::MAX_READERS as u64),
        ("WL_AWAKE", instance::AWAKE),
        ("WL_RECORD_HEADER", RECORD_HEADER as u64),
        ("WL_RECORD_PACKET", record_kind::PACKET.into()),
        ("WL_RECORD_BARRIER", record_kind::BARRIER.into()),
        ("WL_RECORD_DIGEST", record_kind::DIGEST.into()),
        ("WL_RECORD_FLOW", record_kind::FLOW.into()),
        ("WL_GROUP_TAKE", group_flags::TAKE.into()),
        ("WL_GROUP_INNER", group_flags::INNER.into()),
        ("WL_GROUP_CARD_CLOCK", group_flags::CARD_CLOCK.into()),
        ("WL_GROUP_ADAPTIVE", group_flags::ADAPTIVE.into()),
        ("WL_GROUP_WIDE", group_flags::WIDE.into()),
        ("WL_GROUP_FLOWS", group_flags::FLOWS.into()),
        ("WL_GROUP_TAKE_REST", group_flags::TAKE_REST.into()),
        ("WL_GROUP_HTTP", group_flags::HTTP.into()),
        ("WL_FLOW_LISTED", FLOW_LISTED as u64),
        ("WL_FLOW_LEAST_SETS", FLOW_LEAST_SETS as u64),
        ("WL_STEER_FLOW", steering::FLOW.into()),
        ("WL_STEER_QUEUE", steering::QUEUE.into()),
        ("WL_STEER_ROUND_ROBIN", steering::ROUND_ROBIN.into()),
        ("WL_STEER_COPY", steering::COPY.into()),
        ("WL_STEER_VLAN", steering::VLAN.into()),
        ("WL_STEER_SOURCE", steering::SOURCE.into()),
        ("WL_STEER_DESTINATION", steering::DESTINATION.into()),
        ("WL_STEER_PROGRAM", steering::PROGRAM.into()),
        ("WL_MAX_PROGRAMS", instance::MAX_PROGRAMS as u64),
        ("WL_PROGRAM_PART", instance::PROGRAM_PART as u64),
        ("WL_GROUP_FILTERS", filter::PER_GROUP as u64),
        ("WL_FILTER_STEPS", filter::MAX_STEPS as u64),
        ("WL_FILTER_TEXT", filter::MAX_TEXT as u64),
        ("WL_FILTER_MEMORY", filter::MEMORY.into()),
        ("WL_FILTER_GONE_OUT", filter::GONE_OUT.into()),
        ("WL_STEP_REFUSE", op::REFUSE.into()),
        ("WL_STEP_ACCEPT", op::ACCEPT.into()),
        ("WL_STEP_IF_A", op::IF_A.into()),
        ("WL_STEP_LOAD", op::LOAD.into()),
        ("WL_STEP_HEADER", op::HEADER.into()),
        ("WL_STEP_EQUAL", op::EQUAL.into()),
        ("WL_STEP_GREATER", op::GREATER.into()),
        ("WL_STEP_AT_LEAST", op::AT_LEAST.into()),
        ("WL_STEP_SOME_BIT", op::SOME_BIT.into()),
        ("WL_STEP_A_IS", op::A_IS.into()),
        ("WL_STEP_A_LENGTH", op::A_LENGTH.into()),
        ("WL_STEP_A_DIRECTION", op::A_DIRECTION.into()),
        ("WL_STEP_A_RECALL", op::A_RECALL.into()),
        ("WL_STEP_X_IS", op::X_IS.into()),
        ("WL_STEP_X_IS_A", op::X_IS_A.into()),
        ("WL_STEP_X_LENGTH", op::X_LENGTH.into()),
        ("WL_STEP_X_RECALL", op::X_RECALL.into()),
        ("WL_STEP_KEEP_A", op::KEEP_A.into()),
        ("WL_STEP_KEEP_X", op::KEEP_X.into()),
        ("WL_STEP_ADD", op::ADD.into()),
        ("WL_STEP_SUBTRACT", op::SUBTRACT.into()),
        ("WL_STEP_MULTIPLY", op::MULTIPLY.into()),
        ("WL_STEP_DIVIDE", op::DIVIDE.into()),
        ("WL_STEP_MODULO", op::MODULO.into()),
        ("WL_STEP_AND", op::AND.into()),
        ("WL_STEP_OR", op::OR.into()),
        ("WL_STEP_XOR", op::XOR.into()),
        ("WL_STEP_LEFT", op::LEFT.into()),
        ("WL_STEP_RIGHT", op::RIGHT.into()),
        ("WL_STEP_NEGATE", op::NEGATE.into()),
        ("WL_STEP_GO", op::GO.into()),
        ("WL_RULES_MAX", rules::MAX_RULES as u64),
        ("WL_RULE_WORDS", rules::WORDS as u64),
        ("WL_RULE_SHAPES", rules::MAX_SHAPES as u64),
        ("WL_RULE_HITS", rules::MAX_HITS.into()),
        ("WL_RULE_LEAF", rules::LEAF.into()),
        ("WL_RULE_SETS", rules::PER_GROUP as u64),
        ("WL_RULE_NO_VLAN", rules::NO_VLAN.into()),
        ("WL_RULE_DIMS", rules::DIMS as u64),
        ("WL_RULE_DIMS_USED", rules::DIMS_USED as u64),
        ("WL_DIM_SRC", rules::dim::SRC as u64),
        ("WL_DIM_DST", rules::dim::DST as u64),
        ("WL_DIM_SRC_PORT", rules::dim::SRC_PORT as u64),
        ("WL_DIM_DST_PORT", rules::dim::DST_PORT as u64),
        ("WL_DIM_PROTO", rules::dim::PROTO as u64),
        ("WL_DIM_KIND", rules::dim::KIND as u64),
        ("WL_DIM_TCP_FLAGS", rules::dim::TCP_FLAGS as u64),
        ("WL_DIM_VLAN", rules::dim::VLAN as u64),
        ("WL_DIM_TOS", rules::dim::TOS as u64),
        ("WL_DIM_LENGTH", rules::dim::LENGTH as u64),
        ("WL_DIM_QUEUE", rules::dim::QUEUE as u64),
        ("WL_DIM_ETHERTYPE", rules::dim::ETHERTYPE as u64),
        ("WL_DIM_ICMP_TYPE", rules::dim::ICMP_TYPE as u64),
        ("WL_DIM_SETS", rules::dim::SETS as u64),
        ("WL_DIM_PAYLOAD", rules::dim::PAYLOAD as u64),
        ("WL_RULE_MEMBERS", rules::MAX_MEMBERS as u64),
        ("WL_RULE_PATTERNS", rules::MAX_PATTERNS as u64),
        ("WL_RULE_PLUGINS", rules::MAX_PLUGINS as u64),
        ("WL_SEARCH_BYTES", search::MAX_BYTES as u64),
        ("WL_SEARCH_BLOCK", search::BLOCK as u64),
        ("WL_SEARCH_OUTPUTS", search::MAX_OUTPUTS as u64),
        ("WL_SEARCH_AT_ONCE", search::AT_ONCE as u64),
        ("WL_SEARCH_FOUND", search::FOUND as u64),
        ("WL_SEARCH_PAGE", search::PAGE as u64),
        ("WL_SEARCH_HIT", search::HIT.into()),
        ("WL_SEARCH_NONE", search::NONE.into()),
        ("WL_GATE_KEPT", search::KEPT.into()),
        ("WL_FOUND_MORE", FOUND_MORE.into()),
        ("WL_FOUND_NOTE", FOUND_NOTE.into()),
        ("WL_EXITS", rules::MAX_EXITS as u64),
        ("WL_MEMBER_SRC", members::of::SRC.into()),
        ("WL_MEMBER_DST", members::of::DST.into()),
        ("WL_MEMBER_FLOW", members::of::FLOW.into()),
        ("WL_MEMBER_EXACT", members::of::EXACT.into()),
        ("WL_KIND_L3_NONE", rules::kind::L3_NONE.into()),
        ("WL_KIND_L3_IPV4", rules::kind::L3_IPV4.into()),
        ("WL_KIND_L3_IPV6", rules::kind::L3_IPV6.into()),
        ("WL_KIND_L3_ARP", rules::kind::L3_ARP.into()),
        ("WL_KIND_L3", rules::kind::L3.into()),
        ("WL_KIND_FRAGMENT", rules::kind::FRAGMENT.into()),
        ("WL_KIND_LATER", rules::kind::LATER.into()),
        ("WL_KIND_EGRESS", rules::kind::EGRESS.into()),
        ("WL_KIND_TUNNEL", rules::kind::TUNNEL.into()),
        ("WL_VERDICT_NONE", rules::verdict::NONE.into()),
        ("WL_VERDICT_PASS", rules::verdict::PASS.into()),
        ("WL_VERDICT_DROP", rules::verdict::DROP.into()),
        ("WL_VERDICT_ABSORB", rules::verdict::ABSORB.into()),
        ("WL_VERDICT_DIGEST", rules::verdict::DIGEST.into()),
        ("WL_VERDICT_REDIRECT", rules::verdict::REDIRECT.into()),
        ("WL_VERDICT_PLUGIN", rules::verdict::PLUGIN.into()),
        ("WL_VERDICT_MEASURE", rules::verdict::MEASURE.into()),
        ("PLUGIN_MOST_COUNTERS", instance::PLUGIN_COUNTERS as u64),
        ("PLUGIN_NOTE", NOTE as u64),
        ("WL_RULE_CONTINUE", rules::rule_flags::CONTINUE.into()),
        ("WL_RULE_SAMPLE_PACKET", rules::rule_flags::SAMPLE_PACKET.into()),
        ("WL_RULE_TAG", rules::rule_flags::TAG.into()),
        ("WL_RULE_INSERT", rules::rule_flags::INSERT.into()),
        ("WL_RULE_MADE", rules::rule_flags::MADE.into()),
        ("WL_SHAPE_SRC", rules::shape::SRC.into()),
        ("WL_SHAPE_DST", rules::shape::DST.into()),
        ("WL_SHAPE_SRC_PORT", rules::shape::SRC_PORT.into()),
        ("WL_SHAPE_DST_PORT", rules::shape::DST_PORT.into()),
        ("WL_SHAPE_PROTO", rules::shape::PROTO.into()),
        ("WL_SHAPE_VLAN", rules::shape::VLAN.into()),
        ("WL_SHAPE_MPLS", rules::shape::MPLS.into()),
        ("WL_SHAPE_TUNNEL", rules::shape::TUNNEL.into()),
        ("WL_SHAPE_BOTH", rules::shape::BOTH.into()),
        ("WL_JUDGED_TAGGED", rules::judged_flags::TAGGED.into()),
        ("WL_JUDGED_MORE", rules::judged_flags::MORE.into()),
        ("WL_JUDGED_HALF", rules::judged_flags::HALF.into()),
        ("WL_JUDGED_FOUND", rules::judged_flags::FOUND.into()),
        ("sizeof(struct wl_segment)", instance::ELEMENT as u64),
    ];
    assert_eq!(rust.as_slice(), constants(), "left: Rust, right: C");
    // Those that Rust has twice.
    assert_eq!(native::BUCKETS, instance::BUCKETS);
    assert_eq!(native::Steering::Flow as u32, steering::FLOW);
    assert_eq!(native::Steering::Queue as u32, steering::QUEUE);
    assert_eq!(native::Steering::Vlan as u32, steering::VLAN);
    assert_eq!(native::Steering::Source as u32, steering::SOURCE);
    assert_eq!(native::Steering::Destination as u32, steering::DESTINATION);
}

/// What lanes and workers write must not share a cache line: neither two rings nor the two sides of one.
#[test]
fn writers_have_cache_lines_of_their_own() {
    const LINE: usize = 64;
    for size in [
        size_of::<Ring>(),
        size_of::<Reader>(),
        size_of::<Tally>(),
        size_of::<Instance>(),
        size_of::<Mark>(),
        size_of::<Balance>(),
        size_of::<Exits>(),
        size_of::<rules::Counts>(),
    ] {
        assert_eq!(size % LINE, 0);
    }
    assert_eq!(offset_of!(Ring, public_head) % LINE, 0, "written rarely, read at every turn");
    assert_eq!(offset_of!(Reader, wake_at) % LINE, 0);
    assert_eq!(offset_of!(Ring, shed) % LINE, 0, "the lane's own, away from what the worker reads");
    // write_group() copies it word by word.
    assert_eq!(size_of::<Group>() % 8, 0);
}
