/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * RTP streams measured in the lane, by lib/rtp.h, over the maps of an instance. A packet with the verdict
 * WL_VERDICT_MEASURE that is the next one of a stream that is measured here is added to the stream and is
 * `absorbed`. All others are delivered to the worker. With WL_GROUP_FLOWS_BESIDE it also becomes part of a
 * flow before, and with WL_GROUP_STREAMS_BESIDE it is delivered, too, as a record that says so.
 *
 * Where all rules of a group are those of announced places (WL_RULES_OF_PLACES), the stream is looked
 * up first, and the rules are evaluated only for packets that were not added to it. The verdict is the
 * same; the rules do not count the packets of streams, and the record of such a packet names no rule.
 *
 * One struct wl_rtp_stream has two writers: lanes, and the worker to which packets are delivered. Only one of
 * them updates it at a time, and packets are added in the order of their arrival, so the result is bit for
 * bit that of one pass over all of them:
 *
 *	  lane:    handed == number?  yes: adds the packet                  } under `turn`
 *	                              no:  number++, the packet is delivered with it as its tag
 *	  worker:  a packet with a number: copies `rtp`, adds the packet, writes it back, handed = number
 *
 * Once a packet has been delivered with a new number, no lane touches the stream until that packet has been
 * added to it; packets that arrive meanwhile are delivered, too, behind it. A stream begins in the worker:
 * its first packets are unknown here, and are delivered without a number. Then the worker creates a slot, in
 * which `handed` differs from `number`; the next packet gets the first number, and is behind all packets
 * without one. So ownership of a stream can change at any packet, and does when something has to be done that
 * only user space can do:
 *  - an interval of quality ends (until_ns);
 *  - an unknown payload type occurs (lib/rtp.h uses clocks from session descriptions);
 *  - the header is malformed;
 *  - the worker has requested it, by another number in `handed`.
 * A packet that is delivered without a number although its stream is measured (its header is not in the first
 * bytes of a multi-buffer packet; lanes have met and `turn` was not free in time) is buffered by the worker
 * until the worker owns the stream, which it requests.
 *
 * Slots are reused. A lane that has found a slot in wl_streams compares its generation with that in the slot,
 * under `turn`; the side that frees a slot changes the generation first and then waits until `turn` is even.
 * After that no lane writes to it any more.
 *
 * Several lanes may receive packets of one stream (lanes that are CPUs; RSS tables that change; two devices),
 * so all instances of a capture share one table, and lanes update it one at a time, in the order in which
 * they get there.
 *
 * Memory order: the exchange that makes `turn` odd is a full barrier, and so is the one that makes it even
 * (BPF_CMPXCHG and BPF_XCHG: Documentation/bpf/standardization/instruction-set.rst). `handed` is read before
 * the first: the worker's writes before its Release are visible after it. A lane's writes are published by
 * the ring's head, with the packet that has the next number.
 *
 * Trust: the worker can write all of a slot. Whatever its contents, lib/rtp.h stays within it.
 */
#ifndef WL_STREAMS_H
#define WL_STREAMS_H

#include "packet.h"
#include "instance.h"
#include "evaluate.h"
#include "maps.h"
#include "lib/stream.h"

/* Maximum number of attempts to get the turn: another lane holds it for a fraction of a microsecond. */
#define WL_STREAM_TRIES 32

/* wl_measure(): the rules have not been evaluated */
#define WL_STREAM_BEFORE_RULES 0x100
/* wl_measure(), before the rules: use the headers inside a tunnel */
#define WL_STREAM_INNER 0x200

/* wl_rtp_look() */
#define WL_STREAM_NOT	    0 /* nothing to measure */
#define WL_STREAM_RTP	    1
#define WL_STREAM_MALFORMED 2

/* Reads the RTP header of the lane's packet into lane->rtp. */
static __always_inline int wl_rtp_look(wl_ctx *ctx, const struct wl_packet *packet, struct wl_lane *lane)
{
	const struct wl_ip *ip = wl_rule_headers(&lane->rules, &lane->parsed);
	__u32 shift = packet->vlan ? WL_VLAN_TAG : 0, at, off, len, result;
	struct wl_walk walk = {};
	const __u8 *p;

	if (ip->proto != 17 || (ip->flags & (WL_IP_PORTS | WL_IP_FRAGMENT)) != WL_IP_PORTS ||
	    ip->payload_off == WL_NO_OFFSET)
		return WL_STREAM_NOT;
	walk.data = (void *)(long)ctx->data;
	walk.data_end = (void *)(long)ctx->data_end;
	/* A tag that is put back is not part of the packet's bytes. */
	at = (ip->l4_off - shift) & WL_OFFSET_MASK;
	p = wl_captured(&walk, at, 8);
	if (!p)
		return WL_STREAM_NOT;
	len = wl_be16(p + 4);
	off = ip->payload_off;
	if (len < 8 || off + len - 8 > packet->wire_len ||
	    (ip->l3_len && off + len - 8 > ip->l3_off + ip->l3_len))
		return WL_STREAM_NOT;
	len -= 8;
	off = (off - shift) & WL_OFFSET_MASK;
	p = wl_captured(&walk, off, 2);
	/* RTCP (RFC 5761, 4). */
	if (!p || (p[1] >= 192 && p[1] <= 223))
		return WL_STREAM_NOT;
	result = wl_rtp_read(&walk, off, len, &lane->rtp);
	if (result == WL_RTP_OK)
		return WL_STREAM_RTP;
	return result == WL_RTP_MALFORMED ? WL_STREAM_MALFORMED : WL_STREAM_NOT;
}

