/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tunnel headers behind IP: GRE and its payloads, EtherIP, L2TP. IP in IP has no header:
 * wl_follow_protocol(). Those behind UDP are in tunnel_udp.h.
 *
 * wl_parsed.tunnel_id distinguishes tunnels of one kind: the key of GRE, the call of PPTP, the session of
 * ERSPAN and of L2TP (with version 2 behind the tunnel's id, 16 bits each), the network of VXLAN and Geneve,
 * the endpoint of GTP-U, the instance of LISP.
 */
#ifndef WL_PACKET_TUNNEL_H
#define WL_PACKET_TUNNEL_H

#include "lib/link.h"
#include "lib/network.h"

#define WL_GRE_CHECKSUM 0x8000
#define WL_GRE_ROUTING	0x4000
#define WL_GRE_KEY	0x2000
#define WL_GRE_SEQUENCE 0x1000
#define WL_GRE_ACK	0x0080
#define WL_GRE_VERSION	0x0007

#define WL_GRE_ERSPAN	0x88be
#define WL_GRE_ERSPAN_3 0x22eb
#define WL_GRE_WCCP	0x883e
#define WL_GRE_ETHERNET 0x6400 /* Ethernet, before 0x6558 was assigned */

/* The EtherType of a tunnel's payload. It never is a length, as it may be in an Ethernet header. */
static __always_inline void wl_next_in_tunnel(struct wl_walk *w, __u32 type)
{
	if (type > WL_ETH_LENGTH_MAX)
		wl_next_by_type(w, type);
}

/* GRE of version 1 (RFC 2637): payload length and call id in place of a key, PPP if there is a sequence
 * number. */
static __always_inline void wl_read_pptp(struct wl_walk *w, struct wl_ip *ip, __u32 bits)
{
	__u32 size = 8 + (bits & WL_GRE_SEQUENCE ? 4 : 0) + (bits & WL_GRE_ACK ? 4 : 0), length, call;
	const __u8 *p = wl_header(w, 8);

	if (!p || !(bits & WL_GRE_KEY))
		return;
	length = wl_be16(p + 4);
	call = wl_be16(p + 6);
	if (!wl_reaches(w, size))
		return;
	ip->payload_off = w->off + size;
	if (!(bits & WL_GRE_SEQUENCE) || !wl_may_enter(w, ip))
		return;
	wl_limit(w, size + length);
	w->off += size;
	wl_enter_tunnel(w, WL_TUNNEL_PPTP, call);
	w->next = WL_NEXT_PPP;
}

/*
 * GRE (RFC 2784, RFC 2890), behind IP or UDP (RFC 8086). Source routes (RFC 1701, deprecated)
 * are not followed. ERSPAN of type I has no header and no sequence number.
 */
static __always_inline void wl_read_gre(struct wl_walk *w, int behind_udp)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 4);
	__u32 bits, type, size, key_at, key = 0, tunnel = WL_TUNNEL_GRE;

	if (!p)
		return;
	bits = wl_be16(p);
	type = wl_be16(p + 2);
	if ((bits & WL_GRE_VERSION) == 1 && type == WL_ETH_PPP && !behind_udp) {
		wl_read_pptp(w, ip, bits);
		return;
	}
	if (bits & (WL_GRE_ROUTING | WL_GRE_VERSION))
		return;
	key_at = bits & WL_GRE_CHECKSUM ? 8 : 4;
	size = key_at + (bits & WL_GRE_KEY ? 4 : 0) + (bits & WL_GRE_SEQUENCE ? 4 : 0);
	if (!wl_reaches(w, size))
		return;
	if (!behind_udp)
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
	if (type == WL_GRE_ERSPAN && !(bits & WL_GRE_SEQUENCE)) {
		tunnel = WL_TUNNEL_ERSPAN;
		w->next = WL_NEXT_ETHERNET;
	} else if (type == WL_GRE_ERSPAN) {
		w->next = WL_NEXT_ERSPAN_2;
	} else if (type == WL_GRE_ERSPAN_3) {
		w->next = WL_NEXT_ERSPAN_3;
	} else if (type == WL_GRE_WCCP) {
		w->next = WL_NEXT_WCCP;
	} else if (type == WL_GRE_ETHERNET) {
		w->next = WL_NEXT_ETHERNET;
	} else {
		wl_next_in_tunnel(w, type);
	}
	wl_enter_tunnel(w, tunnel, key);
}

