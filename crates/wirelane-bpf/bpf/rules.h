/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluation of rules in the kernel: lib/evaluate.h over maps.
 *
 * A file that includes this one has defined the access to the tables. `target` is the number of a group, plus
 * WL_RULE_TARGET_SET times the index of its set:
 *
 *	wl_rules_lane(lane, &parsed): the lane's struct wl_rule_work, and its packet
 *	wl_rules_set(target), wl_rules_nodes(target), wl_rules_classes(target), wl_rules_counts(target),
 *	wl_rules_exact_rules(target): the set, and maps; NULL if they do not exist
 *	wl_rules_blooms(target, test), wl_rules_exacts(target, test): the named set of a test, likewise
 *	wl_rules_pages(target), wl_rules_outputs(target): the automata that search payloads, likewise
 *
 * The parts are global functions, which the verifier walks once each, whatever their arguments. Linux 6.1
 * does not accept a map key in memory that was passed to such a function: hence some look-ups are made twice.
 */
#ifndef WL_RULES_H
#define WL_RULES_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>
#include "lib/rules.h"

#define WL_RULE_TARGET_SET 256

static __always_inline struct wl_rule_work *wl_rules_lane(__u32 lane, struct wl_parsed **parsed);
static __always_inline struct wl_rule_set *wl_rules_set(__u32 target);
static __always_inline void *wl_rules_nodes(__u32 target);
static __always_inline void *wl_rules_classes(__u32 target);
static __always_inline void *wl_rules_counts(__u32 target);
static __always_inline void *wl_rules_exact_rules(__u32 target);
static __always_inline void *wl_rules_blooms(__u32 target, __u32 test);
static __always_inline void *wl_rules_exacts(__u32 target, __u32 test);
static __always_inline void *wl_rules_pages(__u32 target);
static __always_inline void *wl_rules_outputs(__u32 target);

/* The maps that a part uses. */
struct wl_rule_env {
	void *nodes;
	void *classes;
	void *counts;
	void *exact_rules;
	void *bloom; /* of the current test */
	void *pages;
	void *outputs;
	__u32 target;
	__u32 lane;
};

#include "lib/evaluate.h"

static __always_inline const struct wl_rule_node *wl_rules_node(const struct wl_rule_env *env, __u32 at)
{
	return bpf_map_lookup_elem(env->nodes, &at);
}

static __always_inline const struct wl_rule_class *wl_rules_class(const struct wl_rule_env *env, __u32 at)
{
	return bpf_map_lookup_elem(env->classes, &at);
}

static __always_inline struct wl_exact_value *wl_exact_find(const struct wl_rule_env *env,
							    const struct wl_exact_key *key)
{
	return bpf_map_lookup_elem(env->exact_rules, key);
}

static __always_inline int wl_exact_insert(const struct wl_rule_env *env, const struct wl_exact_key *key,
					   const struct wl_exact_value *value, int there)
{
	long error = bpf_map_update_elem(env->exact_rules, key, value, there ? BPF_ANY : BPF_NOEXIST);

	if (!error)
		return WL_INSERTED;
	return error == -EEXIST ? WL_INSERT_LATE : WL_INSERT_FULL;
}

static __always_inline int wl_rules_ask(const struct wl_rule_env *env, __u32 test, int exact,
					const struct wl_member *key)
{
	void *entries;

	if (!env->bloom || bpf_map_peek_elem(env->bloom, (void *)key))
		return 0;
	if (!exact)
		return 1;
	entries = wl_rules_exacts(env->target, test);
	return entries && bpf_map_lookup_elem(entries, key);
}

/*
 * The chosen headers, at offset work->at, which wl_rules_choose() has set. For the verifier they are at one
 * unknown offset, and not at two, for each of which it would walk all later code separately.
 */
static __always_inline const struct wl_ip *wl_rule_headers(const struct wl_rule_work *work,
							   const struct wl_parsed *parsed)
{
	_Static_assert(__builtin_offsetof(struct wl_parsed, outer) == 0, "the mask leads to one of the two");
	return (const struct wl_ip *)((const __u8 *)parsed + (wl_rule_fresh(work->at) &
							      __builtin_offsetof(struct wl_parsed, inner)));
}

