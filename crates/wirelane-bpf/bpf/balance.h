/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Buckets that move: a lane counts the load of each bucket, and sends it to the worker in the group's table.
 * User space moves load by changing the table (crates/wirelane/src/balance).
 *
 * That must not reorder a flow. So a lane that finds a bucket moved first writes a barrier into the ring of
 * the new worker: "the following records wait until the old worker has read up to here", with the head of the
 * old worker's ring from this lane. Waits cannot be circular: a barrier refers to records that the lane wrote
 * before it, and a worker that waits at one continues to read the rings of other lanes.
 *
 * If there is no space for the barrier, the bucket stays with the old worker until there is.
 */
#ifndef WL_BALANCE_H
#define WL_BALANCE_H

#include "ring.h"

/* Writes the barrier. False: no space. */
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
	/* A packet follows it, which publishes. */
	wl_publish(&ring->head, ring->head + WL_RECORD_HEADER);
	return true;
}

/* The worker of a bucket, after counting the packet; `wanted` is the worker in the group's table. */
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
