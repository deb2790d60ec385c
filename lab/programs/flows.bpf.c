/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * An in-kernel generator of numbered packets like crates/wirelane-bpf/bpf/generate.bpf.c, with a table that
 * gives the flow of each packet instead of a round robin. So some flows can be much larger than others, and
 * flows can begin and end.
 *
 *	flow of packet n = (n / 65536) * per_turn + sequence[n % 65536]
 *
 * With per_turn 0 the same flows are repeated; otherwise each turn through the table has its own flows. Run
 *by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES in one call, which a signal ends; once it is over,
 *pages are returned unused.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Offsets in the frame: Ethernet 14, IPv4 20, UDP 8, magic 4, number 8. */
#define CHECKSUM     24
#define DESTINATION  30
#define NUMBER	     46

#define HEADER_WORDS 6
#define SEQUENCE     65536

/* At full speed it ends after a multiple of this many packets, so that flows that end are complete. */
#define WHOLE 4096

/* Fraction bits of a gap, as in crates/wirelane-bpf/bpf/generate.bpf.c. */
#define GAP_SHIFT 12

struct flows_config {
	__u32 ifindex;		    /* device to send from */
	__u32 first;		    /* destination address of flow 0 */
	__u32 per_turn;		    /* number of flows of each turn through the table */
	__u32 l3_sum;		    /* sum over the IPv4 header without destination and checksum */
	__u64 gap;		    /* time between packets in units of 2^-GAP_SHIFT ns; 0: no gap */
	__u64 duration_ns;	    /* full speed: from the first packet to the end */
	__u64 limit;		    /* with a gap: packets to make */
	__u64 most_catch_up_ns;	    /* packets that are due for longer are skipped */
	__u64 header[HEADER_WORDS]; /* frame up to the first two bytes of the number */
};

const volatile struct flows_config config = {};
const volatile __u16 sequence[SEQUENCE] = {};

struct flows_state {
	__u64 made;	/* packets made and redirected: the number of the next one */
	__u64 given_up; /* number of delays that were skipped, see most_catch_up_ns */
	__u64 first_ns; /* time of the first packet, CLOCK_MONOTONIC */
	__u64 last_ns;	/* time of the last packet */
	__u64 due;	/* due time of the next packet, in units of 2^-GAP_SHIFT ns after first_ns */
	__u64 over;	/* 1: all packets are made */
};

struct flows_state state = {};

static __always_inline int is_due(__u64 made)
{
	__u64 now, since, late;

	if (state.over)
		return 0;
	if (!config.gap) {
		if (made % 64)
			return 1;
		now = bpf_ktime_get_ns();
		if (!made)
			state.first_ns = now;
		state.last_ns = now;
		if (made % WHOLE == 0 && now - state.first_ns >= config.duration_ns) {
			state.over = 1;
			return 0;
		}
		return 1;
	}
	if (made >= config.limit) {
		state.over = 1;
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (!made)
		state.first_ns = now;
	since = (now - state.first_ns) << GAP_SHIFT;
	if (since < state.due)
		return 0;
	late = since - state.due;
	if (late > config.most_catch_up_ns << GAP_SHIFT) {
		late = (late - (config.most_catch_up_ns << GAP_SHIFT)) / config.gap;
		state.given_up += late;
		state.due += late * config.gap;
	}
	state.due += config.gap;
	state.last_ns = now;
	return 1;
}

SEC("xdp")
int bench_flows(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 number = state.made;
	__u32 value, sum;

	if (!is_due(number))
		return XDP_DROP;
	if (data + NUMBER + sizeof(number) > end)
		return XDP_ABORTED;
	/* A page still has the contents of its last packet, so the whole frame is written every time. */
#pragma unroll
	for (int word = 0; word < HEADER_WORDS; word++)
		((__u64 *)data)[word] = config.header[word];
	value =
	    config.first + (__u32)(number / SEQUENCE) * config.per_turn + sequence[number & (SEQUENCE - 1)];
	sum = config.l3_sum + (value >> 16) + (value & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(__u16 *)(data + CHECKSUM) = bpf_htons((__u16)~sum);
	*(__u32 *)(data + DESTINATION) = bpf_htonl(value);
	*(__u64 *)(data + NUMBER) = bpf_cpu_to_be64(number);
	state.made = number + 1;
	return bpf_redirect(config.ifindex, 0);
}
