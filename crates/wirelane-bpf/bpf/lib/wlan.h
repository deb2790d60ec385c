/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* IEEE 802.11: data frames, up to the LLC header behind them. */
#ifndef WL_PACKET_WLAN_H
#define WL_PACKET_WLAN_H

#include "lib/next.h"

/* The frame control field, as loaded: its first byte is the low one. */
#define WL_WLAN_KIND	  0x000f /* version and type */
#define WL_WLAN_DATA	  0x0008
#define WL_WLAN_EMPTY	  0x0040 /* a subtype without a body */
#define WL_WLAN_QOS	  0x0080
#define WL_WLAN_TO_DS	  0x0100
#define WL_WLAN_FROM_DS	  0x0200
#define WL_WLAN_PROTECTED 0x4000
#define WL_WLAN_ORDER	  0x8000 /* of a QoS frame: the HT control field is there */

#define WL_WLAN_AGGREGATE 0x80 /* in the QoS field: an A-MSDU */
/* w->value: the header is padded to a multiple of 4, according to radiotap. */
#define WL_WLAN_PADDED 1

/*
 * A data frame. Management and control frames have no network layer, encrypted ones hide it, and of a
 * fragmented frame only the first fragment has LLC. Of an A-MSDU the first frame is read.
 */
static __always_inline void wl_read_wlan(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 24);
	__u32 control, size = 24, sequence;

	if (!p)
		return;
	control = wl_load16(p);
	sequence = wl_load16(p + 22);
	/* Cisco access points exchange the two bytes in frames that they send through CAPWAP. */
	if ((control & WL_WLAN_KIND) != WL_WLAN_DATA && (control >> 8 & WL_WLAN_KIND) == WL_WLAN_DATA &&
	    wl_inside(w))
		control = (control >> 8 | control << 8) & 0xffff;
	if ((control & WL_WLAN_KIND) != WL_WLAN_DATA || (control & (WL_WLAN_EMPTY | WL_WLAN_PROTECTED)) ||
	    (sequence & 0x0f))
		return;
	if ((control & WL_WLAN_TO_DS) && (control & WL_WLAN_FROM_DS))
		size += 6;
	if (control & WL_WLAN_QOS) {
		if (!wl_reaches(w, size + 2))
			return;
		p = wl_captured(w, (w->off + size) & WL_OFFSET_MASK, 2);
		if (!p)
			return;
		size += 2;
		if (control & WL_WLAN_ORDER)
			size += 4;
	}
	if (w->value == WL_WLAN_PADDED)
		size = (size + 3) & ~3u;
	/* The first frame of an A-MSDU: two addresses and a length. */
	if ((control & WL_WLAN_QOS) && (p[0] & WL_WLAN_AGGREGATE))
		size += 14;
	w->off += size;
	w->next = WL_NEXT_LLC;
}

#endif
