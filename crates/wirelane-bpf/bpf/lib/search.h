/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Searches a payload for patterns: sets the byte of WL_DIM_PAYLOAD, and the ids in wl_evaluated.pattern.
 *
 * All patterns are searched for at once, by an automaton (Aho and Corasick, CACM 1975): a state is the
 * longest suffix of the bytes read that is a prefix of a pattern, so that each byte is one step. There are
 * two, one for exact bytes and one for letters of either case; both have their states in one table. User
 * space builds them (crates/wirelane-rules/src/patterns/).
 *
 * The payload is the range behind the transport header of the chosen headers, up to the end of the datagram,
 * without the padding of a short frame. Each packet is searched separately.
 *
 * Gates are for patterns that match within a part of the payload only, such as a name in the From of a SIP
 * message: some patterns open gates, others close them (the end of the line), and a pattern that needs gates
 * matches only if these are open and it lies behind the position where the last one was opened. All patterns
 * that use a gate are in one automaton, as each automaton processes a block separately; of patterns that end
 * at one position, the longest comes first.
 *
 * The work is bounded: a maximum number of bytes, and of ends of patterns. A packet that exceeds it is marked
 * (WL_EVALUATED_HALF), as is one that was cut before the search, or a fragment that is not the first, as its
 * headers are elsewhere; rules use the patterns that were found.
 *
 * A payload is searched block by block; the file that includes this one loads them into work->search.block:
 *
 *	wl_search_begin(set, parsed, chosen, work)
 *	while work->search.left is not 0: a block of at most so many bytes, from work->search.from on; then
 *		wl_search_walk(env, work, 0), wl_search_walk(env, work, 1), wl_search_next(work)
 *	wl_search_count(counts, set, work)
 *
 * A file that includes this one first defines the functions that classify.h needs, and:
 *
 *	wl_search_page(env, at), wl_search_outputs_of(env, at): NULL if the number is out of range
 *	wl_search_ended(env, work, state, end): calls wl_search_note() for the patterns that end in a state
 */
#ifndef WL_PACKET_SEARCH_H
#define WL_PACKET_SEARCH_H

#include "lib/classify.h"

static __always_inline const struct wl_search_page *wl_search_page(const struct wl_rule_env *env, __u32 at);
static __always_inline const struct wl_search_outputs *wl_search_outputs_of(const struct wl_rule_env *env,
									    __u32 at);
static __always_inline void wl_search_ended(const struct wl_rule_env *env, struct wl_rule_work *work,
					    __u32 state, __u32 end);

_Static_assert(!(WL_SEARCH_PAGE & (WL_SEARCH_PAGE - 1)), "numbers are taken apart by a mask");
_Static_assert(sizeof(((struct wl_search_page *)0)->next[0]) == WL_SEARCH_STATE, "the bytes of a row");
#define WL_SEARCH_PAGE_OF(state) ((state) / (WL_SEARCH_STATE * WL_SEARCH_PAGE))
#define WL_SEARCH_ROW_OF(state)	 ((state) / WL_SEARCH_STATE % WL_SEARCH_PAGE)
_Static_assert(WL_SEARCH_BYTES % WL_SEARCH_BLOCK == 0, "whole blocks");

/* Determines the range that is searched. */
static __always_inline void wl_search_begin(const struct wl_rule_set *set, const struct wl_parsed *parsed,
					    const struct wl_ip *chosen, struct wl_rule_work *work)
{
	__u32 from = wl_rule_fresh(chosen->payload_off), end = wl_rule_fresh(work->facts.wire_len), left;
	__u32 captured = wl_rule_fresh(work->search.captured), stated = wl_rule_fresh(chosen->l3_len);
	struct wl_search *search = &work->search;

	wl_rule_fresh(search->from) = from;
	wl_rule_fresh(search->left) = 0;
	wl_rule_fresh(search->at) = 0;
	wl_rule_fresh(search->held) = 0;
	wl_rule_fresh(search->gates) = 0;
	wl_rule_fresh(search->kept) = 0;
	wl_rule_fresh(search->since) = 0;
	wl_rule_fresh(search->outputs) = 0;
	wl_rule_fresh(search->matched) = 0;
	wl_rule_fresh(search->said) = 0;
	wl_rule_fresh(search->unasked) = 0;
	wl_rule_fresh(search->noted) = 0;
	wl_rule_fresh(search->state[0]) = set->search_root[0];
	wl_rule_fresh(search->state[1]) = set->search_root[1];
	if (!set->search_reach)
		return;
	/* A jumbogram has no stated length. */
	if (stated && stated + chosen->l3_off < end)
		end = stated + chosen->l3_off;
	if (from == WL_NO_OFFSET) {
		/* The start of the payload is unknown. */
		if (chosen->flags & WL_IP_LATER || parsed->flags & (WL_PKT_CUT | WL_PKT_DEEP))
			work->evaluated.flags |= WL_EVALUATED_HALF;
		return;
	}
	if (from >= end)
		return;
	left = end - from;
	if (left > set->search_reach)
		left = set->search_reach;
	if (left > WL_SEARCH_BYTES) {
		left = WL_SEARCH_BYTES;
		work->evaluated.flags |= WL_EVALUATED_HALF;
	}
	if (from + left > captured) {
		left = captured > from ? captured - from : 0;
		work->evaluated.flags |= WL_EVALUATED_HALF;
	}
	wl_rule_fresh(search->left) = left;
}

/* Records the id of a matched pattern. */
static __always_inline void wl_search_id(struct wl_evaluated *evaluated, __u32 id)
{
	__u32 i;

	for (i = 0; i < WL_SEARCH_FOUND; i++) {
		if (wl_rule_fresh(evaluated->pattern[i]) == id)
			return;
		if (!wl_rule_fresh(evaluated->pattern[i])) {
			wl_rule_fresh(evaluated->pattern[i]) = id;
			return;
		}
	}
	evaluated->flags |= WL_EVALUATED_FOUND;
}

