/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Common part of all capture hooks, once length, lane and queue of a packet are known: parses the packet
 * once, and offers it to each active group. Kinds of contexts differ only in how bytes are copied out of the
 * packet (ctx_xdp.h, ctx_skb.h). One program is loaded and attached per instance (capture_xdp.bpf.c,
 * capture_skb.bpf.c).
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

#include "account.h"
#include "balance.h"
#include "clock.h"
#include "copy.h"
#include "filter_code.h"
#include "packet.h"
#include "instance.h"
#include "evaluate.h"
#include "load.h"
#include "maps.h"
#include "order.h"
#include "plugin.h"
#include "program.h"
#include "send.h"
#include "streams.h"
#include "verdict.h"
#include "wide.h"
#include "lib/parse.h"
#include "lib/hash.h"
#include "lib/steer.h"

/*
 * The parser; for global functions see wl_copy(). `parsed` must not point to the caller's stack (parse.h
 * explains why): the verifier treats it as memory with unknown contents.
 */
__noinline int wl_parse_packet(wl_ctx *ctx, struct wl_parsed *parsed)
{
	if (parsed)
		wl_parse(ctx, wl_config.link, WL_PARSE_TUNNELS, parsed);
	return 0;
}

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
	__u32 direction = packet->flags & WL_REC_EGRESS ? WL_FILTER_GONE_OUT : 0;
	__u32 tag = packet->vlan ? packet->vlan_tag : 0, number = filter >> WL_FILTER_NUMBER, key;
	int verdict = WL_FILTER_UNKNOWN;

	if (wl_config.codes[0] && number)
		verdict = wl_filter_code(ctx, number, packet->wire_len, direction, tag);
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

/*
 * Counts the packet in its lane, parses it and offers it to every active group; the caller sets packet->lane,
 * queue, wire_len, flags and vlan. True: it does not go on to the host stack.
 */
static __always_inline bool wl_offer(wl_ctx *ctx, struct wl_packet *packet)
{
	struct wl_instance *instance;
	struct wl_lane *lane;
	__u32 key = 0, goes = 0;
	__u64 active, wide;

	instance = bpf_map_lookup_elem(&wl_instance, &key);
	if (!instance)
		return false;
	lane = bpf_map_lookup_elem(&wl_lanes, &packet->lane);
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
	wl_mark_begin(packet, instance, active);
	/* If one group wants a clock read per packet, all groups get it. */
	if (wl_config.batches && !(active & ~*(volatile __u64 *)&instance->batch_clock)) {
		packet->ts_ns = wl_batch_time();
		packet->flags |= WL_REC_BATCH_CLOCK;
	} else {
		packet->ts_ns = bpf_ktime_get_ns();
	}
	wl_mark_stamp(packet);
	wl_parse_packet(ctx, &lane->parsed);
	if (packet->vlan)
		wl_put_vlan_back(&lane->parsed, bpf_ntohs(packet->vlan_tag >> 16));
	wl_count_segments(packet, &lane->parsed);

	wide = active & *(volatile __u64 *)&instance->wide;
	if (wide)
		goes = wl_offer_all(ctx, packet, &lane->parsed, wide, goes);
	goes = wl_offer_all(ctx, packet, &lane->parsed, active & ~wide, goes);
	wl_mark_end(packet);
	return goes;
}

#endif
