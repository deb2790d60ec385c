/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The first-level flow cache: parts of flows (flow.h) in sets of WL_FLOW_WAYS slots. The hash of a key
 * selects its set; in a full set, the part with the longest idle time is evicted.
 *
 *            hash -> set      tag   tag   tag   tag      epoch and hash: one look for all places
 *                             part  part  part  part     key and what has been added up
 *
 * A slot is valid if its tag has the current epoch. So a new epoch empties the cache, and only the owner of
 * the cache writes to it.
 *
 * The owner of the cache does three things with a packet:
 *	way = wl_flow_choose(...);
 *	if (way & WL_FLOW_OUT)
 *		hand the part in the place on, or if that cannot be: leave all as it is
 *	wl_flow_put(...);
 */
#ifndef WL_PACKET_FLOW_CACHE_H
#define WL_PACKET_FLOW_CACHE_H

#include "lib/flow_ends.h"
#include "lib/hash.h"

#define WL_FLOW_WAYS 4

/* A part of a flow. 184 bytes. */
struct wl_flow_part {
	struct wl_flow_key key;
	struct wl_flow flow;
};

struct wl_flow_tag {
	__u32 epoch; /* 0: never used */
	__u32 hash;
};

/* 12 cache lines. */
struct wl_flow_set {
	struct wl_flow_tag tags[WL_FLOW_WAYS];
	struct wl_flow_part parts[WL_FLOW_WAYS];
};

_Static_assert(sizeof(struct wl_flow_part) == 184 && sizeof(struct wl_flow_set) == 768,
	       "a set fills cache lines");

/* Result of wl_flow_choose(): the slot in the set, and these flags. */
#define WL_FLOW_WAY   0x03
#define WL_FLOW_NEW   0x04 /* a new part begins in the slot */
#define WL_FLOW_OUT   0x08 /* the slot holds another part, which has to be exported before */
#define WL_FLOW_FRESH 0x10 /* the slot was not used in this epoch */

/*
 * The hash of a key, and not of its packets: the first fragment of a datagram has the key of its flow, and
 * another hash (hash.h). The secret seed comes first, and each step is a bijection of its input, so that keys
 * share a set by chance only.
 */
static __always_inline __u32 wl_flow_key_hash(const struct wl_flow_key *key, __u32 seed)
{
	const __u8 *bytes = (const __u8 *)key;
	__u64 state = wl_hash_mix(wl_load64(bytes) ^ (__u64)seed << 32);

	state = wl_hash_mix(state ^ wl_load64(bytes + 16));
	if (key->l3 == WL_L3_IPV6) {
		state = wl_hash_mix(state ^ wl_load64(bytes + 8));
		state = wl_hash_mix(state ^ wl_load64(bytes + 24));
	}
	_Static_assert(__builtin_offsetof(struct wl_flow_key, src_port) == 32 &&
			   __builtin_offsetof(struct wl_flow_key, vlan) == 40 &&
			   __builtin_offsetof(struct wl_flow_key, tunnel) == 48,
		       "the words behind the addresses");
	state = wl_hash_mix(state ^ wl_load64(bytes + 32));
	state = wl_hash_mix(state ^ wl_load64(bytes + 40));
	return wl_hash_finish(state ^ wl_load64(bytes + 48));
}

static __always_inline int wl_flow_same(const struct wl_flow_key *a, const struct wl_flow_key *b)
{
	const __u8 *x = (const __u8 *)a, *y = (const __u8 *)b;

	/* Ports and protocol first: the addresses of both directions are often equal. */
	return !((wl_load64(x + 32) ^ wl_load64(y + 32)) | (wl_load64(x) ^ wl_load64(y)) |
		 (wl_load64(x + 8) ^ wl_load64(y + 8)) | (wl_load64(x + 16) ^ wl_load64(y + 16)) |
		 (wl_load64(x + 24) ^ wl_load64(y + 24)) | (wl_load64(x + 40) ^ wl_load64(y + 40)) |
		 (wl_load64(x + 48) ^ wl_load64(y + 48)));
}

