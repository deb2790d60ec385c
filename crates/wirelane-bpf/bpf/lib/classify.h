/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Classifies a packet: walks through the tables that rules.h describes.
 *
 * A file that includes this one first defines struct wl_rule_env and the access to tables through it, as this
 * file calls no BPF helpers:
 *
 *	wl_rules_node(env, at), wl_rules_class(env, at): NULL if the number is out of range
 *	wl_rules_held(env, set, chosen, work): calls wl_rule_member() for each test; returns WL_DIM_SETS's
 *		byte
 *
 * How the verifier accepts it, and stays fast: a value from a table is used for an address only by a look-up
 * that may fail, or masked. A value that is tested twice is loaded twice, from memory that the verifier does
 * not track (wl_rule_fresh): a copy in a register would create a separate path for each outcome. So the paths
 * through one dimension end in one state. Classes that were found are kept there too, by number, since
 * pointers are not possible: they are looked up again for each word that is left, which is rarely more than
 * one.
 */
#ifndef WL_PACKET_CLASSIFY_H
#define WL_PACKET_CLASSIFY_H

#include "lib/rules.h"

#define wl_rule_fresh(field) (*(volatile __typeof__(field) *)&(field))

/*
 * Hides a value that is masked next from the compiler, so that the mask is kept: Linux 6.1 does not derive
 * bounds from shifts by a register and ORs of 32 bits.
 */
#ifdef __bpf__
#define wl_rule_hide(value) wl_keep(value)
#else
#define wl_rule_hide(value) ((void)(value))
#endif

struct wl_rule_env;

static __always_inline const struct wl_rule_node *wl_rules_node(const struct wl_rule_env *env, __u32 at);
static __always_inline const struct wl_rule_class *wl_rules_class(const struct wl_rule_env *env, __u32 at);

static __always_inline __u32 wl_rules_held(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   const struct wl_ip *chosen, struct wl_rule_work *work);

_Static_assert(sizeof(((struct wl_rule_work *)0)->of) == WL_RULE_DIMS_USED * sizeof(__u32),
	       "one a dimension");

/* The lowest set bit of a number that is not 0. BPF has no instruction for it. */
static __always_inline __u32 wl_lowest_bit(__u64 bits)
{
#ifdef __bpf__
	/* Counts the bits below it. The compiler would replace this by a table in read-only data, and omit
	 * the mask that the verifier needs.
	 */
	bits = (bits & -bits) - 1;
	wl_keep(bits);
	bits -= (bits >> 1) & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + ((bits >> 2) & 0x3333333333333333ULL);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	bits = (bits * 0x0101010101010101ULL) >> 56;
	wl_keep(bits);
	return bits & 63;
#else
	return __builtin_ctzll(bits);
#endif
}

/* Whether the packet is IP, and thus has a protocol and a type of service. ARP's addresses do not make it
 * IP. */
static __always_inline int wl_rule_is_ip(const struct wl_ip *chosen)
{
	__u8 l3 = wl_rule_fresh(chosen->l3);

	return l3 == WL_L3_IPV4 || l3 == WL_L3_IPV6;
}

static __always_inline __u32 wl_rule_vlan(const struct wl_parsed *parsed)
{
	return wl_rule_fresh(parsed->flags) & WL_PKT_VLAN ? parsed->vlan_tci[0] & 0xfff : WL_RULE_NO_VLAN;
}

/* WL_KIND_*, by arithmetic: every branch would add a path. */
static __always_inline __u32 wl_rule_kind(const struct wl_parsed *parsed, const struct wl_ip *chosen,
					  const struct wl_rule_facts *facts)
{
	/* Two bits for each network layer, by its number. */
	const __u32 layers = WL_KIND_L3_ARP << (WL_L3_ARP * 2) | WL_KIND_L3_IPV4 << (WL_L3_IPV4 * 2) |
			     WL_KIND_L3_IPV6 << (WL_L3_IPV6 * 2);

	_Static_assert(WL_IP_FRAGMENT << 2 == WL_KIND_FRAGMENT && WL_IP_LATER << 2 == WL_KIND_LATER &&
			   WL_PKT_TUNNEL << 2 == WL_KIND_TUNNEL && WL_KIND_EGRESS == 1 << 4,
		       "the bits lie as wl_rule_kind() shifts them");
	return (layers >> ((chosen->l3 & 7) * 2) & WL_KIND_L3) |
	       (chosen->flags & (WL_IP_FRAGMENT | WL_IP_LATER)) << 2 | (parsed->flags & WL_PKT_TUNNEL) << 2 |
	       (facts->egress & 1) << 4;
}

/* One step of a walk. A missing node leads to a missing class. */
static __always_inline __u32 wl_rule_step(const struct wl_rule_env *env, __u32 next, __u32 byte)
{
	const struct wl_rule_node *node;

	if (next & WL_RULE_LEAF)
		return next;
	wl_rule_hide(byte);
	node = wl_rules_node(env, next);
	return node ? node->next[byte & 0xff] : ~0u;
}

