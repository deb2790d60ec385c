/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The limit: counts a packet and drops it. No receiver on the same hook can be faster, so others are given as
 * a share of it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

SEC("xdp.frags")
int bench_drop(struct xdp_md *ctx)
{
	__u64 *count = bpf_map_lookup_elem(&packets, &(__u32){0});

	if (count)
		*count += 1;
	return XDP_DROP;
}
