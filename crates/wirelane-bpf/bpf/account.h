/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Counts packets as they are on the wire. tc sees aggregates: GRO has merged received packets, and
 * transmitted packets wait for GSO to segment them. All counters count the packets that an aggregate stands
 * for, and their bytes, as qdisc_pkt_len_init() in net/core/dev.c does.
 */
#ifndef WL_ACCOUNT_H
#define WL_ACCOUNT_H

#include "packet.h"
#include "instance.h"
#include "lib/flow.h"

#define WL_GSO_BY_FRAGS 0xffff /* include/linux/skbuff.h: SCTP, whose segments differ in size */

/* Sets the packets and bytes on the wire of the current packet, which has been parsed. */
static __always_inline void wl_count_segments(struct wl_packet *packet, const struct wl_parsed *parsed)
{
	const struct wl_ip *ip = parsed->flags & WL_PKT_TUNNEL ? &parsed->inner : &parsed->outer;
	__u32 headers = 0, stated = packet->segments;

	packet->segments = 1;
	packet->wire_bytes = packet->wire_len;
	if (!packet->segment_size)
		return;
	if (ip->payload_off != WL_NO_OFFSET)
		headers = ip->payload_off;
	if (packet->segment_size == WL_GSO_BY_FRAGS)
		packet->segment_size = stated && packet->wire_len > headers
					   ? (packet->wire_len - headers + stated - 1) / stated
					   : 0;
	packet->headers = headers;
	packet->segments = wl_segments(packet->wire_len, packet->segment_size, headers);
	packet->wire_bytes += (packet->segments - 1) * headers;
	if (packet->segments == 1) {
		packet->segment_size = 0;
		packet->flags &= ~WL_REC_GSO;
	}
}

/* Result for a packet, or for one worker's copy of it: the column of the ledger, as a field of wl_tally. */
enum wl_fate {
	WL_FILTERED = __builtin_offsetof(struct wl_tally, filtered) / 8,
	WL_ABSORBED = __builtin_offsetof(struct wl_tally, absorbed) / 8,
	WL_SHED = __builtin_offsetof(struct wl_tally, shed) / 8,
	WL_LOST = __builtin_offsetof(struct wl_tally, lost) / 8,
	WL_DELIVERED = __builtin_offsetof(struct wl_tally, delivered) / 8,
};

/* Counts the current packet as seen by a group. */
static __always_inline void wl_account_seen(struct wl_tally *tally, const struct wl_packet *packet)
{
	tally->seen += packet->segments;
	tally->seen_bytes += packet->wire_bytes;
	if (packet->segment_size)
		tally->aggregates++;
}

/* Adds the current packet, or one worker's copy of it, to the column of its fate: the only place where
 * columns change. */
static __always_inline void wl_account(struct wl_tally *tally, const struct wl_packet *packet, __u32 fate)
{
	((__u64 *)tally)[fate & 7] += packet->segments;
}

/* Counts the current packet as kept in the lane; of the column `absorbed`. */
static __always_inline void wl_account_offloaded(struct wl_tally *tally, const struct wl_packet *packet)
{
	tally->offloaded += packet->segments;
	tally->offloaded_bytes += packet->wire_bytes;
}

/* Counts the current packet as kept in a flow of the lane, and delivered, too. */
static __always_inline void wl_account_in_flows(struct wl_tally *tally, const struct wl_packet *packet)
{
	tally->in_flows += packet->segments;
	tally->in_flows_bytes += packet->wire_bytes;
}

/* Counts the current packet as seen and not wanted. */
static __always_inline void wl_account_filtered(struct wl_tally *tally, const struct wl_packet *packet)
{
	wl_account_seen(tally, packet);
	wl_account(tally, packet, WL_FILTERED);
}

#endif
