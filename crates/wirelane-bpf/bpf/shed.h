/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Congestion control: packets that exceed a worker's capacity are refused before they are copied, and by
 * whole flows, so that the remaining flows can be analysed (Ksensor, Munoz et al.).
 *
 * Each ring refuses a share of the flow-hash space: `shed_level` of 256 parts, always the lowest ones, so
 * that a flow that is refused at one level is refused at every higher one.
 *
 *	level
 *	 256 |           /         .-------
 *	     |          /      .  '
 *	     |  at most/  .  ' at least
 *	   0 |--------/. '-------------------- unread bytes
 *	             low           high
 *
 * The level stays the same between two lines. The one that rises from the low to the high watermark is the
 * minimum that is refused; the other, WL_SHED_PLAY times as steep, the maximum. Below the low watermark all
 * packets are accepted again.
 *
 * So the level has hysteresis: the batches, pauses and bursts of a worker move the number of unread bytes up
 * and down between the lines, without toggling the flows at the edge of the level. A level that refuses too
 * little lets the bytes grow until the minimum raises it; one that refuses too much lets them shrink until
 * the maximum lowers it, before the worker runs out of work.
 */
#ifndef WL_SHED_H
#define WL_SHED_H

#include "ring.h"

#define WL_SHED_PARTS 256
#define WL_SHED_PLAY  8

/* Whether the ring refuses this packet. */
static __always_inline bool wl_shed(struct wl_ring *ring, void *data, __u32 ring_index,
				    const struct wl_group *group, __u32 hash, __u32 packets)
{
	__u64 low = group->shed_low, high = group->shed_high, unread, level, least, most;

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
	most = (unread - low) * (WL_SHED_PARTS * WL_SHED_PLAY) / (high - low);
	least = unread >= high ? WL_SHED_PARTS : most / WL_SHED_PLAY;
	if (level < least || level > most) {
		level = level < least ? least : most;
		ring->shed_level = level;
	}
	/* Buckets are chosen by the low bits of the hash, the refused share by the high ones. */
	if (hash >> 24 >= level)
		return false;
	ring->shed += packets;
	return true;
}

#endif
