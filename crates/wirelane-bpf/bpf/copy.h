/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Copies a packet once: into the ring of one worker of a group, with the parser's results before it and the
 * results of the rules behind it.
 */
#ifndef WL_COPY_H
#define WL_COPY_H

#include "packet.h"
#include "instance.h"
#include "load.h"
#include "maps.h"
#include "ring.h"
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

#ifdef WL_SIMPLE
static __always_inline __u32 wl_put_extras(struct wl_packet *packet, struct wl_record *record, __u8 *room,
					   __u32 size)
{
	return size;
}
#else
#include "extras.h"
#endif

/* Copies the packet into the ring of one worker of a group; returns an enum wl_fate. */
static __always_inline __u32 wl_copy_record(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					    const struct wl_group *group, __u32 g, __u32 worker)
{
	__u32 cap_len = packet->wire_len, size, ring_index, key;
	const struct wl_ip *chosen;
	struct wl_record *record;
	struct wl_ring *ring;
	void *data;
	bool card;
	__u8 *room;

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
	wl_fill_record(record, parsed, chosen, packet->hash);
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
	size = wl_put_extras(packet, record, room, size);
	ring->delivered += packet->segments;
	wl_ring_commit(ring, data, ring_index, g * WL_MAX_WORKERS + worker, group->publish_every, size,
		       packet->ts_ns);
	return WL_DELIVERED;
}

#endif
