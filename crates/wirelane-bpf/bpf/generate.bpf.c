/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The in-kernel packet generator.
 *
 * User space passes one frame to BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18): the kernel
 * copies it into pages of a page pool and runs this program on one page after the other. The program turns
 * the frame into the next packet and redirects it to the device.
 *
 * The kernel recycles pages without restoring their bytes, so a page holds the bytes of an earlier packet,
 * with the changes that its receiver made (on a veth the page itself is delivered; removing a VLAN tag from a
 * packet moves its addresses, for instance). So all headers are written every time, and the checksums are
 * computed from the sums of the constant parts. The kernel restores only the length. The zeros behind the
 * number are left as they are: no code on the way to a capture changes them.
 *
 * One call of BPF_PROG_TEST_RUN lasts for the whole run, and the program itself limits the rate: a packet
 * that is not due yet is not generated, and its page is returned at once. Calls cannot be short, because each
 * one installs the program in the XDP dispatcher and removes it again, and both wait for an RCU grace period:
 * some 40 ms each (measured on Linux 6.18; bpf_dispatcher_change_prog()). User space ends the call by a
 * signal.
 *
 * Each sending thread loads its own copy of this program. The variables below thus have one writer, and the
 * threads share nothing. crates/wirelane-send/src/template.rs is the same function in user space; a test
 * compares the two byte by byte.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MOST_SIZES   64
#define MAGIC_BYTES  4
#define STAMP_MORE   10 /* time and stream, behind the number */
#define HEADER_WORDS 12 /* two VLAN tags, IPv6, TCP, magic: 90 bytes */

/* A clock read costs as much as generating a packet, so full speed skips most of them. */
#define CLOCK_EVERY 64

/* Fraction bits of a gap: 14.88 Mpps is accurate to 4 parts in a million, and 52 days fit. */
#define GAP_SHIFT 12

/* Set before load, so that the verifier knows every offset and drops the branches that are not taken. */
struct generate_config {
	__u32 ifindex;		/* the device to send from; 0: return the packet, for tests */
	__u32 l3;		/* offset of the IP header */
	__u32 l4;		/* offset of the transport header */
	__u32 payload;		/* offset of the magic; the number follows it */
	__u32 rotating;		/* offset of the field that rotates with the flow */
	__u32 rotates_port;	/* 1: that field is a port of 16 bits; 0: the last 32 of an address */
	__u32 first;		/* the field's first value */
	__u32 flows;		/* number of values */
	__u32 tcp;		/* 1: TCP; 0: UDP */
	__u32 ipv6;		/* 1: IPv6; 0: IPv4 */
	__u32 stamped;		/* 1: time and stream follow the number */
	__u32 stream;		/* number of the stream */
	__u32 header_words;	/* words of `header` to write; the last may reach into the number */
	__u32 l3_sum;		/* sum over the IPv4 header without total length and rotating field */
	__u32 l4_sum;		/* the same for the transport, without lengths, rotating field and number */
	__u32 largest;		/* bytes of the frame as passed by user space */
	__u32 sizes_count;	/* sizes that take turns */
	__u32 sizes_step;	/* how far a thread moves in sizes per packet: stride % sizes_count */
	__u32 flows_step;	/* the same for flows */
	__u32 stride;		/* from one number of this thread to its next: the number of threads */
	__u64 limit;		/* packets to make; after them every page goes back */
	__u64 gap;		/* time from one packet to the next in units of 2^-GAP_SHIFT ns; 0: none */
	__u64 most_catch_up_ns; /* packets that are overdue for longer are given up */
	__u64 utc_minus_monotonic;
	__u64 header[HEADER_WORDS]; /* the frame up to the magic, variable fields zero */
	__u16 sizes[MOST_SIZES];
};

const volatile struct generate_config config = {};

/*
 * Progress of this thread. User space sets the first three and reads the rest while the program runs, which
 * is why all of them are u64, read and written whole.
 */
struct generate_state {
	__u64 next_number;
	__u64 next_flow;
	__u64 next_size;
	__u64 made;	/* packets made and redirected */
	__u64 given_up; /* packets that were due and were given up, see most_catch_up_ns */
	__u64 first_ns; /* when the first packet was made, CLOCK_MONOTONIC */
	__u64 last_ns;	/* when the latest was, at most CLOCK_EVERY packets ago */
	__u64 due;	/* when the next one is due, in units of 2^-GAP_SHIFT ns after first_ns */
};

