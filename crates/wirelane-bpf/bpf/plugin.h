/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Plug-ins: functions of users (include/wirelane/plugin.h), which rules use as a condition. They are linked
 * in as steering programs are, and for the same reasons (program.h): there are WL_RULE_PLUGINS slots for
 * them, weak functions, and wl_config.plugins is 0 as long as no group has one.
 *
 * A plug-in sets a bit of WL_DIM_PAYLOAD, as patterns do. It runs when the payload is searched, so at most
 * once for a packet and a group, and not if an earlier rule has decided. wl_rule_set.plugin lists the slots
 * that a set uses; they are slots of its group.
 *
 * A slow plug-in harms only its own group: one of WL_PLUGIN_EVERY runs is timed. If WL_PLUGIN_RUNS of these
 * have exceeded the group's budget on average, the plug-in is switched off, for this group and lane. A run
 * counts with at most WL_PLUGIN_MOST times the budget: an interrupt during it, or a virtual machine that had
 * to wait, are not the plug-in's fault.
 */
#ifndef WL_PLUGIN_H
#define WL_PLUGIN_H

#include "evaluate.h"
#include "maps.h"
#include "ring.h"
#include "show.h"
#include "lib/hash.h"

#define WL_PLUGIN_EVERY 64 /* a power of two */
#define WL_PLUGIN_RUNS	16
#define WL_PLUGIN_MOST	4
#define WL_PLUGIN_OF	65536 /* see wl_plugin_ask() */

_Static_assert(PLUGIN_PASS == WL_VERDICT_PASS && PLUGIN_DROP == WL_VERDICT_DROP &&
		   PLUGIN_COUNT == WL_VERDICT_ABSORB && PLUGIN_DIGEST == WL_VERDICT_DIGEST,
	       "a plug-in returns a verdict");
_Static_assert(PACKET_RULES == WL_RULE_HITS, "a plug-in gets all rules that were hit");
_Static_assert(PLUGIN_DIGEST < 16 && WL_RULE_PLUGINS * 4 <= 32, "verdicts of all slots are in one word");
_Static_assert(PLUGIN_NOTE == sizeof(((struct wl_note *)0)->bytes), "a note goes into a record as it is");

/* A slot without a linked plug-in; never called, as no set names it. */
#define WL_PLUGIN_PLACE(number)                                                                              \
	__weak int wirelane_plugin_v1_##number(const struct wirelane_packet *packet,                         \
					       struct plugin_answer *answer)                                 \
	{                                                                                                    \
		return PLUGIN_NO;                                                                            \
	}

WL_PLUGIN_PLACE(0)
WL_PLUGIN_PLACE(1)
WL_PLUGIN_PLACE(2)
WL_PLUGIN_PLACE(3)
WL_PLUGIN_PLACE(4)
WL_PLUGIN_PLACE(5)
WL_PLUGIN_PLACE(6)
WL_PLUGIN_PLACE(7)

/* A rule is described to a plug-in as it is in the table of exact-match rules. */
_Static_assert(PLUGIN_FIELD_SRC == WL_SHAPE_SRC && PLUGIN_FIELD_DST == WL_SHAPE_DST &&
		   PLUGIN_FIELD_SRC_PORT == WL_SHAPE_SRC_PORT && PLUGIN_FIELD_DST_PORT == WL_SHAPE_DST_PORT &&
		   PLUGIN_FIELD_PROTO == WL_SHAPE_PROTO && PLUGIN_FIELD_VLAN == WL_SHAPE_VLAN &&
		   PLUGIN_FIELD_MPLS == WL_SHAPE_MPLS && PLUGIN_FIELD_TUNNEL == WL_SHAPE_TUNNEL &&
		   PLUGIN_FIELD_BOTH == WL_SHAPE_BOTH,
	       "the bits of fields are those of shapes");
_Static_assert(PLUGIN_NO_VLAN == WL_RULE_NO_VLAN && PACKET_L3_IPV4 == WL_L3_IPV4 &&
		   PACKET_L3_IPV6 == WL_L3_IPV6,
	       "the values of fields are those of keys");

