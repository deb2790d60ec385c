/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* PPP (RFC 1661, RFC 1662), its carrier PPPoE (RFC 2516), and its contents. */
#ifndef WL_PACKET_PPP_H
#define WL_PACKET_PPP_H

#include "lib/link.h"

/*
 * A frame from the address and control fields on, which may be omitted by compression, as may the first byte
 * of the protocol field (RFC 1661, 6.5 and 6.6): protocols have an odd second byte, and an even first one.
 */
static __always_inline void wl_read_ppp(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 2);
	__u32 protocol;

	if (!p)
		return;
	protocol = wl_be16(p);
	if (protocol == 0xff03) {
		p = wl_header(w, 4);
		if (!p)
			return;
		w->off += 2;
		protocol = wl_be16(p + 2);
	}
	if (protocol & 0x0100) {
		protocol >>= 8;
		w->off += 1;
	} else {
		w->off += 2;
	}
	switch (protocol) {
	case 0x0021:
	case WL_ETH_IPV4: /* some equipment writes EtherTypes here */
		return wl_next_known(w, WL_ETH_IPV4, WL_NEXT_IPV4);
	case 0x0057:
	case WL_ETH_IPV6:
		return wl_next_known(w, WL_ETH_IPV6, WL_NEXT_IPV6);
	case 0x0281:
		return wl_next_known(w, WL_ETH_MPLS, WL_NEXT_MPLS);
	case 0x0283:
		return wl_next_known(w, WL_ETH_MPLS_MC, WL_NEXT_MPLS);
	case 0x0031:
		w->next = WL_NEXT_PPP_BRIDGED;
		return;
	case 0x003d:
		w->next = WL_NEXT_PPP_MULTILINK;
		return;
	}
}

/* A bridged frame (RFC 3518, 4.2): flags F, I, Z, B and a number of pads, MAC type, with I a LAN's id of 4
 * bytes. */
static __always_inline void wl_read_ppp_bridged(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 2);

	if (!p || p[1] != 1) /* not Ethernet */
		return;
	w->off += p[0] & 0x40 ? 6 : 2;
	w->next = WL_NEXT_ETHERNET;
}

/* Multilink (RFC 1990), with the long sequence number: a packet in a single fragment is parsed further. */
static __always_inline void wl_read_ppp_multilink(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);

	if (!p || (p[0] & 0xc0) != 0xc0)
		return;
	w->off += 4;
	w->next = WL_NEXT_PPP;
}

/* PPPoE session (RFC 2516). */
static __always_inline void wl_read_pppoe(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 6);

	if (!p)
		return;
	if (p[0] != 0x11) {
		w->out->flags |= WL_PKT_MALFORMED;
		return;
	}
	if (p[1] != 0)
		return;
	wl_limit(w, 6 + wl_be16(p + 4));
	w->off += 6;
	w->next = WL_NEXT_PPP;
}

#endif
