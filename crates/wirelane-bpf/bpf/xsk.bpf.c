// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The program of engine xsk: from an RX queue to the AF_XDP socket that is bound to it. One per device.
 *
 *   RX queue -> ours? -> count -> wanted? -> stamp -> socket of the queue -> worker
 *                | no                | no: the filter refuses it
 *                `-------------------`----> host stack
 *
 * The host stack never sees packets that a socket receives.
 *
 * A packet that is counted as seen is redirected, or counted in one of the columns of refusals. The socket
 * counts the fate of a redirected packet (XDP_STATISTICS). Counters are per CPU, so that generic XDP, where
 * two CPUs can process packets of one queue, counts exactly too.
 */
#include "ctx_xdp.h"
#include "verdict.h"

#define WL_XSK_MAX_QUEUES 256

struct wl_xsk_config {
	__u32 multi_buffer; /* 1: sockets take packets in several buffers (Linux 6.6) */
	__u32 stamp;	    /* 1: each packet is stamped */
};

const volatile struct wl_xsk_config wl_xsk_config = {};

struct wl_xsk_tally {
	__u64 seen;
	__u64 seen_bytes;
	__u64 too_long;	 /* in several buffers, which the socket does not accept */
	__u64 no_socket; /* the socket of the queue was gone */
	__u64 filtered;	 /* refused by the filter: goes to the host stack */
};

/* The metadata before a stamped packet. The reader sets `check` to 0 after reading it. */
struct wl_xsk_stamp {
	__u64 ns;    /* CLOCK_MONOTONIC */
	__u64 check; /* ~ns */
};

struct wl_xsk_state {
	__u64 active; /* 0: everything goes to the host stack */
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, WL_XSK_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} wl_xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WL_XSK_MAX_QUEUES);
	__type(key, __u32);
	__type(value, struct wl_xsk_tally);
} wl_xsk_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_xsk_state);
} wl_xsk_state SEC(".maps");

/*
 * The active filter, if any: its owner has two such maps, writes the idle one, and inserts it here. The
 * kernel waits for running programs then, so that the other one is no longer in use.
 */
struct wl_xsk_filter_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct wl_filter));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct wl_xsk_filter_map);
} wl_xsk_filter SEC(".maps");

/* Working memory of an evaluation, per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_filter_run);
} wl_xsk_runs SEC(".maps");

/* Like wl_accepts() of the capture programs: a global function, which the verifier walks once. */
__noinline int wl_xsk_accepts(struct xdp_md *ctx)
{
	struct wl_filter_packet packet = {.ctx = ctx};
	struct wl_filter *filter;
	__u32 key = 0;
	void *map;

	map = bpf_map_lookup_elem(&wl_xsk_filter, &key);
	if (!map)
		return 1;
	filter = bpf_map_lookup_elem(map, &key);
	packet.run = bpf_map_lookup_elem(&wl_xsk_runs, &key);
	if (!filter || !packet.run)
		return 0;
	packet.head = (__u8 *)packet.run;
	packet.run->wire_len = bpf_xdp_get_buff_len(ctx);
	packet.run->direction = 0;
	packet.run->tagged = 0;
	return wl_filter_evaluate(filter, &packet);
}

SEC("xdp.frags")
int wirelane_xsk(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index, bytes, key = 0;
	struct wl_xsk_state *state;
	struct wl_xsk_tally *tally;
	struct wl_xsk_stamp *stamp;
	int verdict;

	state = bpf_map_lookup_elem(&wl_xsk_state, &key);
	if (!state || !*(volatile __u64 *)&state->active)
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&wl_xsks, &queue))
		return XDP_PASS;
	tally = bpf_map_lookup_elem(&wl_xsk_tallies, &queue);
	if (!tally)
		return XDP_PASS;
	bytes = bpf_xdp_get_buff_len(ctx);
	tally->seen++;
	tally->seen_bytes += bytes;
	if (!wl_xsk_accepts(ctx)) {
		tally->filtered++;
		return XDP_PASS;
	}
	if (!wl_xsk_config.multi_buffer &&
	    bytes > (__u64)((void *)(long)ctx->data_end - (void *)(long)ctx->data)) {
		tally->too_long++;
		return XDP_DROP;
	}
	/* If the driver has no headroom for it, the reader finds no stamp and uses its own. */
	if (wl_xsk_config.stamp && !bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp))) {
		stamp = (void *)(long)ctx->data_meta;
		if ((void *)(stamp + 1) <= (void *)(long)ctx->data) {
			stamp->ns = bpf_ktime_get_ns();
			stamp->check = ~stamp->ns;
		}
	}
	verdict = bpf_redirect_map(&wl_xsks, queue, XDP_DROP);
	if (verdict != XDP_REDIRECT)
		tally->no_socket++;
	return verdict;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
