/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tunnels behind UDP, which are recognized by their registered ports. */
#ifndef WL_PACKET_TUNNEL_UDP_H
#define WL_PACKET_TUNNEL_UDP_H

#include "lib/ppp.h"
#include "lib/tags.h"
#include "lib/tunnel.h"

/*
 * The header behind UDP's, by a port in host order. The port must be the destination port; where answers are
 * sent from the registered port to another one, the source port is accepted too (`source`).
 */
static __always_inline __u32 wl_next_of_port(__u32 port, int source)
{
	switch (port) {
	case 1701:
		return WL_NEXT_L2TP;
	case 2152:
		return WL_NEXT_GTPU;
	case 3544:
		return WL_NEXT_TEREDO;
	case 5072:
		return WL_NEXT_AYIYA;
	case 5247:
		return WL_NEXT_CAPWAP;
	}
	if (source)
		return WL_NEXT_END;
	switch (port) {
	case 4341:
		return WL_NEXT_LISP;
	case 4754:
		return WL_NEXT_GRE_UDP;
	case 4789:
	case 8472: /* Linux's port for VXLAN before one was registered; OTV, which has the same header */
		return WL_NEXT_VXLAN;
	case 4790:
		return WL_NEXT_VXLAN_GPE;
	case 6080:
		return WL_NEXT_GUE;
	case 6081:
		return WL_NEXT_GENEVE;
	case 6635:
		return WL_NEXT_MPLS_UDP;
	case 37008:
		return WL_NEXT_TZSP;
	}
	return WL_NEXT_END;
}

/* The same for both ports, which are at p in packet format. */
static __always_inline __u32 wl_next_of_ports(const __u8 *p)
{
	__u32 next = wl_next_of_port(wl_be16(p + 2), 0);

	return next != WL_NEXT_END ? next : wl_next_of_port(wl_be16(p), 1);
}

/* RFC 7348. Without the I flag there is no VNI, and the packet is another protocol on the same port. */
static __always_inline void wl_read_vxlan(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p || !(p[0] & 0x08))
		return;
	w->off += 8;
	wl_enter_tunnel(w, WL_TUNNEL_VXLAN, wl_be32(p + 4) >> 8);
	w->next = WL_NEXT_ETHERNET;
}

/* Generic protocol extension (draft-ietf-nvo3-vxlan-gpe): version, I, P, B, O; with P the last byte names
 * the payload. */
static __always_inline void wl_read_vxlan_gpe(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p || (p[0] & 0x39) != 0x08)
		return;
	w->off += 8;
	wl_enter_tunnel(w, WL_TUNNEL_VXLAN_GPE, wl_be32(p + 4) >> 8);
	if (p[0] & 0x04)
		wl_next_by_nsh(w, p[3]);
	else
		w->next = WL_NEXT_ETHERNET;
}

/* RFC 8926. Control packets (the O flag) carry no packet. */
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
	/* Any of E, S and PN adds all three fields; only with E is the last of them used. */
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

/* A GTP-U extension header: its length in units of 4 bytes comes first, the type of the next one last. */
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
	/* The mask changes nothing; it shows the verifier that the subtraction does not go below zero. */
	p = wl_captured(w, (w->off + size - 1) & WL_OFFSET_MASK, 1);
	if (!p)
		return;
	w->off += size;
	w->next = p[0] ? WL_NEXT_GTPU_EXTENSION : WL_NEXT_IP;
}

#define WL_L2TP_CONTROL	 0x8000
#define WL_L2TP_LENGTH	 0x4000
#define WL_L2TP_SEQUENCE 0x0800
#define WL_L2TP_OFFSET	 0x0200

/* L2TP of version 2 (RFC 2661, 3.1), which carries PPP, and of version 3 (RFC 3931, 4.1.2). */
static __always_inline void wl_read_l2tp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 6);
	__u32 bits, at, padding;

	if (!p)
		return;
	bits = wl_be16(p);
	if (bits & WL_L2TP_CONTROL)
		return;
	if ((bits & 0x0f) == 3) {
		w->off += 4;
		w->next = WL_NEXT_L2TP_IP;
		return;
	}
	if ((bits & 0x0f) != 2)
		return;
	if (bits & WL_L2TP_LENGTH)
		wl_limit(w, wl_be16(p + 2));
	at = bits & WL_L2TP_LENGTH ? 4 : 2;
	if (!wl_reaches(w, at + 4))
		return;
	p = wl_captured(w, w->off + at, 4);
	if (!p)
		return;
	wl_enter_tunnel(w, WL_TUNNEL_L2TP, wl_be32(p));
	w->off += at + 4 + (bits & WL_L2TP_SEQUENCE ? 4 : 0);
	if (bits & WL_L2TP_OFFSET) {
		p = wl_header(w, 2);
		if (!p)
			return;
		padding = wl_be16(p);
		if (padding > WL_MAX_OFFSET) {
			wl_malformed(w);
			return;
		}
		w->off += 2 + padding;
	}
	w->next = WL_NEXT_PPP;
}

