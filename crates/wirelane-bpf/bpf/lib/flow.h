/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Flows: what the packets of one direction of a conversation come to.
 *
 * A flow is a key (struct wl_flow_key), and what has been added up under it (struct wl_flow). Whoever keeps
 * flows looks the key of a packet up, ends the flow where wl_flow_cut() says so, and adds the packet by
 * wl_flow_update(). A small cache that must make room hands a part of a flow on, to be added to the part
 * before it by wl_flow_merge().
 *
 * Merging is exact: parts of a flow that follow each other in time come to what their packets would have come
 * to one by one. That decides what is counted. Whether a segment was sent before cannot be known without
 * remembering all that came before it, which no part does; whether it steps back behind the one before it
 * can, with the first and the last segment of each part. So steps back are counted: wl_flow.retransmitted and
 * wl_flow.reordered.
 *
 * So are ends: a part ends wherever its flow might (wl_flow_splits()), and whether the flow does is decided
 * by wl_flow_cut() or, of a part, by wl_flow_cut_by_part(): with what is known of the whole flow, and at the
 * same packets. A part does not know how old its flow is. Therefore age is counted in steps of a grid of time
 * that is the same for all flows, and no part crosses a line of it.
 *
 * No loops, no look-ups, no pointers in structs: what the verifier has to walk is short, and the same code
 * serves natively.
 */
#ifndef WL_PACKET_FLOW_H
#define WL_PACKET_FLOW_H

#include "lib/network.h"

#define WL_FLOW_NO_VLAN 0xffff

/* wl_flow_key.flags */
#define WL_FLOW_KEY_EGRESS 0x01 /* the packets were leaving the device */
#define WL_FLOW_KEY_PORTS  0x02 /* there were ports, which may be 0: of wl_flow_key_more() */

/* wl_flow.flags */
#define WL_FLOW_SYN    0x0001 /* syn_ns is valid */
#define WL_FLOW_SYNACK 0x0002 /* it is of a SYN with ACK: the answer to one */
#define WL_FLOW_ACK    0x0004 /* ack_ns is valid */
#define WL_FLOW_TCP    0x0008 /* first_seq, last_seq and first_tcp_flags are valid */
#define WL_FLOW_DATA   0x0010 /* first_data_seq, next_seq and their times are valid */
#define WL_FLOW_MPLS   0x0020 /* mpls_label is valid */
#define WL_FLOW_TTL    0x0040 /* min_ttl and max_ttl are valid: it is IP */

#define WL_TCP_FIN     0x01
#define WL_TCP_SYN     0x02
#define WL_TCP_RST     0x04
#define WL_TCP_ACK     0x10

/* A segment that steps back this soon after the one before it was overtaken on its way; later, it was sent
 * again. No path delays a packet for its neighbour's sake as long as a sender waits before it repeats itself.
 */
#define WL_FLOW_REORDER_NS 3000000ULL

/* Why a flow has ended: the numbers of IPFIX's flowEndReason (RFC 5102, 5.11.3). */
enum wl_flow_end {
	WL_FLOW_GOES_ON = 0,
	WL_FLOW_IDLE = 1,      /* nothing has come for the inactive timeout */
	WL_FLOW_ACTIVE = 2,    /* it is as old as the active timeout; it may go on as another flow */
	WL_FLOW_ENDED = 3,     /* TCP said so */
	WL_FLOW_FORCED = 4,    /* the capture has ended */
	WL_FLOW_RESOURCES = 5, /* its place was needed */
};

/* What makes packets one flow. 56 bytes. */
struct wl_flow_key {
	__u8 src[16]; /* as in struct wl_ip; zero of what is no IP */
	__u8 dst[16];
	__u16 src_port; /* network byte order; 0 where there are none, of a fragment but the first, and of
			   ICMP */
	__u16 dst_port; /* the same; of ICMP type and code, the type first */
	__u8 l3;	/* enum wl_l3; WL_L3_NONE of all that is no IP */
	__u8 proto;
	__u16 eth_type; /* of what is no IP, else 0 */
	__u16 vlan;	/* the outermost VLAN id, or WL_FLOW_NO_VLAN */
	__u16 device;	/* whoever keeps the flows knows which one */
	__u32 tunnel_id;
	__u8 tunnel; /* enum wl_tunnel, where the addresses are those inside */
	__u8 flags;  /* WL_FLOW_KEY_* */
	__u8 pad[6];
};

