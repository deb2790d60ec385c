/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Evaluates a packet by a set of rules. rules.h describes the semantics; the same code implements them in the
 * kernel and natively. It consists of parts, which the file that includes this one combines, as in the kernel
 * they are global functions, which the verifier walks once each:
 *
 *	wl_rules_begin(work)
 *	if (wl_rules_exact(...))	exact-match rules; not 0: wildcard rules come next
 *		wl_rules_wildcard(...)	finds the rules that are hit, and calls wl_rules_act() for each
 *	if work->search.phase is WL_SEARCH_ASKED then
 *		wl_search_begin(...)	and the rest of search.h; after wl_search_count()
 *		wl_rules_wildcard(...)	goes on from where it was
 *	wl_rules_end(set, work)
 *
 * A file that includes this one first defines the functions that classify.h needs, and:
 *
 *	wl_rules_word(env, set, work, word): calls wl_rule_word(); returns what that returns
 *	wl_rules_act(env, rule, parsed, chosen, work): calls wl_rule_hit(); returns what that returns
 *	wl_rules_make(env, rule, counts, parsed, chosen, work): calls wl_rule_insert(), at once or later
 *	wl_exact_find(env, key): the entry, expired or not, or NULL
 *	wl_exact_insert(env, key, value, there): puts a copy into the table
 *		there: in the place of an entry that has expired
 *		returns WL_INSERTED, WL_INSERT_LATE where another lane was quicker, or WL_INSERT_FULL
 *
 * For the verifier, the state between two parts is in struct wl_rule_work; classify.h explains why.
 */
#ifndef WL_PACKET_EVALUATE_H
#define WL_PACKET_EVALUATE_H

#include "lib/classify.h"
#include "lib/members.h"
#include "lib/search.h"

/* Results of wl_exact_insert(). */
#define WL_INSERTED    0
#define WL_INSERT_LATE 1
#define WL_INSERT_FULL 2

static __always_inline __u64 wl_rules_word(const struct wl_rule_env *env, const struct wl_rule_set *set,
					   struct wl_rule_work *work, __u32 word);
static __always_inline int wl_rules_act(const struct wl_rule_env *env, const struct wl_rule *rule,
					const struct wl_parsed *parsed, const struct wl_ip *chosen,
					struct wl_rule_work *work);
static __always_inline void wl_rules_make(const struct wl_rule_env *env, const struct wl_rule *rule,
					  struct wl_rule_counts *counts, const struct wl_parsed *parsed,
					  const struct wl_ip *chosen, struct wl_rule_work *work);
static __always_inline struct wl_exact_value *wl_exact_find(const struct wl_rule_env *env,
							    const struct wl_exact_key *key);
static __always_inline int wl_exact_insert(const struct wl_rule_env *env, const struct wl_exact_key *key,
					   const struct wl_exact_value *value, int there);

/*
 * Whether sampling selects the packet for the action. By flow: the same for all packets of a conversation
 * (and for all fragments between two addresses). By packet: a hash of invariant fields, so that a packet is
 * selected at every point with the same seed (hash-based selection, RFC 5475); packets of a flow that differ
 * in none of these fields are selected or not together.
 */
static __always_inline int wl_rule_chooses(const struct wl_parsed *parsed, const struct wl_ip *chosen,
					   const struct wl_rule_facts *facts, __u32 sample, __u8 flags)
{
	__u64 value;

	if (sample <= 1)
		return 1;
	/* Not the hash itself: buckets and congestion control use that. */
	value = wl_hash_mix(WL_HASH_K2 ^ wl_packet_hash(parsed, chosen, facts->seed));
	if (flags & WL_RULE_SAMPLE_PACKET) {
		value = wl_hash_mix(value + ((__u64)chosen->tcp_seq << 32 | chosen->tcp_ack));
		value = wl_hash_mix(
		    value + ((__u64)chosen->frag_id << 32 | (__u32)chosen->frag_off << 16 | chosen->ident));
		value = wl_hash_mix(value + facts->wire_len);
	}
	/* The first of `sample` equal parts of the hash's range. */
	return !((__u64)wl_hash_finish(value) * sample >> 32);
}

