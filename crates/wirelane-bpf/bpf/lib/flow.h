/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Flows: aggregates of the packets of one direction of a conversation.
 *
 * A flow is a key (struct wl_flow_key) and its sums (struct wl_flow). A flow table looks up the key of a
 * packet, ends the flow if wl_flow_cut() reports an end, and adds the packet by wl_flow_update(). A small
 * cache that must evict an entry exports a part of a flow, which wl_flow_merge() adds to the part before it.
 *
 * Merging is exact: consecutive parts of a flow have the same sums as their packets one by one. This decides
 * which values are counted. Whether a segment is a retransmission cannot be known without remembering all
 * segments before it, which no part does; whether it steps back behind the segment before it can be known,
 * with the first and the last segment of each part. So steps back are counted: wl_flow.retransmitted and
 * wl_flow.reordered.
 *
 * Ends are handled in the same way: a part ends wherever its flow might (wl_flow_splits()), and wl_flow_cut()
 * or, for a part, wl_flow_cut_by_part() decides whether the flow ends: with the state of the whole flow, and
 * at the same packets. A part does not know the age of its flow. Therefore age is counted in steps of a time
 * grid that is the same for all flows, and no part crosses a line of it.
 *
 * No loops, no look-ups, no pointers in structs: the verifier walks few instructions, and the same code runs
 * natively.
 */
#ifndef WL_PACKET_FLOW_H
#define WL_PACKET_FLOW_H

#include "lib/network.h"

#define WL_FLOW_NO_VLAN 0xffff

/* wl_flow_key.flags */
#define WL_FLOW_KEY_EGRESS 0x01 /* the packets were leaving the device */
#define WL_FLOW_KEY_PORTS  0x02 /* the packets had ports, which may be 0: set by wl_flow_key_more() */

/* wl_flow.flags */
#define WL_FLOW_SYN    0x0001 /* syn_ns is valid */
#define WL_FLOW_SYNACK 0x0002 /* syn_ns is that of a SYN with ACK, the answer to a SYN */
#define WL_FLOW_ACK    0x0004 /* ack_ns is valid */
#define WL_FLOW_TCP    0x0008 /* first_seq, last_seq and first_tcp_flags are valid */
#define WL_FLOW_DATA   0x0010 /* first_data_seq, next_seq and their times are valid */
#define WL_FLOW_MPLS   0x0020 /* mpls_label is valid */
#define WL_FLOW_TTL    0x0040 /* min_ttl and max_ttl are valid: it is IP */

#define WL_TCP_FIN     0x01
#define WL_TCP_SYN     0x02
#define WL_TCP_RST     0x04
#define WL_TCP_ACK     0x10

/* A segment that steps back within this time after the segment before it was reordered; later ones are
 * retransmissions. No path delays a packet relative to its neighbour as long as a sender waits before it
 * retransmits.
 */
#define WL_FLOW_REORDER_NS 3000000ULL

/* Reason for the end of a flow: the numbers of IPFIX's flowEndReason (RFC 5102, 5.11.3). */
enum wl_flow_end {
	WL_FLOW_GOES_ON = 0,
	WL_FLOW_IDLE = 1,      /* no packet during the inactive timeout */
	WL_FLOW_ACTIVE = 2,    /* its age has reached the active timeout; it may continue as another flow */
	WL_FLOW_ENDED = 3,     /* a FIN or RST of TCP */
	WL_FLOW_FORCED = 4,    /* the capture has ended */
	WL_FLOW_RESOURCES = 5, /* its entry was needed */
};

/* Key of a flow. 56 bytes. */
struct wl_flow_key {
	__u8 src[16]; /* as in struct wl_ip; zero for packets other than IP */
	__u8 dst[16];
	__u16 src_port; /* network byte order; 0 where there are none, of a fragment but the first, and of
			   ICMP */
	__u16 dst_port; /* the same; of ICMP type and code, the type first */
	__u8 l3;	/* enum wl_l3; WL_L3_NONE for packets other than IP */
	__u8 proto;
	__u16 eth_type; /* for packets other than IP, else 0 */
	__u16 vlan;	/* the outermost VLAN id, or WL_FLOW_NO_VLAN */
	__u16 device;	/* index that the owner of the flow table assigns */
	__u32 tunnel_id;
	__u8 tunnel; /* enum wl_tunnel, where the addresses are those inside */
	__u8 flags;  /* WL_FLOW_KEY_* */
	__u8 pad[6];
};

