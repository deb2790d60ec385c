/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Steps of every packet: its time stamp, its headers, a filter that is instructions. */
#ifndef WL_RECEIVE_H
#define WL_RECEIVE_H

#include "clock.h"
#include "filter_code.h"
#include "lib/parse.h"
#include "lib/record.h"
#include "maps.h"
#include "order.h"
#include "packet.h"
#include "verdict.h"

/*
 * The parser; for global functions see wl_copy(). `parsed` must not point to the caller's stack (parse.h
 * explains why): the verifier treats it as memory with unknown contents.
 */
__noinline int wl_parse_packet(wl_ctx *ctx, struct wl_parsed *parsed)
{
	if (parsed)
		wl_parse(ctx, wl_config.link, WL_PARSE_TUNNELS, parsed);
	return 0;
}

/* The verdict of a filter, by the value of wl_group.filter, that is instructions: 1, accepted, 0, or
 * WL_FILTER_UNKNOWN. */
static __always_inline int wl_filter_verdict(wl_ctx *ctx, const struct wl_packet *packet, __u32 filter)
{
	__u32 direction = packet->flags & WL_REC_EGRESS ? WL_FILTER_GONE_OUT : 0;
	__u32 tag = packet->vlan ? packet->vlan_tag : 0, number = filter >> WL_FILTER_NUMBER;

	if (!wl_config.codes[0] || !number)
		return WL_FILTER_UNKNOWN;
	return wl_filter_code(ctx, number, packet->wire_len, direction, tag);
}

/* Reads the clock; if one group wants a reading per packet, all groups get it. */
static __always_inline void wl_stamp(struct wl_packet *packet, const struct wl_instance *instance,
				     __u64 active, struct wl_mark *mark)
{
	if (wl_config.batches && !(active & ~*(volatile __u64 *)&instance->batch_clock)) {
		packet->ts_ns = wl_batch_time();
		packet->flags |= WL_REC_BATCH_CLOCK;
	} else {
		packet->ts_ns = bpf_ktime_get_ns();
	}
	wl_mark_stamp(mark, packet);
}

#endif
