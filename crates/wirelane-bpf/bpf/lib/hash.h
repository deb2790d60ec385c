/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The flow hash: equal for both directions of a conversation, and for all fragments of a datagram.
 *
 * Each end (address and port) is mixed separately, and the two results are added, which makes the hash
 * symmetric. Multiplications carry low bits upwards, shifts bring them down again; the constants are those of
 * SplitMix64 and of Knuth's generator, odd and without structure.
 *
 * The seed is in both ends, and not only in their sum: otherwise a sender can choose one end for any other so
 * that the sum is always the same, and these packets have one hash under every seed.
 *
 * A fragment other than the first has no ports, and may lack even its transport protocol (extension headers
 * behind an IPv6 fragment header, AH in IPv4, are in the first fragment only). So all fragments are hashed by
 * their addresses alone, with the number of the fragment header in place of the protocol.
 */
#ifndef WL_PACKET_HASH_H
#define WL_PACKET_HASH_H

#include "lib/next.h"

#define WL_HASH_K1 0xbf58476d1ce4e5b9ULL
#define WL_HASH_K2 0x94d049bb133111ebULL
#define WL_HASH_K3 0x9e3779b97f4a7c15ULL

static __always_inline __u64 wl_hash_mix(__u64 value)
{
	value *= WL_HASH_K1;
	return value ^ (value >> 32);
}

static __always_inline __u32 wl_hash_finish(__u64 value)
{
	value = (value ^ (value >> 32)) * WL_HASH_K2;
	value = (value ^ (value >> 29)) * WL_HASH_K3;
	return value >> 32;
}

/* The seed in all bits of an end. */
static __always_inline __u64 wl_hash_seed(__u32 seed)
{
	return seed * WL_HASH_K3;
}

static __always_inline __u64 wl_hash_end_ipv4(const __u8 *address, __u64 port, __u32 seed)
{
	return wl_hash_mix((port << 32 | wl_load32(address)) ^ wl_hash_seed(seed));
}

static __always_inline __u64 wl_hash_end_ipv6(const __u8 *address, __u64 port, __u32 seed)
{
	return wl_hash_mix(wl_hash_mix(wl_load64(address) ^ port ^ wl_hash_seed(seed)) +
			   wl_load64(address + 8));
}

/* The hash of one network layer with its transport header. The seed makes it unpredictable. */
static __always_inline __u32 wl_flow_hash(const struct wl_ip *ip, __u32 seed)
{
	int fragment = ip->flags & WL_IP_FRAGMENT;
	int ports = !fragment && (ip->flags & WL_IP_PORTS);
	__u32 proto = fragment ? WL_PROTO_FRAGMENT : ip->proto;
	__u64 a = ports ? ip->src_port : 0;
	__u64 b = ports ? ip->dst_port : 0;

	if (ip->l3 == WL_L3_IPV6) {
		a = wl_hash_end_ipv6(ip->src, a, seed);
		b = wl_hash_end_ipv6(ip->dst, b, seed);
	} else {
		a = wl_hash_end_ipv4(ip->src, a, seed);
		b = wl_hash_end_ipv4(ip->dst, b, seed);
	}
	return wl_hash_finish(a + b + wl_hash_mix((__u64)seed << 32 | (__u32)ip->l3 << 8 | proto));
}

/*
 * The headers that are used for a packet: the inner ones if they are requested and present, otherwise the
 * outer ones. `inner` is 0 or 1.
 */
static __always_inline const struct wl_ip *wl_choose(const struct wl_parsed *parsed, int inner)
{
	return inner && (parsed->flags & WL_PKT_TUNNEL) ? &parsed->inner : &parsed->outer;
}

/* The hash of a packet by the headers that wl_choose() returned; by its EtherType if it has no network
 * layer. */
static __always_inline __u32 wl_packet_hash(const struct wl_parsed *parsed, const struct wl_ip *chosen,
					    __u32 seed)
{
	if (wl_unlikely(chosen->l3 == WL_L3_NONE))
		return wl_hash_finish(wl_hash_mix((__u64)seed << 32 | parsed->eth_type));
	return wl_flow_hash(chosen, seed);
}

#endif