/* Sums of a flow. 128 bytes. */
struct wl_flow {
	__u64 packets;
	__u64
	    bytes; /* from the network header on, as it states them; of what is no IP, of the whole packet */
	__u64 wire_bytes;    /* of whole packets, as on the wire */
	__u64 first_ns;	     /* the earliest time */
	__u64 last_ns;	     /* the latest */
	__u64 syn_ns;	     /* of the last SYN before ack_ns */
	__u64 ack_ns;	     /* of the first segment with ACK, and neither SYN nor RST */
	__u64 first_data_ns; /* of the first segment that consumes sequence numbers */
	__u64 last_data_ns;  /* of the last one */
	__u32 first_seq;     /* of the first packet, host order */
	__u32 last_seq;	     /* of the last one */
	__u32 first_data_seq;
	__u32 next_seq; /* behind the last segment that consumes sequence numbers */
	__u32
	    retransmitted; /* segments that begin before the end of the one before them, and not reordered */
	__u32 reordered;   /* the same, within WL_FLOW_REORDER_NS of it */
	__u32 fragments;   /* packets that were one fragment of a datagram */
	__u32 min_length;  /* of the lengths that `bytes` sums up */
	__u32 max_length;
	__u32 mpls_label; /* of the first packet that had one */
	__u16 queue;	  /* RX queue of the first packet */
	__u16 flags;	  /* WL_FLOW_* */
	__u8 tos;	  /* of the first packet */
	__u8 min_ttl;
	__u8 max_ttl;
	__u8 tcp_flags; /* of all packets */
	__u8 first_tcp_flags;
	__u8 application; /* enum wl_application: the first that was certain, or 0 */
	__u8 pad[6];
};

_Static_assert(sizeof(struct wl_flow) == 128 && __builtin_offsetof(struct wl_flow, tos) == 116,
	       "the end of a flow that wl_flow_update() clears");

/* Properties of a packet beside its chosen headers. 40 bytes. */
struct wl_flow_packet {
	__u64 ts_ns;
	__u32 wire_len;
	__u32 tunnel_id;
	__u32 mpls_label; /* valid with WL_PKT_MPLS */
	__u16 eth_type;
	__u16 vlan_tci; /* valid with WL_PKT_VLAN */
	__u16 flags;	/* WL_PKT_*, and WL_REC_EGRESS */
	__u16 device;
	__u16 queue;
	__u8 tunnel;	    /* enum wl_tunnel, with WL_PKT_INNER */
	__u8 application;   /* enum wl_application, if the payload was inspected */
	__u16 segment_size; /* of an aggregate, as in struct wl_tail; else 0 */
	__u16 headers;
	__u32 pad;
};

/* Timeouts of a flow, in nanoseconds. */
struct wl_flow_timeouts {
	__u64 active_ns;
	__u64 idle_ns;
	__u64 ended_ns; /* after the last packet of a flow that TCP has ended: for ACKs after a FIN */
};

static __always_inline int wl_flow_is_ip(const struct wl_ip *ip)
{
	return ip->l3 == WL_L3_IPV4 || ip->l3 == WL_L3_IPV6;
}

