/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Congestion control: which packets are refused when a worker falls behind, so that the flows that it gets
 * are whole (after Ksensor, Munoz et al.). The map's side is bpf/shed.h.
 *
 * A flow that was admitted stays admitted, and one that was refused stays refused, until it is idle: both are
 * in a set-associative table of the group. New flows are refused first. By the unread bytes of the ring:
 *
 *	   0 |------------ floor ------------- low ------------ mid ---------------- high
 *	     | new flows   | new flows are     | new flows      | admitted flows     | all are
 *	     | are admitted| admitted unless   | are refused    | are given up       | given up
 *	     |             | the ring fills    |                | by their hash      |
 *
 * From the floor on, new flows are admitted only if the ring would not reach the low watermark with its
 * present growth in WL_SHED_AHEAD windows of measurement: a flow of many packets adds its rate to the load
 * for long, so that many of these fill the ring slowly and long after they were admitted. Until the first
 * refusal the floor is the low watermark itself, so that a burst is absorbed.
 *
 * The floor rises when the worker ran short of packets after a refusal, and falls when flows were given up.
 *
 * Growth is measured between two moments at which the reader has just returned memory, since it does so a
 * batch at a time: in between, the unread bytes say more about the phase of the batch than about the load.
 * From the same window comes the excess, the share of the admitted bytes for which the worker has no time:
 * that part of the flows is given up in the first half of the way from the middle to the high watermark, and
 * the others in the second half.
 *
 * Refused flows can be admitted again when nothing has been refused for WL_SHED_IDLE: an analysis with the
 * usual time-out has ended them by then.
 */
#ifndef WL_LIB_SHED_H
#define WL_LIB_SHED_H

#include "lib/types.h"

#define WL_SHED_WAYS	   8
#define WL_SHED_TICK_SHIFT 24	      /* a tick is 2^24 ns: 16.8 ms */
#define WL_SHED_TICKS	   0x3fffffff /* mask */
#define WL_SHED_IDLE	   894	      /* ticks: 15 s, the idle time-out of flows */
#define WL_SHED_AHEAD	   256
#define WL_SHED_FLOORS	   8 /* steps of the floor, up to the low watermark */
#define WL_SHED_PARTS	   256

/* An entry of the table: the hash in the upper half, the state in two bits, and the tick of the latest
 * packet. 0: free. */
#define WL_SHED_STATE	 30 /* shift */
#define WL_SHED_UNKNOWN	 0
#define WL_SHED_ADMITTED 1
#define WL_SHED_REFUSED	 2

/* A set of the table. One cache line. */
struct wl_shed_set {
	__u64 flow[WL_SHED_WAYS];
};

/* State of a ring. Private to the lane; of the size of a set. */
struct wl_shed {
	__u64 head;	/* the ring's positions at the start of the window */
	__u64 tail;	/* the same */
	__u64 seen;	/* the latest tail */
	__s64 growth;	/* of the unread bytes, in the window before */
	__u32 excess;	/* number of 256 parts of the admitted bytes in that window */
	__u32 floor;	/* steps above the lowest one */
	__u32 refused;	/* 1: a new flow was refused, and the worker did not run short since */
	__u32 given_up; /* 1: a flow was, and no new one has met a ring below the low watermark since */
	/* Of the packet at hand, in memory as in verdict.h: the verifier does not know them. */
	__u32 congested;
	__u32 state;
	__u32 refuses;
	__u32 pad;
};

_Static_assert(sizeof(struct wl_shed) == sizeof(struct wl_shed_set), "elements of one map");

#define WL_SHED_CONGESTED (1u << 31)

/* A field that is stored in memory, and loaded again for each use. */
#define wl_shed_fresh(field) (*(volatile __u32 *)&(field))

/* Hides the value from the compiler, which would make a branch of what was computed without. */
#define wl_shed_keep(value) asm volatile("" : "+r"(value))

/* The present packet, its ring, and the watermarks of the group. */
struct wl_shed_packet {
	__u64 head; /* of the ring */
	__u64 tail;
	__u64 low;
	__u64 high;
	__u32 hash;
	__u32 tick;
};

/* Ticks since `then`. Lanes differ a little in their clocks: the future counts as now. */
static __always_inline __u32 wl_shed_age(__u32 tick, __u32 then)
{
	__u32 age = (tick - then) & WL_SHED_TICKS, is_past = (age >> 29) - 1;

	wl_shed_keep(is_past);
	return age & is_past;
}

/* From these unread bytes on, admitted flows are given up. */
static __always_inline __u64 wl_shed_middle(__u64 low, __u64 high)
{
	return low + (high - low) / 2;
}

/* Number of the 256 parts of the flow-hash space that are given up. */
static __always_inline __u64 wl_shed_level(const struct wl_shed *shed, __u64 unread, __u64 low, __u64 high)
{
	__u64 middle = wl_shed_middle(low, high), last = wl_shed_middle(middle, high);

	if (unread < middle)
		return 0;
	if (unread >= high)
		return WL_SHED_PARTS;
	if (unread < last)
		return shed->excess * (unread - middle) / (last - middle);
	return shed->excess + (WL_SHED_PARTS - shed->excess) * (unread - last) / (high - last);
}