static __always_inline void wl_rules_choose(struct wl_rule_work *work, const struct wl_parsed *parsed,
					    int inner)
{
	wl_rule_fresh(work->at) = 0;
	if (inner && wl_rule_fresh(parsed->flags) & WL_PKT_TUNNEL)
		wl_rule_fresh(work->at) = __builtin_offsetof(struct wl_parsed, inner);
}

/* A rule's counters in the current lane, or NULL. */
static __always_inline struct wl_rule_counts *wl_rule_counts_of(void *counts, const struct wl_rule *rule,
								const struct wl_rule_work *work)
{
	__u32 key = wl_rule_fresh(work->first_count) + rule->slot;

	return bpf_map_lookup_elem(counts, &key);
}

/* Defers the insertion: the stack has no space for it at this depth. */
static __always_inline void wl_rules_make(const struct wl_rule_env *env, const struct wl_rule *rule,
					  struct wl_rule_counts *counts, const struct wl_parsed *parsed,
					  const struct wl_ip *chosen, struct wl_rule_work *work)
{
	__u32 at = wl_rule_fresh(work->makes);

	/* The number is limited by that of hits. */
	work->make[at & (WL_RULE_HITS - 1)] = work->rule;
	wl_rule_fresh(work->makes) = at + 1;
}

/* Whether a test of a named set holds for the lane's packet. */
__noinline int wl_rules_member(struct wl_rule_set *set, __u32 lane, __u32 target, __u32 test)
{
	struct wl_rule_env env = {.bloom = wl_rules_blooms(target, test), .target = target};
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	return set && work ? wl_rule_member(&env, set, wl_rule_headers(work, parsed), work, test) : 0;
}

/* Computes the byte of WL_DIM_SETS: work->held. */
__noinline int wl_rules_members(struct wl_rule_set *set, struct wl_rule_work *work)
{
	__u32 held = 0, test;

	if (!set || !work)
		return 0;
	for (test = 0; test < WL_RULE_MEMBERS; test++) {
		if (!wl_rule_fresh(set->member[test]))
			break;
		if (wl_rules_member(set, wl_rule_fresh(work->lane), wl_rule_fresh(work->target), test))
			held |= 1 << test;
	}
	work->held = held;
	return 0;
}

static __always_inline __u32 wl_rules_held(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   const struct wl_ip *chosen, struct wl_rule_work *work)
{
	wl_rules_members((struct wl_rule_set *)set, work);
	return wl_rule_fresh(work->held);
}

/* Computes the clauses of a word that accept the packet: work->bits. */
__noinline int wl_rules_bits(struct wl_rule_set *set, struct wl_rule_work *work, __u32 target, __u32 word)
{
	struct wl_rule_env env = {.classes = wl_rules_classes(target)};

	if (set && work && env.classes)
		work->bits = wl_rule_word(&env, set, work, word);
	return 0;
}

static __always_inline __u64 wl_rules_word(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   struct wl_rule_work *work, __u32 word)
{
	wl_rules_bits((struct wl_rule_set *)set, work, wl_rule_fresh(work->target), word);
	return wl_rule_fresh(work->bits);
}

/* Applies a wildcard rule that was hit. */
__noinline int wl_rule_act(struct wl_rule *rule, struct wl_rule_counts *counts, struct wl_parsed *parsed,
			   struct wl_rule_work *work)
{
	if (!rule || !parsed || !work)
		return 0;
	return wl_rule_hit(0, rule, counts, parsed, wl_rule_headers(work, parsed), work);
}

static __always_inline int wl_rules_act(const struct wl_rule_env *env, const struct wl_rule *rule,
					const struct wl_parsed *parsed, const struct wl_ip *chosen,
					struct wl_rule_work *work)
{
	struct wl_rule_counts *counts = wl_rule_counts_of(env->counts, rule, work);

	return wl_rule_act((struct wl_rule *)rule, counts, (struct wl_parsed *)parsed, work);
}

/* Evaluates exact-match rules. Not 0: wildcard rules come next. */
__noinline int wl_rules_by_key(struct wl_rule_set *set, __u32 lane, __u32 target)
{
	struct wl_rule_env env = {.exact_rules = wl_rules_exact_rules(target)};
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	if (!set || !work || !env.exact_rules)
		return 1;
	return wl_rules_exact(&env, set, parsed, wl_rule_headers(work, parsed), work);
}