/* Builds the key of a packet: all of *key is written. */
static __always_inline void wl_flow_key_of(struct wl_flow_key *key, const struct wl_ip *ip,
					   const struct wl_flow_packet *packet)
{
	__u8 *bytes = (__u8 *)key;

	_Static_assert(sizeof(*key) == 56, "wl_flow_key_of() clears 56 bytes");
	wl_store64(bytes, 0);
	wl_store64(bytes + 8, 0);
	wl_store64(bytes + 16, 0);
	wl_store64(bytes + 24, 0);
	wl_store64(bytes + 32, 0);
	wl_store64(bytes + 40, 0);
	wl_store64(bytes + 48, 0);
	key->device = packet->device;
	key->vlan = packet->flags & WL_PKT_VLAN ? packet->vlan_tci & 0xfff : WL_FLOW_NO_VLAN;
	if (packet->flags & WL_REC_EGRESS)
		key->flags = WL_FLOW_KEY_EGRESS;
	if (!wl_flow_is_ip(ip)) {
		key->eth_type = packet->eth_type;
		return;
	}
	wl_copy16(key->src, ip->src);
	wl_copy16(key->dst, ip->dst);
	key->l3 = ip->l3;
	key->proto = ip->proto;
	if (ip->flags & WL_IP_PORTS) {
		key->src_port = ip->src_port;
		key->dst_port = ip->dst_port;
	} else if (ip->flags & WL_IP_ICMP) {
		key->dst_port = __builtin_bswap16((__u16)(ip->icmp_type << 8 | ip->icmp_code));
	}
	if (packet->flags & WL_PKT_INNER) {
		key->tunnel = packet->tunnel;
		key->tunnel_id = packet->tunnel_id;
	}
}

/*
 * Adds fields that the key of a flow omits because they do not distinguish flows: the addresses of ARP, and
 * the presence of ports. For users that compare packets by the fields of parts as well as by their own
 * fields.
 */
static __always_inline void wl_flow_key_more(struct wl_flow_key *key, const struct wl_ip *ip)
{
	if (ip->l3 == WL_L3_ARP) {
		wl_copy16(key->src, ip->src);
		wl_copy16(key->dst, ip->dst);
		key->l3 = ip->l3;
	}
	if (ip->flags & WL_IP_PORTS)
		key->flags |= WL_FLOW_KEY_PORTS;
}

/* The length of a packet that is added to the flow. A packet without a stated length is a jumbogram, or
 * waits for segmentation. */
static __always_inline __u32 wl_flow_length(const struct wl_ip *ip, const struct wl_flow_packet *packet)
{
	if (!wl_flow_is_ip(ip))
		return packet->wire_len;
	if (ip->l3_len)
		return ip->l3_len;
	return packet->wire_len > ip->l3_off ? packet->wire_len - ip->l3_off : 0;
}

/*
 * Number of packets on the wire of an aggregate (GRO, GSO) of `wire_len` bytes, with `headers` bytes before
 * the payload in each packet; 1 if `segment_size` is 0.
 */
static __always_inline __u32 wl_segments(__u32 wire_len, __u32 segment_size, __u32 headers)
{
	if (!segment_size || wire_len <= headers + segment_size)
		return 1;
	return (wire_len - headers + segment_size - 1) / segment_size;
}

/* Counts a segment that steps back to `seq` at `ts_ns`; the one before it ended at `end`, at `before_ns`. */
static __always_inline void wl_flow_step(struct wl_flow *flow, __u32 end, __u64 before_ns, __u32 seq,
					 __u64 ts_ns)
{
	if ((__u32)(seq - end) < 0x80000000u)
		return;
	if (ts_ns < before_ns || ts_ns - before_ns < WL_FLOW_REORDER_NS)
		flow->reordered++;
	else
		flow->retransmitted++;
}

static __always_inline void wl_flow_tcp(struct wl_flow *flow, const struct wl_ip *ip, __u64 ts_ns,
					__u32 length)
{
	__u32 flags = ip->tcp_flags, headers, room = 0;

	if (!(flow->flags & WL_FLOW_TCP)) {
		flow->flags |= WL_FLOW_TCP;
		flow->first_seq = ip->tcp_seq;
		flow->first_tcp_flags = flags;
	}
	flow->last_seq = ip->tcp_seq;
	flow->tcp_flags |= flags;
	if (!(flow->flags & WL_FLOW_ACK)) {
		if (flags & WL_TCP_SYN) {
			flow->syn_ns = ts_ns;
			flow->flags = (flow->flags & ~WL_FLOW_SYNACK) | WL_FLOW_SYN |
				      (flags & WL_TCP_ACK ? WL_FLOW_SYNACK : 0);
		} else if ((flags & (WL_TCP_ACK | WL_TCP_RST)) == WL_TCP_ACK) {
			flow->ack_ns = ts_ns;
			flow->flags |= WL_FLOW_ACK;
		}
	}
	/* The rest of a fragment's segment, which consumes sequence numbers, is in the other fragments. */
	if (ip->payload_off == WL_NO_OFFSET || ip->flags & WL_IP_FRAGMENT)
		return;
	headers = (__u16)(ip->payload_off - ip->l3_off);
	if (length > headers)
		room = length - headers;
	room += !!(flags & WL_TCP_SYN) + !!(flags & WL_TCP_FIN);
	if (!room)
		return;
	if (flow->flags & WL_FLOW_DATA) {
		wl_flow_step(flow, flow->next_seq, flow->last_data_ns, ip->tcp_seq, ts_ns);
	} else {
		flow->flags |= WL_FLOW_DATA;
		flow->first_data_seq = ip->tcp_seq;
		flow->first_data_ns = ts_ns;
	}
	flow->next_seq = ip->tcp_seq + room;
	flow->last_data_ns = ts_ns;
}

