/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * An in-kernel generator of socket buffers: BPF_PROG_TEST_RUN passes one frame to this program, which sends
 * clones of it. A clone costs less than a buffer from a socket, so the receiver's own cost is visible, and it
 * reaches the device like the packets of the host, through dev_queue_xmit().
 *
 * The kernel disables bottom halves during each run of the program, so one run is one burst: NAPI on the
 * same core polls after it. All clones share the frame's bytes; packets are counted, not numbered.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Maximum packets of a run: the budget of a NAPI poll (NAPI_POLL_WEIGHT in include/linux/netdevice.h). */
#define MOST_BURST 64

/* Fraction bits of a gap, as in crates/wirelane-bpf/bpf/generate.bpf.c. */
#define GAP_SHIFT 12

struct clone_config {
	__u32 ifindex; /* device to send from */
	__u32 size;    /* bytes of a frame */
	__u32 queues;  /* number of TX queues that runs use in turn; 0: the kernel chooses */
	__u32 pad;
	__u64 gap;		/* time from one packet to the next in units of 2^-GAP_SHIFT ns; 0: no gap */
	__u64 duration_ns;	/* from the first packet to the end */
	__u64 most_catch_up_ns; /* packets that are due for longer are skipped */
};

const volatile struct clone_config config = {};

struct clone_state {
	__u64 made;	/* packets passed to the device */
	__u64 given_up; /* packets that were due and were skipped, see most_catch_up_ns */
	__u64 first_ns; /* start of the first run, CLOCK_MONOTONIC */
	__u64 last_ns;	/* time of the latest packet, up to a burst */
	__u64 due;	/* due time of the next packet, in units of 2^-GAP_SHIFT ns after first_ns */
	__u64 failed;	/* runs that could not extend the frame to its full length */
	__u64 over;	/* 1: the duration is over */
	__u64 turn;	/* runs that had packets to send */
};

struct clone_state state = {};

/* Number of packets to make now, at most MOST_BURST. */
static __always_inline __u32 due_now(__u64 since_ns)
{
	__u64 since = since_ns << GAP_SHIFT, late, count;

	if (!config.gap)
		return MOST_BURST;
	if (since < state.due)
		return 0;
	late = since - state.due;
	if (late > config.most_catch_up_ns << GAP_SHIFT) {
		count = (late - (config.most_catch_up_ns << GAP_SHIFT)) / config.gap;
		state.given_up += count;
		state.due += count * config.gap;
		late -= count * config.gap;
	}
	count = late / config.gap + 1;
	if (count > MOST_BURST)
		count = MOST_BURST;
	state.due += count * config.gap;
	return count;
}

SEC("tc")
int bench_clone(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 count;

	/* BPF_PROG_TEST_RUN accepts frames up to a page; the first run adds the rest. */
	if (skb->len != config.size && bpf_skb_change_tail(skb, config.size, 0)) {
		state.failed++;
		return 0;
	}
	if (!state.first_ns)
		state.first_ns = now;
	if (now - state.first_ns >= config.duration_ns) {
		state.over = 1;
		return 0;
	}
	count = due_now(now - state.first_ns);
	if (!count)
		return 0;
	/*
	 * Set like a recorded RX queue, which is its number plus one: netdev_pick_tx() then selects the TX
	 * queue with the same number, and a veth uses it as the peer's RX queue.
	 */
	if (config.queues)
		skb->queue_mapping = state.turn++ % config.queues + 1;
	for (__u32 sent = 0; sent < MOST_BURST && sent < count; sent++) {
		/* A full queue drops the clone and counts it as the device's drop. */
		bpf_clone_redirect(skb, config.ifindex, 0);
	}
	state.made += count;
	state.last_ns = bpf_ktime_get_ns();
	return 0;
}
