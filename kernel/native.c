/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The packet functions compiled natively: what crates/datapath/src/native.rs calls, and the layouts as this
 * compiler sees them, for the test that compares them with the Rust side.
 */
#include <stddef.h>
#include <string.h>

#include "packet/filter.h"
#include "packet/hash.h"
#include "packet/parse.h"
#include "packet/record.h"
#include "packet/steer.h"
#include "programs/instance.h"

/* A field of a shared struct; the table ends with a field without a name. */
struct wl_native_field {
	const char *name; /* "struct.field", or "struct" for the struct itself */
	__u32 offset;
	__u32 size;
};

/* A number that both sides must agree on; the table ends the same way. */
struct wl_native_constant {
	const char *name;
	__u64 value;
};

void wl_native_parse(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out);
void wl_native_parse_walk(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out);
__u32 wl_native_flow_hash(const struct wl_ip *ip, __u32 seed);
__u32 wl_native_packet_hash(const struct wl_parsed *parsed, int inner, __u32 seed);
void wl_native_fill_record(struct wl_record *record, const struct wl_parsed *parsed, int inner, __u32 seed);
__u32 wl_native_steering_hash(__u32 steering, const struct wl_parsed *parsed, int inner, __u32 seed);
__u32 wl_native_steer(__u32 steering, const __u16 *buckets, __u32 hash, __u32 queue, __u32 workers);
__u32 wl_native_filter(const struct wl_step *steps, __u32 count, const __u8 *data, size_t length,
		       __u32 wire_len, __u32 direction);
const struct wl_native_field *wl_native_layout(void);
const struct wl_native_constant *wl_native_constants(void);

/* *out must be zero: wl_parse() leaves alone what its flags do not declare valid. */
void wl_native_parse(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out)
{
	wl_parse(data, data + length, link, options, out);
}

/* The walk alone, also for plain packets; *out must be zero. For tests. */
void wl_native_parse_walk(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out)
{
	wl_parse_walk(data, data + length, link, options, out);
}

__u32 wl_native_flow_hash(const struct wl_ip *ip, __u32 seed)
{
	return wl_flow_hash(ip, seed);
}

__u32 wl_native_packet_hash(const struct wl_parsed *parsed, int inner, __u32 seed)
{
	return wl_packet_hash(parsed, wl_choose(parsed, inner), seed);
}

void wl_native_fill_record(struct wl_record *record, const struct wl_parsed *parsed, int inner, __u32 seed)
{
	const struct wl_ip *chosen = wl_choose(parsed, inner);

	wl_fill_record(record, parsed, chosen, wl_packet_hash(parsed, chosen, seed));
}

__u32 wl_native_steering_hash(__u32 steering, const struct wl_parsed *parsed, int inner, __u32 seed)
{
	const struct wl_ip *chosen = wl_choose(parsed, inner);

	return wl_steering_hash(steering, parsed, chosen, wl_packet_hash(parsed, chosen, seed), seed);
}

__u32 wl_native_steer(__u32 steering, const __u16 *buckets, __u32 hash, __u32 queue, __u32 workers)
{
	return wl_steer(steering, buckets, hash, queue, workers);
}

/* The packet that a filter judges, natively. */
struct wl_filter_packet {
	const __u8 *data;
	size_t length;
	__u32 wire_len;
	__u32 direction;
};

static __always_inline __u32 wl_filter_wire_len(const struct wl_filter_packet *packet)
{
	return packet->wire_len;
}

static __always_inline __u32 wl_filter_direction(const struct wl_filter_packet *packet)
{
	return packet->direction;
}

static __always_inline int wl_filter_load(const struct wl_filter_packet *packet, __u32 at, __u32 size,
					  __u32 *value)
{
	__u32 i;

	if ((__u64)at + size > packet->length)
		return -1;
	*value = 0;
	for (i = 0; i < size && i < sizeof(*value); i++)
		*value = *value << 8 | packet->data[at + i];
	return 0;
}

/*
 * Whether these steps accept the packet, of which `length` bytes are there. Whatever the steps are, it ends:
 * a step that does not lead further on is the last.
 */
__u32 wl_native_filter(const struct wl_step *steps, __u32 count, const __u8 *data, size_t length,
		       __u32 wire_len, __u32 direction)
{
	struct wl_filter_packet packet = {
	    .data = data, .length = length, .wire_len = wire_len, .direction = direction};
	struct wl_filter_registers r = {};
	__u32 memory[WL_FILTER_MEMORY] = {};
	__u32 at;
	int result;

	while (r.at < count) {
		at = r.at;
		result = wl_filter_step(&steps[at], &r, &packet, memory);
		if (result != WL_FILTER_ON)
			return result;
		if (r.at <= at)
			return 0;
	}
	return 0;
}

#define WHOLE(type)	   {#type, 0, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}

