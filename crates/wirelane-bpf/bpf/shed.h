/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Congestion control (lib/shed.h) over the maps of an instance: packets are refused before they are copied.
 *
 * The group's map in wl_sheds has the state of each ring, at its index, and behind these the sets of the
 * table of flows. Without congestion control a group has none.
 */
#ifndef WL_SHED_H
#define WL_SHED_H

#include "packet.h"
#include "ring.h"
#include "lib/shed.h"

/* Of a worker's copies: each worker has its own flows. */
#define WL_SHED_COPY 0x9e3779b9

/* A global function of its own: the verifier walks it once, and not for each path that leads to it. */
__noinline int wl_shed_find(struct wl_shed_set *set, __u32 hash, __u32 tick)
{
	return set ? wl_shed_way(set, hash, tick) : 0;
}

/*
 * Whether the ring refuses this packet; `target` as in wl_copy(). It needs no context, so that all hooks
 * share it, and is a global function for the verifier's sake, too.
 */
__noinline int wl_shed(struct wl_packet *packet, __u32 target)
{
	__u32 g = target & 0xff, worker = target >> 8, lane, key, ring_index;
	struct wl_shed_packet at;
	struct wl_shed_set *set;
	struct wl_group *group;
	struct wl_shed *shed;
	struct wl_ring *ring;
	void *sheds, *data;

	if (!wl_has(WL_HAS_SHED) || !packet || worker >= WL_MAX_WORKERS)
		return 0;
	lane = packet->lane;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	key = (g * wl_config.lanes + lane) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	data = bpf_map_lookup_elem(&wl_data, &g);
	sheds = bpf_map_lookup_elem(&wl_sheds, &g);
	if (!group || !ring || !data || !sheds)
		return 0;
	ring_index = lane * group->workers + worker;
	shed = bpf_map_lookup_elem(sheds, &ring_index);
	at.hash = packet->hash;
	if (group->steering == WL_STEER_COPY)
		at.hash += worker * WL_SHED_COPY;
	key = wl_config.lanes * group->workers + (at.hash & (group->shed_sets - 1));
	set = bpf_map_lookup_elem(sheds, &key);
	if (!shed || !set)
		return 0;
	at.low = group->shed_low;
	at.high = group->shed_high;
	at.head = ring->head;
	at.tail = ring->cached_tail;
	/* The reader's line is another CPU's: left alone while the ring is almost empty. */
	if (at.head - at.tail >= at.low / 16)
		at.tail = at.head - wl_ring_unread(ring, data, ring_index, group->segments);
	at.tick = packet->ts_ns >> WL_SHED_TICK_SHIFT;
	wl_shed_measure(shed, &at);
	if (!wl_shed_refuses(shed, set, &group->shed_refused, &at, wl_shed_find(set, at.hash, at.tick)))
		return 0;
	ring->shed += packet->segments;
	return 1;
}

#endif
