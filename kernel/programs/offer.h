/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What every capture hook does with a packet once it knows its length, lane and queue: parse it once, and
 * offer it to each active group. Hooks differ in how bytes are copied out of the packet, and in nothing else.
 */
#ifndef WL_OFFER_H
#define WL_OFFER_H

#include "balance.h"
#include "clock.h"
#include "hook.h"
#include "instance.h"
#include "judge.h"
#include "load.h"
#include "maps.h"
#include "plugin.h"
#include "program.h"
#include "ring.h"
#include "send.h"
#include "shed.h"
#include "verdict.h"
#include "wide.h"
#include "packet/parse.h"
#include "packet/hash.h"
#include "packet/record.h"
#include "packet/steer.h"

/* The first cap_len bytes of the packet, as they were on the wire. `room` has WL_SLACK bytes. */
static __always_inline long wl_load_packet(void *ctx, enum wl_hook hook, const struct wl_packet *packet,
					   __u8 *room, __u32 cap_len)
{
	long error;

	if (!packet->vlan)
		return wl_load_short(ctx, hook, room, cap_len) ? 0 : wl_load(ctx, hook, 0, room, cap_len);
	/* May write more than cap_len, up to WL_PUT_BACK: wl_copy() has reserved as much. */
	error = wl_load(ctx, hook, 0, room, WL_MACS);
	__builtin_memcpy(room + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
	if (!error && cap_len > WL_PUT_BACK)
		error = wl_load(ctx, hook, WL_MACS, room + WL_PUT_BACK, cap_len - WL_PUT_BACK);
	return error;
}

/*
 * The parser for each kind of context; for global functions see wl_copy_xdp(). What lies behind `parsed` must
 * not be on the caller's stack (parse.h says why): to the verifier it is memory that it knows nothing of.
 */
__noinline int wl_parse_xdp(struct xdp_md *ctx, struct wl_parsed *parsed)
{
	if (parsed)
		wl_parse(ctx, wl_config.link, WL_PARSE_TUNNELS, parsed);
	return 0;
}

__noinline int wl_parse_skb(struct __sk_buff *ctx, struct wl_parsed *parsed)
{
	if (parsed)
		wl_parse(ctx, wl_config.link, WL_PARSE_TUNNELS, parsed);
	return 0;
}

/* What becomes of a packet, or of one worker's copy of it: the column of the ledger, as a field of wl_tally.
 */
enum wl_fate {
	WL_SHED = __builtin_offsetof(struct wl_tally, shed) / 8,
	WL_LOST = __builtin_offsetof(struct wl_tally, lost) / 8,
	WL_DELIVERED = __builtin_offsetof(struct wl_tally, delivered) / 8,
};

/* The place of a record's tail, `at` bytes behind its beginning, which has WL_SLACK bytes of room. */
static __always_inline struct wl_tail *wl_tail_at(__u8 *room, __u32 at)
{
	/* The verifier must see the bound on the very register that is added. */
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_tail))
		return 0;
	return (struct wl_tail *)(room + at);
}

/* The same of the patterns that were found. */
static __always_inline struct wl_found *wl_found_at(__u8 *room, __u32 at)
{
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_found))
		return 0;
	return (struct wl_found *)(room + at);
}

/* The same of a plug-in's note. */
static __always_inline struct wl_note *wl_note_at(__u8 *room, __u32 at)
{
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_note))
		return 0;
	return (struct wl_note *)(room + at);
}

/* Writes it. */
__noinline int wl_put_note(struct wl_packet *packet, struct wl_note *note)
{
	struct wl_lane *lane;
	__u32 key;

	if (!packet || !note)
		return 0;
	key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	if (lane)
		__builtin_memcpy(note, &lane->note, sizeof(*note));
	return 0;
}