/* Makes `turn` odd. False: the turn was not free in time. */
static __always_inline bool wl_stream_enter(struct wl_stream *stream)
{
	__u64 turn;
	__u32 i;

	for (i = 0; i < WL_STREAM_TRIES; i++) {
		turn = *(volatile __u64 *)&stream->turn;
		if (!(turn & 1) && __sync_val_compare_and_swap(&stream->turn, turn, turn + 1) == turn)
			return true;
	}
	return false;
}

/* Makes `turn` even. It has no other writer until then. */
static __always_inline void wl_stream_leave(struct wl_stream *stream)
{
	__u64 turn = *(volatile __u64 *)&stream->turn;

	__sync_lock_test_and_set(&stream->turn, turn + 1);
}

/*
 * Adds the lane's packet, whose header wl_rtp_look() has read, to its stream: 1. Otherwise 0, and the packet
 * is delivered, possibly with a number; before the rules it gets none. `target` is the group and WL_STREAM_*
 * of wl_measure(), and 512 times the result of wl_rtp_look().
 */
__noinline int wl_stream_add(struct wl_packet *packet, __u32 target)
{
	__u32 g = target & 0xff, looked = target >> 9, lane_key, place, generation;
	struct wl_stream_key *key;
	struct wl_stream_at *at;
	struct wl_stream *stream;
	const struct wl_ip *ip;
	struct wl_lane *lane;
	void *streams, *places;
	__u64 handed;
	int added = 0;

	if (!packet)
		return 0;
	lane_key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	streams = bpf_map_lookup_elem(&wl_streams, &g);
	places = bpf_map_lookup_elem(&wl_measured, &g);
	if (!lane || !streams || !places)
		return 0;
	ip = wl_rule_headers(&lane->rules, &lane->parsed);
	key = &lane->stream_key;
	wl_copy16(key->src, ip->src);
	wl_copy16(key->dst, ip->dst);
	key->src_port = ip->src_port;
	key->dst_port = ip->dst_port;
	key->ssrc = lane->rtp.ssrc;
	key->l3 = ip->l3;
	at = bpf_map_lookup_elem(streams, key);
	if (!at)
		return 0;
	place = at->place;
	generation = at->generation;
	stream = bpf_map_lookup_elem(places, &place);
	if (!stream)
		return 0;
	handed = *(volatile __u64 *)&stream->handed;
	if (!wl_stream_enter(stream))
		return 0;
	if (*(volatile __u64 *)&stream->generation != generation)
		goto leave;
	if (looked == WL_STREAM_RTP && handed == stream->number && packet->ts_ns < stream->until_ns &&
	    (lane->rtp.pt == stream->rtp.pt ||
	     wl_rtp_payload_of(&stream->rtp, lane->rtp.pt) < WL_RTP_PAYLOADS)) {
		wl_rtp_update(&stream->rtp, &lane->rtp, packet->ts_ns);
		stream->taken++;
		added = 1;
	} else if (!(target & WL_STREAM_BEFORE_RULES)) {
		stream->number++;
		packet->tag = (__u32)stream->number;
		packet->tagged = 1;
	}
leave:
	wl_stream_leave(stream);
	return added;
}

/*
 * Returns whether the packet was added to its stream. `target` is the group, with WL_STREAM_INNER and
 * WL_STREAM_BEFORE_RULES. For global functions see wl_copy().
 */
__noinline int wl_measure(wl_ctx *ctx, struct wl_packet *packet, __u32 target)
{
	__u32 lane_key, looked;
	struct wl_lane *lane;

	if (!packet || !wl_has(WL_HAS_STREAMS))
		return 0;
	lane_key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	if (!lane)
		return 0;
	if (target & WL_STREAM_BEFORE_RULES)
		wl_rules_choose(&lane->rules, &lane->parsed, target & WL_STREAM_INNER);
	looked = wl_rtp_look(ctx, packet, lane);
	if (looked == WL_STREAM_NOT || (target & WL_STREAM_BEFORE_RULES && looked != WL_STREAM_RTP))
		return 0;
	return wl_stream_add(packet, (target & 0x1ff) | looked << 9);
}

#endif
