/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Copies a packet once: into the ring of one worker of a group, with the parser's results before it and the
 * results of the rules behind it.
 */
#ifndef WL_COPY_H
#define WL_COPY_H

#include "application.h"
#include "flows.h"
#include "packet.h"
#include "http.h"
#include "instance.h"
#include "evaluate.h"
#include "load.h"
#include "maps.h"
#include "ring.h"
#include "shed.h"
#include "lib/record.h"

/* Loads the first cap_len bytes of the packet, as they were on the wire. `room` has WL_SLACK bytes. */
static __always_inline long wl_load_packet(wl_ctx *ctx, const struct wl_packet *packet, __u8 *room,
					   __u32 cap_len)
{
	long error;

	if (!packet->vlan)
		return wl_load_short(ctx, room, cap_len) ? 0 : wl_load(ctx, 0, room, cap_len);
	/* May write more than cap_len, up to WL_PUT_BACK: wl_copy() has reserved as many bytes. */
	error = wl_load(ctx, 0, room, WL_MACS);
	__builtin_memcpy(room + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
	if (!error && cap_len > WL_PUT_BACK)
		error = wl_load(ctx, WL_MACS, room + WL_PUT_BACK, cap_len - WL_PUT_BACK);
	return error;
}

/* The address of a record's tail, `at` bytes after its start; `room` has WL_SLACK bytes. */
static __always_inline struct wl_tail *wl_tail_at(__u8 *room, __u32 at)
{
	/* The verifier must see the bound on the very register that is added. */
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_tail))
		return 0;
	return (struct wl_tail *)(room + at);
}

/* The same for the matched patterns. */
static __always_inline struct wl_found *wl_found_at(__u8 *room, __u32 at)
{
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_found))
		return 0;
	return (struct wl_found *)(room + at);
}

/* The same for a plug-in's note. */
static __always_inline struct wl_note *wl_note_at(__u8 *room, __u32 at)
{
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_note))
		return 0;
	return (struct wl_note *)(room + at);
}

/* The same for the rules that were hit. */
static __always_inline struct wl_hits *wl_hits_at(__u8 *room, __u32 at)
{
	barrier_var(at);
	if (at > WL_SLACK - sizeof(struct wl_hits))
		return 0;
	return (struct wl_hits *)(room + at);
}

/* Appends the plug-in's note to the record. */
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

/* Appends the ids of the matched patterns to the record. */
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
		found->id[i] = work->evaluated.pattern[i];
	if (work->evaluated.flags & WL_EVALUATED_FOUND)
		found->id[WL_SEARCH_FOUND - 1] |= WL_FOUND_MORE;
	if (packet->noted)
		found->id[0] |= WL_FOUND_NOTE;
	if (packet->hits)
		found->id[1] |= WL_FOUND_HITS;
	if (packet->hits && work->evaluated.flags & (WL_EVALUATED_HITS | WL_EVALUATED_MORE))
		found->id[2] |= WL_FOUND_MORE_HITS;
	return 0;
}

/* Appends the ids of the rules that were hit to the record. */
__noinline int wl_put_hits(struct wl_packet *packet, struct wl_hits *hits)
{
	struct wl_parsed *parsed;
	struct wl_rule_work *work;

	if (!packet || !hits)
		return 0;
	work = wl_rules_lane(packet->lane, &parsed);
	if (work)
		__builtin_memcpy(hits, work->evaluated.hit, sizeof(*hits));
	return 0;
}
_Static_assert(sizeof(struct wl_hits) == sizeof(((struct wl_evaluated *)0)->hit), "a record has all of them");

/*
 * Copies the packet into the ring of one worker of a group: `target` is the group, and 256 times the worker.
 * Returns an enum wl_fate.
 *
 * A global function, as many others: the verifier walks such a function once, whatever its arguments are, and
 * not again for each worker, group and path through the parser. (It requires the checks for NULL.)
 */
