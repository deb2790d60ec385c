/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Aggregates packets into flows in the lane: the first-level cache (lib/flow_cache.h) over the maps of an
 * instance.
 *
 * Each lane has a cache for each worker of a group. A packet that is added to a part there is `absorbed` and
 * not copied. An evicted part is exported through the worker's ring; if the ring has no space for it, the new
 * packet is `lost`, and the cache stays as it was. So the flows contain exactly the packets that the ledger
 * counts. With WL_GROUP_FLOWS_BESIDE a packet that was added is also copied to the worker, and counted once,
 * as `delivered` or `lost`.
 *
 * Parts of silent flows are read without packets. A cache has two halves, and the lowest bit of
 * wl_group.flow_epoch selects the one that is filled. The owner raises the epoch, waits until all programs
 * that found the epoch before have ended, and has the workers read the frozen half in place. Once they all
 * have, the epoch may be raised again. A half is never cleared: entries of another epoch are invalid
 * (lib/flow_cache.h). A cache of another size is a map of its own, which is filled from an epoch on. The
 * former one is removed once its last half has been read.
 *
 *	epoch        7                          8                          9
 *	odd half     |== filled ==============| frozen |-- read ----------|== filled =====
 *	even half    | ... read --------------|== filled ===================| frozen | ...
 *	ring               parts of 7              parts of 8
 *
 * Parts of a flow are merged in the order of their packets: the ring's parts of an epoch, then the half of
 * that epoch, then the ring's parts of the next one. So a part contains its epoch. A lane that has written
 * one of the next epoch will never touch the half before again: it is a single writer, and sees the epoch
 * only rise.
 *
 * Trust: this memory is mapped read-only into the owner. Values that the owner writes, in wl_group, are used
 * as keys of maps, which check their bounds: a wrong number costs the owner its flows, and affects no other
 * group.
 *
 * Memory order: the words of a half are published by the ring's head, if the reader has found a part of the
 * next epoch (WL_RING_H), otherwise by the grace period that the owner has waited for.
 */
#ifndef WL_FLOWS_H
#define WL_FLOWS_H

#include "account.h"
#include "packet.h"
#include "instance.h"
#include "maps.h"
#include "ring.h"
#include "lib/application.h"
#include "lib/flow_cache.h"

/* With WL_ABSORBED: the flow's application is unknown, and the packet may reveal it (application.h). */
#define WL_NAMELESS    0x100

#define WL_FLOW_RECORD (WL_RECORD_HEADER + sizeof(struct wl_flow_part))

/* The element of the caches with this number. */
static __always_inline void *wl_flow_element(void *flows, __u32 number)
{
	return bpf_map_lookup_elem(flows, &number);
}

/* Writes a part into the worker's ring. False: no space. */
static __always_inline bool wl_hand_on(const struct wl_group *group, struct wl_ring *ring, void *data,
				       __u32 ring_index, __u32 bell_key, const struct wl_flow_part *part,
				       __u32 epoch, __u64 ts_ns)
{
	struct wl_record *record;
	__u8 *room;

	room = wl_ring_reserve(ring, data, ring_index, group->segments, WL_FLOW_RECORD);
	if (!room)
		return false;
	record = (struct wl_record *)room;
	__builtin_memset(record, 0, WL_RECORD_HEADER);
	record->ts_ns = ts_ns;
	record->cap_len = sizeof(*part);
	record->kind = WL_RECORD_FLOW;
	record->hash = epoch;
	*(struct wl_flow_part *)(room + WL_RECORD_HEADER) = *part;
	ring->parts++;
	wl_ring_commit(ring, data, ring_index, bell_key, group->publish_every, WL_FLOW_RECORD, ts_ns);
	return true;
}

/* Lists a slot that was not used in this epoch. False: not possible, because the owner's numbers are
 * invalid. */
static __always_inline bool wl_list_place(void *flows, __u32 half_at, __u32 sets, __u32 epoch, __u32 place)
{
	struct wl_flow_half *half = wl_flow_element(flows, half_at);
	struct wl_flow_used *list;
	__u32 used;

	if (!half)
		return false;
	used = half->epoch == epoch ? half->used : 0;
	if (used >= sets * WL_FLOW_WAYS)
		return false;
	list = wl_flow_element(flows, half_at + 1 + used / WL_FLOW_LISTED);
	if (!list)
		return false;
	list->place[used & (WL_FLOW_LISTED - 1)] = place;
	half->epoch = epoch;
	half->used = used + 1;
	return true;
}

