/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Buckets that move: a lane counts what each bucket brings, and sends it where the group's table says. User
 * space moves load by changing the table (crates/wirelane/src/balance).
 *
 * A flow must not be reordered by that. So a lane that finds a bucket moved first writes a barrier into the
 * ring of the new worker: "what follows waits until the old worker has read up to here", here being the head
 * of the old worker's ring from this lane. There is no waiting in a circle: a barrier points at what the lane
 * wrote before it, and a worker that waits at one reads on in the rings of other lanes.
 *
 * Where there is no room for the barrier, the bucket stays with the old worker until there is.
 */
#ifndef WL_BALANCE_H
#define WL_BALANCE_H

#include "ring.h"

/* Writes the barrier. False: no room. */
static __always_inline bool wl_write_barrier(void *data, const struct wl_group *group, __u32 g, __u32 lane,
					     __u32 from, __u32 to)
{
	__u32 first = (g * wl_config.lanes + lane) * WL_MAX_WORKERS;
	__u32 from_key = first + from, to_key = first + to;
	__u32 ring_index = lane * group->workers + to;
	struct wl_ring *old, *ring;
	struct wl_record *record;

	old = bpf_map_lookup_elem(&wl_rings, &from_key);
	ring = bpf_map_lookup_elem(&wl_rings, &to_key);
	if (!old || !ring)
		return false;
	record =
	    (struct wl_record *)wl_ring_reserve(ring, data, ring_index, group->segments, WL_RECORD_HEADER);
	if (!record)
		return false;
	__builtin_memset(record, 0, WL_RECORD_HEADER);
	record->kind = WL_RECORD_BARRIER;
	record->hash = from;
	record->ts_ns = old->head;
	/* Behind it comes a packet, which publishes. */
	wl_publish(&ring->head, ring->head + WL_RECORD_HEADER);
	return true;
}

/* The worker of a bucket, counted; `wanted` is what the group's table says. */
static __always_inline __u32 wl_balance_bucket(const struct wl_group *group, __u32 g, __u32 lane,
					       __u32 bucket, __u32 wanted)
{
	__u32 key = g * wl_config.lanes + lane, worker;
	struct wl_balance *balance;
	void *data;

	balance = bpf_map_lookup_elem(&wl_balances, &key);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!balance || !data)
		return wanted;
	bucket &= WL_BUCKETS - 1;
	balance->packets[bucket]++;
	worker = wl_worker(balance->worker[bucket], group->workers);
	wanted = wl_worker(wanted, group->workers);
	if (worker == wanted || wanted >= WL_MAX_WORKERS || worker >= WL_MAX_WORKERS)
		return worker;
	if (!wl_write_barrier(data, group, g, lane, worker, wanted))
		return worker;
	balance->worker[bucket] = wanted;
	return wanted;
}

#endif