/* Evaluates wildcard rules. */
__noinline int wl_rules_by_class(struct wl_rule_set *set, struct wl_parsed *parsed, struct wl_rule_work *work,
				 __u32 target)
{
	struct wl_rule_env env = {
	    .nodes = wl_rules_nodes(target),
	    .classes = wl_rules_classes(target),
	    .counts = wl_rules_counts(target),
	};

	if (set && parsed && work && env.nodes && env.classes && env.counts)
		wl_rules_wildcard(&env, set, parsed, wl_rule_headers(work, parsed), work);
	return 0;
}

/* Inserts an exact-match rule for the lane's packet. */
__noinline int wl_rule_make(struct wl_rule *rule, struct wl_rule_counts *counts, __u32 lane, __u32 target)
{
	struct wl_rule_env env = {.exact_rules = wl_rules_exact_rules(target)};
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	if (rule && work && env.exact_rules)
		wl_rule_insert(&env, rule, counts, parsed, wl_rule_headers(work, parsed), work);
	return 0;
}

/* Inserts the exact-match rules that wildcard rules have requested. */
__noinline int wl_rules_make_all(struct wl_rule_set *set, struct wl_rule_work *work, __u32 lane, __u32 target)
{
	void *counts = wl_rules_counts(target);
	struct wl_rule *rule;
	__u32 i;

	if (!set || !work || !counts)
		return 0;
	for (i = 0; i < WL_RULE_HITS && i < wl_rule_fresh(work->makes); i++) {
		rule = &set->rule[work->make[i] & (WL_RULES_MAX - 1)];
		wl_rule_make(rule, wl_rule_counts_of(counts, rule, work), lane, target);
	}
	return 0;
}

/* Begins a search of the lane's payload, and selects the plug-ins to run. */
__noinline int wl_rules_search(struct wl_rule_set *set, struct wl_parsed *parsed, struct wl_rule_work *work)
{
	__u32 asks = 0, place;

	if (!set || !parsed || !work)
		return 0;
	for (place = 0; place < WL_RULE_PLUGINS; place++)
		asks |= !!set->plugin[place] << place;
	wl_rule_fresh(work->search.asks) = asks;
	wl_search_begin(set, parsed, wl_rule_headers(work, parsed), work);
	return 0;
}

/* Ends the search of the payload. */
__noinline int wl_rules_searched(struct wl_rule_set *set, struct wl_rule_work *work, __u32 target)
{
	void *counts = wl_rules_counts(target);
	__u32 key;

	if (!set || !work || !counts)
		return 0;
	key = wl_rule_fresh(work->first_count) + set->search_slot;
	wl_search_count(bpf_map_lookup_elem(counts, &key), set, work);
	return 0;
}

/*
 * Evaluates the lane's packet: work->facts are the inputs, work->evaluated the result. `inner`: by the
 * headers inside a tunnel, if there is one. Returns the verdict; 0 if the set does not exist. After
 * WL_VERDICT_SEARCH, the owner of the packet calls wl_search_payload(), and this again with `searched`.
 */
static __always_inline __u32 wl_rules_evaluate(__u32 lane, __u32 target, int inner, int searched)
{
	struct wl_rule_set *set = wl_rules_set(target);
	struct wl_parsed *parsed;
	struct wl_rule_work *work = wl_rules_lane(lane, &parsed);

	if (!set || !work)
		return WL_VERDICT_NONE;
	if (searched) {
		wl_rules_searched(set, work, target);
		wl_rules_by_class(set, parsed, work, target);
	} else {
		work->target = target;
		work->lane = lane;
		work->first_count = lane * set->slots;
		wl_rule_fresh(work->makes) = 0;
		wl_rules_choose(work, parsed, inner);
		wl_rules_begin(work);
		if (!set->shapes || wl_rules_by_key(set, lane, target))
			if (set->clauses)
				wl_rules_by_class(set, parsed, work, target);
		if (wl_rule_fresh(work->search.phase) == WL_SEARCH_ASKED) {
			wl_rules_search(set, parsed, work);
			return WL_VERDICT_SEARCH;
		}
	}
	if (wl_rule_fresh(work->makes))
		wl_rules_make_all(set, work, lane, target);
	wl_rules_end(set, work);
	return work->evaluated.verdict;
}

#endif