/* The slot for a packet of this key, and WL_FLOW_*. */
static __always_inline __u32 wl_flow_choose(const struct wl_flow_set *set, __u32 epoch, __u32 hash,
					    const struct wl_flow_key *key, const struct wl_ip *ip,
					    __u64 ts_ns, const struct wl_flow_splits *splits)
{
	__u32 way, place = WL_FLOW_WAYS;
	__u64 oldest = ~0ULL;

	for (way = 0; way < WL_FLOW_WAYS; way++) {
		if (set->tags[way].epoch == epoch && set->tags[way].hash == hash &&
		    wl_flow_same(&set->parts[way].key, key))
			return wl_flow_splits(&set->parts[way].flow, ip, ts_ns, splits)
				   ? way | WL_FLOW_NEW | WL_FLOW_OUT
				   : way;
	}
	for (way = 0; way < WL_FLOW_WAYS; way++) {
		if (set->tags[way].epoch != epoch)
			return way | WL_FLOW_NEW | WL_FLOW_FRESH;
		if (set->parts[way].flow.last_ns < oldest) {
			oldest = set->parts[way].flow.last_ns;
			place = way;
		}
	}
	return (place & WL_FLOW_WAY) | WL_FLOW_NEW | WL_FLOW_OUT;
}

/* Adds the packet to the slot that wl_flow_choose() returned. */
static __always_inline void wl_flow_put(struct wl_flow_set *set, __u32 chosen, __u32 epoch, __u32 hash,
					const struct wl_flow_key *key, const struct wl_ip *ip,
					const struct wl_flow_packet *packet)
{
	__u32 way = chosen & WL_FLOW_WAY;
	struct wl_flow_part *part = &set->parts[way];

	if (chosen & WL_FLOW_NEW) {
		set->tags[way].epoch = epoch;
		set->tags[way].hash = hash;
		part->key = *key;
		part->flow.packets = 0;
	}
	wl_flow_update(&part->flow, ip, packet);
}

/*
 * Whether the application of the part in this slot is still unknown. A flow table next to the packets, which
 * inspects payloads only if they may be informative, checks this after wl_flow_put(); wl_flow_name() then
 * sets the application as wl_flow_update() does with a known one.
 */
static __always_inline int wl_flow_is_nameless(const struct wl_flow_set *set, __u32 chosen)
{
	return !set->parts[chosen & WL_FLOW_WAY].flow.application;
}

static __always_inline void wl_flow_name(struct wl_flow_set *set, __u32 chosen, __u32 application)
{
	set->parts[chosen & WL_FLOW_WAY].flow.application = application;
}

/* Fills the properties of a packet for its flow. `chosen` is the result of wl_choose(), `flags` has
 * WL_REC_EGRESS. */
static __always_inline void wl_flow_packet_of(struct wl_flow_packet *to, const struct wl_parsed *parsed,
					      const struct wl_ip *chosen, __u32 flags)
{
	to->flags = parsed->flags | (flags & WL_REC_EGRESS);
	if (chosen == &parsed->inner)
		to->flags |= WL_PKT_INNER;
	to->tunnel_id = parsed->tunnel_id;
	to->mpls_label = parsed->mpls_label;
	to->eth_type = parsed->eth_type;
	to->vlan_tci = parsed->vlan_tci[0];
	to->tunnel = parsed->tunnel;
}

/* The same for a digest, restricted to the fields that a worker has: see
 * crates/wirelane-analysis/src/flows/reader.rs. */
static __always_inline void wl_flow_packet_of_digest(struct wl_flow_packet *to, const struct wl_ip *chosen)
{
	to->flags &= WL_PKT_VLAN | WL_REC_EGRESS | WL_PKT_INNER;
	to->tunnel_id = 0;
	to->mpls_label = 0;
	to->tunnel = 0;
	to->eth_type = chosen->l3 == WL_L3_ARP ? 0x0806 : 0;
}

#endif