/* Whether a pattern that ends there passes its gates. If so, it opens and closes its own gates. */
static __always_inline int wl_search_passes(struct wl_search *search, const struct wl_search_output *output,
					    __u32 end)
{
	__u32 gates = wl_rule_fresh(search->gates), opens = output->opens, closes = output->closes;

	/* It begins output->from bytes before its end. */
	if (output->needs && (output->needs & ~gates || end - output->from < wl_rule_fresh(search->since)))
		return 0;
	if (!(opens | closes))
		return 1;
	if (closes & WL_GATE_KEPT)
		wl_rule_fresh(search->kept) = gates & closes;
	gates &= ~closes;
	if (opens) {
		gates |= opens & WL_GATE_KEPT ? wl_rule_fresh(search->kept) : opens;
		wl_rule_fresh(search->since) = end;
	}
	wl_rule_fresh(search->gates) = gates;
	return 1;
}

/* Records the patterns that end in a state, after `end` bytes of the payload. */
static __always_inline void wl_search_note(const struct wl_rule_env *env, struct wl_rule_work *work,
					   __u32 state, __u32 end)
{
	const struct wl_search_page *page = wl_search_page(env, WL_SEARCH_PAGE_OF(state));
	const struct wl_search_outputs *outputs;
	const struct wl_search_output *output;
	struct wl_search *search = &work->search;
	__u32 first, count, at, i;

	if (!page)
		return;
	wl_rule_hide(state);
	first = page->ends[WL_SEARCH_ROW_OF(state)].first;
	count = page->ends[WL_SEARCH_ROW_OF(state)].count;
	for (i = 0; i < WL_SEARCH_AT_ONCE && i < count; i++) {
		if (wl_rule_fresh(search->outputs) >= WL_SEARCH_OUTPUTS) {
			work->evaluated.flags |= WL_EVALUATED_HALF;
			return;
		}
		wl_rule_fresh(search->outputs)++;
		at = first + i;
		outputs = wl_search_outputs_of(env, at / WL_SEARCH_PAGE);
		if (!outputs)
			return;
		wl_rule_hide(at);
		output = &outputs->output[at & (WL_SEARCH_PAGE - 1)];
		if (end < output->from || end > output->last || !wl_search_passes(search, output, end))
			continue;
		wl_rule_fresh(search->held) |= output->bits;
		if (output->id)
			wl_search_id(&work->evaluated, output->id);
	}
}

/* Walks one of the two automata over the block. */
static __always_inline void wl_search_walk(const struct wl_rule_env *env, struct wl_rule_work *work,
					   __u32 which)
{
	struct wl_search *search = &work->search;
	__u32 state = wl_rule_fresh(search->state[which & 1]), number, row, i;
	const struct wl_search_page *page;
	const __u8 *column;

	if (state == WL_SEARCH_NONE)
		return;
	number = WL_SEARCH_PAGE_OF(state);
	page = wl_search_page(env, number);
#ifdef __bpf__
	/* The verifier discards saved states when it has seen many at one instruction: unrolling gives it
	 * fewer at more instructions. */
#pragma clang loop unroll_count(8)
#endif
	for (i = 0; page && i < WL_SEARCH_BLOCK; i++) {
		if (i >= wl_rule_fresh(search->length))
			break;
		/* First what does not depend on the last step. */
		column = (const __u8 *)page->next + search->block[i] * sizeof(page->next[0][0]);
		wl_rule_hide(column);
		row = state & ((WL_SEARCH_PAGE - 1) * WL_SEARCH_STATE);
		state = *(const __u32 *)(column + row);
		if (wl_unlikely(state & WL_SEARCH_HIT))
			wl_search_ended(env, work, state, wl_rule_fresh(search->at) + i + 1);
		if (WL_SEARCH_PAGE_OF(state) != number) {
			number = WL_SEARCH_PAGE_OF(state);
			page = wl_search_page(env, number);
		}
	}
	wl_rule_fresh(search->state[which & 1]) = state;
}

/* Advances to the next block. */
static __always_inline void wl_search_next(struct wl_rule_work *work)
{
	struct wl_search *search = &work->search;
	__u32 length = wl_rule_fresh(search->length);

	wl_rule_fresh(search->from) += length;
	wl_rule_fresh(search->at) += length;
	wl_rule_fresh(search->left) -= length;
}

/*
 * Ends the search. `counts`, or NULL: searched packets and bytes, unless the set has plug-ins only and no
 * patterns; `inserted` are the packets in which a pattern was found, `refused` those that were not searched
 * completely.
 */
static __always_inline void wl_search_count(struct wl_rule_counts *counts, const struct wl_rule_set *set,
					    struct wl_rule_work *work)
{
	wl_rule_fresh(work->search.phase) = WL_SEARCH_DONE;
	if (!counts || !set->search_reach)
		return;
	if (!wl_rule_fresh(counts->packets))
		wl_rule_fresh(counts->first_ns) = work->facts.now_ns;
	wl_rule_fresh(counts->last_ns) = work->facts.now_ns;
	wl_rule_fresh(counts->bytes) += wl_rule_fresh(work->search.at);
	wl_rule_fresh(counts->packets)++;
	if (wl_rule_fresh(work->search.held))
		wl_rule_fresh(counts->inserted)++;
	if (wl_rule_fresh(work->evaluated.flags) & WL_EVALUATED_HALF)
		wl_rule_fresh(counts->refused)++;
}

#endif