const struct wl_native_field *wl_native_layout(void)
{
	static const struct wl_native_field fields[] = {
	    WHOLE(wl_ip),
	    FIELD(wl_ip, src),
	    FIELD(wl_ip, dst),
	    FIELD(wl_ip, src_port),
	    FIELD(wl_ip, dst_port),
	    FIELD(wl_ip, l3),
	    FIELD(wl_ip, proto),
	    FIELD(wl_ip, flags),
	    FIELD(wl_ip, tos),
	    FIELD(wl_ip, ttl),
	    FIELD(wl_ip, tcp_flags),
	    FIELD(wl_ip, icmp_type),
	    FIELD(wl_ip, icmp_code),
	    FIELD(wl_ip, l3_off),
	    FIELD(wl_ip, l4_off),
	    FIELD(wl_ip, payload_off),
	    FIELD(wl_ip, tcp_window),
	    FIELD(wl_ip, l3_len),
	    FIELD(wl_ip, frag_id),
	    FIELD(wl_ip, tcp_seq),
	    FIELD(wl_ip, tcp_ack),
	    FIELD(wl_ip, frag_off),
	    FIELD(wl_ip, pad),
	    WHOLE(wl_parsed),
	    FIELD(wl_parsed, outer),
	    FIELD(wl_parsed, inner),
	    FIELD(wl_parsed, eth_type),
	    FIELD(wl_parsed, vlan_tci),
	    FIELD(wl_parsed, vlan_count),
	    FIELD(wl_parsed, mpls_count),
	    FIELD(wl_parsed, mpls_label),
	    FIELD(wl_parsed, tunnel_id),
	    FIELD(wl_parsed, flags),
	    FIELD(wl_parsed, tunnel),
	    FIELD(wl_parsed, link),
	    FIELD(wl_parsed, pad),
	    WHOLE(wl_record),
	    FIELD(wl_record, ts_ns),
	    FIELD(wl_record, cap_len),
	    FIELD(wl_record, wire_len),
	    FIELD(wl_record, hash),
	    FIELD(wl_record, rule_id),
	    FIELD(wl_record, queue),
	    FIELD(wl_record, flags),
	    FIELD(wl_record, l3_off),
	    FIELD(wl_record, l4_off),
	    FIELD(wl_record, payload_off),
	    FIELD(wl_record, vlan_tci),
	    FIELD(wl_record, l3),
	    FIELD(wl_record, proto),
	    FIELD(wl_record, kind),
	    FIELD(wl_record, link),
	    WHOLE(wl_instance),
	    FIELD(wl_instance, active),
	    FIELD(wl_instance, stray),
	    FIELD(wl_instance, version),
	    FIELD(wl_instance, lanes),
	    FIELD(wl_instance, queues),
	    FIELD(wl_instance, ifindex),
	    FIELD(wl_instance, per_cpu),
	    FIELD(wl_instance, seed),
	    FIELD(wl_instance, batch_clock),
	    FIELD(wl_instance, card_clock),
	    FIELD(wl_instance, pad),
	    WHOLE(wl_group),
	    FIELD(wl_group, queues),
	    FIELD(wl_group, snap_len),
	    FIELD(wl_group, workers),
	    FIELD(wl_group, segments),
	    FIELD(wl_group, steering),
	    FIELD(wl_group, flags),
	    FIELD(wl_group, publish_every),
	    FIELD(wl_group, owner_pid),
	    FIELD(wl_group, filter),
	    FIELD(wl_group, program),
	    FIELD(wl_group, pad),
	    FIELD(wl_group, owner),
	    FIELD(wl_group, joined_ns),
	    FIELD(wl_group, shed_low),
	    FIELD(wl_group, shed_high),
	    FIELD(wl_group, buckets),
	    WHOLE(wl_step),
	    FIELD(wl_step, op),
	    FIELD(wl_step, with_x),
	    FIELD(wl_step, size),
	    FIELD(wl_step, pad),
	    FIELD(wl_step, yes),
	    FIELD(wl_step, no),
	    FIELD(wl_step, value),
	    FIELD(wl_step, pad2),
	    WHOLE(wl_filter),
	    FIELD(wl_filter, count),
	    FIELD(wl_filter, text_length),
	    FIELD(wl_filter, text),
	    FIELD(wl_filter, steps),
	    WHOLE(wl_tally),
	    FIELD(wl_tally, seen),
	    FIELD(wl_tally, filtered),
	    FIELD(wl_tally, absorbed),
	    FIELD(wl_tally, shed),
	    FIELD(wl_tally, lost),
	    FIELD(wl_tally, delivered),
	    FIELD(wl_tally, seen_bytes),
	    FIELD(wl_tally, turn),
	    FIELD(wl_tally, pad),
	    WHOLE(wl_ring),
	    FIELD(wl_ring, head),
	    FIELD(wl_ring, cached_tail),
	    FIELD(wl_ring, published),
	    FIELD(wl_ring, rung_for),
	    FIELD(wl_ring, delivered),
	    FIELD(wl_ring, lost),
	    FIELD(wl_ring, bells),
	    FIELD(wl_ring, published_ns),
	    FIELD(wl_ring, public_head),
	    FIELD(wl_ring, pad2),
	    FIELD(wl_ring, shed),
	    FIELD(wl_ring, shed_level),
	    FIELD(wl_ring, pad3),
	    WHOLE(wl_balance),
	    FIELD(wl_balance, worker),
	    FIELD(wl_balance, packets),
	    WHOLE(wl_reader),
	    FIELD(wl_reader, tail),
	    FIELD(wl_reader, pad),
	    FIELD(wl_reader, wake_at),
	    FIELD(wl_reader, pad2),
	    {NULL, 0, 0},
	};

	return fields;
}

