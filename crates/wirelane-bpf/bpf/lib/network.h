/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The network layer: IPv4 (RFC 791), IPv6 (RFC 8200) with its extension headers, AH (RFC 4302), ARP (RFC
 * 826). */
#ifndef WL_PACKET_NETWORK_H
#define WL_PACKET_NETWORK_H

#include "lib/next.h"

/* Clears a wl_ip: all zero, and no offsets. */
static __always_inline void wl_clear_ip(struct wl_ip *ip)
{
	__u8 *bytes = (__u8 *)ip;

	_Static_assert(sizeof(*ip) == 72, "wl_clear_ip() clears 72 bytes");
	wl_store64(bytes, 0);
	wl_store64(bytes + 8, 0);
	wl_store64(bytes + 16, 0);
	wl_store64(bytes + 24, 0);
	wl_store64(bytes + 32, 0);
	wl_store64(bytes + 40, 0);
	wl_store64(bytes + 48, 0);
	wl_store64(bytes + 56, 0);
	wl_store64(bytes + 64, 0);
	ip->l3_off = WL_NO_OFFSET;
	ip->l4_off = WL_NO_OFFSET;
	ip->payload_off = WL_NO_OFFSET;
}

/* Begins a network header: returns the wl_ip to fill. A nested tunnel overwrites the values of the outer
 * one. */
static __always_inline struct wl_ip *wl_begin_network(struct wl_walk *w, __u32 l3)
{
	struct wl_ip *ip = wl_current(w);

	if (wl_inside(w)) {
		wl_clear_ip(ip);
		w->out->flags |= WL_PKT_TUNNEL;
	}
	ip->l3 = l3;
	ip->l3_off = w->off;
	return ip;
}

static __always_inline void wl_malformed(struct wl_walk *w)
{
	w->out->flags |= WL_PKT_MALFORMED;
}

static __always_inline void wl_read_ipv4(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 20);
	__u32 header, length, fragment, proto;
	struct wl_ip *ip;

	if (!p)
		return;
	header = (p[0] & 0x0f) * 4;
	length = wl_be16(p + 2);
	/* Segmentation-offload packets have a total length of 0 before they are cut into frames. */
	if (wl_unlikely(p[0] >> 4 != 4 || header < 20 || (length && length < header))) {
		wl_malformed(w);
		return;
	}
	ip = wl_begin_network(w, WL_L3_IPV4);
	wl_store32(ip->src, wl_load32(p + 12));
	wl_store32(ip->dst, wl_load32(p + 16));
	proto = p[9];
	ip->proto = proto;
	ip->tos = p[1];
	ip->ttl = p[8];
	ip->l3_len = length;
	ip->ident = wl_be16(p + 4);
	fragment = wl_be16(p + 6);
	if (wl_unlikely(fragment & 0x3fff)) {
		ip->flags = WL_IP_FRAGMENT | (fragment & 0x1fff ? WL_IP_LATER : 0);
		ip->frag_off = (fragment & 0x1fff) * 8;
		ip->frag_id = wl_be16(p + 4);
	}
	if (wl_likely(length))
		wl_limit(w, length);
	if (wl_unlikely(header > 20)) {
		ip->flags |= WL_IP_OPTIONS;
		if (!wl_reaches(w, header))
			return;
	}
	w->off += header;
	if (wl_likely(!(fragment & 0x1fff)))
		wl_next_by_protocol(w, proto);
}

static __always_inline void wl_read_ipv6(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 40);
	__u32 length, proto;
	struct wl_ip *ip;

	if (!p)
		return;
	if (wl_unlikely(p[0] >> 4 != 6)) {
		wl_malformed(w);
		return;
	}
	ip = wl_begin_network(w, WL_L3_IPV6);
	wl_copy16(ip->src, p + 8);
	wl_copy16(ip->dst, p + 24);
	ip->tos = wl_be16(p) >> 4;
	ip->ttl = p[7];
	length = wl_be16(p + 4);
	proto = p[6];
	/* 0: a jumbogram (RFC 2675) or a segmentation-offload packet, unless the packet has no payload. */
	if (wl_likely(length) || proto == WL_PROTO_NONE) {
		ip->l3_len = 40 + length;
		wl_limit(w, 40 + length);
	}
	w->off += 40;
	wl_next_by_protocol(w, proto);
}

/* An extension header of the common format: next header, length in units of 8 bytes beyond the first 8. */
static __always_inline void wl_read_extension(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 8);
	__u32 size, proto;

	if (!p)
		return;
	proto = p[0];
	size = (p[1] + 1) * 8;
	ip->flags |= WL_IP_OPTIONS;
	if (!wl_reaches(w, size))
		return;
	/* Nothing follows mobility (RFC 6275), and the protocol "mobility" is more informative than
	 * "nothing". */
	if (ip->proto == WL_PROTO_MOBILITY && proto == WL_PROTO_NONE)
		return;
	w->off += size;
	wl_next_by_protocol(w, proto);
}

static __always_inline void wl_read_fragment(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 8);
	__u32 fragment, proto;

	if (!p)
		return;
	proto = p[0];
	fragment = wl_be16(p + 2);
	ip->flags |= WL_IP_OPTIONS;
	/* Offset 0 and no more to come: an atomic fragment (RFC 6946) is a whole datagram, not one of
	 * several. */
	if (fragment & 0xfff9) {
		ip->flags |= WL_IP_FRAGMENT;
		ip->frag_off = fragment & 0xfff8;
		ip->frag_id = wl_be32(p + 4);
	}
	w->off += 8;
	if (fragment & 0xfff8) {
		ip->flags |= WL_IP_LATER;
		ip->proto = proto;
		return;
	}
	wl_next_by_protocol(w, proto);
}

/* The authentication header, under IPv4 and IPv6; its length is in units of 4 bytes beyond the first 8. */
static __always_inline void wl_read_ah(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 12);
	__u32 size, proto;

	if (!p)
		return;
	proto = p[0];
	size = (p[1] + 2) * 4;
	if (size < 12) {
		wl_malformed(w);
		return;
	}
	ip->flags |= WL_IP_OPTIONS;
	if (!wl_reaches(w, size))
		return;
	w->off += size;
	wl_next_by_protocol(w, proto);
}

/* Addresses are read from ARP for IPv4 over hardware addresses of 6 bytes, the only form in practice. */
static __always_inline void wl_read_arp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	struct wl_ip *ip;

	if (!p)
		return;
	ip = wl_begin_network(w, WL_L3_ARP);
	if (wl_be16(p + 2) != WL_ETH_IPV4 || p[4] != 6 || p[5] != 4)
		return;
	ip->l3_len = 28;
	p = wl_header(w, 28);
	if (!p)
		return;
	wl_store32(ip->src, wl_load32(p + 14));
	wl_store32(ip->dst, wl_load32(p + 24));
}

/* IP of either version; for links and tunnels that carry IP without stating the version. */
static __always_inline void wl_read_ip(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 1);

	if (!p)
		return;
	if (p[0] >> 4 == 4)
		w->next = WL_NEXT_IPV4;
	else if (p[0] >> 4 == 6)
		w->next = WL_NEXT_IPV6;
	else if (wl_inside(w)) /* GTP-U may carry PPP; a raw IP link or an LLC SAP may not */
		w->next = WL_NEXT_PPP;
	else
		wl_malformed(w);
}

#endif