/* Measures growth and excess. */
static __always_inline void wl_shed_measure(struct wl_shed *shed, const struct wl_shed_packet *packet)
{
	__u64 in = packet->head - shed->head, out = packet->tail - shed->tail, window = packet->high / 3;
	__u64 unread = packet->head - packet->tail;

	if (shed->refused && unread < packet->low / 16) {
		shed->refused = 0;
		if (shed->floor < WL_SHED_FLOORS - 1)
			shed->floor++;
	}
	/* A reader that returns nothing must not stop the measurement. */
	if ((packet->tail != shed->seen && in + out >= window) || in >= 2 * window) {
		shed->growth = in - out;
		if (unread < wl_shed_middle(packet->low, packet->high))
			shed->excess = in > out ? (in - out) * WL_SHED_PARTS / in : 0;
		shed->head = packet->head;
		shed->tail = packet->tail;
	}
	shed->seen = packet->tail;
}

/* Whether a new flow is refused. */
static __always_inline int wl_shed_new(const struct wl_shed *shed, __u64 unread, __u64 low, int congested)
{
	if (unread >= low)
		return 1;
	if (!congested || unread < low / WL_SHED_FLOORS * (shed->floor + 1))
		return 0;
	return (__s64)unread + shed->growth * WL_SHED_AHEAD >= (__s64)low;
}

#define WL_SHED_FOUND (1u << 8) /* beside the number of the way: it has the flow */

/* 1 if the value is 0, else 0, without a branch; below 2^63. */
static __always_inline __u64 wl_shed_is_zero(__u64 value)
{
	value--;
	wl_shed_keep(value);
	return value >> 63;
}

/*
 * The way of a set that has the flow, or that is given to it: a free one, else the one that was idle longest,
 * where a refused flow counts as idle for eight times as long. Without branches: the verifier would walk all
 * of their combinations.
 */
static __always_inline __u32 wl_shed_way(const struct wl_shed_set *set, __u32 hash, __u32 tick)
{
	__u64 best = 0, score, flow, free, less;
	__u32 i, refused;

	_Static_assert(WL_SHED_REFUSED == 2 && WL_SHED_STATE == 30, "the highest bit of the lower half");
	for (i = 0; i < WL_SHED_WAYS; i++) {
		flow = *(volatile const __u64 *)&set->flow[i];
		refused = (__u32)flow >> 31;
		score = (__u64)wl_shed_age(tick, flow) << 3 * refused | refused << 2;
		free = wl_shed_is_zero(flow >> 1);
		score |= free << 40;
		score |= (wl_shed_is_zero(flow >> 32 ^ hash) & ~free) << 41;
		score = score << 8 | i;
		less = (__s64)(score - best) >> 63;
		wl_shed_keep(less);
		best = (best & less) | (score & ~less);
	}
	return (best & (WL_SHED_WAYS - 1)) | best >> 49 << 8;
}

/*
 * Whether the packet is refused, after wl_shed_measure(); `way` is that of wl_shed_way(). `congested` is
 * shared by the rings of a group: the tick of the latest refusal of a flow, with WL_SHED_CONGESTED; 0: none.
 *
 * Lanes share the set and `congested` without a lock. Each is one word, read and written as a whole (volatile
 * here, the partner of the same access in another lane), that means something without any other: no order is
 * needed. Where two lanes write a way at once, the last one remains, and the other flow is new once more at
 * its next packet.
 */
static __always_inline int wl_shed_refuses(struct wl_shed *shed, struct wl_shed_set *set, __u32 *congested,
					   const struct wl_shed_packet *packet, __u32 way)
{
	__u32 last = *(volatile __u32 *)congested, tick = packet->tick & WL_SHED_TICKS, state;
	__u64 unread = packet->head - packet->tail, flow, *entry;

	wl_shed_fresh(shed->congested) = last && wl_shed_age(tick, last) < WL_SHED_IDLE;
	entry = &set->flow[way & (WL_SHED_WAYS - 1)];
	flow = *(volatile __u64 *)entry;
	wl_shed_fresh(shed->state) = WL_SHED_UNKNOWN;
	if (way & WL_SHED_FOUND && wl_shed_age(tick, flow) < WL_SHED_IDLE)
		wl_shed_fresh(shed->state) = (__u32)flow >> WL_SHED_STATE;
	if (wl_shed_fresh(shed->state) == WL_SHED_REFUSED && !wl_shed_fresh(shed->congested))
		wl_shed_fresh(shed->state) = WL_SHED_UNKNOWN;
	state = wl_shed_fresh(shed->state);
	if (state == WL_SHED_REFUSED) {
		wl_shed_fresh(shed->refuses) = 1;
	} else if (state == WL_SHED_ADMITTED) {
		/* Buckets are chosen by the low bits of the hash, the part that is given up by the high
		 * ones. */
		wl_shed_fresh(shed->refuses) =
		    packet->hash >> 24 < wl_shed_level(shed, unread, packet->low, packet->high);
		if (wl_shed_fresh(shed->refuses) && !shed->given_up) {
			shed->given_up = 1;
			shed->floor /= 2;
		}
	} else {
		wl_shed_fresh(shed->refuses) =
		    wl_shed_new(shed, unread, packet->low, wl_shed_fresh(shed->congested));
		shed->refused |= wl_shed_fresh(shed->refuses);
		if (unread < packet->low)
			shed->given_up = 0;
	}
	if (wl_shed_fresh(shed->refuses) && wl_shed_fresh(shed->state) != WL_SHED_REFUSED &&
	    last != (tick | WL_SHED_CONGESTED))
		*(volatile __u32 *)congested = tick | WL_SHED_CONGESTED;
	state = WL_SHED_ADMITTED + wl_shed_fresh(shed->refuses);
	if (flow != ((__u64)packet->hash << 32 | state << WL_SHED_STATE | tick))
		*(volatile __u64 *)entry = (__u64)packet->hash << 32 | state << WL_SHED_STATE | tick;
	return wl_shed_fresh(shed->refuses);
}

#endif
