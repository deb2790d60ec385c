/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Link types that occur only in files (https://www.tcpdump.org/linktypes.html): the bytes before the first
 * header that the walk of parse.h knows. Native only, since no kernel program is attached to such a device.
 */
#ifndef WL_PACKET_FILE_LINK_H
#define WL_PACKET_FILE_LINK_H

#include "lib/ppp.h"
#include "lib/wlan.h"

static inline __u32 wl_le16(const __u8 *p)
{
	return wl_load16(p);
}

static inline __u32 wl_le32(const __u8 *p)
{
	return wl_load32(p);
}

static inline void wl_enter_link(struct wl_walk *w, __u8 link);

/* Starts the walk `size` bytes further on, if the packet has as many bytes. */
static inline void wl_skip_to(struct wl_walk *w, __u32 size, __u32 next)
{
	if (size > WL_MAX_OFFSET)
		w->out->flags |= WL_PKT_DEEP;
	else if (wl_reaches(w, size)) {
		w->off += size;
		w->next = next;
	}
}

/* Starts the walk with the header that an EtherType names. */
static inline void wl_begin_by_type(struct wl_walk *w, __u32 type)
{
	w->value = type;
	wl_follow_type(w);
}

/* Cisco HDLC: address, control, EtherType. */
static inline void wl_enter_chdlc(struct wl_walk *w)
{
	wl_skip_to(w, 2, WL_NEXT_TYPED);
}

/* Serial lines: Cisco HDLC has an address byte of its own, everything else is PPP. */
static inline void wl_enter_serial(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 2);

	if (!p)
		return;
	if (p[0] == 0x0f || p[0] == 0x8f)
		wl_enter_chdlc(w);
	else
		w->next = WL_NEXT_PPP;
}

/*
 * Frame relay: an address of 2 to 4 bytes, of which the last has its low bit set. Then follows either
 * unnumbered information and a header that ISO's identifier names (RFC 2427) or, in Cisco's variant, an
 * EtherType.
 */
static inline void wl_enter_frame_relay(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);
	__u32 size, type;

	if (!p)
		return;
	for (size = 1; size < 4 && !(p[size - 1] & 1); size++)
		;
	if (size < 2 || !(p[size - 1] & 1)) {
		w->out->flags |= WL_PKT_MALFORMED;
		return;
	}
	w->off += size;
	p = wl_header(w, 2);
	if (!p)
		return;
	if (p[0] != 0x03) {
		w->next = WL_NEXT_TYPED;
		return;
	}
	w->off += 1;
	if (p[1] == 0) { /* padding */
		w->off += 1;
		p = wl_header(w, 1);
		if (!p)
			return;
	} else {
		p += 1;
	}
	w->off += 1;
	if (p[0] != 0x80) {
		wl_next_by_nlpid(w, p[0]);
		return;
	}
	/* SNAP: organisation and type. */
	p = wl_header(w, 5);
	if (!p)
		return;
	w->off += 5;
	type = wl_be16(p + 3);
	if (p[0] == 0 && p[1] == 0 && p[2] == 0)
		wl_begin_by_type(w, type);
	else if (p[0] == 0 && p[1] == 0x80 && p[2] == 0xc2 && (type == 0x0001 || type == 0x0007))
		w->next = WL_NEXT_ETHERNET;
}

/* radiotap: version, length, present fields; TSFT, aligned to 8, and the flags come first. */
static inline void wl_enter_radiotap(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 size, present, at = 8;

	if (!p)
		return;
	size = wl_le16(p + 2);
	if (p[0] != 0 || size < 8) {
		w->out->flags |= WL_PKT_MALFORMED;
		return;
	}
	present = wl_le32(p + 4);
	while (at + 4 <= size && wl_is_captured(w, at + 4) && wl_le32(w->data + at - 4) & 0x80000000u)
		at += 4;
	if (present & 1)
		at = ((at + 7) & ~7u) + 8;
	w->value = 0;
	if (present & 2 && at < size && wl_is_captured(w, at + 1) && w->data[at] & 0x20)
		w->value = WL_WLAN_PADDED;
	wl_skip_to(w, size, WL_NEXT_WLAN);
}

/* The headers of Prism and AVS: a magic number marks AVS, whose numbers are big-endian; Prism's are in
 * host order. */
static inline void wl_enter_prism(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);
	__u32 size;

	if (!p)
		return;
	w->value = 0;
	size = wl_le32(p + 4);
	if ((wl_be32(p) & 0xfffff000u) == 0x80211000u || size > WL_MAX_OFFSET)
		size = wl_be32(p + 4);
	wl_skip_to(w, size, WL_NEXT_WLAN);
}

/* The link type of a LINKTYPE number, for the contents of PPI and PKTAP. */
static inline __u8 wl_link_of_number(__u32 number)
{
	switch (number) {
	case 0:
		return WL_LINK_NULL;
	case 1:
		return WL_LINK_ETHERNET;
	case 9:
	case 50:
		return WL_LINK_PPP;
	case 12:
	case 14:
	case 101:
		return WL_LINK_RAW;
	case 105:
		return WL_LINK_WLAN;
	case 108:
		return WL_LINK_LOOP;
	case 113:
		return WL_LINK_SLL;
	case 119:
		return WL_LINK_PRISM;
	case 127:
		return WL_LINK_RADIOTAP;
	}
	return WL_LINK_OTHER;
}

