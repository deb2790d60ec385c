/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What rules say of a packet, in the kernel: packet/judge.h over maps. */
#ifndef WL_RULES_H
#define WL_RULES_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>
#include "packet/rules.h"

/* The maps of the group at hand, and the lane's place in its counters. */
struct wl_rule_env {
	void *nodes;
	void *classes;
	void *counts;
	void *precises;
	__u32 first_count;
};

#include "packet/judge.h"

static __always_inline const struct wl_rule_node *wl_rules_node(const struct wl_rule_env *env, __u32 at)
{
	return bpf_map_lookup_elem(env->nodes, &at);
}

static __always_inline const struct wl_rule_class *wl_rules_class(const struct wl_rule_env *env, __u32 at)
{
	return bpf_map_lookup_elem(env->classes, &at);
}

static __always_inline struct wl_rule_counts *wl_rules_counts(const struct wl_rule_env *env, __u32 slot)
{
	__u32 key = env->first_count + (slot & (WL_RULES_MAX - 1));

	return bpf_map_lookup_elem(env->counts, &key);
}

static __always_inline struct wl_precise *wl_precise_find(const struct wl_rule_env *env,
							  const struct wl_precise_key *key)
{
	return bpf_map_lookup_elem(env->precises, key);
}

static __always_inline int wl_precise_insert(const struct wl_rule_env *env, const struct wl_precise_key *key,
					     const struct wl_precise *value, int there)
{
	long error = bpf_map_update_elem(env->precises, key, value, there ? BPF_ANY : BPF_NOEXIST);

	if (!error)
		return WL_INSERTED;
	return error == -EEXIST ? WL_INSERT_LATE : WL_INSERT_FULL;
}

/*
 * The headers that count, as wl_choose() chooses them. To the verifier they are at one place that it does not
 * know, and not at two that it would walk everything behind for, each on its own.
 */
static __always_inline const struct wl_ip *wl_rule_headers(struct wl_rule_work *work,
							   const struct wl_parsed *parsed, int inner)
{
	const __u32 at = __builtin_offsetof(struct wl_parsed, inner);

	_Static_assert(__builtin_offsetof(struct wl_parsed, outer) == 0, "the mask leads to one of the two");
	wl_rule_fresh(work->at) = inner && (parsed->flags & WL_PKT_TUNNEL) ? at : 0;
	return (const struct wl_ip *)((const __u8 *)parsed + (wl_rule_fresh(work->at) & at));
}

#endif
