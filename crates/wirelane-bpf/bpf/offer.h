/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Common part of all capture hooks, once length, lane and queue of a packet are known: parses the packet
 * once, and offers it to each active group. Kinds of contexts differ only in how bytes are copied out of the
 * packet (ctx_xdp.h, ctx_skb.h). One program is loaded and attached per instance (capture_xdp.bpf.c,
 * capture_skb.bpf.c), with offer_first.h for one group without features (WL_SIMPLE), else with offer_each.h.
 *
 *            +-- lane (RX queue, or CPU under generic XDP): one packet at a time, one writer ------------+
 *   packet ->| parse once -> for each active group: wanted? -> steer -> ring (the single copy)           |->
 * host |                       |                  |         |                                      |   stack
 *            |                     tally:             tally:    worker's ring full: tally: lost          |
 * (or |                     seen               filtered, else: delivered                          |   taken)
 *            +-------------------------------------------------------------------------------------------+
 *
 * Invariants
 *   - One writer per lane. Under native XDP a lane is an RX queue, which NAPI polls on one CPU at a time;
 *     otherwise it is a CPU, and the program runs with bottom halves off. So nothing here is locked, and
 *     counters are plain additions. No cache line is written by two lanes.
 *   - Every packet that a group saw is in exactly one column of its tally: the function that decides adds it.
 *   - Groups share nothing but the packet: a group that is full, slow or gone costs the others its look-ups.
 *     Packets that a device-wide group drops are not delivered to the others (wide.h).
 *   - Groups come and go while packets flow. The owner publishes a group by putting its data map into wl_data
 *     (the kernel waits for running programs there) and then setting its bit in wl_instance.active; it leaves
 *     in the opposite order. No program run sees a half-made group.
 */
#ifndef WL_OFFER_H
#define WL_OFFER_H

#include "maps.h"
#include "order.h"
#include "packet.h"
#ifdef WL_SIMPLE
#include "offer_first.h"
#else
#include "offer_each.h"
#endif

/* The packet's lane. */
static __always_inline struct wl_lane *wl_lane_of(struct wl_packet *packet)
{
#ifdef WL_SIMPLE
	/* The packet has no address (offer_first.h). */
	__u32 lane = packet->lane, *key = &lane;
#else
	/* A copy would need stack that Linux 6.1 does not have. */
	__u32 *key = &packet->lane;
#endif

	return bpf_map_lookup_elem(&wl_lanes, key);
}

/*
 * Counts the packet in its lane, parses it and offers it to every active group; the caller sets packet->lane,
 * queue, wire_len, flags and vlan. True: it does not go on to the host stack.
 */
static __always_inline bool wl_offer(wl_ctx *ctx, struct wl_packet *packet)
{
	struct wl_instance *instance;
	struct wl_lane *lane;
	struct wl_mark *mark;
	__u32 key = 0, goes;
	__u64 active;

	instance = bpf_map_lookup_elem(&wl_instance, &key);
	if (!instance)
		return false;
	lane = wl_lane_of(packet);
	/* Where lanes are CPUs, further RX queues count for the last one that is told apart. */
	if (wl_config.per_cpu && packet->queue >= wl_config.queues)
		packet->queue = wl_config.queues - 1;
	if (!lane || packet->queue >= wl_config.queues) {
		__sync_fetch_and_add(&instance->stray, 1);
		return false;
	}
	lane->seen++;
	lane->seen_bytes += packet->wire_len;

	active = *(volatile __u64 *)&instance->active;
	if (!active)
		return false;
	mark = wl_mark_begin(packet->lane, instance, active);
#ifdef WL_SIMPLE
	goes = wl_offer_first(ctx, packet, &lane->parsed, instance, mark);
	wl_mark_end(mark);
#else
	packet->marked = !!mark;
	goes = wl_offer_each(ctx, packet, &lane->parsed, instance, active);
	wl_mark_end(wl_mark_of(packet));
#endif
	return goes;
}

#endif