/* What the packets of a flow come to. 128 bytes. */
struct wl_flow {
	__u64 packets;
	__u64
	    bytes; /* from the network header on, as it states them; of what is no IP, of the whole packet */
	__u64 wire_bytes;    /* of whole packets, as on the wire */
	__u64 first_ns;	     /* the earliest time */
	__u64 last_ns;	     /* the latest */
	__u64 syn_ns;	     /* of the last SYN before ack_ns */
	__u64 ack_ns;	     /* of the first segment with ACK, and neither SYN nor RST */
	__u64 first_data_ns; /* of the first segment that takes room in the sequence */
	__u64 last_data_ns;  /* of the last one */
	__u32 first_seq;     /* of the first packet, host order */
	__u32 last_seq;	     /* of the last one */
	__u32 first_data_seq;
	__u32 next_seq; /* behind the last segment that takes room in the sequence */
	__u32
	    retransmitted; /* segments that begin before the end of the one before them, and not reordered */
	__u32 reordered;   /* the same, within WL_FLOW_REORDER_NS of it */
	__u32 fragments;   /* packets that were one fragment of a datagram */
	__u32 min_length;  /* of what `bytes` adds up */
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

/* What is known of a packet beside its chosen headers. 40 bytes. */
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
	__u8 application;   /* enum wl_application, where the payload was looked at */
	__u16 segment_size; /* of an aggregate, as in struct wl_tail; else 0 */
	__u16 headers;
	__u32 pad;
};

/* How long a flow is kept, in nanoseconds. */
struct wl_flow_timeouts {
	__u64 active_ns;
	__u64 idle_ns;
	__u64 ended_ns; /* after the last packet of one that TCP has ended: for the ACKs that follow a FIN */
};

static __always_inline int wl_flow_is_ip(const struct wl_ip *ip)
{
	return ip->l3 == WL_L3_IPV4 || ip->l3 == WL_L3_IPV6;
}

/* The key of a packet: all of *key is written. */
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
 * What a key leaves out, as it makes no difference to flows: the addresses of ARP, and whether there were
 * ports. For who tells packets apart by the fields of parts, as by those of the packets themselves.
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

/* The length that counts for a packet. One that states none is a jumbogram, or waits to be segmented. */
static __always_inline __u32 wl_flow_length(const struct wl_ip *ip, const struct wl_flow_packet *packet)
{
	if (!wl_flow_is_ip(ip))
		return packet->wire_len;
	if (ip->l3_len)
		return ip->l3_len;
	return packet->wire_len > ip->l3_off ? packet->wire_len - ip->l3_off : 0;
}

/*
 * Packets on the wire of an aggregate (GRO, GSO) of `wire_len` bytes, of which `headers` come before the
 * payload and are in each packet; 1 where `segment_size` is 0.
 */
static __always_inline __u32 wl_segments(__u32 wire_len, __u32 segment_size, __u32 headers)
{
	if (!segment_size || wire_len <= headers + segment_size)
		return 1;
	return (wire_len - headers + segment_size - 1) / segment_size;
}

/* A segment that steps back to `seq` at `ts_ns`, where the one before it ended at `end`, at `before_ns`. */
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
	/* What a fragment's segment takes of the sequence is in the other fragments. */
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

/* Adds a packet to a flow of its key. The first one finds wl_flow.packets 0; whatever else is in *flow then
 * is overwritten. */
static __always_inline void wl_flow_update(struct wl_flow *flow, const struct wl_ip *ip,
					   const struct wl_flow_packet *packet)
{
	__u32 length = wl_flow_length(ip, packet), shortest = length, longest = length, inside = 0;
	__u32 segments = wl_segments(packet->wire_len, packet->segment_size, packet->headers);

	if (segments > 1) {
		/* Each packet on the wire has the headers, and all but the last the same payload. */
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

/* The handshake of both parts together: the last SYN before the first ACK. */
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

/* Adds the part of a flow that follows on what is in *flow. Both have packets. */
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

/* The active timeout has as many steps of the grid at least, and fewer than twice as many. */
#define WL_FLOW_GRID 32

/* A step of the grid is 1 << this nanoseconds. */
static __always_inline __u32 wl_flow_grid_shift(__u64 active_ns)
{
	__u64 step = active_ns / WL_FLOW_GRID;

	return step ? 63 - __builtin_clzll(step) : 0;
}

/*
 * The last nanosecond of a flow that began at `first_ns`: the one before the line of the grid at which it is
 * as old as the active timeout, give or take less than a step.
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