/* A header that contains its length and the link type of the contents: at `size_at` and `link_at`. */
static inline void wl_enter_wrapped(struct wl_walk *w, __u32 header, __u32 size, __u32 number)
{
	if (size < header) {
		w->out->flags |= WL_PKT_MALFORMED;
		return;
	}
	wl_skip_to(w, size, WL_NEXT_END);
	if (w->off == size)
		wl_enter_link(w, wl_link_of_number(number));
}

/* IEEE 802.5: access control, frame control, two addresses, and a route if the source's first bit is set. */
static inline void wl_enter_token_ring(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 15);
	__u32 size = 14;

	if (!p || p[1] >> 6 != 1)
		return;
	if (p[8] & 0x80)
		size += p[14] & 0x1f;
	wl_skip_to(w, size, WL_NEXT_LLC);
}

/* NFLOG: address family, version, group, then attributes in the order of the capturing host, padded to 4. */
static inline void wl_enter_nflog(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 4);
	__u32 size, kind, turn;

	if (!p || p[1] != 0)
		return;
	w->off = 4;
	for (turn = 0; turn < 64; turn++) {
		p = wl_header(w, 4);
		if (!p)
			return;
		size = wl_le16(p);
		kind = wl_le16(p + 2);
		if (kind > 0xff) {
			size = wl_be16(p);
			kind = wl_be16(p + 2);
		}
		if (size < 4) {
			w->out->flags |= WL_PKT_MALFORMED;
			return;
		}
		if (kind == 9) { /* NFULA_PAYLOAD */
			w->off += 4;
			if (w->data[0] == 2 || w->data[0] == 10)
				w->next = WL_NEXT_IP;
			return;
		}
		size = (size + 3) & ~3u;
		if (!wl_reaches(w, size))
			return;
		w->off += size;
	}
	w->out->flags |= WL_PKT_DEEP;
}

/* Endace's records: time, kind, flags, lengths; with the high bit of the kind extension headers of 8 bytes.
 */
static inline void wl_enter_erf(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 16);
	__u32 kind, more;

	if (!p)
		return;
	kind = p[8];
	w->off = 16;
	for (more = kind & 0x80; more; w->off += 8) {
		if (w->off > WL_MAX_OFFSET) {
			w->out->flags |= WL_PKT_DEEP;
			return;
		}
		p = wl_header(w, 8);
		if (!p)
			return;
		more = p[0] & 0x80;
	}
	switch (kind & 0x7f) {
	case 1:	 /* HDLC_POS */
	case 10: /* COLOR_HDLC_POS */
	case 15: /* DSM_COLOR_HDLC_POS */
	case 19: /* COLOR_HASH_POS */
		return wl_enter_serial(w);
	case 2:	 /* ETH */
	case 11: /* COLOR_ETH */
	case 16: /* DSM_COLOR_ETH */
	case 20: /* COLOR_HASH_ETH */
		return wl_skip_to(w, 2, WL_NEXT_ETHERNET);
	case 5:	 /* MC_HDLC */
	case 17: /* COLOR_MC_HDLC_POS */
		w->off += 4;
		return wl_enter_serial(w);
	case 22: /* IPV4 */
	case 23: /* IPV6 */
		w->next = WL_NEXT_IP;
	}
}

/* IP over InfiniBand (RFC 4391): a global route header, EtherType, 2 reserved bytes. */
static inline void wl_enter_ipoib(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 44);

	if (!p)
		return;
	w->off += 44;
	wl_begin_by_type(w, wl_be16(p + 40));
}

/* DOCSIS: frame control, its parameter, length, an extended header if the control's last bit is set, check
 * sequence. */
static inline void wl_enter_docsis(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 6);

	if (!p || p[0] >> 6 != 0)
		return;
	wl_skip_to(w, 6 + (p[0] & 1 ? p[1] : 0), WL_NEXT_ETHERNET);
}

/* The preamble of Ethernet, whose last byte gives the type of the frame (IEEE 802.3br): whole frames and
 * first fragments. */
static inline void wl_enter_preamble(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 8);

	if (p && (p[7] == 0xd5 || p[7] == 0xe6 || p[7] == 0x4c || p[7] == 0x7f || p[7] == 0xb3))
		wl_skip_to(w, 8, WL_NEXT_ETHERNET);
}

/* One byte of direction. pppd writes it in place of PPP's address. */
static inline void wl_enter_directed(struct wl_walk *w, __u8 link)
{
	const __u8 *p = wl_header(w, 2);

	if (!p)
		return;
	w->off = link == WL_LINK_PPP && p[1] == 0x03 ? 2 : 1;
	wl_enter_link(w, link);
}

