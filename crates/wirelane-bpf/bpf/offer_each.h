/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The offer of a packet to any number of groups, with all features (offer.h). */
#ifndef WL_OFFER_EACH_H
#define WL_OFFER_EACH_H

#include "account.h"
#include "balance.h"
#include "deliver.h"
#include "evaluate.h"
#include "order.h"
#include "plugin.h"
#include "program.h"
#include "receive.h"
#include "send.h"
#include "streams.h"
#include "verdict.h"
#include "wide.h"
#include "lib/steer.h"

/*
 * Whether a filter accepts the packet in its recorded form: with its tag. `key` is the filter's index in
 * wl_filters. A global function.
 */
__noinline int wl_accepts(wl_ctx *ctx, struct wl_packet *packet, __u32 key)
{
	struct wl_filter_packet evaluated = {.ctx = ctx};
	__u32 lane_key, behind = 0;
	struct wl_filter *filter;
	struct wl_lane *lane;

	if (!packet || !wl_has(WL_HAS_FILTERS))
		return 0;
	lane_key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	filter = bpf_map_lookup_elem(&wl_filters, &key);
	if (!lane || !filter)
		return 0;
	evaluated.run = &lane->filter;
	evaluated.head = lane->head;
	lane->filter.wire_len = packet->wire_len;
	lane->filter.direction = packet->flags & WL_REC_EGRESS ? WL_FILTER_GONE_OUT : 0;
	lane->filter.tagged = packet->vlan;
	if (packet->vlan) {
		/* Missing bytes are not loaded: wl_filter_load() checks the length first. */
		if (packet->wire_len > WL_PUT_BACK)
			behind = packet->wire_len - WL_PUT_BACK;
		if (behind > WL_FILTER_HEAD - WL_PUT_BACK)
			behind = WL_FILTER_HEAD - WL_PUT_BACK;
		wl_load_most(ctx, 0, lane->head, WL_MACS, WL_MACS);
		__builtin_memcpy(lane->head + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
		wl_load_most(ctx, WL_MACS, lane->head + WL_PUT_BACK, behind, WL_FILTER_HEAD - WL_PUT_BACK);
	}
	return wl_filter_evaluate(filter, &evaluated);
}

/* Whether the filter of group g, by the value of wl_group.filter, accepts the packet. */
static __always_inline bool wl_is_accepted(wl_ctx *ctx, struct wl_packet *packet, __u32 g, __u32 filter)
{
	int verdict = wl_filter_verdict(ctx, packet, filter);
	__u32 key;

	if (verdict != WL_FILTER_UNKNOWN)
		return verdict;
	/* A program without the interpreter has all filters of its groups as instructions. */
	if (!wl_has(WL_HAS_FILTERS))
		return false;
	key = g * WL_GROUP_FILTERS + (((filter & WL_FILTER_ENTRY) - 1) & (WL_GROUP_FILTERS - 1));
	return wl_accepts(ctx, packet, key);
}

/*
 * Whether the rules of group g let the packet pass. If they do not, it is counted, and *goes tells which
 * receivers do not get the packet.
 */
static __always_inline bool wl_rules_pass(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					  struct wl_group *group, struct wl_tally *tally, __u32 g,
					  __u32 *goes)
{
	/* Read once: the owner may change it at any time. */
	__u32 rules = *(volatile __u32 *)&group->rules, verdict, target, inner;

	packet->rule_id = 0;
	packet->truncate = 0;
	packet->tagged = 0;
	packet->found = 0;
	packet->half = 0;
	packet->digest = 0;
	packet->egress_devices = 0;
	packet->measured = 0;
	if (!wl_has(WL_HAS_RULES) || !rules)
		return true;
	inner = group->flags & WL_GROUP_INNER;
	if (wl_has(WL_HAS_STREAMS) && rules & WL_RULES_OF_PLACES &&
	    wl_measure(ctx, packet, g | WL_STREAM_BEFORE_RULES | (inner ? WL_STREAM_INNER : 0)))
		goto measured;
	target = g + ((rules - 1) & (WL_RULE_SETS - 1)) * WL_RULE_TARGET_SET;
	verdict = wl_rules_of(packet, target, inner ? WL_RULES_INNER : 0);
	if (verdict == WL_VERDICT_SEARCH) {
		wl_search_packet(ctx, packet, target);
		if (wl_config.plugins)
			wl_plugins_ask(ctx, packet, parsed, target);
		verdict = wl_rules_of(packet, target, WL_RULES_SEARCHED);
	}
	if (WL_CTX_IS_SKB && packet->egress_devices)
		wl_send_later(packet, g);
	if (wl_has(WL_HAS_STREAMS) && verdict == WL_VERDICT_MEASURE) {
		if (!wl_measure(ctx, packet, g))
			return true;
	measured:
		if (group->flags & (WL_GROUP_FLOWS_BESIDE | WL_GROUP_STREAMS_BESIDE)) {
			tally->measured += packet->segments;
			packet->measured = 1;
			return true;
		}
		wl_account_offloaded(tally, packet);
		verdict = WL_VERDICT_ABSORB;
	}
	packet->digest = verdict == WL_VERDICT_DIGEST;
	if (verdict == WL_VERDICT_PASS || verdict == WL_VERDICT_DIGEST)
		return true;
	wl_account_seen(tally, packet);
	if (verdict == WL_VERDICT_ABSORB || verdict == WL_VERDICT_REDIRECT) {
		wl_account(tally, packet, WL_ABSORBED);
		if (verdict == WL_VERDICT_REDIRECT || group->flags & WL_GROUP_EXCLUSIVE)
			*goes = WL_CONSUMED;
	} else {
		wl_account(tally, packet, WL_FILTERED);
		if (verdict == WL_VERDICT_DROP && group->flags & WL_GROUP_WIDE && wl_is_owned(g))
			*goes = WL_BLOCKED;
	}
	return false;
}

/* Offers the packet to one group. Returns the other receivers that do not get it: WL_CONSUMED, WL_BLOCKED,
 * or 0. A global function. */
__noinline int wl_offer_to(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 g)
{
	__u32 queue, bucket, worker, filter, i;
	const struct wl_ip *chosen;
	struct wl_group *group;
	struct wl_tally *tally;
	__u32 goes;

	if (!packet || !parsed)
		return 0;
	queue = packet->queue;
	group = wl_group_wanting(g, queue);
	if (!group)
		return 0;
	tally = wl_tally_of(packet, g);
	if (!tally)
		return 0;
	goes = wl_takes_rest(group);
	chosen = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	/* The share first: of many groups that divide flows, only one evaluates its filter and rules. */
	if (group->shares &&
	    !wl_is_in_share(wl_packet_hash(parsed, chosen, group->share_seed), group->share, group->shares)) {
		wl_account_filtered(tally, packet);
		return goes;
	}
	/* Read once: the owner may change it at any time. */
	filter = *(volatile __u32 *)&group->filter;
	if ((wl_has(WL_HAS_FILTERS) || wl_config.codes[0]) && filter &&
	    !wl_is_accepted(ctx, packet, g, filter)) {
		wl_account_filtered(tally, packet);
		return goes;
	}
	if (!wl_rules_pass(ctx, packet, parsed, group, tally, g, &goes))
		return goes;
	packet->hash = wl_packet_hash(parsed, chosen, wl_config.seed);
	switch (group->steering) {
	case WL_STEER_QUEUE:
		worker = queue;
		break;
	case WL_STEER_ROUND_ROBIN:
		worker = tally->turn;
		tally->turn = worker + 1 < group->workers ? worker + 1 : 0;
		break;
	case WL_STEER_COPY:
		for (i = 0; i < WL_MAX_WORKERS && i < group->workers; i++) {
			/* Every copy is counted. */
			wl_account_seen(tally, packet);
			wl_deliver(ctx, packet, parsed, group, tally, g, i);
		}
		return wl_takes(group);
	case WL_STEER_PROGRAM:
		worker = STEER_NOT_MINE;
		if (wl_config.programs)
			worker = wl_ask(ctx, packet, parsed, g);
		if ((__s32)worker < 0) {
			wl_account_filtered(tally, packet);
			return goes;
		}
		break;
	default:
		bucket = wl_bucket(
		    wl_steering_hash(group->steering, parsed, chosen, packet->hash, wl_config.seed));
		worker = group->buckets[bucket];
		if (wl_has(WL_HAS_BALANCE) && group->flags & WL_GROUP_ADAPTIVE)
			worker = wl_balance_bucket(group, g, packet->lane, bucket, worker);
	}
	wl_account_seen(tally, packet);
	wl_deliver(ctx, packet, parsed, group, tally, g, wl_worker(worker, group->workers));
	return wl_takes(group);
}

/* Offers the packet to these groups, in order, until one blocks it; the others only count it. `goes` as
 * above. */
static __always_inline __u32 wl_offer_all(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					  __u64 groups, __u32 goes)
{
	__u32 g;

	for (g = 0; g < WL_MAX_GROUPS && groups; g++, groups >>= 1) {
		if (!(groups & 1))
			continue;
		if (goes & WL_BLOCKED)
			wl_withhold(packet, g);
		else
			goes |= wl_offer_to(ctx, packet, parsed, g);
	}
	return goes;
}

/* The mark of the packet's lane, if it was marked. Not kept over calls: Linux 6.1 counts the stack of all
 * functions that call each other, and has no space for it. */
static __always_inline struct wl_mark *wl_mark_of(const struct wl_packet *packet)
{
	__u32 lane = packet->lane;

	return packet->marked ? bpf_map_lookup_elem(&wl_marks, &lane) : 0;
}

/* Parses the packet, and offers it to every active group. */
static __always_inline __u32 wl_offer_each(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					   const struct wl_instance *instance, __u64 active)
{
	__u64 wide = active & *(volatile __u64 *)&instance->wide;
	__u32 goes = 0;

	wl_stamp(packet, instance, active, wl_mark_of(packet));
	wl_parse_packet(ctx, parsed);
	if (packet->vlan)
		wl_put_vlan_back(parsed, bpf_ntohs(packet->vlan_tag >> 16));
	wl_count_segments(packet, parsed);
	if (wide)
		goes = wl_offer_all(ctx, packet, parsed, wide, goes);
	return wl_offer_all(ctx, packet, parsed, active & ~wide, goes);
}

#endif