/* Teredo (RFC 4380, 5.1.1): IPv6 behind optional indications of authentication and of an origin. */
static __always_inline void wl_read_teredo(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p)
		return;
	if (p[0] >> 4 == 6) {
		wl_enter_tunnel(w, WL_TUNNEL_TEREDO, 0);
		w->next = WL_NEXT_IPV6;
	} else if (p[0] == 0 && p[1] == 0) {
		w->off += 8;
		w->next = WL_NEXT_TEREDO;
	} else if (p[0] == 0 && p[1] == 1) {
		w->off += 13 + p[2] + p[3];
		w->next = WL_NEXT_TEREDO;
	}
}

/* LISP's data (RFC 9300, 5.1): flags N, L, E, V, I; with I an instance's id. */
static __always_inline void wl_read_lisp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (!p)
		return;
	w->off += 8;
	wl_enter_tunnel(w, WL_TUNNEL_LISP, p[0] & 0x08 ? wl_be32(p + 4) >> 8 : 0);
	w->next = WL_NEXT_IP;
}

#define WL_CAPWAP_NATIVE    0x100 /* a frame in radio format, not one of IEEE 802.3 */
#define WL_CAPWAP_FRAGMENT  0x080
#define WL_CAPWAP_KEEPALIVE 0x008

/* CAPWAP's data (RFC 5415, 4.3), except encrypted packets (preamble 1), fragments, and keep-alives. */
static __always_inline void wl_read_capwap(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 bits, size;

	if (!p || p[0] != 0)
		return;
	bits = wl_be32(p);
	size = (bits >> 19 & 0x1f) * 4;
	if (size < 8 || (bits & (WL_CAPWAP_FRAGMENT | WL_CAPWAP_KEEPALIVE)))
		return;
	if (!wl_reaches(w, size))
		return;
	w->off += size;
	w->value = 0;
	wl_enter_tunnel(w, WL_TUNNEL_CAPWAP, bits >> 14 & 0x1f);
	w->next = bits & WL_CAPWAP_NATIVE ? WL_NEXT_WLAN : WL_NEXT_ETHERNET;
}

/* TaZmen sniffer protocol: version, kind of message, captured protocol, and tags up to an end tag. */
static __always_inline void wl_read_tzsp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);
	__u32 protocol;

	if (!p || p[0] != 1 || p[1] > 1)
		return;
	protocol = wl_be16(p + 2);
	w->off += 4;
	wl_enter_tunnel(w, WL_TUNNEL_TZSP, 0);
	if (protocol == 1)
		w->next = WL_NEXT_TZSP_ETHERNET;
	else if (protocol == 18)
		w->next = WL_NEXT_TZSP_WLAN;
}

/* A tag: 0 is padding and 1 the end, both of one byte; all others have a length. */
static __always_inline void wl_read_tzsp_tag(struct wl_walk *w, __u32 same, __u32 inside)
{
	const __u8 *p = wl_header(w, 1);

	if (!p)
		return;
	if (p[0] < 2) {
		w->off += 1;
		w->value = 0;
		w->next = p[0] ? inside : same;
		return;
	}
	p = wl_header(w, 2);
	if (!p)
		return;
	w->off += 2 + p[1];
	w->next = same;
}

/* Generic UDP encapsulation (draft-ietf-intarea-gue): version 0 has a header, version 1 is IP itself. */
static __always_inline void wl_read_gue(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);
	__u32 protocol;

	if (!p || p[0] & 0x80)
		return;
	if (p[0] & 0x40) {
		wl_enter_tunnel(w, WL_TUNNEL_GUE, 0);
		w->next = WL_NEXT_IP;
		return;
	}
	if (p[0] & 0x20) /* control */
		return;
	protocol = p[1];
	w->off += 4 + (p[0] & 0x1f) * 4;
	wl_enter_tunnel(w, WL_TUNNEL_GUE, 0);
	if (protocol == WL_PROTO_IPV4)
		w->next = WL_NEXT_IPV4;
	else if (protocol == WL_PROTO_IPV6)
		w->next = WL_NEXT_IPV6;
	else if (protocol == WL_PROTO_MPLS)
		w->next = WL_NEXT_MPLS;
	else if (protocol == WL_PROTO_ETHERIP)
		w->next = WL_NEXT_ETHERIP;
}

/* AYIYA (draft-massar-v6ops-ayiya): identity of 2^n bytes, signature in units of 4 bytes, next header;
 * forwarded packets. */
static __always_inline void wl_read_ayiya(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 identity;

	if (!p || (p[2] & 0x0f) != 1)
		return;
	identity = p[0] >> 4;
	if (identity > 8)
		return;
	w->off += 8 + (1u << identity) + (p[1] >> 4) * 4;
	wl_enter_tunnel(w, WL_TUNNEL_AYIYA, 0);
	if (p[3] == WL_PROTO_IPV6)
		w->next = WL_NEXT_IPV6;
	else if (p[3] == WL_PROTO_IPV4)
		w->next = WL_NEXT_IPV4;
}

#endif
