/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tunnel headers behind IP and UDP: GRE, VXLAN, Geneve, GTP-U. IP in IP has none: wl_follow_protocol(). */
#ifndef WL_PACKET_TUNNEL_H
#define WL_PACKET_TUNNEL_H

#include "lib/network.h"

#define WL_GRE_CHECKSUM 0x8000
#define WL_GRE_ROUTING	0x4000
#define WL_GRE_KEY	0x2000
#define WL_GRE_SEQUENCE 0x1000
#define WL_GRE_VERSION	0x0007

/* A tunnel says by EtherType what it carries. It never is a length, as it may be in an Ethernet header. */
static __always_inline void wl_next_in_tunnel(struct wl_walk *w, __u32 type)
{
	if (type > WL_ETH_LENGTH_MAX)
		wl_next_by_type(w, type);
}

/*
 * GRE (RFC 2784, RFC 2890). Version 1 (PPTP, RFC 2637) and source routes (RFC 1701, deprecated) are not
 * followed, and neither are ERSPAN and WCCP, which put headers of their own behind GRE.
 */
static __always_inline void wl_read_gre(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 4);
	__u32 bits, type, size, key_at, key = 0;

	if (!p)
		return;
	bits = wl_be16(p);
	type = wl_be16(p + 2);
	if (bits & (WL_GRE_ROUTING | WL_GRE_VERSION))
		return;
	key_at = bits & WL_GRE_CHECKSUM ? 8 : 4;
	size = key_at + (bits & WL_GRE_KEY ? 4 : 0) + (bits & WL_GRE_SEQUENCE ? 4 : 0);
	if (!wl_reaches(w, size))
		return;
	ip->payload_off = w->off + size;
	if (!wl_may_enter(w, ip))
		return;
	if (bits & WL_GRE_KEY) {
		p = wl_captured(w, w->off + key_at, 4);
		if (!p)
			return;
		key = wl_be32(p);
	}
	w->off += size;
	wl_enter_tunnel(w, WL_TUNNEL_GRE, key);
	wl_next_in_tunnel(w, type);
}

/* RFC 7348. Without the I flag there is no VNI, and it is something else on the same port. */
static __always_inline void wl_read_vxlan(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p || !(p[0] & 0x08))
		return;
	w->off += 8;
	wl_enter_tunnel(w, WL_TUNNEL_VXLAN, wl_be32(p + 4) >> 8);
	w->next = WL_NEXT_ETHERNET;
}

/* RFC 8926. Control packets (the O flag) carry nothing that could be followed. */
static __always_inline void wl_read_geneve(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 type, size, vni;

	if (!p || p[0] >> 6 != 0 || (p[1] & 0x80))
		return;
	type = wl_be16(p + 2);
	vni = wl_be32(p + 4) >> 8;
	size = 8 + (p[0] & 0x3f) * 4;
	if (!wl_reaches(w, size))
		return;
	w->off += size;
	wl_enter_tunnel(w, WL_TUNNEL_GENEVE, vni);
	wl_next_in_tunnel(w, type);
}

/* GTP-U version 1 (3GPP TS 29.281, 5.1): a G-PDU carries a user's packet, other messages are signalling. */
static __always_inline void wl_read_gtpu(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 bits, next = WL_NEXT_IP, size = 8, teid;

	if (!p)
		return;
	bits = p[0];
	if ((bits & 0xf0) != 0x30 || p[1] != 255)
		return;
	wl_limit(w, 8 + wl_be16(p + 2));
	teid = wl_be32(p + 4);
	/* Any of E, S and PN brings all three fields; only E says that the last of them is to be read. */
	if (bits & 0x07) {
		p = wl_header(w, 12);
		if (!p)
			return;
		size = 12;
		if ((bits & 0x04) && p[11])
			next = WL_NEXT_GTPU_EXTENSION;
	}
	w->off += size;
	wl_enter_tunnel(w, WL_TUNNEL_GTPU, teid);
	w->next = next;
}

/* A GTP-U extension header: its length in 4 bytes comes first, the type of the next one last. */
static __always_inline void wl_read_gtpu_extension(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);
	__u32 size;

	if (!p)
		return;
	size = p[0] * 4;
	if (!size) {
		wl_malformed(w);
		return;
	}
	if (!wl_reaches(w, size))
		return;
	/* The mask changes nothing; it shows the verifier that the subtraction does not pass below zero. */
	p = wl_captured(w, (w->off + size - 1) & WL_OFFSET_MASK, 1);
	if (!p)
		return;
	w->off += size;
	w->next = p[0] ? WL_NEXT_GTPU_EXTENSION : WL_NEXT_IP;
}

#endif
