/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluates one packet by one filter. It is attached nowhere: tests run it with BPF_PROG_TEST_RUN, to compare
 * the kernel's compilation of the interpreter, and filters as instructions, with the native interpreter.
 */
#ifndef WL_FILTER_PROBE_H
#define WL_FILTER_PROBE_H

#include "filter_code.h"
#include "verdict.h"

/* Results: XDP_DROP and XDP_PASS. */
#define PROBE_FAILED   0
#define PROBE_REFUSED  1
#define PROBE_ACCEPTED 2

#if WL_CTX_IS_SKB
#define PROBE_SECTION "tc"
#else
#define PROBE_SECTION "xdp.frags"
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_filter);
} probe_filter SEC(".maps");

/* Parameters of the next run, and its working memory. */
struct probe_lane {
	struct wl_filter_run run;
	__u8 head[WL_FILTER_HEAD]; /* with the tag, if one is put back */
	__u32 tagged;
	__u32 outgoing;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_lane);
} probe_lane SEC(".maps");

/* The filter of the map, by the interpreter. */
SEC(PROBE_SECTION)
int wl_filter_probe(wl_ctx *ctx)
{
	struct wl_filter_packet packet = {.ctx = ctx};
	struct wl_filter *filter;
	struct probe_lane *lane;
	__u32 key = 0;

	filter = bpf_map_lookup_elem(&probe_filter, &key);
	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!filter || !lane)
		return PROBE_FAILED;
	packet.run = &lane->run;
	packet.head = lane->head;
	lane->run.tagged = lane->tagged;
	lane->run.wire_len = wl_ctx_len(ctx) + (lane->tagged ? WL_VLAN_TAG : 0);
	lane->run.direction = lane->outgoing ? WL_FILTER_GONE_OUT : 0;
	return wl_filter_evaluate(filter, &packet) ? PROBE_ACCEPTED : PROBE_REFUSED;
}

/* The filter with number 1, as instructions. */
SEC("?" PROBE_SECTION)
int wl_filter_code_probe(wl_ctx *ctx)
{
	__u32 key = 0, length, direction, tag = 0;
	struct probe_lane *lane;

	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!lane)
		return PROBE_FAILED;
	length = wl_ctx_len(ctx);
	direction = lane->outgoing ? WL_FILTER_GONE_OUT : 0;
	if (lane->tagged) {
		length += WL_VLAN_TAG;
		__builtin_memcpy(&tag, lane->head + WL_MACS, sizeof(tag));
	}
	switch (wl_filter_code(ctx, 1, length, direction, tag)) {
	case 0:
		return PROBE_REFUSED;
	case 1:
		return PROBE_ACCEPTED;
	}
	return PROBE_FAILED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#endif