/* ERSPAN type II (draft-foschiano-erspan, 4.2): version and VLAN, class and session, index. */
static __always_inline void wl_read_erspan_2(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p || p[0] >> 4 != 1)
		return;
	w->off += 8;
	wl_enter_tunnel(w, WL_TUNNEL_ERSPAN, wl_be16(p + 2) & 0x3ff);
	w->next = WL_NEXT_ETHERNET;
}

/* Type III (4.3): an additional time stamp and frame type, and 8 bytes of platform data if the O bit is
 * set. */
static __always_inline void wl_read_erspan_3(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 12);
	__u32 kind;

	if (!p || p[0] >> 4 != 2)
		return;
	kind = wl_be16(p + 10);
	wl_enter_tunnel(w, WL_TUNNEL_ERSPAN, wl_be16(p + 2) & 0x3ff);
	w->off += kind & 1 ? 20 : 12;
	kind = kind >> 10 & 0x1f;
	if (kind == 0)
		w->next = WL_NEXT_ETHERNET;
	else if (kind == 2)
		w->next = WL_NEXT_IP;
}

/* WCCP (draft-wilson-wrec-wccp-v2): IPv4, in version 2 behind a redirect header of 4 bytes. */
static __always_inline void wl_read_wccp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 1);

	if (!p)
		return;
	if (p[0] >> 4 != 4)
		w->off += 4;
	w->next = WL_NEXT_IPV4;
}

/* EtherIP (RFC 3378): version 3 and 12 reserved bits. */
static __always_inline void wl_read_etherip(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 2);

	if (!p || p[0] >> 4 != 3)
		return;
	w->off += 2;
	w->next = WL_NEXT_ETHERNET;
}

/* L2TP version 3 behind IP (RFC 3931, 4.1.1): the session's id, 0 for control messages. */
static __always_inline void wl_read_l2tp_ip(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);

	if (!p || !wl_load32(p))
		return;
	wl_enter_tunnel(w, WL_TUNNEL_L2TP, wl_be32(p));
	w->off += 4;
	w->next = WL_NEXT_L2TP_DATA;
}

/*
 * Behind the session of L2TP version 3 are a cookie of 0, 4 or 8 bytes and a sublayer of 0 or 4: sizes that
 * the ends negotiated, and that the packet does not contain. So the payload begins at the first recognizable
 * header: an Ethernet frame with a known EtherType, Cisco HDLC with one, or PPP with its address. `again` is
 * the state that tries 4 bytes further on.
 */
static __always_inline void wl_read_l2tp_data(struct wl_walk *w, __u32 again)
{
	const __u8 *p = wl_header(w, 4);
	__u32 start;

	if (!p)
		return;
	start = wl_be16(p);
	if (start == 0xff03 && !(p[2] & 1)) {
		w->next = WL_NEXT_PPP;
		return;
	}
	if ((start == 0x0f00 || start == 0x8f00) && wl_is_known_type(wl_be16(p + 2))) {
		w->off += 2;
		w->next = WL_NEXT_TYPED;
		return;
	}
	p = wl_header(w, 14);
	if (!p)
		return;
	if (wl_is_known_type(wl_be16(p + 12))) {
		w->next = WL_NEXT_ETHERNET;
		return;
	}
	if (again == WL_NEXT_END)
		return;
	w->off += 4;
	w->next = again;
}

#endif