/* The verdict of the first matching plug-in of a rule. */
static __always_inline __u32 wl_rule_plugin_says(const struct wl_rule *rule, const struct wl_rule_work *work)
{
	__u32 said = wl_rule_fresh(work->search.said), i, place, verdict;

	for (i = 0; i < WL_RULE_PLUGINS; i++) {
		place = rule->plugin[i];
		verdict = place ? said >> 4 * ((place - 1) & (WL_RULE_PLUGINS - 1)) & 0xf : 0;
		if (verdict)
			return verdict;
	}
	/* Impossible: the rule requires one of them. */
	return WL_VERDICT_PASS;
}

/* Notes that a rule was hit. */
static __always_inline void wl_rule_note_hit(struct wl_evaluated *evaluated, __u32 id)
{
	__u32 at = wl_rule_fresh(evaluated->hit_count);

	if (at >= WL_RULE_HITS) {
		wl_rule_fresh(evaluated->flags) |= WL_EVALUATED_HITS;
		return;
	}
	evaluated->hit[at & (WL_RULE_HITS - 1)] = id;
	wl_rule_fresh(evaluated->hit_count) = at + 1;
}

/* Applies the action of a rule, subject to sampling. Returns whether later rules are evaluated. */
static __always_inline int wl_rule_apply(struct wl_rule_work *work, const struct wl_parsed *parsed,
					 const struct wl_ip *chosen, __u32 id, __u32 verdict, __u32 flags,
					 __u32 truncate, __u32 sample, __u32 tag, __u32 mirror, __u32 to)
{
	struct wl_evaluated *evaluated = &work->evaluated;

	wl_rule_note_hit(evaluated, id);
	if (!wl_rule_chooses(parsed, chosen, &work->facts, sample, flags)) {
		evaluated->verdict = WL_VERDICT_DROP;
		evaluated->to = 0;
		evaluated->rule_id = id;
		wl_rule_fresh(work->acts) = 0;
		return 0;
	}
	if (truncate && truncate - 1 < wl_rule_fresh(evaluated->truncate) - 1)
		evaluated->truncate = truncate;
	if (flags & WL_RULE_TAG) {
		evaluated->tag = tag;
		evaluated->flags |= WL_EVALUATED_TAGGED;
	}
	wl_rule_fresh(evaluated->egress_devices) |= mirror;
	if (verdict) {
		evaluated->verdict = verdict;
		evaluated->to = to;
	}
	if (verdict || !wl_rule_fresh(evaluated->rule_id))
		evaluated->rule_id = id;
	wl_rule_fresh(work->acts) = 1;
	return flags & WL_RULE_CONTINUE;
}

/* Whether an entry has expired. */
static __always_inline int wl_exact_expired(const struct wl_exact_value *entry, __u64 now)
{
	const __u64 second = 1000000000;
	__u64 used = entry->last_ns > entry->made_ns ? entry->last_ns : entry->made_ns;

	/* The clocks of other lanes, and of the process that made it, may be ahead of this packet's. */
	if (entry->idle_s && now > used && now - used >= entry->idle_s * second)
		return 1;
	return entry->hard_s && now > entry->made_ns && now - entry->made_ns >= entry->hard_s * second;
}