/* Whether the plug-in stays enabled, after a run of `ns` nanoseconds. */
static __always_inline void wl_plugin_timed(struct wl_plugin *plugin, __u64 ns, __u64 budget)
{
	__u64 most = budget * WL_PLUGIN_MOST;

	plugin->timed++;
	plugin->ns += ns;
	plugin->part_ns += ns < most ? ns : most;
	plugin->parts++;
	if (plugin->parts < WL_PLUGIN_RUNS)
		return;
	if (plugin->part_ns > budget * WL_PLUGIN_RUNS)
		plugin->off = 1;
	plugin->part_ns = 0;
	plugin->parts = 0;
}

/* Adds to the plug-in's counters, and keeps its note if it is the first. */
static __always_inline void wl_plugin_answered(struct wl_lane *lane, struct wl_plugin *plugin, __u32 verdict)
{
	struct wl_search *search = &lane->rules.search;
	__u32 len = lane->answer.note_len, i;

	for (i = 0; i < PLUGIN_MOST_COUNTERS; i++)
		plugin->counters[i] += lane->answer.add[i];
	if (!verdict || !len || search->noted)
		return;
	wl_rule_fresh(search->noted) = 1;
	lane->note.len = len < PLUGIN_NOTE ? len : PLUGIN_NOTE;
	lane->note.pad = 0;
	__builtin_memcpy(lane->note.bytes, lane->answer.note, PLUGIN_NOTE);
}

/* Bytes of a record that are copied, of which those behind its length are not committed. */
#define WL_PLUGIN_RECORD (WL_RECORD_HEADER + PLUGIN_RECORD)
_Static_assert(WL_PLUGIN_RECORD <= WL_SLACK, "a record fits into a segment's slack");

/*
 * Writes the record of a plug-in into the ring of the worker that the packet's hash selects; `of` as for
 * wl_plugin_ask(). Returns 1 if there was space. A global function: see wl_copy().
 */
__noinline int wl_plugin_record(struct wl_packet *packet, __u32 of)
{
	__u32 g = wl_target_group(of % WL_PLUGIN_OF), place = of / WL_PLUGIN_OF % WL_RULE_PLUGINS;
	__u32 key, worker, ring_index, len;
	const struct wl_group *group;
	struct wl_record *record;
	struct wl_lane *lane;
	struct wl_ring *ring;
	void *data;
	__u8 *room;

	if (!wl_config.plugins || !packet)
		return 0;
	key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	group = bpf_map_lookup_elem(&wl_groups, &g);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!lane || !group || !data || !(group->flags & WL_GROUP_RECORDS))
		return 0;
	worker = group->workers ? packet->hash % group->workers : 0;
	if (worker >= WL_MAX_WORKERS)
		return 0;
	key = (g * wl_config.lanes + packet->lane) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	if (!ring)
		return 0;
	ring_index = packet->lane * group->workers + worker;
	len = lane->answer.record_len;
	if (len > PLUGIN_RECORD)
		len = PLUGIN_RECORD;
	room = wl_ring_reserve(ring, data, ring_index, group->segments, (WL_RECORD_HEADER + len + 7) & ~7u);
	if (!room)
		return 0;
	record = (struct wl_record *)room;
	__builtin_memset(record, 0, WL_RECORD_HEADER);
	record->ts_ns = packet->ts_ns;
	record->cap_len = len;
	record->kind = WL_RECORD_PLUGIN;
	record->queue = packet->queue;
	record->hash = packet->hash;
	barrier_var(place);
	record->rule_id = group->plugin_numbers[place & (WL_RULE_PLUGINS - 1)];
	__builtin_memcpy(room + WL_RECORD_HEADER, lane->answer.record, PLUGIN_RECORD);
	wl_ring_commit(ring, data, ring_index, g * WL_MAX_WORKERS + worker, group->publish_every,
		       (WL_RECORD_HEADER + len + 7) & ~7u, packet->ts_ns);
	return 1;
}

