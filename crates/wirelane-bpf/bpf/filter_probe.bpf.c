/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluates one packet by one filter. It is attached nowhere: tests run it with BPF_PROG_TEST_RUN, to compare
 * the kernel's compilation of the interpreter, and filters as instructions, with the native interpreter.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "filter_code.h"
#include "verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

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

SEC("xdp.frags")
int wl_filter_probe(struct xdp_md *ctx)
{
	struct wl_filter_packet packet = {.ctx = ctx, .hook = WL_HOOK_XDP};
	struct wl_filter *filter;
	struct probe_lane *lane;
	__u32 key = 0;

	filter = bpf_map_lookup_elem(&probe_filter, &key);
	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!filter || !lane)
		return XDP_ABORTED;
	packet.run = &lane->run;
	packet.head = lane->head;
	lane->run.tagged = lane->tagged;
	lane->run.wire_len = bpf_xdp_get_buff_len(ctx) + (lane->tagged ? WL_VLAN_TAG : 0);
	lane->run.direction = lane->outgoing ? WL_FILTER_GONE_OUT : 0;
	return wl_filter_evaluate(filter, &packet) ? XDP_PASS : XDP_DROP;
}

/* The filter with number 1, as instructions. */
SEC("?xdp.frags")
int wl_filter_code_probe(struct xdp_md *ctx)
{
	__u32 key = 0, length, direction, tag = 0;
	struct probe_lane *lane;

	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!lane)
		return XDP_ABORTED;
	length = bpf_xdp_get_buff_len(ctx);
	direction = lane->outgoing ? WL_FILTER_GONE_OUT : 0;
	if (lane->tagged) {
		length += WL_VLAN_TAG;
		__builtin_memcpy(&tag, lane->head + WL_MACS, sizeof(tag));
	}
	switch (wl_filter_code_xdp(ctx, 1, length, direction, tag)) {
	case 0:
		return XDP_DROP;
	case 1:
		return XDP_PASS;
	}
	return XDP_ABORTED;
}

/* The same on a socket buffer, whose tag the stack has taken out. */
SEC("?tc")
int wl_filter_code_probe_skb(struct __sk_buff *ctx)
{
	__u32 key = 0, length = ctx->len, direction, tag = 0;
	struct probe_lane *lane;

	lane = bpf_map_lookup_elem(&probe_lane, &key);
	if (!lane)
		return 0;
	direction = lane->outgoing ? WL_FILTER_GONE_OUT : 0;
	if (lane->tagged) {
		length += WL_VLAN_TAG;
		__builtin_memcpy(&tag, lane->head + WL_MACS, sizeof(tag));
	}
	return 1 + wl_filter_code_skb(ctx, 1, length, direction, tag);
}
