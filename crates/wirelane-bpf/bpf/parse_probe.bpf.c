/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Runs the packet functions on one packet and stores their results in a map. It is attached nowhere: tests
 * run it with BPF_PROG_TEST_RUN, to compare the kernel's compilation with the native one, and benchmarks
 * measure the cost of parsing and hashing.
 */
#include "ctx_xdp.h"

#include "lib/hash.h"
#include "lib/parse.h"
#include "lib/record.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Parameters of the next run. In a map and not in read-only data: one loaded program serves every test. */
struct probe_input {
	__u32 link;    /* enum wl_link */
	__u32 options; /* WL_PARSE_* */
	__u32 seed;
	__u32 pad;
};

struct probe_output {
	struct wl_parsed parsed; /* inner is cleared without WL_PKT_TUNNEL, so that results can be compared */
	struct wl_record record;
	__u32 outer_hash;
	__u32 packet_hash; /* of the inner headers if there are any */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_input);
} probe_in SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_output);
} probe_out SEC(".maps");

SEC("xdp.frags")
int wl_parse_probe(struct xdp_md *ctx)
{
	__u32 key = 0;
	const struct probe_input *in = bpf_map_lookup_elem(&probe_in, &key);
	struct probe_output *out = bpf_map_lookup_elem(&probe_out, &key);
	const struct wl_ip *chosen;

	if (!in || !out)
		return XDP_ABORTED;
	wl_parse(ctx, in->link, in->options, &out->parsed);
	if (!(out->parsed.flags & WL_PKT_TUNNEL))
		__builtin_memset(&out->parsed.inner, 0, sizeof(out->parsed.inner));
	chosen = wl_choose(&out->parsed, 1);
	out->outer_hash = wl_flow_hash(&out->parsed.outer, in->seed);
	out->packet_hash = wl_packet_hash(&out->parsed, chosen, in->seed);
	wl_fill_record(&out->record, &out->parsed, chosen, out->packet_hash);
	return XDP_PASS;
}

/* The cost of a capture program per packet in the common case: Ethernet, parse, hash of the outer headers. */
SEC("xdp.frags")
int wl_parse_cost(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct probe_output *out = bpf_map_lookup_elem(&probe_out, &key);

	if (!out)
		return XDP_ABORTED;
	wl_parse(ctx, WL_LINK_ETHERNET, WL_PARSE_TUNNELS, &out->parsed);
	out->outer_hash = wl_flow_hash(&out->parsed.outer, 0);
	return XDP_PASS;
}

/* The same without the parser, to subtract the cost of a test run itself. */
SEC("xdp.frags")
int wl_empty_cost(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct probe_output *out = bpf_map_lookup_elem(&probe_out, &key);

	if (!out)
		return XDP_ABORTED;
	out->outer_hash = ctx->rx_queue_index;
	return XDP_PASS;
}
