/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Evaluates the rules of a group on a packet: rules.h over the maps of an instance. */
#ifndef WL_EVALUATE_H
#define WL_EVALUATE_H

#include "packet.h"
#include "maps.h"
#include "rules.h"
#include "search.h"

/* Flags of wl_rules_of(). */
#define WL_RULES_INNER	  0x1 /* use the headers inside a tunnel */
#define WL_RULES_SEARCHED 0x2 /* the payload has been searched */

static __always_inline __u32 wl_target_group(__u32 target)
{
	return target % WL_RULE_TARGET_SET;
}

/* Index of the set in the maps that have a map for each set. */
static __always_inline __u32 wl_target_set(__u32 target)
{
	return wl_target_group(target) * WL_RULE_SETS + target / WL_RULE_TARGET_SET;
}

static __always_inline struct wl_rule_work *wl_rules_lane(__u32 lane_key, struct wl_parsed **parsed)
{
	struct wl_lane *lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);

	if (!lane)
		return 0;
	*parsed = &lane->parsed;
	return &lane->rules;
}

static __always_inline struct wl_rule_set *wl_rules_set(__u32 target)
{
	__u32 key = wl_target_set(target), first = 0;
	void *head = bpf_map_lookup_elem(&wl_rule_heads, &key);

	return head ? bpf_map_lookup_elem(head, &first) : 0;
}

static __always_inline void *wl_rules_nodes(__u32 target)
{
	__u32 key = wl_target_set(target);

	return bpf_map_lookup_elem(&wl_rule_nodes, &key);
}

static __always_inline void *wl_rules_classes(__u32 target)
{
	__u32 key = wl_target_set(target);

	return bpf_map_lookup_elem(&wl_rule_classes, &key);
}

static __always_inline void *wl_rules_counts(__u32 target)
{
	__u32 key = wl_target_group(target);

	return bpf_map_lookup_elem(&wl_rule_counts, &key);
}

static __always_inline void *wl_rules_exact_rules(__u32 target)
{
	__u32 key = wl_target_group(target);

	return bpf_map_lookup_elem(&wl_exact_rules, &key);
}

/* Index of a test in the maps that have a map for each test of each set. */
static __always_inline __u32 wl_target_test(__u32 target, __u32 test)
{
	return wl_target_set(target) * WL_RULE_MEMBERS + test % WL_RULE_MEMBERS;
}

static __always_inline void *wl_rules_blooms(__u32 target, __u32 test)
{
	__u32 key = wl_target_test(target, test);

	return bpf_map_lookup_elem(&wl_blooms, &key);
}

static __always_inline void *wl_rules_exacts(__u32 target, __u32 test)
{
	__u32 key = wl_target_test(target, test);

	return bpf_map_lookup_elem(&wl_exacts, &key);
}

static __always_inline void *wl_rules_pages(__u32 target)
{
	__u32 key = wl_target_set(target);

	return bpf_map_lookup_elem(&wl_search_pages, &key);
}

static __always_inline void *wl_rules_outputs(__u32 target)
{
	__u32 key = wl_target_set(target);

	return bpf_map_lookup_elem(&wl_search_ends, &key);
}

/* Searches the lane's payload. For global functions see wl_copy(). */
__noinline int wl_search_packet(wl_ctx *ctx, struct wl_packet *packet, __u32 target)
{
	if (packet && wl_has(WL_HAS_RULES))
		wl_search_payload(ctx, packet->lane, target, packet->vlan);
	return 0;
}

/*
 * The verdict of a group's rules, whose number is `target`; the results for the record are in *packet. Needs
 * no context, so that all hooks share it: after WL_VERDICT_SEARCH the caller searches the payload, runs the
 * plug-ins in packet->asks, and calls this again. WL_VERDICT_NONE: the set does not exist, which is
 * impossible.
 */
__noinline int wl_rules_of(struct wl_packet *packet, __u32 target, __u32 how)
{
	struct wl_parsed *parsed;
	struct wl_rule_work *work;
	__u32 verdict;

	if (!packet || !wl_has(WL_HAS_RULES))
		return WL_VERDICT_NONE;
	work = wl_rules_lane(packet->lane, &parsed);
	if (!work)
		return WL_VERDICT_NONE;
	work->facts.now_ns = packet->ts_ns;
	work->facts.wire_len = packet->wire_len;
	work->facts.queue = wl_rx_queue(packet->queue);
	work->facts.egress = !!(packet->flags & WL_REC_EGRESS);
	work->facts.seed = wl_config.seed;
	work->facts.more_packets = packet->segments - 1;
	work->facts.more_bytes = packet->wire_bytes - packet->wire_len;
	work->search.captured = packet->wire_len;
	verdict = wl_rules_evaluate(packet->lane, target, how & WL_RULES_INNER, how & WL_RULES_SEARCHED);
	packet->rule_id = work->evaluated.rule_id;
	packet->truncate = work->evaluated.truncate;
	packet->tagged = work->evaluated.flags & WL_EVALUATED_TAGGED;
	packet->tag = work->evaluated.tag;
	packet->noted = 0;
	packet->hits = wl_rule_fresh(work->evaluated.hit_count) > 1;
	packet->half = wl_rule_fresh(work->evaluated.flags) & WL_EVALUATED_HALF ? WL_REC_HALF_SEARCHED : 0;
	packet->asks = work->search.asks;
	if (wl_config.plugins && how & WL_RULES_SEARCHED) {
		if (wl_rule_fresh(work->search.unasked))
			packet->half = WL_REC_HALF_SEARCHED;
		packet->noted = !!wl_rule_fresh(work->search.noted);
	}
	packet->found = 0;
	if (packet->noted || packet->hits || wl_rule_fresh(work->evaluated.pattern[0]))
		packet->found = sizeof(struct wl_found) + packet->noted * sizeof(struct wl_note) +
				packet->hits * sizeof(struct wl_hits);
	packet->egress_devices = work->evaluated.egress_devices;
	return verdict;
}

#endif
