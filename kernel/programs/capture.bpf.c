// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The capture program: from an RX queue to the rings of every group that wants the packet.
 *
 *            +-- lane (RX queue, or CPU under generic XDP): one packet at a time, one writer ------------+
 *   packet ->| parse once -> for each active group: wanted? -> steer -> ring (the single copy)           |->
 * host |                       |                  |         |                                      |   stack
 *            |                     tally:             tally:    worker's ring full: tally: lost          |
 * (or |                     seen               filtered, else: delivered                          |   taken)
 *            +-------------------------------------------------------------------------------------------+
 *
 * Invariants
 *   - One writer per lane. Under native XDP a lane is an RX queue, which NAPI polls on one CPU at a time;
 *     otherwise it is a CPU, and the program runs with bottom halves off. So nothing here is locked, and
 *     counters are plain additions. No cache line is written by two lanes.
 *   - Every packet that a group saw is in exactly one column of its tally: the function that decides adds it.
 *   - Groups share nothing but the packet: a group that is full, slow or gone costs the others its look-ups.
 *   - Groups come and go while packets flow. The owner publishes a group by putting its data map into wl_data
 *     (the kernel waits for running programs there) and then setting its bit in wl_instance.active; it leaves
 *     in the opposite order. No program run sees a half-made group.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "instance.h"
#include "maps.h"
#include "ring.h"
#include "packet/parse.h"
#include "packet/hash.h"
#include "packet/record.h"
#include "packet/steer.h"

/* The packet at hand. */
struct wl_packet {
	struct wl_parsed *parsed;
	__u64 ts_ns;
	__u32 wire_len;
	__u32 lane;
	__u32 queue;
};

/* Copies the packet into the ring of one worker. False: no room. */
static __always_inline bool wl_copy(struct xdp_md *ctx, const struct wl_packet *packet,
				    const struct wl_group *group, __u32 g, __u32 worker,
				    const struct wl_ip *chosen, __u32 hash)
{
	__u32 cap_len = packet->wire_len, size, ring_index, key;
	struct wl_record *record;
	struct wl_ring *ring;
	void *data;
	__u8 *room;

	key = (g * wl_config.lanes + packet->lane) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!ring || !data)
		return false;
	if (cap_len > group->snap_len)
		cap_len = group->snap_len;
	if (cap_len > WL_MAX_SNAP)
		cap_len = WL_MAX_SNAP;
	size = (WL_RECORD_HEADER + cap_len + 7) & ~7u;
	ring_index = packet->lane * group->workers + worker;

	room = wl_ring_reserve(ring, data, ring_index, group->segments, size);
	if (!room) {
		ring->lost++;
		return false;
	}
	record = (struct wl_record *)room;
	record->ts_ns = packet->ts_ns;
	record->cap_len = cap_len;
	record->wire_len = packet->wire_len;
	record->rule_id = 0;
	record->queue = packet->queue;
	record->kind = WL_RECORD_PACKET;
	wl_fill_record(record, packet->parsed, chosen, hash);
	if (cap_len < packet->wire_len)
		record->flags |= WL_REC_SNAPPED;
	if (cap_len == 0 || bpf_xdp_load_bytes(ctx, 0, room + WL_RECORD_HEADER, cap_len)) {
		/* Cannot be: a frame has at least a byte, and cap_len is within it. */
		ring->lost++;
		return false;
	}
	wl_ring_commit(ring, data, ring_index, g * WL_MAX_WORKERS + worker, group->publish_every, size);
	return true;
}

/* Offers the packet to one group. True: the group takes it from the host stack. */
static __always_inline bool wl_offer(struct xdp_md *ctx, const struct wl_packet *packet, __u32 g)
{
	const struct wl_ip *chosen;
	struct wl_group *group;
	struct wl_tally *tally;
	__u32 key, slot, slots, queue = packet->queue, hash, worker;

	group = bpf_map_lookup_elem(&wl_groups, &g);
	if (!group || !(group->queues[(queue >> 6) & (WL_MAX_QUEUES / 64 - 1)] & (1ULL << (queue & 63))))
		return false;

	slot = wl_config.per_cpu ? packet->lane * wl_config.queues + queue : queue;
	slots = wl_config.per_cpu ? wl_config.lanes * wl_config.queues : wl_config.queues;
	key = g * slots + slot;
	tally = bpf_map_lookup_elem(&wl_tallies, &key);
	if (!tally)
		return false;
	tally->seen++;
	tally->seen_bytes += packet->wire_len;

	chosen = wl_choose(packet->parsed, !!(group->flags & WL_GROUP_INNER));
	hash = wl_packet_hash(packet->parsed, chosen, wl_config.seed);
	worker = wl_steer(group->steering, group->buckets, hash, queue, group->workers);
	if (worker < WL_MAX_WORKERS && wl_copy(ctx, packet, group, g, worker, chosen, hash))
		tally->delivered++;
	else
		tally->lost++;
	return group->flags & WL_GROUP_TAKE;
}

SEC("xdp.frags")
int wirelane_xdp(struct xdp_md *ctx)
{
	struct wl_packet packet = {};
	struct wl_instance *instance;
	struct wl_lane *lane;
	bool taken = false;
	__u32 key = 0, g;
	__u64 active;

	instance = bpf_map_lookup_elem(&wl_instance, &key);
	if (!instance)
		return XDP_PASS;
	packet.queue = ctx->rx_queue_index;
	packet.lane = wl_config.per_cpu ? bpf_get_smp_processor_id() : packet.queue;
	lane = bpf_map_lookup_elem(&wl_lanes, &packet.lane);
	if (!lane || packet.queue >= wl_config.queues) {
		__sync_fetch_and_add(&instance->stray, 1);
		return XDP_PASS;
	}
	packet.wire_len = bpf_xdp_get_buff_len(ctx);
	lane->seen++;
	lane->seen_bytes += packet.wire_len;

	active = *(volatile __u64 *)&instance->active;
	if (!active)
		return XDP_PASS;
	packet.ts_ns = bpf_ktime_get_ns();
	packet.parsed = &lane->parsed;
	wl_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end, WL_LINK_ETHERNET, WL_PARSE_TUNNELS,
		 &lane->parsed);

	for (g = 0; g < WL_MAX_GROUPS && active; g++, active >>= 1) {
		if (active & 1)
			taken |= wl_offer(ctx, &packet, g);
	}
	return taken ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
