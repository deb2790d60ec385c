/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steering programs: functions that users bring (include/wirelane/steer.h), linked into the capture program.
 *
 * There are WL_MAX_PROGRAMS places for them, each a weak function here. Who joins with a program of his own
 * has its object linked with ours (crates/wirelane/src/engine/ring/program/): its function takes the place of
 * a weak one. The result is loaded over the maps of the running instance and put on the device in the place
 * of the program that is there, before the group becomes active.
 *
 * Not by tail calls: a program that is bound to a device may have no array of programs. Not by extension
 * programs (freplace): some kernels refuse them even to root. As long as no group has a program,
 * wl_config.programs is 0, which the verifier knows: none of this is in the loaded program then.
 */
#ifndef WL_PROGRAM_H
#define WL_PROGRAM_H

#include "load.h"
#include "maps.h"
#include "../../include/wirelane/steer.h"

#define WL_SAME(field)                                                                                       \
	_Static_assert(__builtin_offsetof(struct steer_headers, field) ==                                    \
			       __builtin_offsetof(struct wl_ip, field) &&                                    \
			   sizeof(((struct steer_headers *)0)->field) == sizeof(((struct wl_ip *)0)->field), \
		       "steer_headers is wl_ip by other names: " #field)

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
_Static_assert(sizeof(struct steer_headers) == sizeof(struct wl_ip), "steer_headers is wl_ip");
_Static_assert(STEER_L3_NONE == WL_L3_NONE && STEER_L3_ARP == WL_L3_ARP && STEER_L3_IPV4 == WL_L3_IPV4 &&
		   STEER_L3_IPV6 == WL_L3_IPV6,
	       "the same network layers");
_Static_assert(STEER_IP_FRAGMENT == WL_IP_FRAGMENT && STEER_IP_LATER == WL_IP_LATER &&
		   STEER_IP_PORTS == WL_IP_PORTS && STEER_IP_TCP == WL_IP_TCP &&
		   STEER_IP_ICMP == WL_IP_ICMP && STEER_IP_OPTIONS == WL_IP_OPTIONS &&
		   STEER_IP_OPAQUE == WL_IP_OPAQUE,
	       "the same flags of a layer");
_Static_assert(STEER_CUT == WL_PKT_CUT && STEER_MALFORMED == WL_PKT_MALFORMED && STEER_DEEP == WL_PKT_DEEP &&
		   STEER_TUNNEL == WL_PKT_TUNNEL && STEER_VLAN == WL_PKT_VLAN && STEER_MPLS == WL_PKT_MPLS &&
		   STEER_EGRESS == WL_REC_EGRESS && STEER_GSO == WL_REC_GSO,
	       "the same flags of a packet");
_Static_assert(STEER_TUNNEL_IPIP == WL_TUNNEL_IPIP && STEER_TUNNEL_GRE == WL_TUNNEL_GRE &&
		   STEER_TUNNEL_VXLAN == WL_TUNNEL_VXLAN && STEER_TUNNEL_GENEVE == WL_TUNNEL_GENEVE &&
		   STEER_TUNNEL_GTPU == WL_TUNNEL_GTPU,
	       "the same tunnels");
_Static_assert(STEER_LINK_ETHERNET == WL_LINK_ETHERNET && STEER_LINK_RAW == WL_LINK_RAW, "the same links");
_Static_assert(STEER_NO_OFFSET == WL_NO_OFFSET, "the same mark");

/* A place that nobody has linked a program into; never asked, as no active group names it. */
#define WL_PROGRAM_PLACE(number)                                                                             \
	__weak int wirelane_steer_v1_##number(const struct steer_packet *packet)                             \
	{                                                                                                    \
		return STEER_NOT_MINE;                                                                       \
	}

WL_PROGRAM_PLACE(0)
WL_PROGRAM_PLACE(1)
WL_PROGRAM_PLACE(2)
WL_PROGRAM_PLACE(3)

/* The first bytes of the packet, as they were on the wire. */
static __always_inline void wl_load_bytes(void *ctx, enum wl_hook hook, const struct wl_packet *packet,
					  struct steer_packet *to)
{
	__u32 len = packet->wire_len;
	long error;

	if (len > STEER_BYTES)
		len = STEER_BYTES;
	__builtin_memset(to->bytes, 0, STEER_BYTES);
	if (!packet->vlan) {
		error = wl_load_most(ctx, hook, 0, to->bytes, len, STEER_BYTES);
	} else {
		error = wl_load_most(ctx, hook, 0, to->bytes, WL_MACS, WL_MACS);
		__builtin_memcpy(to->bytes + WL_MACS, &packet->vlan_tag, WL_VLAN_TAG);
		if (!error && len > WL_PUT_BACK)
			error = wl_load_most(ctx, hook, WL_MACS, to->bytes + WL_PUT_BACK, len - WL_PUT_BACK,
					     STEER_BYTES - WL_PUT_BACK);
	}
	/* An error cannot be: a frame has as many bytes. */
	to->bytes_len = error ? 0 : len;
}

/* What the program of group g says: a worker, or below 0 that the packet is not for the group. */
static __always_inline int wl_ask(void *ctx, enum wl_hook hook, const struct wl_packet *packet,
				  const struct wl_parsed *parsed, __u32 g)
{
	const struct wl_group *group = bpf_map_lookup_elem(&wl_groups, &g);
	/* On the stack: Linux 6.1 takes no key out of memory that a global function was given. */
	__u32 key = packet->lane;
	struct wl_lane *lane = bpf_map_lookup_elem(&wl_lanes, &key);
	struct steer_packet *to;

	if (!group || !lane)
		return STEER_NOT_MINE;
	to = &lane->steer;
	to->workers = group->workers;
	/* As it is returned: none of it means "not mine". */
	to->hash = packet->hash & 0x7fffffff;
	to->wire_len = packet->wire_len;
	to->queue = packet->queue;
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
	wl_load_bytes(ctx, hook, packet, to);
	switch (group->program) {
	case 0:
		return wirelane_steer_v1_0(to);
	case 1:
		return wirelane_steer_v1_1(to);
	case 2:
		return wirelane_steer_v1_2(to);
	case 3:
		return wirelane_steer_v1_3(to);
	}
	return STEER_NOT_MINE;
}

/* The same as functions of their own: see wl_copy_xdp(). */
__noinline int wl_ask_xdp(struct xdp_md *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 g)
{
	return packet && parsed ? wl_ask(ctx, WL_HOOK_XDP, packet, parsed, g) : STEER_NOT_MINE;
}

__noinline int wl_ask_skb(struct __sk_buff *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 g)
{
	return packet && parsed ? wl_ask(ctx, WL_HOOK_SKB, packet, parsed, g) : STEER_NOT_MINE;
}

#endif