/* Adds a packet to a flow of its key. For the first one wl_flow.packets is 0; all other fields of *flow
 * are overwritten then. */
static __always_inline void wl_flow_update(struct wl_flow *flow, const struct wl_ip *ip,
					   const struct wl_flow_packet *packet)
{
	__u32 length = wl_flow_length(ip, packet), shortest = length, longest = length, inside = 0;
	__u32 segments = wl_segments(packet->wire_len, packet->segment_size, packet->headers);

	if (segments > 1) {
		/* Each packet on the wire has the headers, and all except the last have the same payload
		 * length. */
		if (packet->headers > ip->l3_off)
			inside = packet->headers - ip->l3_off;
		longest = inside + packet->segment_size;
		shortest = length - (segments - 1) * packet->segment_size;
	}
	if (!flow->packets) {
		flow->bytes = flow->wire_bytes = 0;
		flow->syn_ns = flow->ack_ns = flow->first_data_ns = flow->last_data_ns = 0;
		flow->first_seq = flow->last_seq = flow->first_data_seq = flow->next_seq = 0;
		flow->retransmitted = flow->reordered = flow->fragments = 0;
		flow->mpls_label = 0;
		flow->flags = 0;
		/* tos, TTLs, TCP flags, the application and the padding behind them. */
		wl_store32((__u8 *)flow + 116, 0);
		wl_store64((__u8 *)flow + 120, 0);
		flow->first_ns = flow->last_ns = packet->ts_ns;
		flow->min_length = shortest;
		flow->max_length = longest;
		flow->queue = packet->queue;
		if (wl_flow_is_ip(ip)) {
			flow->flags = WL_FLOW_TTL;
			flow->tos = ip->tos;
			flow->min_ttl = flow->max_ttl = ip->ttl;
		}
	}
	flow->packets += segments;
	flow->bytes += length + (__u64)(segments - 1) * inside;
	flow->wire_bytes += packet->wire_len + (__u64)(segments - 1) * packet->headers;
	if (packet->ts_ns < flow->first_ns)
		flow->first_ns = packet->ts_ns;
	if (packet->ts_ns > flow->last_ns)
		flow->last_ns = packet->ts_ns;
	if (shortest < flow->min_length)
		flow->min_length = shortest;
	if (longest > flow->max_length)
		flow->max_length = longest;
	if (packet->flags & WL_PKT_MPLS && !(flow->flags & WL_FLOW_MPLS)) {
		flow->flags |= WL_FLOW_MPLS;
		flow->mpls_label = packet->mpls_label;
	}
	if (!flow->application)
		flow->application = packet->application;
	if (!(flow->flags & WL_FLOW_TTL))
		return;
	if (ip->ttl < flow->min_ttl)
		flow->min_ttl = ip->ttl;
	if (ip->ttl > flow->max_ttl)
		flow->max_ttl = ip->ttl;
	if (ip->flags & WL_IP_FRAGMENT)
		flow->fragments++;
	if (ip->flags & WL_IP_TCP)
		wl_flow_tcp(flow, ip, packet->ts_ns, length);
}