/*
 * Adds the packet to its flow, in the cache that its lane has for this worker; `target` as in wl_copy().
 * Returns an enum wl_fate, with WL_NAMELESS. It needs no context, so that all hooks share it.
 */
__noinline int wl_keep_flow(struct wl_packet *packet, struct wl_parsed *parsed, __u32 target)
{
	__u32 g = target & 0xff, worker = target >> 8, lane_key, key, cache_key, ring_index, sets, epoch,
	      hash, half_at, place, chosen;
	__u64 turn;
	const struct wl_group *group;
	struct wl_flow_packet *about;
	const struct wl_ip *ip;
	struct wl_flow_set *set;
	struct wl_lane *lane;
	struct wl_ring *ring;
	void *flows, *data;

	if (!wl_has(WL_HAS_FLOWS) || !packet || !parsed || worker >= WL_MAX_WORKERS)
		return WL_LOST;
	lane_key = packet->lane;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	key = (g * wl_config.lanes + lane_key) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!group || !lane || !ring || !data)
		return WL_LOST;
	ring_index = lane_key * group->workers + worker;
	if (group->flow_sampling > 1) {
		if (ring->skip) {
			ring->skip--;
			ring->unsampled += packet->segments;
			ring->unsampled_bytes += packet->wire_bytes;
			ring->offloaded += packet->segments;
			return WL_ABSORBED;
		}
		ring->skip = group->flow_sampling - 1;
	}
	ip = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	about = &lane->flow_packet;
	about->ts_ns = packet->ts_ns;
	about->wire_len = packet->wire_len;
	about->segment_size = packet->segment_size;
	about->headers = packet->headers;
	about->device = 0; /* the reader of the part knows it */
	about->queue = packet->queue;
	wl_flow_packet_of(about, parsed, ip, packet->flags);
	if (packet->digest)
		wl_flow_packet_of_digest(about, ip);
	wl_flow_key_of(&lane->flow_key, ip, about);
	if (group->flow_splits.period_ns)
		wl_flow_key_more(&lane->flow_key, ip);
	hash = wl_flow_key_hash(&lane->flow_key, wl_config.seed);

	/* Read at once: the owner may raise the epoch at any time, and with it change the cache. */
	turn = *(volatile __u64 *)&group->flow_sets;
	epoch = turn >> 32;
	sets = (__u32)turn & ~WL_FLOW_SECOND;
	cache_key = g * 2 + !!(turn & WL_FLOW_SECOND);
	flows = bpf_map_lookup_elem(&wl_flows, &cache_key);
	if (!flows)
		goto lost;
	half_at = (ring_index * 2 + (epoch & 1)) * (1 + sets / WL_FLOW_LEAST_SETS + sets);
	place = hash & (sets - 1);
	set = wl_flow_element(flows, half_at + 1 + sets / WL_FLOW_LEAST_SETS + place);
	if (!set)
		goto lost;
	chosen = wl_flow_choose(set, epoch, hash, &lane->flow_key, ip, packet->ts_ns, &group->flow_splits);
	/* The verifier knows only the bounds that the mask gives. */
	barrier_var(chosen);
	if (chosen & WL_FLOW_OUT && !wl_hand_on(group, ring, data, ring_index, g * WL_MAX_WORKERS + worker,
						&set->parts[chosen & WL_FLOW_WAY], epoch, packet->ts_ns))
		goto lost;
	if (chosen & WL_FLOW_FRESH &&
	    !wl_list_place(flows, half_at, sets, epoch, place * WL_FLOW_WAYS + (chosen & WL_FLOW_WAY)))
		goto lost;
	wl_flow_put(set, chosen, epoch, hash, &lane->flow_key, ip, about);
	ring->offloaded += packet->segments;
	/* For a digest, a worker would have no bytes. */
	if (packet->digest || !wl_flow_is_nameless(set, chosen) || !wl_may_speak(ip, packet->wire_len))
		return WL_ABSORBED;
	lane->nameless_in = cache_key;
	lane->nameless =
	    (half_at + 1 + sets / WL_FLOW_LEAST_SETS + place) * WL_FLOW_WAYS + (chosen & WL_FLOW_WAY);
	return WL_ABSORBED | WL_NAMELESS;
lost:
	ring->lost += packet->segments;
	return WL_LOST;
}

#endif