/* Runs the plug-in in a slot; `of` is the set's number, and WL_PLUGIN_OF times the slot. For global functions
 * see wl_copy(). */
__noinline int wl_plugin_ask(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 of)
{
	__u32 target = of % WL_PLUGIN_OF, place = of / WL_PLUGIN_OF % WL_RULE_PLUGINS;
	__u32 g = wl_target_group(target), key, verdict, bit;
	const struct wl_rule_set *set;
	const struct wl_group *group;
	struct wl_plugins *plugins;
	struct wl_plugin *plugin;
	struct wl_lane *lane;
	__u64 began = 0;

	if (!wl_config.plugins || !packet || !parsed)
		return 0;
	key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	group = bpf_map_lookup_elem(&wl_groups, &g);
	set = wl_rules_set(target);
	key = g * wl_config.lanes + packet->lane;
	plugins = bpf_map_lookup_elem(&wl_plugins, &key);
	if (!lane || !group || !set || !plugins)
		return 0;
	barrier_var(place);
	place &= WL_RULE_PLUGINS - 1;
	plugin = &plugins->of[place];
	bit = set->plugin[place];
	if (plugin->off) {
		plugin->refused++;
		wl_rule_fresh(lane->rules.search.unasked) = 1;
		return 0;
	}
	plugin->asked++;
	/* Hash of the headers that this group chooses: steering happens later. */
	packet->hash =
	    wl_packet_hash(parsed, wl_choose(parsed, !!(group->flags & WL_GROUP_INNER)), wl_config.seed);
	wl_show(ctx, packet, parsed, group->workers);
	lane->shown.capture = g;
	lane->shown.rules_count = wl_rule_fresh(lane->rules.evaluated.hit_count);
	__builtin_memcpy(lane->shown.rules, lane->rules.evaluated.hit, sizeof(lane->shown.rules));
	__builtin_memset(&lane->answer, 0, __builtin_offsetof(struct plugin_answer, record));
	if (!((plugin->asked - 1) & (WL_PLUGIN_EVERY - 1)))
		began = bpf_ktime_get_ns();
	switch (place) {
	case 0:
		verdict = wirelane_plugin_v1_0(&lane->shown, &lane->answer);
		break;
	case 1:
		verdict = wirelane_plugin_v1_1(&lane->shown, &lane->answer);
		break;
	case 2:
		verdict = wirelane_plugin_v1_2(&lane->shown, &lane->answer);
		break;
	case 3:
		verdict = wirelane_plugin_v1_3(&lane->shown, &lane->answer);
		break;
	case 4:
		verdict = wirelane_plugin_v1_4(&lane->shown, &lane->answer);
		break;
	case 5:
		verdict = wirelane_plugin_v1_5(&lane->shown, &lane->answer);
		break;
	case 6:
		verdict = wirelane_plugin_v1_6(&lane->shown, &lane->answer);
		break;
	default:
		verdict = wirelane_plugin_v1_7(&lane->shown, &lane->answer);
	}
	if (began)
		wl_plugin_timed(plugin, bpf_ktime_get_ns() - began, group->plugin_budget);
	/* An invalid verdict counts as no match. */
	if (verdict > PLUGIN_DIGEST)
		verdict = PLUGIN_NO;
	if (verdict) {
		plugin->matched++;
		wl_rule_fresh(lane->rules.search.matched) |= bit;
		wl_rule_fresh(lane->rules.search.said) |= verdict << 4 * place;
	}
	wl_plugin_answered(lane, plugin, verdict);
	if (lane->answer.record_len) {
		if (wl_plugin_record(packet, of))
			plugin->records++;
		else
			plugin->unwritten++;
	}
	return 0;
}

/* Runs all plug-ins that the set uses. */
static __always_inline void wl_plugins_ask(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed,
					   __u32 target)
{
	__u32 place;

	for (place = 0; place < WL_RULE_PLUGINS; place++) {
		if (!(packet->asks >> place & 1))
			continue;
		wl_plugin_ask(ctx, packet, parsed, target + place * WL_PLUGIN_OF);
	}
}

#endif
