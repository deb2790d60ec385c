/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Results of rules at the end of a record: matched patterns, a plug-in's note, the rules that were hit. */
#ifndef WL_EXTRAS_H
#define WL_EXTRAS_H

#include "evaluate.h"
#include "maps.h"
#include "packet.h"

/* The address of the matched patterns, `at` bytes after the record's start; `room` has WL_SLACK bytes. Bounds
 * as in wl_tail_at(). */
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

/* Appends the results of the rules to the record of `size` bytes at `room`; returns its new size. */
static __always_inline __u32 wl_put_extras(struct wl_packet *packet, struct wl_record *record, __u8 *room,
					   __u32 size)
{
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
	return size;
}

#endif