/* Builds the key of a packet in a shape. 0: the packet lacks one of its fields. */
static __always_inline int wl_exact_key(struct wl_exact_key *key, __u32 shape, const struct wl_parsed *parsed,
					const struct wl_ip *chosen)
{
	const __u32 addresses = WL_SHAPE_SRC | WL_SHAPE_DST, ports = WL_SHAPE_SRC_PORT | WL_SHAPE_DST_PORT;

	if (shape & (addresses | ports | WL_SHAPE_PROTO) && !wl_rule_is_ip(chosen))
		return 0;
	if (shape & ports && wl_rule_fresh(chosen->flags) & WL_IP_LATER)
		return 0;
	if (shape & WL_SHAPE_MPLS && !(wl_rule_fresh(parsed->flags) & WL_PKT_MPLS))
		return 0;
	if (shape & WL_SHAPE_TUNNEL && !(wl_rule_fresh(parsed->flags) & WL_PKT_TUNNEL))
		return 0;
	__builtin_memset(key, 0, sizeof(*key));
	if (shape & WL_SHAPE_SRC)
		wl_copy16(key->src, chosen->src);
	if (shape & WL_SHAPE_DST)
		wl_copy16(key->dst, chosen->dst);
	if (shape & WL_SHAPE_SRC_PORT)
		key->src_port = chosen->src_port;
	if (shape & WL_SHAPE_DST_PORT)
		key->dst_port = chosen->dst_port;
	if (shape & WL_SHAPE_PROTO)
		key->proto = chosen->proto;
	if (shape & addresses)
		key->l3 = chosen->l3;
	if (shape & WL_SHAPE_VLAN)
		key->vlan = wl_rule_vlan(parsed);
	if (shape & WL_SHAPE_MPLS)
		key->mpls = parsed->mpls_label;
	if (shape & WL_SHAPE_TUNNEL)
		key->tunnel = parsed->tunnel_id;
	key->shape = shape;
	return 1;
}

/*
 * Turns a packet's key into that of a packet in the other direction, in the same shape: the source of one is
 * the destination of the other, also if the shape has only one of the two.
 */
static __always_inline void wl_exact_turn(struct wl_exact_key *key, const struct wl_ip *chosen)
{
	__u32 shape = wl_rule_fresh(key->shape);

	if (shape & WL_SHAPE_SRC)
		wl_copy16(key->src, chosen->dst);
	if (shape & WL_SHAPE_DST)
		wl_copy16(key->dst, chosen->src);
	if (shape & WL_SHAPE_SRC_PORT)
		key->src_port = chosen->dst_port;
	if (shape & WL_SHAPE_DST_PORT)
		key->dst_port = chosen->src_port;
}

/* The entry of work->key, unless it has expired. */
static __always_inline struct wl_exact_value *wl_exact_live(const struct wl_rule_env *env,
							    const struct wl_rule_work *work)
{
	struct wl_exact_value *entry = wl_exact_find(env, &work->key);

	return entry && !wl_exact_expired(entry, work->facts.now_ns) ? entry : (struct wl_exact_value *)0;
}

/* Handles a hit of an exact-match rule. Returns whether wildcard rules are evaluated. */
static __always_inline int wl_exact_hit(struct wl_exact_value *entry, const struct wl_parsed *parsed,
					const struct wl_ip *chosen, struct wl_rule_work *work)
{
	__u64 now = work->facts.now_ns;

	__sync_fetch_and_add(&entry->packets, 1 + work->facts.more_packets);
	__sync_fetch_and_add(&entry->bytes, work->facts.wire_len + work->facts.more_bytes);
	/* Set by any lane: the first and last times are accurate up to the skew between lanes. */
	if (!wl_rule_fresh(entry->first_ns))
		wl_rule_fresh(entry->first_ns) = now;
	wl_rule_fresh(entry->last_ns) = now;
	return wl_rule_apply(work, parsed, chosen, entry->id, entry->verdict, entry->flags, entry->truncate,
			     entry->sample, entry->tag, entry->mirror, entry->to);
}

/* Looks up the exact-match rule of the packet. Returns whether wildcard rules are evaluated. */
static __always_inline int wl_rules_exact(const struct wl_rule_env *env, const struct wl_rule_set *set,
					  const struct wl_parsed *parsed, const struct wl_ip *chosen,
					  struct wl_rule_work *work)
{
	struct wl_exact_value *entry;
	__u32 i;