/* Writes them. */
__noinline int wl_put_found(struct wl_packet *packet, struct wl_found *found)
{
	struct wl_parsed *parsed;
	struct wl_rule_work *work;
	__u32 lane, i;

	if (!packet || !found)
		return 0;
	lane = packet->lane;
	work = wl_rules_lane(lane, &parsed);
	if (!work)
		return 0;
	for (i = 0; i < WL_SEARCH_FOUND; i++)
		found->id[i] = work->judged.pattern[i];
	if (work->judged.flags & WL_JUDGED_FOUND)
		found->id[WL_SEARCH_FOUND - 1] |= WL_FOUND_MORE;
	if (packet->found > sizeof(struct wl_found))
		found->id[0] |= WL_FOUND_NOTE;
	return 0;
}

/* Copies the packet into the ring of one worker of group g. */
static __always_inline enum wl_fate wl_copy(void *ctx, enum wl_hook hook, const struct wl_packet *packet,
					    const struct wl_parsed *parsed, __u32 g, __u32 worker)
{
	__u32 cap_len = packet->wire_len, hash = packet->hash, size, ring_index, key;
	const struct wl_group *group;
	const struct wl_ip *chosen;
	struct wl_record *record;
	struct wl_ring *ring;
	void *data;
	bool card;
	__u8 *room;

	group = bpf_map_lookup_elem(&wl_groups, &g);
	if (!group)
		return WL_LOST;
	if (worker >= WL_MAX_WORKERS)
		return WL_LOST;
	key = (g * wl_config.lanes + packet->lane) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!ring || !data)
		return WL_LOST;
	ring_index = packet->lane * group->workers + worker;
	if (wl_shed(ring, data, ring_index, group, hash))
		return WL_SHED;
	if (cap_len > group->snap_len)
		cap_len = group->snap_len;
	if (packet->truncate && cap_len > packet->truncate)
		cap_len = packet->truncate;
	if (cap_len > WL_MAX_SNAP)
		cap_len = WL_MAX_SNAP;
	/* The longest record has room for what rules say, but not for a note beside. */
	if (packet->found > sizeof(struct wl_found) && cap_len > WL_MAX_SNAP - sizeof(struct wl_note))
		cap_len = WL_MAX_SNAP - sizeof(struct wl_note);
	if (packet->digest)
		cap_len = sizeof(*chosen);
	size = (WL_RECORD_HEADER + cap_len + 7) & ~7u;

	room = wl_ring_reserve(ring, data, ring_index, group->segments,
			       size + packet->vlan * WL_PUT_BACK + packet->tagged * sizeof(struct wl_tail) +
				   packet->found);
	if (!room) {
		ring->lost++;
		return WL_LOST;
	}
	record = (struct wl_record *)room;
	card = group->flags & WL_GROUP_CARD_CLOCK && packet->card_ns;
	record->ts_ns = card ? packet->card_ns : packet->ts_ns;
	record->cap_len = cap_len;
	record->wire_len = packet->wire_len;
	record->rule_id = packet->rule_id;
	record->queue = packet->queue;
	record->kind = packet->digest ? WL_RECORD_DIGEST : WL_RECORD_PACKET;
	chosen = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	wl_fill_record(record, parsed, chosen, hash);
	record->flags |= card ? (packet->flags & ~WL_REC_BATCH_CLOCK) | WL_REC_HW_CLOCK : packet->flags;
	record->flags |= packet->half;
	if (packet->digest || cap_len < packet->wire_len)
		record->flags |= WL_REC_SNAPPED;
	if (packet->digest) {
		*(struct wl_ip *)(room + WL_RECORD_HEADER) = *chosen;
	} else if (wl_load_packet(ctx, hook, packet, room + WL_RECORD_HEADER, cap_len)) {
		/* Cannot be: a frame has at least a byte, and cap_len is within it. */
		ring->lost++;
		return WL_LOST;
	}
	/* After the bytes: putting a tag back may write beyond them. */
	if (packet->tagged) {
		struct wl_tail *tail = wl_tail_at(room, size);

		if (tail) {
			tail->tag = packet->tag;
			tail->pad = 0;
			record->flags |= WL_REC_TAGGED;
			size += sizeof(*tail);
		}
	}
	if (packet->found) {
		struct wl_found *found = wl_found_at(room, size);

		if (found) {
			wl_put_found((struct wl_packet *)packet, found);
			record->flags |= WL_REC_FOUND;
			size += sizeof(*found);
		}
		if (wl_config.plugins && packet->found > sizeof(*found)) {
			struct wl_note *note = wl_note_at(room, size);

			if (note) {
				wl_put_note((struct wl_packet *)packet, note);
				size += sizeof(*note);
			}
		}
	}
	ring->delivered++;
	wl_ring_commit(ring, data, ring_index, g * WL_MAX_WORKERS + worker, group->publish_every, size,
		       packet->ts_ns);
	return WL_DELIVERED;
}

