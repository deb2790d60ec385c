/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Transport headers: TCP (RFC 9293), UDP (RFC 768), UDP-Lite (RFC 3828), SCTP (RFC 9260), DCCP (RFC 4340),
 * ICMP. */
#ifndef WL_PACKET_TRANSPORT_H
#define WL_PACKET_TRANSPORT_H

#include "lib/network.h"
#include "lib/tunnel_udp.h"

static __always_inline void wl_take_ports(struct wl_ip *ip, const __u8 *p)
{
	wl_store32(&ip->src_port, wl_load32(p));
	ip->flags |= WL_IP_PORTS;
}

/* Handles an incomplete header, which the flags report already; its first 4 bytes may be complete. */
static __always_inline void wl_try_ports(struct wl_walk *w, struct wl_ip *ip)
{
	const __u8 *p = wl_captured(w, w->off, 4);

	if (p && w->off + 4 <= w->end)
		wl_take_ports(ip, p);
}

static __always_inline void wl_read_tcp(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 20);
	__u32 size;

	if (!p) {
		wl_try_ports(w, ip);
		return;
	}
	wl_store32(&ip->src_port, wl_load32(p));
	ip->flags |= WL_IP_PORTS | WL_IP_TCP;
	ip->tcp_seq = wl_be32(p + 4);
	ip->tcp_ack = wl_be32(p + 8);
	ip->tcp_flags = p[13];
	ip->tcp_window = wl_be16(p + 14);
	size = (p[12] >> 4) * 4;
	if (wl_unlikely(size < 20)) {
		wl_malformed(w);
		return;
	}
	if (wl_likely(wl_reaches(w, size)))
		ip->payload_off = w->off + size;
}

static __always_inline void wl_read_udp(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 8);
	__u32 size;

	if (!p) {
		wl_try_ports(w, ip);
		return;
	}
	wl_take_ports(ip, p);
	ip->ident += wl_be16(p + 6);
	size = wl_be16(p + 4);
	/* 0 occurs in jumbograms and segmentation-offload packets. */
	if (wl_unlikely(size && size < 8)) {
		wl_malformed(w);
		return;
	}
	ip->payload_off = w->off + 8;
	if (!wl_may_enter(w, ip))
		return;
	w->next = wl_next_of_ports(p);
	if (size)
		wl_limit(w, size);
	w->off += 8;
	if (w->next == WL_NEXT_MPLS_UDP) {
		wl_enter_tunnel(w, WL_TUNNEL_MPLS, 0);
		w->next = WL_NEXT_MPLS;
	}
}

/* Rarer protocols with ports in the first 4 bytes. */
static __always_inline void wl_read_ports(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 8);
	__u32 size = 8;

	if (!p) {
		wl_try_ports(w, ip);
		return;
	}
	wl_take_ports(ip, p);
	if (ip->proto == WL_PROTO_SCTP)
		size = 12;
	else if (ip->proto == WL_PROTO_DCCP)
		size = p[4] * 4;
	if (ip->proto == WL_PROTO_DCCP && size < 12) {
		wl_malformed(w);
		return;
	}
	if (wl_reaches(w, size))
		ip->payload_off = w->off + size;
}

/* ICMP (RFC 792) and ICMPv6 (RFC 4443): type, code, checksum, and 4 bytes that depend on the type. */
static __always_inline void wl_read_icmp(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	const __u8 *p = wl_header(w, 8);

	if (!p)
		return;
	ip->icmp_type = p[0];
	ip->icmp_code = p[1];
	ip->flags |= WL_IP_ICMP;
	ip->payload_off = w->off + 8;
}

#endif
