/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The packet functions compiled natively, for crates/wirelane-bpf/src/native.rs. */
#include <stddef.h>
#include <string.h>

#include "native.h"
#include "lib/filter.h"
#include "lib/hash.h"
#include "lib/parse.h"
#include "lib/record.h"
#include "lib/steer.h"

/* *out must be zero: wl_parse() does not write fields that its flags do not declare valid. */
void wl_native_parse(const __u8 *data, size_t length, __u8 link, __u32 options, struct wl_parsed *out)
{
	wl_parse(data, data + length, link, options, out);
}

/* Only the walk, also for plain packets; *out must be zero. For tests. */
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

int wl_native_is_in_share(__u32 hash, __u32 share, __u32 shares)
{
	return wl_is_in_share(hash, share, shares);
}

/* The packet that a filter evaluates, natively. */
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
 * Whether these steps accept the packet, of which `length` bytes are available. It ends for any steps: a step
 * that does not lead further on is the last one.
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