/*
 * The same as functions of their own, as are wl_offer_xdp() and wl_offer_skb() below: the verifier walks a
 * global function once, whatever its arguments are, and not anew for each worker, group and path through the
 * parser. (It demands the checks for NULL.) `target` is the group, and 256 times the worker.
 */
__noinline int wl_copy_xdp(struct xdp_md *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
			   __u32 target)
{
	return packet && parsed ? wl_copy(ctx, WL_HOOK_XDP, packet, parsed, target & 0xff, target >> 8)
				: WL_LOST;
}

__noinline int wl_copy_skb(struct __sk_buff *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
			   __u32 target)
{
	return packet && parsed ? wl_copy(ctx, WL_HOOK_SKB, packet, parsed, target & 0xff, target >> 8)
				: WL_LOST;
}

/* Copies the packet to a worker, and adds it to the column that it belongs to. */
static __always_inline void wl_deliver(void *ctx, enum wl_hook hook, struct wl_packet *packet,
				       struct wl_parsed *parsed, struct wl_tally *tally, __u32 g,
				       __u32 worker)
{
	__u32 target = g | worker << 8;
	__u32 fate = hook == WL_HOOK_XDP ? wl_copy_xdp(ctx, packet, parsed, target)
					 : wl_copy_skb(ctx, packet, parsed, target);

	((__u64 *)tally)[fate & 7]++;
}

/*
 * Whether a filter accepts the packet, as it will be recorded: with its tag. `key` is the filter's in
 * wl_filters. Functions of their own, as above.
 */
