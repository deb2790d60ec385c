/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Offloading of HTTP: lib/http_way.h over the maps of an instance. For a group with WL_GROUP_HTTP, packets
 * other than TCP are offloaded, and so are segments without payload that neither begin nor end a connection,
 * payload other than HTTP, and bodies. They are `absorbed`.
 *
 * The tracked directions are in a map of the group that its lanes share, as lanes that are CPUs may alternate
 * on a connection. Two lanes with packets of one direction at the very same time corrupt its entry at worst:
 * then a segment is delivered unnecessarily, or skipped bytes are reported incorrectly, which user space
 * marks as lost. The map is bounded; the kernel evicts the least recently used direction. One that is evicted
 * in the middle of a body is reported as one that was never seen from its beginning: user space still knows
 * it.
 */
#ifndef WL_HTTP_H
#define WL_HTTP_H

#include "fetch.h"
#include "flows.h"
#include "packet.h"
#include "instance.h"
#include "maps.h"
#include "ring.h"
#include "lib/http_read.h"

/* Maximum number of blocks and runs that are read of a segment: of a longer one, everything that follows
 * is delivered. */
#define WL_HTTP_BLOCKS 160

#define WL_HTTP_READ   0x10 /* beside an enum wl_fate */
#define WL_HTTP_RECORD (WL_RECORD_HEADER + sizeof(struct wl_skipped_bytes))

_Static_assert(WL_HTTP_RECORD % 8 == 0, "records are multiples of 8 bytes");

/* The function that lib/http_way.h needs. */
__noinline int wl_http_word(__u64 word, __u32 count)
{
	return wl_http_first(word, count);
}

/* Reads the next byte; a global function for the same reason. */
__noinline int wl_http_byte(struct wl_http_way *way, __u32 byte)
{
	return way && wl_has(WL_HAS_HTTP) ? wl_http_step(way, byte) : 1;
}

/* Reads the next block of the segment, or skips the next run. False: the end. */
__noinline int wl_http_piece(wl_ctx *ctx, struct wl_http_way *way, struct wl_http_work *work)
{
	__u32 at, end, length, i;

	if (!wl_has(WL_HAS_HTTP) || !way || !work)
		return 0;
	at = work->at;
	end = work->end;
	if (at >= end)
		return 0;
	at += wl_http_skip(way, end - at);
	work->at = at;
	if (at >= end || way->phase >= WL_HTTP_WAY_RUN || way->phase == WL_HTTP_WAY_ADRIFT)
		return 0;
	length = end - at;
	if (length > WL_HTTP_BLOCK)
		length = WL_HTTP_BLOCK;
	if (wl_load_most(ctx, work->from + at, work->block, length, WL_HTTP_BLOCK)) {
		/* The segment states more bytes than the packet has. */
		way->phase = WL_HTTP_WAY_ALL;
		return 0;
	}
	for (i = 0; i < WL_HTTP_BLOCK; i++) {
		if (i >= length)
			break;
		if (wl_http_byte(way, work->block[i])) {
			i++;
			break;
		}
	}
	work->at = at + i;
	return 1;
}

/* Reads the segment that wl_http_choose() has selected. */
__noinline int wl_http_read(wl_ctx *ctx, struct wl_packet *packet, __u32 target)
{
	__u32 g = target & 0xff, key, i;
	struct wl_http_way *way;
	struct wl_lane *lane;
	void *ways;

	if (!packet || !wl_has(WL_HAS_HTTP))
		return 0;
	key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	ways = bpf_map_lookup_elem(&wl_http_ways, &g);
	if (!lane || !ways)
		return 0;
	way = bpf_map_lookup_elem(ways, &lane->flow_key);
	if (!way)
		return 0;
	for (i = 0; i < WL_HTTP_BLOCKS; i++)
		if (!(wl_http_piece(ctx, way, &lane->http)))
			return 0;
	/* Too many chunks in one segment. */
	way->phase = WL_HTTP_WAY_ALL;
	return 0;
}

/* Reports the skipped bytes of this direction to the worker. False: no space. */
static __always_inline bool wl_http_tell(const struct wl_group *group, struct wl_ring *ring, void *data,
					 const struct wl_packet *packet, const struct wl_flow_key *key,
					 const struct wl_http_way *way, __u32 target)
{
	__u32 worker = target >> 8, ring_index = packet->lane * group->workers + worker;
	struct wl_skipped_bytes *told;
	struct wl_record *record;
	__u8 *room;

	room = wl_ring_reserve(ring, data, ring_index, group->segments, WL_HTTP_RECORD);
	if (!room)
		return false;
	record = (struct wl_record *)room;
	__builtin_memset(record, 0, WL_RECORD_HEADER);
	record->ts_ns = packet->ts_ns;
	record->cap_len = sizeof(*told);
	record->kind = WL_RECORD_HTTP;
	told = (struct wl_skipped_bytes *)(room + WL_RECORD_HEADER);
	told->key = *key;
	told->last_ns = way->last_ns;
	told->from = way->from;
	told->bytes = way->bytes;
	wl_ring_commit(ring, data, ring_index, (target & 0xff) * WL_MAX_WORKERS + worker,
		       group->publish_every, WL_HTTP_RECORD, packet->ts_ns);
	return true;
}

