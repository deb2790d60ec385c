/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Steering: chooses the worker of a group for a packet (PFQ, Bonelli et al., PAM 2012). */
#ifndef WL_PACKET_STEER_H
#define WL_PACKET_STEER_H

#include "lib/hash.h"

/* A table of buckets maps hashes to workers, so that load can be moved without affecting other flows. */
#define WL_BUCKETS 512

enum wl_steering {
	WL_STEER_FLOW = 0,	  /* by flow hash, through the buckets */
	WL_STEER_QUEUE = 1,	  /* by RX queue: queue n to worker n, wrapping around */
	WL_STEER_ROUND_ROBIN = 2, /* round-robin over all workers, in each lane */
	WL_STEER_COPY = 3,	  /* to every worker */
	WL_STEER_VLAN = 4,	  /* by the outermost VLAN id, through the buckets */
	WL_STEER_SOURCE = 5,	  /* by the source address, through the buckets */
	WL_STEER_DESTINATION = 6, /* by the destination address, through the buckets */
	WL_STEER_PROGRAM = 7,	  /* by a program of the group's owner (program.h) */
};

static __always_inline __u32 wl_address_hash(const __u8 *address, __u8 l3, __u32 seed)
{
	__u64 a = l3 == WL_L3_IPV6 ? wl_hash_end_ipv6(address, 0, seed) : wl_hash_end_ipv4(address, 0, seed);

	return wl_hash_finish(a + wl_hash_mix((__u64)seed << 32 | l3));
}

/*
 * The hash that selects the bucket. `flow` is the packet's flow hash; packets without an address (no network
 * layer) use it for steering by address, and packets without a VLAN tag share one bucket for VLANs.
 */
static __always_inline __u32 wl_steering_hash(__u32 steering, const struct wl_parsed *parsed,
					      const struct wl_ip *chosen, __u32 flow, __u32 seed)
{
	__u32 vlan = parsed->flags & WL_PKT_VLAN ? 1 + (parsed->vlan_tci[0] & 0xfff) : 0;

	if (steering == WL_STEER_VLAN)
		return wl_hash_finish(wl_hash_mix((__u64)seed << 32 | vlan));
	if (chosen->l3 == WL_L3_NONE)
		return flow;
	if (steering == WL_STEER_SOURCE)
		return wl_address_hash(chosen->src, chosen->l3, seed);
	if (steering == WL_STEER_DESTINATION)
		return wl_address_hash(chosen->dst, chosen->l3, seed);
	return flow;
}

/* The bucket of a hash, below WL_BUCKETS. */
static __always_inline __u32 wl_bucket(__u32 hash)
{
	return hash & (WL_BUCKETS - 1);
}

/* Maps any number from user space or a program to a worker, modulo the number of workers. 0 without
 * workers. */
static __always_inline __u32 wl_worker(__u32 number, __u32 workers)
{
	if (number < workers)
		return number;
	return workers ? number % workers : 0;
}

/*
 * The worker, below `workers`, for steering modes that choose by the packet's contents. `buckets` has
 * WL_BUCKETS entries; `hash` is the result of wl_steering_hash().
 */
static __always_inline __u32 wl_steer(__u32 steering, const __u16 *buckets, __u32 hash, __u32 queue,
				      __u32 workers)
{
	return wl_worker(steering == WL_STEER_QUEUE ? queue : buckets[wl_bucket(hash)], workers);
}

/*
 * Whether a hash is in part `share` of `shares` equal ones. It is wl_packet_hash() with a seed that all
 * groups that divide flows have in common, and not with the instance's: a device has an instance for each
 * hook, and the two directions of a conversation arrive by two hooks.
 */
static __always_inline int wl_is_in_share(__u32 hash, __u32 share, __u32 shares)
{
	return (__u32)(((__u64)hash * shares) >> 32) == share;
}

#endif
