/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The offer of a packet to the only group, which is in the first slot, steers by flow and has no features:
 * most captures (offer.h). Its program is an object of its own, because Linux before 6.8 verifies every
 * global function of an object, called or not.
 *
 * One function without calls, each of which costs 5 to 15 ns, and with the filter before clock and parser.
 * The compiler keeps *packet in registers, as long as no function gets its address.
 */
#ifndef WL_OFFER_FIRST_H
#define WL_OFFER_FIRST_H

#include "account.h"
#include "copy.h"
#include "order.h"
#include "receive.h"
#include "wide.h"
#include "lib/steer.h"

/* The parser within the calling program, for the most frequent packets, and the tag that is put back. */
static __always_inline void wl_parse_here(wl_ctx *ctx, const struct wl_packet *packet,
					  struct wl_parsed *parsed)
{
	if (!wl_parse_plain(wl_fresh_pointer(ctx->data), wl_fresh_pointer(ctx->data_end), wl_config.link,
			    WL_PARSE_TUNNELS, parsed))
		wl_parse_packet(ctx, parsed);
	if (packet->vlan)
		wl_put_vlan_back(parsed, bpf_ntohs(packet->vlan_tag >> 16));
}

/* Offers the packet to the group in the first slot. Returns WL_CONSUMED or 0. */
static __always_inline __u32 wl_offer_first(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					    const struct wl_instance *instance, struct wl_mark *mark)
{
	struct wl_group *group = wl_group_wanting(0, packet->queue);
	struct wl_tally *tally = wl_tally_of(packet, 0);
	const struct wl_ip *chosen;
	__u32 filter, worker;

	if (!group || !tally)
		return 0;
	/* Read once: the owner may change it at any time. */
	filter = *(volatile __u32 *)&group->filter;
	if (wl_config.codes[0] && filter && wl_filter_verdict(ctx, packet, filter) != 1) {
		/* The headers of each segment are counted, too. */
		if (packet->segment_size)
			wl_parse_here(ctx, packet, parsed);
		wl_count_segments(packet, parsed);
		wl_account_filtered(tally, packet);
		return wl_takes_rest(group);
	}
	wl_stamp(packet, instance, 1, mark);
	wl_parse_here(ctx, packet, parsed);
	wl_count_segments(packet, parsed);
	chosen = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	packet->hash = wl_packet_hash(parsed, chosen, wl_config.seed);
	worker = wl_worker(group->buckets[wl_bucket(packet->hash)], group->workers);
	wl_account_seen(tally, packet);
	wl_account(tally, packet, wl_copy_record(ctx, packet, parsed, group, 0, worker));
	return wl_takes(group);
}

#endif