static __always_inline __u32 wl_rule_step2(const struct wl_rule_env *env, __u32 next, __u32 value)
{
	return wl_rule_step(env, wl_rule_step(env, next, value >> 8), value);
}

/* The steps of an address of either version: a tree of IPv4 addresses has a depth of at most 4 nodes. */
static __always_inline __u32 wl_rule_steps(const struct wl_rule_env *env, __u32 next, const __u8 *bytes)
{
	const struct wl_rule_node *node;
	__u32 i;

	for (i = 0; i < 16 && !(next & WL_RULE_LEAF); i++) {
		node = wl_rules_node(env, next);
		if (!node)
			return ~0u;
		next = node->next[bytes[i]];
	}
	return next;
}

/* The start of the walk for a field that a packet may lack. */
static __always_inline __u32 wl_rule_root(const struct wl_rule_field *field, int there)
{
	return there ? field->root : field->absent | WL_RULE_LEAF;
}

static __always_inline __u32 wl_rule_address_root(const struct wl_rule_field *field,
						  const struct wl_ip *chosen)
{
	__u8 l3 = wl_rule_fresh(chosen->l3);

	return l3 == WL_L3_IPV6 ? field->root6 : wl_rule_root(field, l3 == WL_L3_IPV4);
}

/*
 * Ends a walk at `leaf`. Returns whether a clause may still accept the packet: a value that is not a leaf, or
 * has no class, accepts nothing (a compiler bug, which must not lead anywhere).
 */
static __always_inline int wl_rule_meet(const struct wl_rule_env *env, struct wl_rule_work *work, __u32 dim,
					__u32 leaf)
{
	const struct wl_rule_class *class = wl_rules_class(env, leaf ^ WL_RULE_LEAF);

	if (!class)
		return 0;
	work->of[dim] = leaf ^ WL_RULE_LEAF;
	wl_rule_fresh(work->live) &= class->summary;
	wl_rule_fresh(work->pivot) |= class->pivot;
	return wl_rule_fresh(work->live) != 0;
}

/* After all classes were found: keeps the words to which some clause's pivot leads. Returns whether any
 * are left. */
static __always_inline int wl_rule_at_home(struct wl_rule_work *work)
{
	wl_rule_fresh(work->live) &= wl_rule_fresh(work->pivot);
	return wl_rule_fresh(work->live) != 0;
}

#define WL_RULE_USED(set, dim) (wl_rule_fresh((set)->used) & (1u << (dim)))

/* The dimensions from this one on are rarely used: they are skipped together. */
#define WL_RULE_SELDOM		 WL_DIM_KIND
#define WL_RULE_SOME_SELDOM(set) (wl_rule_fresh((set)->used) >> WL_RULE_SELDOM)

/* Finds the classes of a packet, except for its payload. 0: no clause accepts it. */
static __always_inline int wl_rules_classify(const struct wl_rule_env *env, const struct wl_rule_set *set,
					     const struct wl_parsed *parsed, const struct wl_ip *chosen,
					     struct wl_rule_work *work)
{
	const struct wl_rule_facts *facts = &work->facts;
	const struct wl_rule_field *dims = set->dims;
	const struct wl_rule_class *all = wl_rules_class(env, 0);
	__u32 value, next;

	if (!all)
		return 0;
	wl_rule_fresh(work->live) = all->summary;
	wl_rule_fresh(work->pivot) = all->pivot;

