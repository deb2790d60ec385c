/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The packet generator inside the kernel.
 *
 * User space hands one frame to BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18): the kernel
 * copies it into pages of a page pool and runs this program on one page after the other. The program turns
 * the frame into the next packet and redirects it to the device.
 *
 * The kernel recycles pages without restoring their bytes, so a page may hold any earlier packet: whatever
 * differs between packets is written every time, and the checksums are built up from the sums of the
 * constant parts rather than from what stands in the page. Only the length is put back by the kernel.
 *
 * Each sending thread loads its own copy of this program. The variables below thus have one writer, and the
 * threads share nothing. crates/wirelane/src/send/pattern.rs is the same function in user space; a test
 * compares the two byte by byte.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MOST_SIZES  64
#define MAGIC_BYTES 4

/* Set before load, so that the verifier knows every offset and drops the branches that are not taken. */
struct generate_config {
	__u32 ifindex;	    /* the device to send from; 0: hand the packet back, for tests */
	__u32 l3;	    /* offset of the IPv4 header */
	__u32 l4;	    /* offset of the transport header */
	__u32 payload;	    /* offset of the magic; the number follows it */
	__u32 rotating;	    /* offset of the field that rotates with the flow */
	__u32 rotates_port; /* 1: that field is a port of 16 bits; 0: an address of 32 */
	__u32 first;	    /* the field's first value */
	__u32 flows;	    /* how many values it takes */
	__u32 tcp;	    /* 1: TCP; 0: UDP */
	__u32 l3_sum;	    /* sum over the IPv4 header without total length and rotating field */
	__u32 l4_sum;	    /* the same for the transport, without lengths, rotating field and number */
	__u32 largest;	    /* bytes of the frame as user space hands it over */
	__u32 sizes_count;  /* sizes that take turns */
	__u32 sizes_step;   /* how far a thread moves in sizes per packet: stride % sizes_count */
	__u32 flows_step;   /* the same for flows */
	__u32 stride;	    /* from one number of this thread to its next: the number of threads */
	__u16 sizes[MOST_SIZES];
};

const volatile struct generate_config config = {};

/* Where this thread stands. User space sets the first values and reads how far the program came. */
__u64 next_number = 0;
__u32 next_flow = 0;
__u32 next_size = 0;

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

SEC("xdp")
int wl_generate(struct xdp_md *ctx)
{
	__u32 largest = config.largest, size = largest, turn = next_size, flow = next_flow;
	__u32 l3_len, l4_len, value, value_sum, l3_sum, l4_sum;
	__u64 number = next_number;
	__u16 checksum;
	void *data, *end;

	if (config.sizes_count > 1) {
		/* The mask is for the verifier; user space keeps the value below sizes_count. */
		size = config.sizes[turn & (MOST_SIZES - 1)];
		turn += config.sizes_step;
		if (turn >= config.sizes_count)
			turn -= config.sizes_count;
		next_size = turn;
		if (size != largest && bpf_xdp_adjust_tail(ctx, (int)size - (int)largest))
			return XDP_ABORTED;
	}

	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + config.payload + MAGIC_BYTES + sizeof(number) > end)
		return XDP_ABORTED;

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
	put16(data + config.l3 + 2, l3_len);
	put16(data + config.l3 + 10, finish_checksum(l3_sum));

	*(__u64 *)(data + config.payload + MAGIC_BYTES) = bpf_cpu_to_be64(number);
	l4_sum = config.l4_sum + value_sum + l4_len;
	l4_sum += (number >> 48) + ((number >> 32) & 0xffff) + ((number >> 16) & 0xffff) + (number & 0xffff);
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
	next_flow = flow;
	next_number = number + config.stride;

	return config.ifindex ? bpf_redirect(config.ifindex, 0) : XDP_TX;
}
