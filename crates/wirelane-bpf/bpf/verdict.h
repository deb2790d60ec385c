/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluates a filter in the kernel: the steps of lib/filter.h over a packet of a hook.
 *
 * The first steps run in an ordinary loop, which has the accumulator and the index in registers and is
 * sufficient for most expressions; the others run in bpf_loop() (Linux 5.17), whose body the verifier walks
 * once.
 *
 * Alternatives do not work: a program that is bound to a device may have no array of programs to tail-call a
 * generated program, and some kernels refuse replacing a function of it (freplace).
 */
#ifndef WL_VERDICT_H
#define WL_VERDICT_H

#include "load.h"
#include "lib/filter.h"

#define WL_FILTER_FIRST	 16
#define WL_FILTER_LINEAR 0x3fff /* offsets up to here are read from the linear part; a mask */

/*
 * A field that is stored in memory, and loaded again for each use: the verifier's knowledge from comparing a
 * copy in a register would create a separate path for each result.
 */
#define wl_filter_fresh(field) (*(volatile __u32 *)&(field))

/* The evaluated packet; its length, direction and whether a tag is put back are in `run`. */
struct wl_filter_packet {
	wl_ctx *ctx;
	struct wl_filter_run *run;
	__u8 *head; /* the first bytes with their tag, if one is put back; in memory of the lane */
};

static __always_inline __u32 wl_filter_wire_len(const struct wl_filter_packet *packet)
{
	return wl_filter_fresh(packet->run->wire_len);
}

static __always_inline __u32 wl_filter_direction(const struct wl_filter_packet *packet)
{
	return wl_filter_fresh(packet->run->direction);
}

/* The first `size` of four bytes in network order. */
static __always_inline __u32 wl_filter_first_of(__u32 word, __u32 size)
{
	return word >> ((32 - 8 * size) & 31);
}

static __always_inline int wl_filter_load(const struct wl_filter_packet *packet, __u32 at, __u32 size,
					  __u32 *value)
{
	const __u8 *data, *end;
	wl_ctx *ctx = packet->ctx;
	__u32 word = 0;

	if ((__u64)at + size > wl_filter_fresh(packet->run->wire_len))
		return -1;
	if (wl_filter_fresh(packet->run->tagged)) {
		if (at < WL_PUT_BACK) {
			*value = wl_filter_first_of(wl_be32(packet->head + (at & (WL_PUT_BACK - 1))), size);
			return 0;
		}
		at -= WL_VLAN_TAG;
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (wl_likely(at <= WL_FILTER_LINEAR)) {
		data += at & WL_FILTER_LINEAR;
		wl_keep(data);
		if (wl_likely(data + sizeof(word) <= end)) {
			*value = wl_filter_first_of(wl_be32(data), size);
			return 0;
		}
	}
	if (wl_load_most(ctx, at, &word, size, sizeof(word)))
		return -1;
	*value = wl_filter_first_of(__builtin_bswap32(word), size);
	return 0;
}

/* State for steps beyond the first ones: between them, everything is in memory. */
struct wl_filter_rest {
	struct wl_filter_packet packet;
	const struct wl_filter *filter;
};

static long wl_filter_next(__u64 turn, struct wl_filter_rest *rest)
{
	struct wl_filter_packet packet = rest->packet;
	struct wl_filter_run *run = packet.run;
	struct wl_filter_registers r = {.a = run->a, .x = run->x, .at = run->at};
	int result;

	result = wl_filter_step(&rest->filter->steps[r.at & (WL_FILTER_STEPS - 1)], &r, &packet, run->memory);
	if (result != WL_FILTER_ON) {
		run->result = result;
		return 1;
	}
	run->a = r.a;
	run->x = r.x;
	run->at = r.at;
	return 0;
}

/*
 * Whether the filter accepts the packet. packet->run is memory of a map, which has no other user at this
 * time, and contains the packet's properties.
 */
static __always_inline int wl_filter_evaluate(const struct wl_filter *filter,
					      const struct wl_filter_packet *packet)
{
	struct wl_filter_rest rest = {.packet = *packet, .filter = filter};
	struct wl_filter_run *run = packet->run;
	struct wl_filter_registers r;
	__u32 zero, i;
	int result;

	wl_filter_fresh(run->zero) = 0;
	zero = wl_filter_fresh(run->zero);
	r.a = wl_filter_fresh(run->zero);
	r.x = wl_filter_fresh(run->zero);
	r.at = wl_filter_fresh(run->zero);
	for (i = 0; i < WL_FILTER_FIRST; i++) {
		result =
		    wl_filter_step(&filter->steps[r.at & (WL_FILTER_STEPS - 1)], &r, packet, run->memory);
		if (result != WL_FILTER_ON)
			return result;
		/* See lib/filter.h. */
		r.a ^= zero;
		r.x ^= zero;
	}
	run->a = r.a;
	run->x = r.x;
	run->at = r.at;
	run->result = 0;
	/* The flags are 0, which the verifier must not know: it would replace the call by the loop
	 * (optimize_bpf_loop()), before it removes unreachable code, and a program that grows then has no
	 * space for it (prog_padding.h).
	 */
	bpf_loop(WL_FILTER_STEPS, (void *)wl_filter_next, &rest, wl_filter_fresh(run->zero));
	return run->result;
}

#endif