/* The first eight bytes of the payload, the first one lowest, or fewer if it is shorter: *count. */
static __always_inline __u64 wl_http_load(wl_ctx *ctx, __u32 from, __u32 length, __u32 *count)
{
	__u64 word = 0;
	__u32 size = length < sizeof(word) ? length : sizeof(word);

	*count = size;
	if (wl_load_most(ctx, from, &word, size, sizeof(word)))
		*count = 0;
	return word;
}

/*
 * Decides on the packet, for one worker of group g: WL_ABSORBED, WL_LOST if there is no space to report the
 * bytes skipped before it, or WL_DELIVERED: it has to be copied. With WL_HTTP_READ its segment has to be
 * read, which takes more stack than is left here.
 */
__noinline int wl_http_choose(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 target)
{
	__u32 g = target & 0xff, worker = target >> 8, lane_key, key, from, end, length, count, flags;
	__u32 fate = WL_HTTP_STAYS, read = 0;
	const struct wl_group *group;
	struct wl_flow_packet *about;
	const struct wl_ip *ip;
	struct wl_http_way *way;
	struct wl_lane *lane;
	struct wl_ring *ring;
	void *ways, *data;
	__u64 word;

	if (!wl_has(WL_HAS_HTTP) || !packet || !parsed || worker >= WL_MAX_WORKERS)
		return WL_LOST;
	lane_key = packet->lane;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	key = (g * wl_config.lanes + lane_key) * WL_MAX_WORKERS + worker;
	ring = bpf_map_lookup_elem(&wl_rings, &key);
	ways = bpf_map_lookup_elem(&wl_http_ways, &g);
	data = bpf_map_lookup_elem(&wl_data, &g);
	if (!group || !lane || !ring || !ways || !data)
		return WL_LOST;
	ip = wl_choose(parsed, !!(group->flags & WL_GROUP_INNER));
	/* A fragment has a part of a segment, and does not contain the segment's length. */
	if (ip->proto != WL_PROTO_TCP || !(ip->flags & WL_IP_TCP) || ip->flags & WL_IP_FRAGMENT ||
	    ip->payload_off == WL_NO_OFFSET)
		goto stays;
	from = ip->payload_off;
	/* Padding behind the datagram does not belong to the payload. A jumbogram has no stated length. */
	end = ip->l3_len ? ip->l3_off + ip->l3_len : packet->wire_len;
	length = end > from ? end - from : 0;
	if (packet->vlan)
		from -= WL_VLAN_TAG;
	flags = ip->tcp_flags;

	about = &lane->flow_packet;
	about->device = 0;
	wl_flow_packet_of(about, parsed, ip, packet->flags);
	wl_flow_key_of(&lane->flow_key, ip, about);
	/* Directions are joined without regard to the side on which they were captured. */
	lane->flow_key.flags = 0;
	way = bpf_map_lookup_elem(ways, &lane->flow_key);
	if (flags & WL_TCP_SYN) {
		/* A late or retransmitted SYN begins nothing. */
		if (way && way->begun && way->begin == ip->tcp_seq + 1 && !length)
			return WL_DELIVERED;
		if (way && way->bytes &&
		    !wl_http_tell(group, ring, data, packet, &lane->flow_key, way, target))
			goto lost;
		wl_http_way_begin(&lane->http.fresh, ip->tcp_seq + 1, 1, packet->ts_ns);
		/* Data in a SYN is rare (RFC 7413), so such a connection is not followed. */
		if (length)
			lane->http.fresh.phase = WL_HTTP_WAY_ALL;
		bpf_map_update_elem(ways, &lane->flow_key, &lane->http.fresh, BPF_ANY);
		return WL_DELIVERED;
	}
	if (!way && length) {
		wl_http_way_begin(&lane->http.fresh, ip->tcp_seq, 0, packet->ts_ns);
		bpf_map_update_elem(ways, &lane->flow_key, &lane->http.fresh, BPF_ANY);
		way = bpf_map_lookup_elem(ways, &lane->flow_key);
	}
	if (!way) {
		if (length || flags & (WL_TCP_FIN | WL_TCP_RST))
			return WL_DELIVERED;
		goto stays;
	}
	if (length) {
		word = wl_http_load(ctx, from, length, &count);
		fate = wl_http_look(way, ip->tcp_seq, length, word, count, flags & (WL_TCP_FIN | WL_TCP_RST),
				    packet->ts_ns, &lane->http.at);
	} else if (flags & (WL_TCP_FIN | WL_TCP_RST)) {
		fate = WL_HTTP_COMES;
	} else if (flags & WL_TCP_ACK) {
		fate = wl_http_ack(way, ip->tcp_ack, packet->ts_ns);
	}
	if (fate == WL_HTTP_STAYS)
		goto stays;
	lane->http.from = from;
	lane->http.end = length;
	read = fate == WL_HTTP_WALK ? WL_HTTP_READ : 0;
	if (way->bytes && !wl_http_tell(group, ring, data, packet, &lane->flow_key, way, target))
		goto lost;
	wl_http_came(way, length, flags & WL_TCP_ACK, ip->tcp_ack, packet->ts_ns);
	return WL_DELIVERED | read;
stays:
	ring->offloaded += packet->segments;
	return WL_ABSORBED;
lost:
	ring->lost += packet->segments;
	return WL_LOST | read;
}

#endif
