/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tags between Ethernet's header and its payload, other than VLAN tags: MACsec, NSH, TRILL, batman-adv, and
 * those that are an EtherType behind a fixed number of bytes (next.h has their list).
 */
#ifndef WL_PACKET_TAGS_H
#define WL_PACKET_TAGS_H

#include "lib/next.h"

/* The EtherType at the end of a tag. */
static __always_inline void wl_read_typed(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 2);

	if (!p)
		return;
	w->off += 2;
	wl_next_by_type(w, wl_be16(p));
}

#define WL_MACSEC_VERSION   0x80
#define WL_MACSEC_SCI	    0x20
#define WL_MACSEC_ENCRYPTED 0x0c /* E, and C: the text was changed */

/* MACsec (IEEE 802.1AE): TCI and AN, short length, packet number, SCI. Unencrypted frames are parsed
 * further. */
static __always_inline void wl_read_macsec(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 6);
	__u32 bits;

	if (!p)
		return;
	bits = p[0];
	if (bits & (WL_MACSEC_VERSION | WL_MACSEC_ENCRYPTED))
		return;
	w->off += bits & WL_MACSEC_SCI ? 14 : 6;
	w->next = WL_NEXT_TYPED;
}

/* The header that the next protocol of an NSH or of a VXLAN-GPE header names (IANA registry of NSH). */
static __always_inline void wl_next_by_nsh(struct wl_walk *w, __u32 protocol)
{
	switch (protocol) {
	case 1:
		return wl_next_known(w, WL_ETH_IPV4, WL_NEXT_IPV4);
	case 2:
		return wl_next_known(w, WL_ETH_IPV6, WL_NEXT_IPV6);
	case 3:
		w->next = WL_NEXT_ETHERNET;
		return;
	case 4:
		w->next = WL_NEXT_NSH;
		return;
	case 5:
		w->next = WL_NEXT_MPLS;
	}
}

/* Network service header (RFC 8300): its length, in units of 4 bytes, includes the whole header. */
static __always_inline void wl_read_nsh(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 size, protocol;

	if (!p)
		return;
	if (p[0] >> 6 != 0)
		return;
	size = (p[1] & 0x3f) * 4;
	protocol = p[3];
	if (size < 8) {
		w->out->flags |= WL_PKT_MALFORMED;
		return;
	}
	if (!wl_reaches(w, size))
		return;
	w->off += size;
	wl_next_by_nsh(w, protocol);
}

/* TRILL (RFC 6325): version, M, options' length in 4 bytes, hop count; two nicknames; the options; the frame.
 */
static __always_inline void wl_read_trill(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 6);
	__u32 bits;

	if (!p)
		return;
	bits = wl_be16(p);
	if (bits >> 14 != 0)
		return;
	w->off += 6 + (bits >> 6 & 0x1f) * 4;
	w->next = WL_NEXT_ETHERNET;
}

/* batman-adv, compatibility version 15 (linux/batadv_packet.h): the packets that carry a whole frame. */
static __always_inline void wl_read_batman(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 10);
	__u32 size;

	if (!p || p[1] != 15)
		return;
	switch (p[0]) {
	case 0x01: /* BATADV_BCAST */
		size = 14;
		break;
	case 0x40: /* BATADV_UNICAST */
		size = 10;
		break;
	case 0x42: /* BATADV_UNICAST_4ADDR */
		size = 18;
		break;
	default:
		return;
	}
	w->off += size;
	w->next = WL_NEXT_ETHERNET;
}

#endif