struct generate_state state = {};

static __always_inline void put16(void *at, __u16 value)
{
	*(__u16 *)at = bpf_htons(value);
}

static __always_inline __u16 finish_checksum(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u32 sum_words(__u64 value)
{
	return (value >> 48) + ((value >> 32) & 0xffff) + ((value >> 16) & 0xffff) + (value & 0xffff);
}

/* Whether the next packet has to be generated now. */
static __always_inline int is_due(void)
{
	__u64 made = state.made, now, late, since;

	if (made >= config.limit)
		return 0;
	if (!config.gap) {
		if (made % CLOCK_EVERY == 0 || made + 1 == config.limit) {
			now = bpf_ktime_get_ns();
			if (!made)
				state.first_ns = now;
			state.last_ns = now;
		}
		return 1;
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
int wl_generate(struct xdp_md *ctx)
{
	__u32 largest = config.largest, size = largest, turn = state.next_size, flow = state.next_flow;
	__u32 l3_len, l4_len, value, value_sum, l3_sum, l4_sum;
	__u64 number = state.next_number, now;
	__u16 checksum;
	void *data, *end;

	if (!is_due())
		return XDP_DROP;

	if (config.sizes_count > 1) {
		/* The mask is for the verifier; user space keeps the value below sizes_count. */
		size = config.sizes[turn & (MOST_SIZES - 1)];
		turn += config.sizes_step;
		if (turn >= config.sizes_count)
			turn -= config.sizes_count;
		state.next_size = turn;
		if (size != largest && bpf_xdp_adjust_tail(ctx, (int)size - (int)largest))
			return XDP_ABORTED;
	}

	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + config.payload + MAGIC_BYTES + sizeof(number) + (config.stamped ? STAMP_MORE : 0) > end)
		return XDP_ABORTED;

	/* Within the check above: the 8 bytes of the number follow the header. */
#pragma unroll
	for (int word = 0; word < HEADER_WORDS; word++) {
		if (word < config.header_words)
			((__u64 *)data)[word] = config.header[word];
	}

	value = config.first + flow;
	value_sum = (value >> 16) + (value & 0xffff);
	l3_len = size - config.l3;
	l4_len = size - config.l4;

	l3_sum = config.l3_sum + l3_len;
	if (config.rotates_port) {
		put16(data + config.rotating, value);
	} else {
		*(__u32 *)(data + config.rotating) = bpf_htonl(value);
		l3_sum += value_sum;
	}
	if (config.ipv6) {
		put16(data + config.l3 + 4, l4_len);
	} else {
		put16(data + config.l3 + 2, l3_len);
		put16(data + config.l3 + 10, finish_checksum(l3_sum));
	}

	*(__u64 *)(data + config.payload + MAGIC_BYTES) = bpf_cpu_to_be64(number);
	l4_sum = config.l4_sum + value_sum + l4_len;
	l4_sum += sum_words(number);
	if (config.stamped) {
		now = bpf_ktime_get_ns() + config.utc_minus_monotonic;
		*(__u64 *)(data + config.payload + MAGIC_BYTES + sizeof(number)) = bpf_cpu_to_be64(now);
		put16(data + config.payload + MAGIC_BYTES + sizeof(number) + sizeof(now), config.stream);
		l4_sum += sum_words(now);
	}
	if (config.tcp) {
		put16(data + config.l4 + 16, finish_checksum(l4_sum));
	} else {
		put16(data + config.l4 + 4, l4_len);
		checksum = finish_checksum(l4_sum + l4_len);
		/* 0 would mean "no checksum"; 0xffff is the same sum (RFC 768). */
		put16(data + config.l4 + 6, checksum ? checksum : 0xffff);
	}

	flow += config.flows_step;
	if (flow >= config.flows)
		flow -= config.flows;
	state.next_flow = flow;
	state.next_number = number + config.stride;
	state.made++;

	return config.ifindex ? bpf_redirect(config.ifindex, 0) : XDP_TX;
}
