/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Time order across lanes: the writer's half. The reader's half is crates/wirelane/src/engine/ring/order.rs.
 *
 * A worker merges the rings of several lanes by time stamp. It must not deliver a record while another lane
 * can still publish an earlier one. A lane reads the clock before it copies the packet, so a packet can be
 * stamped and not yet published. Each lane therefore marks the current packet:
 *
 *	in_flight = WL_MARK_UNSTAMPED	before the clock is read
 *	in_flight = stamp		once it has been read
 *	in_flight = 0			once the packet is in all rings
 *
 * A worker reads the clock, then each lane's mark, then each ring's head. A lane that was found without a
 * packet stamps its next packet after the worker's clock read; a lane that was found with a stamp publishes
 * nothing earlier than that stamp.
 *
 * Memory order:
 *   in_flight = WL_MARK_UNSTAMPED  before the clock is read. x86 may read the clock while the store is still
 *     in the store buffer, which drains within a microsecond; the worker subtracts SLACK (order.rs) from
 *     its own clock read for this. Elsewhere wl_publish() is a fully ordered exchange.
 *   record bytes and heads  before  in_flight = 0 (wl_publish(); pairs with the Acquire load in
 *     Merge::look(), which comes before its loads of the heads)
 */
#ifndef WL_ORDER_H
#define WL_ORDER_H

#include "packet.h"
#include "maps.h"
#include "ring.h"

/* Marks the current packet as not yet stamped, if one of the active groups is ordered. Returns the lane's
 * mark then. */
static __always_inline struct wl_mark *wl_mark_begin(__u32 lane, const struct wl_instance *instance,
						     __u64 active)
{
	struct wl_mark *mark;

	if (!(active & *(volatile __u64 *)&instance->ordered))
		return 0;
	mark = bpf_map_lookup_elem(&wl_marks, &lane);
	if (mark)
		wl_publish(&mark->in_flight, WL_MARK_UNSTAMPED);
	return mark;
}

/*
 * Marks the packet with its stamp. bpf_ktime_get_ns() may step back by some nanoseconds when the kernel
 * adjusts its clock (kernel/time/timekeeping.c, ktime_get_mono_fast_ns()): then the previous stamp is used
 * again.
 */
static __always_inline void wl_mark_stamp(struct wl_mark *mark, struct wl_packet *packet)
{
	if (!mark)
		return;
	if (packet->ts_ns < mark->latest)
		packet->ts_ns = mark->latest;
	mark->latest = packet->ts_ns;
	*(volatile __u64 *)&mark->in_flight = packet->ts_ns;
}

/* Clears the mark: the packet is in all its rings. */
static __always_inline void wl_mark_end(struct wl_mark *mark)
{
	if (mark)
		wl_publish(&mark->in_flight, 0);
}

#endif
