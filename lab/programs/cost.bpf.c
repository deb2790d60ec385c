/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cost of the parts of a capture program, measured with BPF_PROG_TEST_RUN: each program does one thing to the
 * packet; the empty one is subtracted from the others.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define RING_BYTES (1 << 22)
#define COPY_BYTES 60

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[8]);
} cost_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} cost_percpu SEC(".maps");

__u64 cost_sink = 0;
__u64 cost_position = 0;
__u8 cost_ring[RING_BYTES];

SEC("xdp.frags")
int cost_empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp.frags")
int cost_clock(struct xdp_md *ctx)
{
	cost_sink = bpf_ktime_get_ns();
	return XDP_DROP;
}

SEC("xdp.frags")
int cost_coarse_clock(struct xdp_md *ctx)
{
	cost_sink = bpf_ktime_get_coarse_ns();
	return XDP_DROP;
}

SEC("xdp.frags")
int cost_array_lookup(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index & 1;
	__u64 *value = bpf_map_lookup_elem(&cost_array, &key);

	if (value)
		(*value)++;
	return XDP_DROP;
}

SEC("xdp.frags")
int cost_percpu_lookup(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index & 1;
	__u64 *value = bpf_map_lookup_elem(&cost_percpu, &key);

	if (value)
		(*value)++;
	return XDP_DROP;
}

SEC("xdp.frags")
int cost_copy_in_place(struct xdp_md *ctx)
{
	bpf_xdp_load_bytes(ctx, 0, cost_ring, COPY_BYTES);
	return XDP_DROP;
}

/* The same through 4 MiB, like a ring: each packet to lines that are not in the L1 cache. */
SEC("xdp.frags")
int cost_copy_through_ring(struct xdp_md *ctx)
{
	__u64 at = cost_position & (RING_BYTES / 2 - 1);

	bpf_xdp_load_bytes(ctx, 0, &cost_ring[at], COPY_BYTES);
	cost_position = at + 96;
	return XDP_DROP;
}
