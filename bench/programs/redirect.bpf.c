/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What every AF_XDP application attaches: redirects to the socket of the packet's RX queue. A packet that the
 * socket has no room for is counted by the socket (XDP_STATISTICS).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp.frags")
int bench_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}
