/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Redirect program of the AF_XDP receivers: passes each packet of an RX queue to the socket that is bound to
 * it. The same instructions as libxdp's default program, without its dispatcher and its counters.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64); /* MOST_QUEUES in src/receive/xsk.rs */
	__type(key, __u32);
	__type(value, __u32);
} bench_sockets SEC(".maps");

SEC("xdp.frags")
int bench_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&bench_sockets, ctx->rx_queue_index, XDP_DROP);
}