/* Merges the handshakes of both parts: the last SYN before the first ACK. */
static __always_inline void wl_flow_merge_handshake(struct wl_flow *flow, const struct wl_flow *part)
{
	if (flow->flags & WL_FLOW_ACK)
		return;
	if (part->flags & WL_FLOW_SYN) {
		flow->syn_ns = part->syn_ns;
		flow->flags =
		    (flow->flags & ~WL_FLOW_SYNACK) | (part->flags & (WL_FLOW_SYN | WL_FLOW_SYNACK));
	}
	if (part->flags & WL_FLOW_ACK) {
		flow->ack_ns = part->ack_ns;
		flow->flags |= WL_FLOW_ACK;
	}
}

/* Adds the part of a flow that follows the part in *flow. Both have packets. */
static __always_inline void wl_flow_merge(struct wl_flow *flow, const struct wl_flow *part)
{
	flow->packets += part->packets;
	flow->bytes += part->bytes;
	flow->wire_bytes += part->wire_bytes;
	if (part->first_ns < flow->first_ns)
		flow->first_ns = part->first_ns;
	if (part->last_ns > flow->last_ns)
		flow->last_ns = part->last_ns;
	if (part->min_length < flow->min_length)
		flow->min_length = part->min_length;
	if (part->max_length > flow->max_length)
		flow->max_length = part->max_length;
	if (part->min_ttl < flow->min_ttl)
		flow->min_ttl = part->min_ttl;
	if (part->max_ttl > flow->max_ttl)
		flow->max_ttl = part->max_ttl;
	flow->fragments += part->fragments;
	flow->retransmitted += part->retransmitted;
	flow->reordered += part->reordered;
	if (part->flags & WL_FLOW_MPLS && !(flow->flags & WL_FLOW_MPLS)) {
		flow->flags |= WL_FLOW_MPLS;
		flow->mpls_label = part->mpls_label;
	}
	if (!flow->application)
		flow->application = part->application;
	if (!(part->flags & WL_FLOW_TCP))
		return;
	wl_flow_merge_handshake(flow, part);
	if (!(flow->flags & WL_FLOW_TCP)) {
		flow->flags |= WL_FLOW_TCP;
		flow->first_seq = part->first_seq;
		flow->first_tcp_flags = part->first_tcp_flags;
	}
	flow->last_seq = part->last_seq;
	flow->tcp_flags |= part->tcp_flags;
	if (!(part->flags & WL_FLOW_DATA))
		return;
	if (flow->flags & WL_FLOW_DATA) {
		wl_flow_step(flow, flow->next_seq, flow->last_data_ns, part->first_data_seq,
			     part->first_data_ns);
	} else {
		flow->flags |= WL_FLOW_DATA;
		flow->first_data_seq = part->first_data_seq;
		flow->first_data_ns = part->first_data_ns;
	}
	flow->next_seq = part->next_seq;
	flow->last_data_ns = part->last_data_ns;
}

/* Whether TCP has ended the flow in its direction. */
static __always_inline int wl_flow_has_ended(const struct wl_flow *flow)
{
	return flow->tcp_flags & (WL_TCP_FIN | WL_TCP_RST);
}

static __always_inline __u64 wl_flow_later(__u64 ns, __u64 by)
{
	return ns + by < ns ? ~0ULL : ns + by;
}

/* The active timeout has at least this many steps of the grid, and fewer than twice as many. */
#define WL_FLOW_GRID 32

/* log2 of a step of the grid in nanoseconds. */
static __always_inline __u32 wl_flow_grid_shift(__u64 active_ns)
{
	__u64 step = active_ns / WL_FLOW_GRID;

	return step ? 63 - __builtin_clzll(step) : 0;
}

/*
 * The last nanosecond of a flow that began at `first_ns`: the one before the line of the grid at which its
 * age reaches the active timeout, with an error of less than a step.
 */
static __always_inline __u64 wl_flow_old(__u64 first_ns, __u64 active_ns)
{
	__u32 shift = wl_flow_grid_shift(active_ns);
	__u64 steps = (active_ns >> shift) + !!(active_ns & ((1ULL << shift) - 1));
	__u64 line = first_ns >> shift;

	if (!steps)
		steps = 1;
	if (line + steps < line || line + steps > ~0ULL >> shift)
		return ~0ULL;
	return ((line + steps) << shift) - 1;
}

#endif
