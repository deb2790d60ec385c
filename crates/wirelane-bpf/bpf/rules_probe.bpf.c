/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluates one packet by one rule set. It is attached nowhere: tests run it with BPF_PROG_TEST_RUN, to
 * compare the kernel's compilation of the evaluator with the native one, and benchmarks measure its cost.
 */
#include "ctx_xdp.h"

#include "lib/parse.h"
#include "rules.h"
#include "search.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_rule_set);
} probe_set SEC(".maps");

/* The sizes of the next three are set before load. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_rule_node);
} probe_nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_rule_class);
} probe_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct wl_exact_key);
	__type(value, struct wl_exact_value);
} probe_exact_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WL_RULES_MAX);
	__type(key, __u32);
	__type(value, struct wl_rule_counts);
} probe_counts SEC(".maps");

struct probe_bloom_map {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1);
	__uint(map_extra, 1);
	__uint(value_size, sizeof(struct wl_member));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_RULE_MEMBERS);
	__type(key, __u32);
	__array(values, struct probe_bloom_map);
} probe_blooms SEC(".maps");

struct probe_exact_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct wl_member));
	__uint(value_size, sizeof(__u32));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WL_RULE_MEMBERS);
	__type(key, __u32);
	__array(values, struct probe_exact_map);
} probe_exacts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_search_page);
} probe_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_search_outputs);
} probe_outputs SEC(".maps");

/* Parameters of the next run, and its working memory. */
struct probe_lane {
	struct wl_parsed parsed;
	struct wl_rule_work work;
	__u32 inner;
	__u32 link; /* enum wl_link */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_lane);
} probe_lane SEC(".maps");

/* Global functions for the verifier, as in the capture program (offer.h). */
__noinline int wl_probe_parse(struct xdp_md *ctx, struct wl_parsed *parsed, __u32 link)
{
	if (parsed)
		wl_parse(ctx, link, WL_PARSE_TUNNELS, parsed);
	return 0;
}

__noinline int wl_probe_evaluate(__u32 lane_key, __u32 searched)
{
	struct probe_lane *lane = bpf_map_lookup_elem(&probe_lane, &lane_key);

	return lane ? wl_rules_evaluate(lane_key, 0, lane->inner, searched) : 0;
}

__noinline int wl_probe_search(struct xdp_md *ctx, __u32 lane_key)
{
	wl_search_payload(ctx, lane_key, 0, 0);
	return 0;
}

static __always_inline struct wl_rule_work *wl_rules_lane(__u32 lane_key, struct wl_parsed **parsed)
{
	struct probe_lane *lane = bpf_map_lookup_elem(&probe_lane, &lane_key);

	if (!lane)
		return 0;
	*parsed = &lane->parsed;
	return &lane->work;
}

static __always_inline struct wl_rule_set *wl_rules_set(__u32 target)
{
	return bpf_map_lookup_elem(&probe_set, &target);
}

static __always_inline void *wl_rules_nodes(__u32 target)
{
	/* Otherwise the compiler removes the argument from calls, and the verifier rejects them. */
	wl_keep(target);
	return &probe_nodes;
}

static __always_inline void *wl_rules_classes(__u32 target)
{
	wl_keep(target);
	return &probe_classes;
}

static __always_inline void *wl_rules_counts(__u32 target)
{
	wl_keep(target);
	return &probe_counts;
}

static __always_inline void *wl_rules_exact_rules(__u32 target)
{
	wl_keep(target);
	return &probe_exact_rules;
}

static __always_inline void *wl_rules_blooms(__u32 target, __u32 test)
{
	wl_keep(target);
	return bpf_map_lookup_elem(&probe_blooms, &test);
}

static __always_inline void *wl_rules_exacts(__u32 target, __u32 test)
{
	wl_keep(target);
	return bpf_map_lookup_elem(&probe_exacts, &test);
}

static __always_inline void *wl_rules_pages(__u32 target)
{
	wl_keep(target);
	return &probe_pages;
}

static __always_inline void *wl_rules_outputs(__u32 target)
{
	wl_keep(target);
	return &probe_outputs;
}

SEC("xdp.frags")
int wl_rules_probe(struct xdp_md *ctx)
{
	struct probe_lane *lane;
	__u32 key = 0, verdict;

	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!lane)
		return XDP_ABORTED;
	wl_probe_parse(ctx, &lane->parsed, lane->link);
	lane->work.search.captured = bpf_xdp_get_buff_len(ctx);
	verdict = wl_probe_evaluate(key, 0);
	if (verdict != WL_VERDICT_SEARCH)
		return verdict;
	wl_probe_search(ctx, key);
	return wl_probe_evaluate(key, 1);
}

/* The same without the evaluator, to subtract the remaining cost of a test run. */
SEC("xdp.frags")
int wl_rules_cost(struct xdp_md *ctx)
{
	struct probe_lane *lane;
	__u32 key = 0;

	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!lane)
		return XDP_ABORTED;
	wl_probe_parse(ctx, &lane->parsed, lane->link);
	return 0;
}