static __always_inline int wl_accepts(void *ctx, enum wl_hook hook, const struct wl_packet *packet, __u32 key)
{
	struct wl_filter_packet judged = {.ctx = ctx, .hook = hook};
	__u32 lane_key = packet->lane, behind = 0;
	struct wl_filter *filter;
	struct wl_lane *lane;

	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	filter = bpf_map_lookup_elem(&wl_filters, &key);
	if (!lane || !filter)
		return 0;
	judged.run = &lane->filter;
	judged.head = lane->head;
	lane->filter.wire_len = packet->wire_len;
	lane->filter.direction = packet->flags & WL_REC_EGRESS ? WL_FILTER_GONE_OUT : 0;
	lane->filter.tagged = packet->vlan;
	if (packet->vlan) {
		/* What is not there is not asked for: wl_filter_load() looks at the length first. */
		if (packet->wire_len > WL_PUT_BACK)
			behind = packet->wire_len - WL_PUT_BACK;
		if (behind > WL_FILTER_HEAD - WL_PUT_BACK)
			behind = WL_FILTER_HEAD - WL_PUT_BACK;
		wl_load_most(ctx, hook, 0, lane->head, WL_MACS, WL_MACS);
		__builtin_memcpy(lane->head + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
		wl_load_most(ctx, hook, WL_MACS, lane->head + WL_PUT_BACK, behind,
			     WL_FILTER_HEAD - WL_PUT_BACK);
	}
	return wl_filter_judge(filter, &judged);
}

__noinline int wl_accepts_xdp(struct xdp_md *ctx, struct wl_packet *packet, __u32 key)
{
	return packet ? wl_accepts(ctx, WL_HOOK_XDP, packet, key) : 0;
}

__noinline int wl_accepts_skb(struct __sk_buff *ctx, struct wl_packet *packet, __u32 key)
{
	return packet ? wl_accepts(ctx, WL_HOOK_SKB, packet, key) : 0;
}

/*
 * Whether the rules of group g let the packet pass. Where they do not, it is counted, and *goes says where
 * the packet does not go.
 */
static __always_inline bool wl_rules_pass(void *ctx, enum wl_hook hook, struct wl_packet *packet,
					  struct wl_parsed *parsed, struct wl_group *group,
					  struct wl_tally *tally, __u32 g, __u32 *goes)
{
	/* Once: its owner may change it meanwhile. */
	__u32 rules = *(volatile __u32 *)&group->rules, verdict, target;

	packet->rule_id = 0;
	packet->truncate = 0;
	packet->tagged = 0;
	packet->found = 0;
	packet->half = 0;
	packet->digest = 0;
	packet->exits = 0;
	if (!rules)
		return true;
	target = g + ((rules - 1) & (WL_RULE_SETS - 1)) * WL_RULE_TARGET_SET;
	verdict = wl_rules_of(packet, target, group->flags & WL_GROUP_INNER ? WL_RULES_INNER : 0);
	if (verdict == WL_VERDICT_SEARCH) {
		if (hook == WL_HOOK_XDP)
			wl_search_xdp(ctx, packet, target);
		else
			wl_search_skb(ctx, packet, target);
		if (wl_config.plugins)
			wl_plugins_ask(ctx, hook, packet, parsed, target);
		verdict = wl_rules_of(packet, target, WL_RULES_SEARCHED);
	}
	if (hook == WL_HOOK_SKB && packet->exits)
		wl_send_later(packet, g);
	packet->digest = verdict == WL_VERDICT_DIGEST;
	if (verdict == WL_VERDICT_PASS || verdict == WL_VERDICT_DIGEST)
		return true;
	tally->seen++;
	tally->seen_bytes += packet->wire_len;
	if (verdict == WL_VERDICT_ABSORB || verdict == WL_VERDICT_REDIRECT) {
		tally->absorbed++;
		if (verdict == WL_VERDICT_REDIRECT || group->flags & WL_GROUP_TAKE)
			*goes = WL_TAKEN;
	} else {
		tally->filtered++;
		if (verdict == WL_VERDICT_DROP && group->flags & WL_GROUP_WIDE && wl_is_owned(g))
			*goes = WL_BLOCKED;
	}
	return false;
}

/* Offers the packet to one group. Who else does not get it: WL_TAKEN, WL_BLOCKED, or 0. */
static __always_inline __u32 wl_offer_to(void *ctx, enum wl_hook hook, struct wl_packet *packet,
					 struct wl_parsed *parsed, __u32 g)
{
	__u32 key, queue = packet->queue, bucket, worker, filter, i;
	const struct wl_ip *chosen;
	struct wl_group *group;
	struct wl_tally *tally;
	__u32 goes = 0;

	group = wl_group_wanting(g, queue);
	if (!group)
		return 0;
	tally = wl_tally_of(packet, g);
	if (!tally)
		return 0;
	/* Once: its owner may change it meanwhile. */
	filter = *(volatile __u32 *)&group->filter;
	if (filter) {
		key = g * WL_GROUP_FILTERS + ((filter - 1) & (WL_GROUP_FILTERS - 1));
		if (!(hook == WL_HOOK_XDP ? wl_accepts_xdp(ctx, packet, key)
					  : wl_accepts_skb(ctx, packet, key))) {
			tally->seen++;
			tally->seen_bytes += packet->wire_len;
			tally->filtered++;
			return 0;
		}
	}
	if (!wl_rules_pass(ctx, hook, packet, parsed, group, tally, g, &goes))
		return goes;
	chosen = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	packet->hash = wl_packet_hash(parsed, chosen, wl_config.seed);
	switch (group->steering) {
	case WL_STEER_QUEUE:
		worker = queue;
		break;
	case WL_STEER_ROUND_ROBIN:
		worker = tally->turn;
		tally->turn = worker + 1 < group->workers ? worker + 1 : 0;
		break;
	case WL_STEER_COPY:
		for (i = 0; i < WL_MAX_WORKERS && i < group->workers; i++) {
			/* Every copy counts. */
			tally->seen++;
			tally->seen_bytes += packet->wire_len;
			wl_deliver(ctx, hook, packet, parsed, tally, g, i);
		}
		return wl_takes(group);
	case WL_STEER_PROGRAM:
		worker = STEER_NOT_MINE;
		if (wl_config.programs)
			worker = hook == WL_HOOK_XDP ? wl_ask_xdp(ctx, packet, parsed, g)
						     : wl_ask_skb(ctx, packet, parsed, g);
		if ((__s32)worker < 0) {
			tally->seen++;
			tally->seen_bytes += packet->wire_len;
			tally->filtered++;
			return 0;
		}
		break;
	default:
		bucket = wl_bucket(
		    wl_steering_hash(group->steering, parsed, chosen, packet->hash, wl_config.seed));
		worker = group->buckets[bucket];
		if (group->flags & WL_GROUP_ADAPTIVE)
			worker = wl_balance_bucket(group, g, packet->lane, bucket, worker);
	}
	tally->seen++;
	tally->seen_bytes += packet->wire_len;
	wl_deliver(ctx, hook, packet, parsed, tally, g, wl_worker(worker, group->workers));
	return wl_takes(group);
}

__noinline int wl_offer_xdp(struct xdp_md *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 g)
{
	return packet && parsed ? wl_offer_to(ctx, WL_HOOK_XDP, packet, parsed, g) : 0;
}

__noinline int wl_offer_skb(struct __sk_buff *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
			    __u32 g)
{
	return packet && parsed ? wl_offer_to(ctx, WL_HOOK_SKB, packet, parsed, g) : 0;
}

/* Offers the packet to these groups, in order, until one blocks it; the others only count it. `goes` as
 * above. */
static __always_inline __u32 wl_offer_all(void *ctx, enum wl_hook hook, struct wl_packet *packet,
					  struct wl_parsed *parsed, __u64 groups, __u32 goes)
{
	__u32 g;

	for (g = 0; g < WL_MAX_GROUPS && groups; g++, groups >>= 1) {
		if (!(groups & 1))
			continue;
		if (goes & WL_BLOCKED)
			wl_withhold(packet, g);
		else
			goes |= hook == WL_HOOK_XDP ? wl_offer_xdp(ctx, packet, parsed, g)
						    : wl_offer_skb(ctx, packet, parsed, g);
	}
	return goes;
}

/*
 * Counts the packet in its lane, parses it and offers it to every active group; packet->lane, queue,
 * wire_len, flags and vlan are the caller's. True: it does not go on to the host stack.
 */
static __always_inline bool wl_offer(void *ctx, enum wl_hook hook, struct wl_packet *packet)
{
	struct wl_instance *instance;
	struct wl_lane *lane;
	__u32 key = 0, goes = 0;
	__u64 active, wide;

	instance = bpf_map_lookup_elem(&wl_instance, &key);
	if (!instance)
		return false;
	lane = bpf_map_lookup_elem(&wl_lanes, &packet->lane);
	if (!lane || packet->queue >= wl_config.queues) {
		__sync_fetch_and_add(&instance->stray, 1);
		return false;
	}
	lane->seen++;
	lane->seen_bytes += packet->wire_len;

	active = *(volatile __u64 *)&instance->active;
	if (!active)
		return false;
	/* One group that wants a reading per packet has it for all. */
	if (wl_config.batches && !(active & ~*(volatile __u64 *)&instance->batch_clock)) {
		packet->ts_ns = wl_batch_time();
		packet->flags |= WL_REC_BATCH_CLOCK;
	} else {
		packet->ts_ns = bpf_ktime_get_ns();
	}
	if (hook == WL_HOOK_XDP)
		wl_parse_xdp(ctx, &lane->parsed);
	else
		wl_parse_skb(ctx, &lane->parsed);
	if (packet->vlan)
		wl_put_vlan_back(&lane->parsed, bpf_ntohs(packet->vlan_tag >> 16));

	wide = active & *(volatile __u64 *)&instance->wide;
	if (wide)
		goes = wl_offer_all(ctx, hook, packet, &lane->parsed, wide, goes);
	return wl_offer_all(ctx, hook, packet, &lane->parsed, active & ~wide, goes);
}

#endif