#define CONSTANT(name) {#name, name}

const struct wl_native_constant *wl_native_constants(void)
{
	static const struct wl_native_constant constants[] = {
	    CONSTANT(WL_INTERFACE_VERSION),
	    CONSTANT(WL_MAX_GROUPS),
	    CONSTANT(WL_MAX_WORKERS),
	    CONSTANT(WL_MAX_QUEUES),
	    CONSTANT(WL_BUCKETS),
	    CONSTANT(WL_SEGMENT_SHIFT),
	    CONSTANT(WL_SEGMENT),
	    CONSTANT(WL_SLACK),
	    CONSTANT(WL_MAX_SNAP),
	    CONSTANT(WL_READERS),
	    CONSTANT(WL_AWAKE),
	    CONSTANT(WL_RECORD_HEADER),
	    CONSTANT(WL_GROUP_TAKE),
	    CONSTANT(WL_GROUP_INNER),
	    CONSTANT(WL_GROUP_CARD_CLOCK),
	    CONSTANT(WL_GROUP_ADAPTIVE),
	    CONSTANT(WL_STEER_FLOW),
	    CONSTANT(WL_STEER_QUEUE),
	    CONSTANT(WL_STEER_ROUND_ROBIN),
	    CONSTANT(WL_STEER_COPY),
	    CONSTANT(WL_STEER_VLAN),
	    CONSTANT(WL_STEER_SOURCE),
	    CONSTANT(WL_STEER_DESTINATION),
	    CONSTANT(WL_STEER_PROGRAM),
	    CONSTANT(WL_MAX_PROGRAMS),
	    CONSTANT(WL_PROGRAM_PART),
	    CONSTANT(WL_GROUP_FILTERS),
	    CONSTANT(WL_FILTER_STEPS),
	    CONSTANT(WL_FILTER_TEXT),
	    CONSTANT(WL_FILTER_MEMORY),
	    CONSTANT(WL_FILTER_GONE_OUT),
	    CONSTANT(WL_STEP_REFUSE),
	    CONSTANT(WL_STEP_ACCEPT),
	    CONSTANT(WL_STEP_IF_A),
	    CONSTANT(WL_STEP_LOAD),
	    CONSTANT(WL_STEP_HEADER),
	    CONSTANT(WL_STEP_EQUAL),
	    CONSTANT(WL_STEP_GREATER),
	    CONSTANT(WL_STEP_AT_LEAST),
	    CONSTANT(WL_STEP_SOME_BIT),
	    CONSTANT(WL_STEP_A_IS),
	    CONSTANT(WL_STEP_A_LENGTH),
	    CONSTANT(WL_STEP_A_DIRECTION),
	    CONSTANT(WL_STEP_A_RECALL),
	    CONSTANT(WL_STEP_X_IS),
	    CONSTANT(WL_STEP_X_IS_A),
	    CONSTANT(WL_STEP_X_LENGTH),
	    CONSTANT(WL_STEP_X_RECALL),
	    CONSTANT(WL_STEP_KEEP_A),
	    CONSTANT(WL_STEP_KEEP_X),
	    CONSTANT(WL_STEP_ADD),
	    CONSTANT(WL_STEP_SUBTRACT),
	    CONSTANT(WL_STEP_MULTIPLY),
	    CONSTANT(WL_STEP_DIVIDE),
	    CONSTANT(WL_STEP_MODULO),
	    CONSTANT(WL_STEP_AND),
	    CONSTANT(WL_STEP_OR),
	    CONSTANT(WL_STEP_XOR),
	    CONSTANT(WL_STEP_LEFT),
	    CONSTANT(WL_STEP_RIGHT),
	    CONSTANT(WL_STEP_NEGATE),
	    CONSTANT(WL_STEP_GO),
	    {"sizeof(struct wl_segment)", sizeof(struct wl_segment)},
	    {NULL, 0},
	};

	return constants;
}
