// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * RTP statistics of packets in a map, in the kernel. It is attached nowhere: tests run it with
 * BPF_PROG_TEST_RUN, to compare the kernel's compilation with the native one, and benchmarks measure the cost
 * of a packet.
 */
#include "ctx_xdp.h"

#include "lib/parse.h"
#include "lib/rtp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PROBE_PACKETS 64

struct probe_packet {
	struct wl_rtp_packet packet;
	__u64 ts_ns;
};

struct probe_run {
	struct wl_rtp_stream stream;
	__u64 count; /* of packets to add, in order */
	struct probe_packet packets[PROBE_PACKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_run);
} probe_run SEC(".maps");

struct probe_read {
	__u32 off; /* of the RTP header in the packet */
	__u32 len;
	__u32 result;
	__u32 pad;
	struct wl_rtp_packet packet;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct probe_read);
} probe_read SEC(".maps");

/* Adds the packets of the map to its stream. */
SEC("xdp.frags")
int wl_rtp_probe(struct xdp_md *ctx)
{
	struct probe_run *run;
	__u32 key = 0, i;

	run = bpf_map_lookup_elem(&probe_run, &key);
	if (!run)
		return XDP_ABORTED;
	for (i = 0; i < PROBE_PACKETS && i < run->count; i++)
		wl_rtp_update(&run->stream, &run->packets[i].packet, run->packets[i].ts_ns);
	return XDP_PASS;
}

/* Reads a header. */
SEC("xdp.frags")
int wl_rtp_read_probe(struct xdp_md *ctx)
{
	struct wl_walk walk = {
	    .data = (void *)(long)ctx->data,
	    .data_end = (void *)(long)ctx->data_end,
	};
	struct probe_read *read;
	__u32 key = 0, off, len;

	read = bpf_map_lookup_elem(&probe_read, &key);
	if (!read)
		return XDP_ABORTED;
	off = read->off & WL_OFFSET_MASK;
	len = read->len & 0xffff;
	read->result = wl_rtp_read(&walk, off, len, &read->packet);
	return XDP_PASS;
}
