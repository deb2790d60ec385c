/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rules of a whole device: what a group with WL_GROUP_WIDE drops reaches neither the host nor another group.
 *
 * Such groups are asked before the others, in the order of their places. Once one has dropped the packet, all
 * that would have been offered it count it as `filtered` and `blocked`, unasked. Egress devices get what the rules
 * said that were asked.
 *
 * A group outlives a killed owner until another process of the instance clears its place, which may be
 * stopped or slow. It must not block traffic meanwhile. So before a packet is dropped for all, the program
 * looks whether the owner's socket is still in wl_owners: the kernel takes it out when its last descriptor
 * closes. It lends the socket, by an atomic addition, and must have it back: a packet that is let through
 * costs none of this.
 */
#ifndef WL_WIDE_H
#define WL_WIDE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "hook.h"
#include "instance.h"
#include "maps.h"

/* Who does not get a packet: bits. */
#define WL_CONSUMED   0x1 /* the host */
#define WL_BLOCKED 0x2 /* the host, and groups that are still to be asked */

static __always_inline __u32 wl_takes(const struct wl_group *group)
{
	return group->flags & WL_GROUP_EXCLUSIVE ? WL_CONSUMED : 0;
}

/* The same of what it refuses. */
static __always_inline __u32 wl_takes_rest(const struct wl_group *group)
{
	return group->flags & WL_GROUP_EXCLUSIVE_ALL ? WL_CONSUMED : 0;
}

/* The group, if it wants packets of this RX queue. */
static __always_inline struct wl_group *wl_group_wanting(__u32 g, __u32 queue)
{
	struct wl_group *group = bpf_map_lookup_elem(&wl_groups, &g);

	if (!group || !(group->queues[(queue >> 6) & (WL_MAX_QUEUES / 64 - 1)] & (1ULL << (queue & 63))))
		return 0;
	return group;
}

/* The line of group g's ledger that this packet is counted in. */
static __always_inline struct wl_tally *wl_tally_of(const struct wl_packet *packet, __u32 g)
{
	__u32 slot = wl_config.per_cpu ? packet->lane * wl_config.queues + packet->queue : packet->queue;
	__u32 slots = wl_config.per_cpu ? wl_config.lanes * wl_config.queues : wl_config.queues;
	__u32 key = g * slots + slot;

	return bpf_map_lookup_elem(&wl_tallies, &key);
}

/* Whether the owner of group g is still there. */
__noinline int wl_is_owned(__u32 g)
{
	struct bpf_sock *owner = bpf_map_lookup_elem(&wl_owners, &g);

	if (!owner)
		return 0;
	bpf_sk_release(owner);
	return 1;
}

/* Group g does not get the packet, which is counted. */
__noinline int wl_withhold(struct wl_packet *packet, __u32 g)
{
	struct wl_tally *tally;

	if (!packet || !wl_group_wanting(g, packet->queue))
		return 0;
	tally = wl_tally_of(packet, g);
	if (!tally)
		return 0;
	wl_account_seen(tally, packet);
	tally->filtered += packet->segments;
	tally->blocked += packet->segments;
	return 0;
}

#endif