	for (i = 0; i < WL_RULE_SHAPES && i < wl_rule_fresh(set->shapes); i++) {
		if (!wl_exact_key(&work->key, set->shape[i], parsed, chosen))
			continue;
		entry = wl_exact_live(env, work);
		if (!entry && wl_rule_fresh(work->key.shape) & WL_SHAPE_BOTH) {
			wl_exact_turn(&work->key, chosen);
			entry = wl_exact_live(env, work);
		}
		if (entry)
			return wl_exact_hit(entry, parsed, chosen, work);
	}
	return 1;
}

/* Inserts the exact-match rule that a wildcard rule requests, unless it exists already, in either
 * direction. */
static __always_inline void wl_rule_insert(const struct wl_rule_env *env, const struct wl_rule *rule,
					   struct wl_rule_counts *counts, const struct wl_parsed *parsed,
					   const struct wl_ip *chosen, struct wl_rule_work *work)
{
	struct wl_exact_value *made = &work->made, *there;
	int result;

	if (!wl_exact_key(&work->key, rule->insert_shape, parsed, chosen))
		return;
	if (wl_rule_fresh(work->key.shape) & WL_SHAPE_BOTH) {
		wl_exact_turn(&work->key, chosen);
		if (wl_exact_live(env, work))
			return;
		wl_exact_key(&work->key, rule->insert_shape, parsed, chosen);
	}
	there = wl_exact_find(env, &work->key);
	if (there && !wl_exact_expired(there, work->facts.now_ns))
		return;
	__builtin_memset(made, 0, sizeof(*made));
	made->made_ns = work->facts.now_ns;
	made->id = rule->id;
	made->verdict = rule->insert_verdict;
	made->flags = (rule->insert_flags & (WL_RULE_CONTINUE | WL_RULE_TAG)) | WL_RULE_MADE;
	made->tag = rule->tag;
	made->idle_s = rule->insert_idle_s;
	made->hard_s = rule->insert_hard_s;
	result = wl_exact_insert(env, &work->key, made, !!there);
	if (!counts)
		return;
	if (result == WL_INSERTED)
		wl_rule_fresh(counts->inserted)++;
	else if (result == WL_INSERT_FULL)
		wl_rule_fresh(counts->refused)++;
}

/* Whether the packet has hit the rules before that a rule asks for. Without branches, which would be as many
 * paths for the verifier. */
static __always_inline int wl_rule_is_after(const struct wl_rule *rule, const struct wl_evaluated *evaluated)
{
	__u32 found = 0, differs, i, j;

	if (!rule->after[0])
		return 1;
	for (i = 0; i < WL_RULE_HITS; i++) {
		for (j = 0; j < WL_RULE_AFTER; j++) {
			differs = wl_rule_fresh(evaluated->hit[i]) ^ wl_rule_fresh(rule->after[j]);
			/* The top bit: the two are equal. */
			found |= (differs - 1) & ~differs;
		}
	}
	return found >> 31 != !!(rule->flags & WL_RULE_AFTER_NONE);
}

/*
 * Handles a wildcard rule whose clause accepts the packet. `counts` are its own, or NULL. Returns whether
 * later ones are evaluated.
 */
static __always_inline int wl_rule_hit(const struct wl_rule_env *env, const struct wl_rule *rule,
				       struct wl_rule_counts *counts, const struct wl_parsed *parsed,
				       const struct wl_ip *chosen, struct wl_rule_work *work)
{
	__u32 verdict = rule->verdict, hits;
	int goes_on;

	if (!wl_rule_is_after(rule, &work->evaluated))
		return 1;
	hits = wl_rule_fresh(work->evaluated.hits);
	if (hits >= WL_RULE_HITS) {
		wl_rule_fresh(work->evaluated.flags) |= WL_EVALUATED_MORE;
		return 0;
	}
	wl_rule_fresh(work->evaluated.hits) = hits + 1;

	if (verdict == WL_VERDICT_PLUGIN)
		verdict = wl_rule_plugin_says(rule, work);
	/* Counters of the lane: others only read them. */
	if (counts) {
		if (!wl_rule_fresh(counts->packets))
			wl_rule_fresh(counts->first_ns) = work->facts.now_ns;
		wl_rule_fresh(counts->last_ns) = work->facts.now_ns;
		wl_rule_fresh(counts->bytes) += work->facts.wire_len + work->facts.more_bytes;
		wl_rule_fresh(counts->packets) += 1 + work->facts.more_packets;
	}
	goes_on = wl_rule_apply(work, parsed, chosen, rule->id, verdict, rule->flags, rule->truncate,
				rule->sample, rule->tag, rule->mirror, rule->to);
	if (rule->flags & WL_RULE_INSERT && wl_rule_fresh(work->acts))
		wl_rules_make(env, rule, counts, parsed, chosen, work);
	return goes_on;
}

