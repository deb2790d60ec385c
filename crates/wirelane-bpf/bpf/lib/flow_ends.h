/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Ends of flows, and ends of parts of flows. */
#ifndef WL_FLOW_ENDS_H
#define WL_FLOW_ENDS_H

#include "lib/flow.h"

/*
 * Reason why the flow has ended at `now_ns`, or WL_FLOW_GOES_ON. The first of its timeouts decides, so that
 * the result does not depend on the time of the check.
 */
static __always_inline __u32 wl_flow_expired(const struct wl_flow *flow, __u64 now_ns,
					     const struct wl_flow_timeouts *timeouts)
{
	__u32 ended = wl_flow_has_ended(flow);
	__u64 quiet = wl_flow_later(flow->last_ns, ended ? timeouts->ended_ns : timeouts->idle_ns);
	__u64 old = wl_flow_old(flow->first_ns, timeouts->active_ns);

	if (now_ns <= quiet && now_ns <= old)
		return WL_FLOW_GOES_ON;
	if (old < quiet)
		return WL_FLOW_ACTIVE;
	return ended ? WL_FLOW_ENDED : WL_FLOW_IDLE;
}

/*
 * Reason why the flow ends before this packet of its key, or WL_FLOW_GOES_ON: its timeouts, or a new TCP
 * connection between the same ports: a SYN after the end of the flow.
 */
static __always_inline __u32 wl_flow_cut(const struct wl_flow *flow, const struct wl_ip *ip, __u64 ts_ns,
					 const struct wl_flow_timeouts *timeouts)
{
	__u32 reason = wl_flow_expired(flow, ts_ns, timeouts);

	if (reason == WL_FLOW_GOES_ON && ip->flags & WL_IP_TCP && ip->tcp_flags & WL_TCP_SYN &&
	    ts_ns >= flow->last_ns && wl_flow_has_ended(flow))
		return WL_FLOW_ENDED;
	return reason;
}

/* The same before a part of the flow, which wl_flow_splits() has begun. */
static __always_inline __u32 wl_flow_cut_by_part(const struct wl_flow *flow, const struct wl_flow *part,
						 const struct wl_flow_timeouts *timeouts)
{
	__u32 reason = wl_flow_expired(flow, part->first_ns, timeouts);

	/* Parts of one flow come from several lanes: the one that begins with its SYN may arrive last. */
	if (reason == WL_FLOW_GOES_ON && part->flags & WL_FLOW_TCP && part->first_tcp_flags & WL_TCP_SYN &&
	    part->first_ns >= flow->last_ns && wl_flow_has_ended(flow))
		return WL_FLOW_ENDED;
	return reason;
}

/* Limits of parts, derived from the timeouts of their flows. */
struct wl_flow_splits {
	__u64 gap_ns;	  /* the shorter one of idle_ns and ended_ns */
	__u32 grid_shift; /* wl_flow_grid_shift() */
	__u32 pad;
	/* Intervals by which parts are summed up: no part crosses origin_ns plus a multiple. 0: no
	 * intervals. */
	__u64 period_ns;
	__u64 origin_ns; /* less than period_ns */
};

/*
 * Whether the part must end before this packet of its key, because wl_flow_cut() might end the flow there,
 * whatever came before the part:
 *   - after a silence as long as the shorter timeout, since the flow may have been ended before the part;
 *   - at a line of the grid, and at the end of an interval;
 *   - before a SYN, the same way;
 *   - where time goes back behind the part's beginning, which is what the flow's end is decided by.
 */
static __always_inline int wl_flow_splits(const struct wl_flow *part, const struct wl_ip *ip, __u64 ts_ns,
					  const struct wl_flow_splits *splits)
{
	if (ts_ns < part->first_ns || (ts_ns ^ part->first_ns) >> (splits->grid_shift & 63))
		return 1;
	/* Further after the beginning of the part than after the beginning of the packet's own interval. */
	if (splits->period_ns && ts_ns - part->first_ns > (ts_ns - splits->origin_ns) % splits->period_ns)
		return 1;
	if (ts_ns > part->last_ns && ts_ns - part->last_ns > splits->gap_ns)
		return 1;
	return ip->flags & WL_IP_TCP && ip->tcp_flags & WL_TCP_SYN;
}

#endif