	/* The order is arbitrary; the most selective dimensions come first, so that most packets are decided
	 * early. */
	if (WL_RULE_USED(set, WL_DIM_SRC)) {
		next = wl_rule_address_root(&dims[WL_DIM_SRC], chosen);
		if (!wl_rule_meet(env, work, WL_DIM_SRC, wl_rule_steps(env, next, chosen->src)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_DST)) {
		next = wl_rule_address_root(&dims[WL_DIM_DST], chosen);
		if (!wl_rule_meet(env, work, WL_DIM_DST, wl_rule_steps(env, next, chosen->dst)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_DST_PORT)) {
		next = wl_rule_root(&dims[WL_DIM_DST_PORT], wl_rule_fresh(chosen->flags) & WL_IP_PORTS);
		value = __builtin_bswap16(chosen->dst_port);
		if (!wl_rule_meet(env, work, WL_DIM_DST_PORT, wl_rule_step2(env, next, value)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_SRC_PORT)) {
		next = wl_rule_root(&dims[WL_DIM_SRC_PORT], wl_rule_fresh(chosen->flags) & WL_IP_PORTS);
		value = __builtin_bswap16(chosen->src_port);
		if (!wl_rule_meet(env, work, WL_DIM_SRC_PORT, wl_rule_step2(env, next, value)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_PROTO)) {
		next = wl_rule_root(&dims[WL_DIM_PROTO], wl_rule_is_ip(chosen));
		if (!wl_rule_meet(env, work, WL_DIM_PROTO, wl_rule_step(env, next, chosen->proto)))
			return 0;
	}
	if (!WL_RULE_SOME_SELDOM(set))
		return wl_rule_at_home(work);
	if (WL_RULE_USED(set, WL_DIM_KIND)) {
		value = wl_rule_kind(parsed, chosen, facts);
		next = wl_rule_step(env, dims[WL_DIM_KIND].root, value);
		if (!wl_rule_meet(env, work, WL_DIM_KIND, next))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_TCP_FLAGS)) {
		next = wl_rule_root(&dims[WL_DIM_TCP_FLAGS], wl_rule_fresh(chosen->flags) & WL_IP_TCP);
		if (!wl_rule_meet(env, work, WL_DIM_TCP_FLAGS, wl_rule_step(env, next, chosen->tcp_flags)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_VLAN)) {
		next = wl_rule_step2(env, dims[WL_DIM_VLAN].root, wl_rule_vlan(parsed));
		if (!wl_rule_meet(env, work, WL_DIM_VLAN, next))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_TOS)) {
		next = wl_rule_root(&dims[WL_DIM_TOS], wl_rule_is_ip(chosen));
		if (!wl_rule_meet(env, work, WL_DIM_TOS, wl_rule_step(env, next, chosen->tos)))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_LENGTH)) {
		value = wl_rule_fresh(facts->wire_len);
		next = wl_rule_step2(env, dims[WL_DIM_LENGTH].root, value < 0xffff ? value : 0xffff);
		if (!wl_rule_meet(env, work, WL_DIM_LENGTH, next))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_QUEUE)) {
		next = wl_rule_step2(env, dims[WL_DIM_QUEUE].root, facts->queue);
		if (!wl_rule_meet(env, work, WL_DIM_QUEUE, next))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_ETHERTYPE)) {
		next = wl_rule_root(&dims[WL_DIM_ETHERTYPE], wl_rule_fresh(parsed->eth_type) != 0);
		next = wl_rule_step2(env, next, parsed->eth_type);
		if (!wl_rule_meet(env, work, WL_DIM_ETHERTYPE, next))
			return 0;
	}
	if (WL_RULE_USED(set, WL_DIM_ICMP_TYPE)) {
		next = wl_rule_root(&dims[WL_DIM_ICMP_TYPE], wl_rule_fresh(chosen->flags) & WL_IP_ICMP);
		if (!wl_rule_meet(env, work, WL_DIM_ICMP_TYPE, wl_rule_step(env, next, chosen->icmp_type)))
			return 0;
	}
	/* After all cheaper dimensions. */
	if (WL_RULE_USED(set, WL_DIM_SETS)) {
		next = wl_rule_step(env, dims[WL_DIM_SETS].root, wl_rules_held(env, set, chosen, work));
		if (!wl_rule_meet(env, work, WL_DIM_SETS, next))
			return 0;
	}
	return wl_rule_at_home(work);
}

/*
 * From the clauses of one word that accept the packet apart from its payload, selects those that accept it
 * entirely. If the first of them tests the payload, and it has not been searched: 0, and a search is
 * requested.
 */
static __always_inline __u64 wl_rule_payload(const struct wl_rule_env *env, const struct wl_rule_set *set,
					     struct wl_rule_work *work, __u32 word, __u64 bits)
{
	int done = wl_rule_fresh(work->search.phase) == WL_SEARCH_DONE;
	const struct wl_rule_class *class =
	    wl_rules_class(env, done ? work->of[WL_DIM_PAYLOAD] : set->dims[WL_DIM_PAYLOAD].absent);
	__u64 of;

	if (!class)
		return 0;
	of = class->words[word & (WL_RULE_WORDS - 1)];
	if (wl_rule_fresh(work->search.phase) == WL_SEARCH_DONE)
		return bits & of;
	if (!(bits & -bits & of))
		return bits;
	wl_rule_fresh(work->search.phase) = WL_SEARCH_ASKED;
	return 0;
}

/* The clauses of one word that accept the packet, from work->from on; only the first of them is certain. */
static __always_inline __u64 wl_rule_word(const struct wl_rule_env *env, const struct wl_rule_set *set,
					  struct wl_rule_work *work, __u32 word)
{
	const struct wl_rule_class *class = wl_rules_class(env, 0);
	__u32 from = wl_rule_fresh(work->from);
	__u64 bits;
	__u32 i;

	if (!class)
		return 0;
	bits = class->words[word & (WL_RULE_WORDS - 1)];
	for (i = 0; i < WL_RULE_DIMS_USED; i++) {
		if (i == WL_RULE_SELDOM && !WL_RULE_SOME_SELDOM(set))
			break;
		if (i == WL_DIM_PAYLOAD || !WL_RULE_USED(set, i))
			continue;
		class = wl_rules_class(env, work->of[i]);
		if (!class)
			return 0;
		bits &= class->words[word & (WL_RULE_WORDS - 1)];
	}
	if (word == from >> 6)
		bits &= ~0ULL << (from & 63);
	if (bits && WL_RULE_USED(set, WL_DIM_PAYLOAD))
		bits = wl_rule_payload(env, set, work, word, bits);
	return bits;
}

#endif
