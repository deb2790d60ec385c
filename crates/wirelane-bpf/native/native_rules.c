/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The evaluator compiled natively, for crates/wirelane-bpf/src/evaluate.rs. Tables are slices of the
 * caller. */
#include <stddef.h>
#include <string.h>

#include "native.h"
#include "lib/rules.h"

#include "lib/evaluate.h"

static __always_inline const struct wl_rule_node *wl_rules_node(const struct wl_rule_env *env, __u32 at)
{
	return at < env->node_count ? &env->nodes[at] : NULL;
}

static __always_inline const struct wl_rule_class *wl_rules_class(const struct wl_rule_env *env, __u32 at)
{
	return at < env->class_count ? &env->classes[at] : NULL;
}

/* Natively the set itself is queried, which has no false positives. */
static __always_inline int wl_rules_ask(const struct wl_rule_env *env, __u32 test, int exact,
					const struct wl_member *key)
{
	(void)exact;
	return env->has(env->members, test, key);
}

static __always_inline __u32 wl_rules_held(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   const struct wl_ip *chosen, struct wl_rule_work *work)
{
	__u32 held = 0, test;

	for (test = 0; test < WL_RULE_MEMBERS && set->member[test]; test++)
		held |= (__u32)wl_rule_member(env, set, chosen, work, test) << test;
	return held;
}

static __always_inline __u64 wl_rules_word(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   struct wl_rule_work *work, __u32 word)
{
	return wl_rule_word(env, set, work, word);
}

static __always_inline int wl_rules_act(const struct wl_rule_env *env, const struct wl_rule *rule,
					const struct wl_parsed *parsed, const struct wl_ip *chosen,
					struct wl_rule_work *work)
{
	struct wl_rule_counts *counts = rule->slot < env->count_count ? &env->counts[rule->slot] : NULL;

	return wl_rule_hit(env, rule, counts, parsed, chosen, work);
}

static __always_inline void wl_rules_make(const struct wl_rule_env *env, const struct wl_rule *rule,
					  struct wl_rule_counts *counts, const struct wl_parsed *parsed,
					  const struct wl_ip *chosen, struct wl_rule_work *work)
{
	wl_rule_insert(env, rule, counts, parsed, chosen, work);
}

static __always_inline struct wl_exact_value *wl_exact_find(const struct wl_rule_env *env,
							    const struct wl_exact_key *key)
{
	return env->find(env->exact_rules, key);
}

static __always_inline int wl_exact_insert(const struct wl_rule_env *env, const struct wl_exact_key *key,
					   const struct wl_exact_value *value, int there)
{
	return env->insert(env->exact_rules, key, value, there);
}

static __always_inline const struct wl_search_page *wl_search_page(const struct wl_rule_env *env, __u32 at)
{
	return at < env->page_count ? &env->pages[at] : NULL;
}

static __always_inline const struct wl_search_outputs *wl_search_outputs_of(const struct wl_rule_env *env,
									    __u32 at)
{
	return at < env->outputs_count ? &env->outputs[at] : NULL;
}

static __always_inline void wl_search_ended(const struct wl_rule_env *env, struct wl_rule_work *work,
					    __u32 state, __u32 end)
{
	wl_search_note(env, work, state, end);
}

static void wl_native_search(const struct wl_rule_env *env, const struct wl_rule_set *set,
			     const struct wl_parsed *parsed, const struct wl_ip *chosen,
			     struct wl_rule_work *work)
{
	struct wl_search *search = &work->search;

	wl_search_begin(set, parsed, chosen, work);
	while (search->left) {
		search->length = search->left < WL_SEARCH_BLOCK ? search->left : WL_SEARCH_BLOCK;
		memcpy(search->block, env->data + search->from, search->length);
		wl_search_walk(env, work, 0);
		wl_search_walk(env, work, 1);
		wl_search_next(work);
	}
	wl_search_count(set->search_slot < env->count_count ? &env->counts[set->search_slot] : NULL, set,
			work);
}

/* *env and *set are only read; counts are written as by a single lane. */
void wl_native_evaluate(const struct wl_rule_env *env, const struct wl_rule_set *set,
			const struct wl_parsed *parsed, int inner, const struct wl_rule_facts *facts,
			struct wl_evaluated *evaluated)
{
	const struct wl_ip *chosen = wl_choose(parsed, inner);
	struct wl_rule_work work;

	work.facts = *facts;
	work.search.captured = env->length;
	wl_rules_begin(&work);
	if (wl_rules_exact(env, set, parsed, chosen, &work))
		wl_rules_wildcard(env, set, parsed, chosen, &work);
	if (work.search.phase == WL_SEARCH_ASKED) {
		wl_native_search(env, set, parsed, chosen, &work);
		wl_rules_wildcard(env, set, parsed, chosen, &work);
	}
	wl_rules_end(set, &work);
	*evaluated = work.evaluated;
}
