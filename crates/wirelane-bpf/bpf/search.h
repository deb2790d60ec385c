/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Searches a payload in the kernel: lib/search.h over maps. The payload is copied block by block to the
 * lane's memory, by helpers, which reach linear and paged data.
 *
 * The parts are global functions, as in rules.h: the verifier walks a block once, and not for each block of a
 * packet.
 */
#ifndef WL_SEARCH_H
#define WL_SEARCH_H

#include "fetch.h"
#include "rules.h"

/* Records the patterns that end in a state. */
__noinline int wl_search_state(__u32 lane, __u32 target, __u32 state, __u32 end)
{
	struct wl_rule_env env = {.pages = wl_rules_pages(target), .outputs = wl_rules_outputs(target)};
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	if (work && env.pages && env.outputs)
		wl_search_note(&env, work, state, end);
	return 0;
}

static __always_inline void wl_search_ended(const struct wl_rule_env *env, struct wl_rule_work *work,
					    __u32 state, __u32 end)
{
	wl_search_state(env->lane, env->target, state, end);
}

static __always_inline const struct wl_search_page *wl_search_page(const struct wl_rule_env *env, __u32 at)
{
	return bpf_map_lookup_elem(env->pages, &at);
}

static __always_inline const struct wl_search_outputs *wl_search_outputs_of(const struct wl_rule_env *env,
									    __u32 at)
{
	return bpf_map_lookup_elem(env->outputs, &at);
}

/* Walks an automaton over the lane's block. */
__noinline int wl_search_block(__u32 lane, __u32 target, __u32 which)
{
	struct wl_rule_env env = {.pages = wl_rules_pages(target), .target = target, .lane = lane};
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	if (work && env.pages)
		wl_search_walk(&env, work, which);
	return 0;
}

/* Searches the lane's payload. `tag`: a VLAN tag was put back, which the packet itself does not have. */
static __always_inline void wl_search_payload(wl_ctx *ctx, __u32 lane, __u32 target, __u32 tag)
{
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);
	__u32 i, length, from;

	if (!work)
		return;
	for (i = 0; i < WL_SEARCH_BYTES / WL_SEARCH_BLOCK; i++) {
		length = wl_rule_fresh(work->search.left);
		if (!length)
			return;
		if (length > WL_SEARCH_BLOCK)
			length = WL_SEARCH_BLOCK;
		wl_rule_fresh(work->search.length) = length;
		from = wl_rule_fresh(work->search.from);
		if (tag)
			from -= WL_VLAN_TAG;
		if (wl_load_most(ctx, from, work->search.block, length, WL_SEARCH_BLOCK)) {
			/* Impossible: the packet has as many bytes. */
			work->evaluated.flags |= WL_EVALUATED_HALF;
			return;
		}
		wl_search_block(lane, target, 0);
		wl_search_block(lane, target, 1);
		wl_search_next(work);
	}
}

#endif
