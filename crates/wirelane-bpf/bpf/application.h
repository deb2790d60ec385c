/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Application protocol of flows that are aggregated in the lane, detected from the first bytes of a payload
 * (lib/application.h).
 *
 * wl_keep_flow() does not access the packet data, and most packets belong to a flow whose application is
 * known, or have no payload. If it returns WL_NAMELESS, the hook calls this code with its context. A part
 * gets the application of its first packet with a certain one, and wl_flow_merge() takes that of the first
 * part that has one: so the application of a flow is the same as packet by packet, however often it was
 * split.
 */
#ifndef WL_APPLICATION_H
#define WL_APPLICATION_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "fetch.h"
#include "flows.h"
#include "packet.h"
#include "instance.h"
#include "maps.h"
#include "lib/application.h"

_Static_assert(sizeof(((struct wl_lane *)0)->payload) == WL_APPLICATION_WINDOW, "the window");

/* The payload of the packet, `offset` bytes after its start, and its end: within the linear part. */
static __always_inline const __u8 *wl_payload(wl_ctx *ctx, __u32 offset, const __u8 **end)
{
	const __u8 *data = (void *)(long)ctx->data;

	*end = (void *)(long)ctx->data_end;
	data += offset & WL_OFFSET_MASK;
	wl_keep(data);
	return data;
}

/*
 * Copies `len` bytes of the payload, up to WL_APPLICATION_WINDOW, to `to`. Bytes in the linear part are
 * copied directly, as the helper's call would dominate the cost: as their first and their last 16 or 8, which
 * may overlap.
 */
static __always_inline bool wl_load_window(wl_ctx *ctx, __u32 offset, __u8 *to, __u32 len)
{
	const __u8 *end, *last, *data = wl_payload(ctx, offset, &end);
	__u32 back;

	if (len >= 16) {
		/* A bound that the verifier sees on the register that is added. */
		back = len - 16;
		barrier_var(back);
		back &= 31;
		last = data + back;
		wl_keep(last);
		if (data + 16 <= end && last + 16 <= end) {
			wl_copy16(to, data);
			wl_copy16(to + back, last);
			return true;
		}
	} else if (len >= 8) {
		back = len - 8;
		barrier_var(back);
		back &= 15;
		last = data + back;
		wl_keep(last);
		if (data + 8 <= end && last + 8 <= end) {
			wl_store64(to, wl_load64(data));
			wl_store64(to + back, wl_load64(last));
			return true;
		}
	}
	return !wl_load_most(ctx, offset, to, len, WL_APPLICATION_WINDOW);
}

/* Sets the application of the flow that wl_keep_flow() has added the packet to. Uses only the bytes of the
 * payload that a worker would get. For global functions see wl_copy(). */
__noinline int wl_name(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 target)
{
	__u32 g = target & 0xff, lane_key, cap_len, at, length, captured, cache_key, found;
	const __u8 *first, *end;
	const struct wl_group *group;
	const struct wl_ip *ip;
	struct wl_flow_set *set;
	struct wl_lane *lane;
	void *flows;
	__u8 *window;

	if (!wl_has(WL_HAS_FLOWS) || !packet || !parsed)
		return 0;
	lane_key = packet->lane;
	cap_len = packet->wire_len;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	if (!group)
		return 0;
	ip = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	length = captured = wl_payload_length(ip, packet->wire_len);
	at = ip->payload_off;
	if (cap_len > group->snap_len)
		cap_len = group->snap_len;
	if (packet->truncate && cap_len > packet->truncate)
		cap_len = packet->truncate;
	if (cap_len <= at)
		return 0;
	if (captured > cap_len - at)
		captured = cap_len - at;
	if (captured > WL_APPLICATION_WINDOW)
		captured = WL_APPLICATION_WINDOW;
	/* A tag that is put back is not part of the packet's bytes. */
	if (packet->vlan)
		at -= WL_VLAN_TAG;
	first = wl_payload(ctx, at, &end);
	if (first + 1 <= end && !wl_may_begin(ip, length, *first))
		return 0;

	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	if (!lane)
		return 0;
	cache_key = lane->nameless_in;
	flows = bpf_map_lookup_elem(&wl_flows, &cache_key);
	if (!flows)
		return 0;
	set = wl_flow_element(flows, lane->nameless / WL_FLOW_WAYS);
	if (!set)
		return 0;
	window = __builtin_assume_aligned(lane->payload, 8);
	wl_store64(window, 0);
	wl_store64(window + 8, 0);
	wl_store64(window + 16, 0);
	wl_store64(window + 24, 0);
	if (!wl_load_window(ctx, at, window, captured))
		return 0;
	found = wl_application(window, length, ip);
	if (found)
		wl_flow_name(set, lane->nameless, found);
	return 0;
}

#endif
