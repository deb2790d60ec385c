/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The packet as functions of users see it (include/wirelane/packet.h): our structs with other names, and its
 * first bytes.
 */
#ifndef WL_SHOW_H
#define WL_SHOW_H

#include "load.h"
#include "maps.h"
#include "../include/wirelane/packet.h"

#define WL_SAME(field)                                                                                       \
	_Static_assert(                                                                                      \
	    __builtin_offsetof(struct wirelane_headers, field) == __builtin_offsetof(struct wl_ip, field) && \
		sizeof(((struct wirelane_headers *)0)->field) == sizeof(((struct wl_ip *)0)->field),         \
	    "wirelane_headers is wl_ip by other names: " #field)

WL_SAME(src);
WL_SAME(dst);
WL_SAME(src_port);
WL_SAME(dst_port);
WL_SAME(l3);
WL_SAME(proto);
WL_SAME(flags);
WL_SAME(tos);
WL_SAME(ttl);
WL_SAME(tcp_flags);
WL_SAME(icmp_type);
WL_SAME(icmp_code);
WL_SAME(l3_off);
WL_SAME(l4_off);
WL_SAME(payload_off);
WL_SAME(tcp_window);
WL_SAME(l3_len);
WL_SAME(frag_id);
WL_SAME(tcp_seq);
WL_SAME(tcp_ack);
WL_SAME(frag_off);
WL_SAME(ident);
_Static_assert(sizeof(struct wirelane_headers) == sizeof(struct wl_ip), "wirelane_headers is wl_ip");
_Static_assert(PACKET_L3_NONE == WL_L3_NONE && PACKET_L3_ARP == WL_L3_ARP && PACKET_L3_IPV4 == WL_L3_IPV4 &&
		   PACKET_L3_IPV6 == WL_L3_IPV6,
	       "the same network layers");
_Static_assert(PACKET_IP_FRAGMENT == WL_IP_FRAGMENT && PACKET_IP_LATER == WL_IP_LATER &&
		   PACKET_IP_PORTS == WL_IP_PORTS && PACKET_IP_TCP == WL_IP_TCP &&
		   PACKET_IP_ICMP == WL_IP_ICMP && PACKET_IP_OPTIONS == WL_IP_OPTIONS &&
		   PACKET_IP_OPAQUE == WL_IP_OPAQUE,
	       "the same flags of a layer");
_Static_assert(PACKET_CUT == WL_PKT_CUT && PACKET_MALFORMED == WL_PKT_MALFORMED &&
		   PACKET_DEEP == WL_PKT_DEEP && PACKET_TUNNEL == WL_PKT_TUNNEL &&
		   PACKET_VLAN == WL_PKT_VLAN && PACKET_MPLS == WL_PKT_MPLS &&
		   PACKET_EGRESS == WL_REC_EGRESS && PACKET_GSO == WL_REC_GSO,
	       "the same flags of a packet");
_Static_assert(PACKET_TUNNEL_IPIP == WL_TUNNEL_IPIP && PACKET_TUNNEL_GRE == WL_TUNNEL_GRE &&
		   PACKET_TUNNEL_VXLAN == WL_TUNNEL_VXLAN && PACKET_TUNNEL_GENEVE == WL_TUNNEL_GENEVE &&
		   PACKET_TUNNEL_GTPU == WL_TUNNEL_GTPU && PACKET_TUNNEL_ERSPAN == WL_TUNNEL_ERSPAN &&
		   PACKET_TUNNEL_PPTP == WL_TUNNEL_PPTP && PACKET_TUNNEL_L2TP == WL_TUNNEL_L2TP &&
		   PACKET_TUNNEL_VXLAN_GPE == WL_TUNNEL_VXLAN_GPE &&
		   PACKET_TUNNEL_TEREDO == WL_TUNNEL_TEREDO && PACKET_TUNNEL_MPLS == WL_TUNNEL_MPLS &&
		   PACKET_TUNNEL_ETHERIP == WL_TUNNEL_ETHERIP && PACKET_TUNNEL_LISP == WL_TUNNEL_LISP &&
		   PACKET_TUNNEL_CAPWAP == WL_TUNNEL_CAPWAP && PACKET_TUNNEL_TZSP == WL_TUNNEL_TZSP &&
		   PACKET_TUNNEL_GUE == WL_TUNNEL_GUE && PACKET_TUNNEL_AYIYA == WL_TUNNEL_AYIYA &&
		   PACKET_TUNNEL_NSH == WL_TUNNEL_NSH,
	       "the same tunnels");
_Static_assert(PACKET_LINK_ETHERNET == WL_LINK_ETHERNET && PACKET_LINK_RAW == WL_LINK_RAW, "the same links");
_Static_assert(PACKET_NO_OFFSET == WL_NO_OFFSET, "the same mark");

/* The first bytes of the packet, as they were on the wire. */
static __always_inline void wl_load_bytes(wl_ctx *ctx, const struct wl_packet *packet,
					  struct wirelane_packet *to)
{
	__u32 len = packet->wire_len;
	long error;

	if (len > PACKET_BYTES)
		len = PACKET_BYTES;
	__builtin_memset(to->bytes, 0, PACKET_BYTES);
	if (!packet->vlan) {
		error = wl_load_most(ctx, 0, to->bytes, len, PACKET_BYTES);
	} else {
		error = wl_load_most(ctx, 0, to->bytes, WL_MACS, WL_MACS);
		__builtin_memcpy(to->bytes + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
		if (!error && len > WL_PUT_BACK)
			error = wl_load_most(ctx, WL_MACS, to->bytes + WL_PUT_BACK, len - WL_PUT_BACK,
					     PACKET_BYTES - WL_PUT_BACK);
	}
	/* An error is impossible: a frame has as many bytes. */
	to->bytes_len = error ? 0 : len;
}

/*
 * Writes the packet's description in its lane. For each function anew: none may see data that another one has
 * written there. `workers` is for steering programs. For global
 * functions see wl_copy().
 */
__noinline int wl_show(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 workers)
{
	struct wirelane_packet *to;
	struct wl_lane *lane;
	__u32 key;

	if (!packet || !parsed)
		return 0;
	/* On the stack: Linux 6.1 does not accept a map key in memory that was passed to a global
	 * function. */
	key = packet->lane;
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	if (!lane)
		return 0;
	to = &lane->shown;
	to->workers = workers;
	/* In the range of a steering program's results: no value means "not mine". */
	to->hash = packet->hash & 0x7fffffff;
	to->wire_len = packet->wire_len;
	to->queue = wl_rx_queue(packet->queue);
	to->tunnel_id = parsed->tunnel_id;
	to->mpls_label = parsed->mpls_label;
	to->flags = parsed->flags | (packet->flags & (WL_REC_EGRESS | WL_REC_GSO));
	to->eth_type = parsed->eth_type;
	to->vlan_tci[0] = parsed->vlan_tci[0];
	to->vlan_tci[1] = parsed->vlan_tci[1];
	to->vlan_count = parsed->vlan_count;
	to->mpls_count = parsed->mpls_count;
	to->tunnel = parsed->tunnel;
	to->link = parsed->link;
	__builtin_memcpy(&to->outer, &parsed->outer, sizeof(to->outer));
	if (parsed->flags & WL_PKT_TUNNEL)
		__builtin_memcpy(&to->inner, &parsed->inner, sizeof(to->inner));
	else
		__builtin_memset(&to->inner, 0, sizeof(to->inner));
	to->time_ns = packet->ts_ns;
	to->segments = packet->segments;
	to->wire_bytes = packet->wire_bytes;
	to->rules_count = 0;
	__builtin_memset(to->rules, 0, sizeof(to->rules));
	wl_load_bytes(ctx, packet, to);
	return 0;
}

#endif