__noinline int wl_copy(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 target)
{
	__u32 g = target & 0xff, worker = target >> 8, cap_len, hash, size, ring_index, key;
	const struct wl_group *group;
	const struct wl_ip *chosen;
	struct wl_record *record;
	struct wl_ring *ring;
	void *data;
	bool card;
	__u8 *room;

	if (!packet || !parsed)
		return WL_LOST;
	cap_len = packet->wire_len;
	hash = packet->hash;
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
	if (cap_len > group->snap_len)
		cap_len = group->snap_len;
	if (packet->truncate && cap_len > packet->truncate)
		cap_len = packet->truncate;
	if (cap_len > WL_MAX_SNAP)
		cap_len = WL_MAX_SNAP;
	/* The longest record has space for found patterns, but not for a note and rules in addition. */
	if (packet->found > sizeof(struct wl_found) &&
	    cap_len > WL_MAX_SNAP - sizeof(struct wl_note) - sizeof(struct wl_hits))
		cap_len = WL_MAX_SNAP - sizeof(struct wl_note) - sizeof(struct wl_hits);
	if (packet->digest)
		cap_len = sizeof(*chosen);
	size = (WL_RECORD_HEADER + cap_len + 7) & ~7u;

	room = wl_ring_reserve(ring, data, ring_index, group->segments,
			       size + packet->vlan * WL_PUT_BACK +
				   (packet->tagged || packet->segment_size ? sizeof(struct wl_tail) : 0) +
				   packet->found);
	if (!room) {
		ring->lost += packet->segments;
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
	if (wl_has(WL_HAS_STREAMS) && packet->measured)
		record->kind = WL_RECORD_MEASURED;
	chosen = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	wl_fill_record(record, parsed, chosen, hash);
	record->flags |= card ? (packet->flags & ~WL_REC_BATCH_CLOCK) | WL_REC_HW_CLOCK : packet->flags;
	record->flags |= packet->half;
	if (packet->digest || cap_len < packet->wire_len)
		record->flags |= WL_REC_SNAPPED;
	if (packet->digest) {
		*(struct wl_ip *)(room + WL_RECORD_HEADER) = *chosen;
	} else if (wl_load_packet(ctx, packet, room + WL_RECORD_HEADER, cap_len)) {
		/* Impossible: a frame has at least a byte, and cap_len is within it. */
		ring->lost += packet->segments;
		return WL_LOST;
	}
	/* After the bytes: putting a tag back may write beyond them. */
	if (packet->tagged || packet->segment_size) {
		struct wl_tail *tail = wl_tail_at(room, size);

		if (tail) {
			tail->tag = packet->tagged ? packet->tag : 0;
			tail->segment_size = packet->segment_size;
			tail->headers = packet->headers;
			if (packet->tagged)
				record->flags |= WL_REC_TAGGED;
			size += sizeof(*tail);
		}
	}
	if (wl_has(WL_HAS_RULES) && packet->found) {
		struct wl_found *found = wl_found_at(room, size);

		if (found) {
			wl_put_found(packet, found);
			record->flags |= WL_REC_FOUND;
			size += sizeof(*found);
			/* Only behind it: where it has no space, which is impossible, Linux 6.12's
			 * verifier assumes that `size` has no value at all, and rejects the code that uses
			 * it. */
			if (wl_config.plugins && packet->noted) {
				struct wl_note *note = wl_note_at(room, size);

				if (note) {
					wl_put_note(packet, note);
					size += sizeof(*note);
				}
			}
			if (packet->hits) {
				struct wl_hits *hits = wl_hits_at(room, size);

				if (hits) {
					wl_put_hits(packet, hits);
					size += sizeof(*hits);
				}
			}
		}
	}
	ring->delivered += packet->segments;
	wl_ring_commit(ring, data, ring_index, g * WL_MAX_WORKERS + worker, group->publish_every, size,
		       packet->ts_ns);
	return WL_DELIVERED;
}

/* Whether the packet was added to its RTP stream, and nobody else in the group wants its bytes. */
static __always_inline bool wl_stays(const struct wl_packet *packet, const struct wl_group *group)
{
	return wl_has(WL_HAS_STREAMS) && packet->measured && !(group->flags & WL_GROUP_STREAMS_BESIDE);
}

/* Copies the packet to a worker, adds it to a flow, or offloads it, and counts it in the column that it
 * belongs to. */
static __always_inline void wl_deliver(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
				       const struct wl_group *group, struct wl_tally *tally, __u32 g,
				       __u32 worker)
{
	__u32 target = g | worker << 8, fate;

	if (wl_has(WL_HAS_HTTP) && group->flags & WL_GROUP_HTTP) {
		fate = wl_http_choose(ctx, packet, parsed, target);
		if (fate & WL_HTTP_READ) {
			wl_http_read(ctx, packet, target);
			fate &= ~WL_HTTP_READ;
		}
		if (fate == WL_ABSORBED) {
			wl_account(tally, packet, WL_ABSORBED);
			wl_account_offloaded(tally, packet);
			return;
		}
		if (fate == WL_LOST) {
			wl_account(tally, packet, WL_LOST);
			return;
		}
	}
	/* Here, and not in wl_copy() or wl_keep_flow(): with their frames the stack would be too large. */
	if (wl_has(WL_HAS_SHED) && group->shed_high && !wl_stays(packet, group) && wl_shed(packet, target)) {
		wl_account(tally, packet, WL_SHED);
		return;
	}
	/* Ids of rules start at 1: 0, which means no rule, wraps around and is greater than all others
	 * here. */
	if (wl_has(WL_HAS_FLOWS) && group->flags & WL_GROUP_FLOWS && packet->rule_id - 1 >= group->whole) {
		fate = wl_keep_flow(packet, parsed, target);
		if (fate & WL_NAMELESS) {
			wl_name(ctx, packet, parsed, target);
			fate = WL_ABSORBED;
		}
		/* A packet that is not part of a flow is lost, and not delivered either. */
		if (fate != WL_ABSORBED) {
			wl_account(tally, packet, WL_LOST);
			return;
		}
		if (!(group->flags & WL_GROUP_FLOWS_BESIDE)) {
			wl_account_offloaded(tally, packet);
			wl_account(tally, packet, WL_ABSORBED);
			return;
		}
		wl_account_in_flows(tally, packet);
	}
	if (wl_stays(packet, group)) {
		wl_account(tally, packet, WL_ABSORBED);
		return;
	}
	fate = wl_copy(ctx, packet, parsed, target);
	/* The verifier knows only the bounds that the mask gives. */
	barrier_var(fate);
	wl_account(tally, packet, fate);
}

#endif
