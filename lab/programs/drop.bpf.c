/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The limit: an XDP program that counts a packet and drops it. All other work of a receiver is additional.
 *
 * It does not read the packet, whose bytes may still be in the cache of the core that sent it. The second
 * program reads one word of them, as every receiver must: the difference between the two is the cost of
 * fetching the packet, which no receiver can avoid.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} bench_dropped SEC(".maps");

static __always_inline void count(__u64 amount)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&bench_dropped, &key);

	if (count)
		*count += amount;
}

/* .frags: jumbo frames are in several buffers. */
SEC("xdp.frags")
int bench_drop(struct xdp_md *ctx)
{
	count(1);
	return XDP_DROP;
}

/* A value that no packet of the generator has at this offset, so that each packet counts as one. */
#define NEVER 0xffffffff

SEC("xdp.frags")
int bench_read(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 34 > end)
		return XDP_ABORTED;
	/* The source address in an IPv4 header after an Ethernet header. */
	count(*(__u32 *)(data + 26) == NEVER ? 0 : 1);
	return XDP_DROP;
}
