/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Congestion control: what a worker will not get to is refused before it is copied, and by whole flows, so
 *that those which remain can be analysed (Ksensor, Munoz et al.).
 *
 * Each ring refuses a share of the flow-hash space: `shed_level` of 256 parts, always the lowest, so that a
 * flow that is refused at one level is refused at every higher one.
 *
 *	level
 *	 256 |                       .--------    The level follows the unread bytes upwards at once, and
 *falls |                  . '               slowly (one part each WL_SHED_STEP_NS), so that the flows at | .
 *'                    its edge do not come and go with every batch that the worker 0 |------------ gives
 *back. Below the low watermark all is taken again.
 *	     +-----------|----------|--------- unread bytes
 *	                low        high
 */
#ifndef WL_SHED_H
#define WL_SHED_H

#include "ring.h"

#define WL_SHED_PARTS	256
#define WL_SHED_STEP_NS 10000000

/* Whether the ring refuses this packet. */
static __always_inline bool wl_shed(struct wl_ring *ring, void *data, __u32 ring_index,
				    const struct wl_group *group, __u32 hash, __u64 ts_ns)
{
	__u64 low = group->shed_low, high = group->shed_high, unread, level, target;

	if (!high)
		return false;
	unread = ring->head - ring->cached_tail;
	if (unread >= low)
		unread = wl_ring_unread(ring, data, ring_index, group->segments);
	level = ring->shed_level;
	if (unread < low) {
		if (level)
			ring->shed_level = 0;
		return false;
	}
	target = unread >= high ? WL_SHED_PARTS : (unread - low) * WL_SHED_PARTS / (high - low);
	if (target > level) {
		level = target;
		ring->shed_level = level;
		ring->shed_ns = ts_ns;
	} else if (target < level && ts_ns - ring->shed_ns >= WL_SHED_STEP_NS) {
		level--;
		ring->shed_level = level;
		ring->shed_ns = ts_ns;
	}
	/* The buckets are chosen by the low bits of the hash, this by the high ones. */
	if (hash >> 24 >= level)
		return false;
	ring->shed++;
	return true;
}

#endif