/*
 * Each iteration finds a hit, or a rule that the packet hits only after others, or finishes a word; the one
 * hit over the limit is found, too.
 */
#define WL_RULE_TURNS (WL_RULE_WORDS + WL_RULE_HITS + 1 + WL_RULE_AFTERS)

/*
 * Evaluates the wildcard rules that accept the packet, in order, until one of them stops, or one tests a
 * payload that has not been searched.
 */
static __always_inline void wl_rules_wildcard(const struct wl_rule_env *env, const struct wl_rule_set *set,
					      const struct wl_parsed *parsed, const struct wl_ip *chosen,
					      struct wl_rule_work *work)
{
	__u32 turn, word, clause, from;
	const struct wl_rule *rule;
	__u64 live, bits;

	if (wl_rule_fresh(work->search.phase) == WL_SEARCH_DONE) {
		from = wl_rule_step(env, set->dims[WL_DIM_PAYLOAD].root,
				    wl_rule_fresh(work->search.held) | wl_rule_fresh(work->search.matched));
		work->of[WL_DIM_PAYLOAD] = from ^ WL_RULE_LEAF;
	} else {
		if (!wl_rules_classify(env, set, parsed, chosen, work))
			return;
		wl_rule_fresh(work->from) = 0;
	}
	for (turn = 0; turn < WL_RULE_TURNS; turn++) {
		live = wl_rule_fresh(work->live);
		if (!live)
			return;
		word = wl_lowest_bit(live);
		bits = wl_rules_word(env, set, work, word);
		if (wl_rule_fresh(work->search.phase) == WL_SEARCH_ASKED)
			return;
		if (!bits) {
			wl_rule_fresh(work->live) = live & (live - 1);
			continue;
		}
		clause = word * 64 + wl_lowest_bit(bits);
		wl_rule_hide(clause);
		wl_rule_fresh(work->rule) = set->rule_of[clause & (WL_RULES_MAX - 1)];
		rule = &set->rule[wl_rule_fresh(work->rule) & (WL_RULES_MAX - 1)];
		if (!wl_rules_act(env, rule, parsed, chosen, work))
			return;
		/* Continue behind the last clause of this rule. */
		from = rule->last_clause;
		from = (from > clause ? from : clause) + 1;
		if (from >= WL_RULES_MAX)
			return;
		wl_rule_fresh(work->from) = from;
		wl_rule_fresh(work->live) = live & ~0ULL << (from >> 6);
	}
}

/* Begins an evaluation. The caller has filled work->facts and work->search.captured. */
static __always_inline void wl_rules_begin(struct wl_rule_work *work)
{
	__builtin_memset(&work->evaluated, 0, sizeof(work->evaluated));
	wl_rule_fresh(work->search.phase) = WL_SEARCH_UNASKED;
}

/* Ends an evaluation: work->evaluated is the result. */
static __always_inline void wl_rules_end(const struct wl_rule_set *set, struct wl_rule_work *work)
{
	if (!wl_rule_fresh(work->evaluated.verdict))
		work->evaluated.verdict =
		    set->default_verdict == WL_VERDICT_DROP ? WL_VERDICT_DROP : WL_VERDICT_PASS;
	wl_rule_fresh(work->evaluated.egress_devices) |= wl_rule_fresh(work->evaluated.to);
}

#endif
