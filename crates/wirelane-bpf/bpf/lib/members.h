/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lookups of a side or a flow of the packet in named sets of a million entries and more: the tests that
 * form the byte of WL_DIM_SETS.
 *
 * A file that includes this one first defines the functions that classify.h needs, and:
 *
 *	wl_rules_ask(env, test, exact, key): whether the set of this test has the entry. Where `exact` is 0,
 *	false positives are allowed, but no false negatives.
 *
 * A packet without the field is in no set: the test does not hold.
 */
#ifndef WL_PACKET_MEMBERS_H
#define WL_PACKET_MEMBERS_H

#include "lib/classify.h"

static __always_inline int wl_rules_ask(const struct wl_rule_env *env, __u32 test, int exact,
					const struct wl_member *key);

_Static_assert(sizeof(struct wl_member) == 40, "without padding: all of its bytes are hashed");

/* Builds the entry of one side of the packet. */
static __always_inline void wl_member_side(struct wl_member *key, const struct wl_ip *chosen,
					   const __u8 *address, __u16 port, __u32 what)
{
	__builtin_memset(key, 0, sizeof(*key));
	wl_copy16(key->first, address);
	key->l3 = chosen->l3;
	if (what & WL_MEMBER_PORT)
		key->first_port = port;
	if (what & WL_MEMBER_PROTO)
		key->proto = chosen->proto;
}

/*
 * The first `bits` bits of 8 bytes, 0 to 64. Two shifts, as one by 64 is undefined, and no branch, which
 * would be two paths for the verifier at each length.
 */
static __always_inline __u64 wl_member_mask(__u32 bits)
{
	return __builtin_bswap64(~(~0ULL >> (bits >> 1 & 63) >> ((bits + 1) >> 1 & 63)));
}

/* Builds the entry of the network of `length` bits that an address is in. */
static __always_inline void wl_member_network(struct wl_member *key, const __u8 *address, __u8 l3,
					      __u32 length)
{
	__u32 low = length - 64; /* bits of the second half; 0 below 64 */

	low &= (low >> 31) - 1;
	__builtin_memset(key, 0, sizeof(*key));
	wl_store64(key->first, wl_load64(address) & wl_member_mask(length - low));
	wl_store64(key->first + 8, wl_load64(address + 8) & wl_member_mask(low));
	key->l3 = l3;
	key->prefix = length + 1;
}

/* Whether the destination is the end that sorts first. */
static __always_inline int wl_member_turned(const struct wl_ip *chosen)
{
	__u64 src = __builtin_bswap64(wl_load64(chosen->src)),
	      dst = __builtin_bswap64(wl_load64(chosen->dst));

	if (src != dst)
		return src > dst;
	src = __builtin_bswap64(wl_load64(chosen->src + 8));
	dst = __builtin_bswap64(wl_load64(chosen->dst + 8));
	if (src != dst)
		return src > dst;
	return __builtin_bswap16(chosen->src_port) > __builtin_bswap16(chosen->dst_port);
}

/* Builds the entry of a flow. For a protocol without ports they are 0. */
static __always_inline void wl_member_flow(struct wl_member *key, const struct wl_ip *chosen)
{
	key->proto = chosen->proto;
	key->l3 = chosen->l3;
	key->prefix = 0;
	if (wl_member_turned(chosen)) {
		wl_copy16(key->first, chosen->dst);
		wl_copy16(key->second, chosen->src);
		key->first_port = chosen->dst_port;
		key->second_port = chosen->src_port;
	} else {
		wl_copy16(key->first, chosen->src);
		wl_copy16(key->second, chosen->dst);
		key->first_port = chosen->src_port;
		key->second_port = chosen->dst_port;
	}
}

/* Whether the set of a test has one side of the packet. */
static __always_inline int wl_rule_member_side(const struct wl_rule_env *env, const struct wl_rule_set *set,
					       const struct wl_ip *chosen, struct wl_rule_work *work,
					       __u32 test, const __u8 *address, __u16 port)
{
	__u32 what = set->member[test & (WL_RULE_MEMBERS - 1)], i, length;
	int exact = !!(what & WL_MEMBER_EXACT), six = wl_rule_fresh(chosen->l3) == WL_L3_IPV6;

	if (!(what & WL_MEMBER_NETWORK)) {
		wl_member_side(&work->member, chosen, address, port, what);
		return wl_rules_ask(env, test, exact, &work->member);
	}
	for (i = 0; i < WL_RULE_PREFIXES; i++) {
		length = wl_rule_fresh(set->prefix[test & (WL_RULE_MEMBERS - 1)][six][i]);
		if (!length)
			return 0;
		wl_member_network(&work->member, address, chosen->l3, length - 1);
		if (wl_rules_ask(env, test, exact, &work->member))
			return 1;
	}
	return 0;
}

/* Whether one test holds. */
static __always_inline int wl_rule_member(const struct wl_rule_env *env, const struct wl_rule_set *set,
					  const struct wl_ip *chosen, struct wl_rule_work *work, __u32 test)
{
	__u32 what = set->member[test & (WL_RULE_MEMBERS - 1)];
	int exact = !!(what & WL_MEMBER_EXACT);

	if (!wl_rule_is_ip(chosen))
		return 0;
	if (what & WL_MEMBER_FLOW) {
		/* The ports of later fragments are unknown. */
		if (wl_rule_fresh(chosen->flags) & WL_IP_LATER)
			return 0;
		wl_member_flow(&work->member, chosen);
		return wl_rules_ask(env, test, exact, &work->member);
	}
	if (what & WL_MEMBER_PORT && !(wl_rule_fresh(chosen->flags) & WL_IP_PORTS))
		return 0;
	if (what & WL_MEMBER_SRC &&
	    wl_rule_member_side(env, set, chosen, work, test, chosen->src, chosen->src_port))
		return 1;
	return what & WL_MEMBER_DST &&
	       wl_rule_member_side(env, set, chosen, work, test, chosen->dst, chosen->dst_port);
}

#endif
