/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rules of a whole device: packets that a group with WL_GROUP_WIDE drops reach neither the host nor another
 * group.
 *
 * Such groups are evaluated before the others, in the order of their slots. Once one has dropped the packet,
 * all remaining groups count it as `filtered` and `blocked` without evaluating it. Egress devices get the
 * packets of the rules that were evaluated.
 *
 * A group outlives a killed owner until another process of the instance clears its slot, and that process may
 * be stopped or slow. The group must not block traffic in that time. So before a packet is dropped for all,
 * the program checks whether the owner's socket is still in wl_owners: the kernel removes it when its last
 * descriptor closes. The lookup takes a reference to the socket, by an atomic addition, which must be
 * released: packets that pass cost none of this.
 */
#ifndef WL_WIDE_H
#define WL_WIDE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "packet.h"
#include "instance.h"
#include "maps.h"

/* Receivers that do not get a packet: bits. */
#define WL_CONSUMED 0x1 /* the host */
#define WL_BLOCKED  0x2 /* the host, and groups that have not been evaluated yet */

static __always_inline __u32 wl_takes(const struct wl_group *group)
{
	return group->flags & WL_GROUP_EXCLUSIVE ? WL_CONSUMED : 0;
}

/* The same for packets that it refuses. */
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

/* The line of group g's ledger in which this packet is counted. */
static __always_inline struct wl_tally *wl_tally_of(const struct wl_packet *packet, __u32 g)
{
	__u32 slot = wl_config.per_cpu ? packet->lane * wl_config.queues + packet->queue : packet->queue;
	__u32 slots = wl_config.per_cpu ? wl_config.lanes * wl_config.queues : wl_config.queues;
	__u32 key = g * slots + slot;

	return bpf_map_lookup_elem(&wl_tallies, &key);
}

/* Whether the owner of group g still exists. */
__noinline int wl_is_owned(__u32 g)
{
	struct bpf_sock *owner = bpf_map_lookup_elem(&wl_owners, &g);

	if (!owner)
		return 0;
	bpf_sk_release(owner);
	return 1;
}

/* Counts a packet that group g does not get. */
__noinline int wl_withhold(struct wl_packet *packet, __u32 g)
{
	struct wl_tally *tally;

	if (!packet || !wl_group_wanting(g, packet->queue))
		return 0;
	tally = wl_tally_of(packet, g);
	if (!tally)
		return 0;
	wl_account_filtered(tally, packet);
	tally->blocked += packet->segments;
	return 0;
}

#endif
