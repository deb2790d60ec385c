/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Delivers a packet that a group wants: copies it into a ring, adds it to a flow, keeps it back as HTTP
 * payload or as part of an RTP stream, or refuses it under congestion. */
#ifndef WL_DELIVER_H
#define WL_DELIVER_H

#include "account.h"
#include "application.h"
#include "copy.h"
#include "flows.h"
#include "http.h"
#include "shed.h"

/*
 * wl_copy_record() as a function of its own: `target` is the group, and 256 times the worker.
 *
 * A global function, as many others: the verifier walks such a function once, whatever its arguments are, and
 * not again for each worker, group and path through the parser. (It requires the checks for NULL.)
 */
__noinline int wl_copy(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 target)
{
	__u32 g = target & 0xff;
	const struct wl_group *group;

	if (!packet || !parsed)
		return WL_LOST;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	if (!group)
		return WL_LOST;
	return wl_copy_record(ctx, packet, parsed, group, g, target >> 8);
}

/* Whether the packet was added to its RTP stream, and nobody else in the group wants its bytes. */
static __always_inline bool wl_stays(const struct wl_packet *packet, const struct wl_group *group)
{
	return wl_has(WL_HAS_STREAMS) && packet->measured && !(group->flags & WL_GROUP_STREAMS_BESIDE);
}

/* Copies the packet to a worker, adds it to a flow, or offloads it, and counts it in the column that it
 * belongs to. */
static __always_inline void wl_deliver(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
				       const struct wl_group *group, struct wl_tally *tally, __u32 g,
				       __u32 worker)
{
	__u32 target = g | worker << 8, fate;

	if (wl_has(WL_HAS_HTTP) && group->flags & WL_GROUP_HTTP) {
		fate = wl_http_choose(ctx, packet, parsed, target);
		if (fate & WL_HTTP_READ) {
			wl_http_read(ctx, packet, target);
			fate &= ~WL_HTTP_READ;
		}
		if (fate == WL_ABSORBED) {
			wl_account(tally, packet, WL_ABSORBED);
			wl_account_offloaded(tally, packet);
			return;
		}
		if (fate == WL_LOST) {
			wl_account(tally, packet, WL_LOST);
			return;
		}
	}
	/* Here, and not in wl_copy() or wl_keep_flow(): with their frames the stack would be too large. */
	if (wl_has(WL_HAS_SHED) && group->shed_high && !wl_stays(packet, group) && wl_shed(packet, target)) {
		wl_account(tally, packet, WL_SHED);
		return;
	}
	/* Ids of rules start at 1: 0, which means no rule, wraps around and is greater than all others
	 * here. */
	if (wl_has(WL_HAS_FLOWS) && group->flags & WL_GROUP_FLOWS && packet->rule_id - 1 >= group->whole) {
		fate = wl_keep_flow(packet, parsed, target);
		if (fate & WL_NAMELESS) {
			wl_name(ctx, packet, parsed, target);
			fate = WL_ABSORBED;
		}
		/* A packet that is not part of a flow is lost, and not delivered either. */
		if (fate != WL_ABSORBED) {
			wl_account(tally, packet, WL_LOST);
			return;
		}
		if (!(group->flags & WL_GROUP_FLOWS_BESIDE)) {
			wl_account_offloaded(tally, packet);
			wl_account(tally, packet, WL_ABSORBED);
			return;
		}
		wl_account_in_flows(tally, packet);
	}
	if (wl_stays(packet, group)) {
		wl_account(tally, packet, WL_ABSORBED);
		return;
	}
	fate = wl_copy(ctx, packet, parsed, target);
	/* The verifier knows only the bounds that the mask gives. */
	barrier_var(fate);
	wl_account(tally, packet, fate);
}

#endif