static inline void wl_enter_other(struct wl_walk *w, __u8 link)
{
	const __u8 *p;

	switch (link) {
	case WL_LINK_PPI:
		p = wl_header(w, 8);
		if (p)
			wl_enter_wrapped(w, 8, wl_le16(p + 2), wl_le32(p + 4));
		return;
	case WL_LINK_PKTAP:
		p = wl_header(w, 12);
		if (p)
			wl_enter_wrapped(w, 12, wl_le32(p), wl_le32(p + 8));
		return;
	case WL_LINK_LLC: /* Linux has IP without LLC, too */
		p = wl_header(w, 1);
		if (p)
			w->next = p[0] >> 4 == 4 || p[0] >> 4 == 6 ? WL_NEXT_IP : WL_NEXT_LLC;
		return;
	case WL_LINK_SUNATM:
		p = wl_header(w, 4);
		if (!p)
			return;
		if ((p[0] & 0x0f) == 2)
			wl_skip_to(w, 4, WL_NEXT_LLC);
		else if ((p[0] & 0x0f) == 1) /* LANE, with a client's id */
			wl_skip_to(w, 6, WL_NEXT_ETHERNET);
		return;
	case WL_LINK_FDDI: /* frame control and two addresses */
		p = wl_header(w, 1);
		if (p && (p[0] & 0x70) == 0x50)
			wl_skip_to(w, 13, WL_NEXT_LLC);
		return;
	case WL_LINK_PFLOG: /* its length without the padding to 4 comes first */
		p = wl_header(w, 1);
		if (p)
			wl_skip_to(w, (p[0] + 3u) & ~3u, WL_NEXT_IP);
		return;
	}
}

/* Sets the start and the first state of the walk, for a link type with a header before the first known
 * one. */
static inline void wl_enter_link(struct wl_walk *w, __u8 link)
{
	switch (link) {
	case WL_LINK_PPP:
		return wl_enter_serial(w);
	case WL_LINK_PPP_DIRECTION:
		return wl_enter_directed(w, WL_LINK_PPP);
	case WL_LINK_PPPOE:
		w->next = WL_NEXT_PPPOE;
		return;
	case WL_LINK_CHDLC:
		return wl_enter_chdlc(w);
	case WL_LINK_CHDLC_DIRECTION:
		return wl_enter_directed(w, WL_LINK_CHDLC);
	case WL_LINK_FRELAY:
		return wl_enter_frame_relay(w);
	case WL_LINK_FRELAY_DIRECTION:
		return wl_enter_directed(w, WL_LINK_FRELAY);
	case WL_LINK_WLAN:
		w->value = 0;
		w->next = WL_NEXT_WLAN;
		return;
	case WL_LINK_RADIOTAP:
		return wl_enter_radiotap(w);
	case WL_LINK_PRISM:
	case WL_LINK_AVS:
		return wl_enter_prism(w);
	case WL_LINK_TOKEN_RING:
		return wl_enter_token_ring(w);
	case WL_LINK_FIBRE_CHANNEL:
		return wl_skip_to(w, 16, WL_NEXT_LLC);
	case WL_LINK_IPOIB:
		return wl_enter_ipoib(w);
	case WL_LINK_NFLOG:
		return wl_enter_nflog(w);
	case WL_LINK_ENC:
		return wl_skip_to(w, 12, WL_NEXT_IP);
	case WL_LINK_FIREWIRE:
		return wl_skip_to(w, 16, WL_NEXT_TYPED);
	case WL_LINK_MPLS:
		w->next = WL_NEXT_MPLS;
		return;
	case WL_LINK_ERF:
		return wl_enter_erf(w);
	case WL_LINK_NETANALYZER:
		return wl_skip_to(w, 4, WL_NEXT_ETHERNET);
	case WL_LINK_NETANALYZER_PREAMBLE:
		return wl_skip_to(w, 12, WL_NEXT_ETHERNET);
	case WL_LINK_MPACKET:
		return wl_enter_preamble(w);
	case WL_LINK_DSA_BRCM_PREPEND:
		return wl_skip_to(w, 4, WL_NEXT_ETHERNET);
	case WL_LINK_DSA_BRCM: /* tags of 4 or 8 bytes between the addresses and the EtherType */
	case WL_LINK_DSA:
		return wl_skip_to(w, 16, WL_NEXT_TYPED);
	case WL_LINK_EDSA:
		return wl_skip_to(w, 20, WL_NEXT_TYPED);
	case WL_LINK_IPNET:
		return wl_skip_to(w, 24, WL_NEXT_IP);
	case WL_LINK_DOCSIS:
		return wl_enter_docsis(w);
	case WL_LINK_ETHERNET:
		w->next = WL_NEXT_ETHERNET;
		return;
	case WL_LINK_RAW:
		w->next = WL_NEXT_IP;
		return;
	case WL_LINK_SLL:
		w->next = WL_NEXT_SLL;
		return;
	case WL_LINK_SLL2:
		w->next = WL_NEXT_SLL2;
		return;
	case WL_LINK_NULL:
		w->next = WL_NEXT_NULL;
		return;
	case WL_LINK_LOOP:
		w->next = WL_NEXT_LOOP;
		return;
	}
	wl_enter_other(w, link);
}

#endif
