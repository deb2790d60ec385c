/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Headers below the network layer: Ethernet, VLAN tags, LLC/SNAP, MPLS, and the link types of devices. */
#ifndef WL_PACKET_LINK_H
#define WL_PACKET_LINK_H

#include "lib/next.h"

/* The header that ISO's network layer protocol identifier names (ISO/IEC TR 9577): in frame relay and
 * behind LLC. */
static __always_inline void wl_next_by_nlpid(struct wl_walk *w, __u32 nlpid)
{
	if (nlpid == 0xcc)
		wl_next_known(w, WL_ETH_IPV4, WL_NEXT_IPV4);
	else if (nlpid == 0x8e)
		wl_next_known(w, WL_ETH_IPV6, WL_NEXT_IPV6);
	else if (nlpid == 0xcf)
		w->next = WL_NEXT_PPP;
}

static __always_inline void wl_read_ethernet(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 14);

	if (!p)
		return;
	w->off += 14;
	wl_next_by_type(w, wl_be16(p + 12));
}

/* One tag of IEEE 802.1Q or 802.1ad: TCI, EtherType. */
static __always_inline void wl_read_vlan(struct wl_walk *w)
{
	struct wl_parsed *out = w->out;
	const __u8 *p = wl_header(w, 4);

	if (!p)
		return;
	if (!wl_inside(w)) {
		__u32 count = out->vlan_count;

		if (count == 0)
			out->vlan_tci[0] = wl_be16(p);
		else if (count == 1)
			out->vlan_tci[1] = wl_be16(p);
		out->vlan_count = count + 1;
		out->flags |= WL_PKT_VLAN;
	}
	w->off += 4;
	wl_next_by_type(w, wl_be16(p + 2));
}

/*
 * IEEE 802.2 LLC; IP lies behind SNAP (RFC 1042), or, rarely, behind the SAP 0x06 or ISO's NLPID (RFC 2684,
 * 5.2). Frames of Ethernet lie behind SNAP's OUI 00-80-c2, two bytes further on (RFC 2684, 6.2).
 */
static __always_inline void wl_read_llc(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 3);
	__u32 type, organisation;

	if (!p)
		return;
	if (p[0] == 0x06 && p[1] == 0x06 && p[2] == 0x03) {
		w->off += 3;
		w->next = WL_NEXT_IP;
		return;
	}
	if (p[0] == 0xfe && p[1] == 0xfe && p[2] == 0x03) {
		p = wl_header(w, 4);
		if (!p)
			return;
		w->off += 4;
		wl_next_by_nlpid(w, p[3]);
		return;
	}
	if (p[0] != 0xaa || p[1] != 0xaa || p[2] != 0x03)
		return;
	p = wl_header(w, 8);
	if (!p)
		return;
	organisation = wl_be32(p + 2) & 0xffffff;
	type = wl_be16(p + 6);
	w->off += 8;
	if (organisation == 0x0080c2 && (type == 0x0001 || type == 0x0007)) {
		w->off += 2;
		w->next = WL_NEXT_ETHERNET;
	}
	/* The OUI 00-00-00 means that an EtherType follows, and so does 00-00-f8 (RFC 1042, IEEE 802.1H). */
	if (organisation != 0 && organisation != 0x0000f8)
		return;
	if (type > WL_ETH_LENGTH_MAX)
		wl_next_by_type(w, type);
}

/*
 * One MPLS label (RFC 3032). The last one does not name the contents, so the first nibble decides, as in
 * routers (RFC 4928): 4 and 6 are IP. Otherwise it is an Ethernet pseudowire (RFC 4448) if there is a known
 * EtherType where such a frame has one, with or without a control word before it.
 */
static __always_inline void wl_read_mpls(struct wl_walk *w)
{
	struct wl_parsed *out = w->out;
	const __u8 *p = wl_header(w, 4);
	__u32 label, nibble;

	if (!p)
		return;
	label = wl_be32(p);
	if (!wl_inside(w)) {
		if (!out->mpls_count)
			out->mpls_label = label >> 12;
		out->mpls_count++;
		out->flags |= WL_PKT_MPLS;
	}
	w->off += 4;
	if (!(label & 0x100)) {
		w->next = WL_NEXT_MPLS;
		return;
	}
	p = wl_header(w, 1);
	if (!p)
		return;
	nibble = p[0] >> 4;
	if (nibble == 4) {
		wl_next_known(w, WL_ETH_IPV4, WL_NEXT_IPV4);
		return;
	}
	if (nibble == 6) {
		wl_next_known(w, WL_ETH_IPV6, WL_NEXT_IPV6);
		return;
	}
	p = wl_header(w, 18);
	if (!p)
		return;
	if (nibble == 0 && wl_is_known_type(wl_be16(p + 16))) {
		w->off += 4;
		w->next = WL_NEXT_ETHERNET;
	} else if (wl_is_known_type(wl_be16(p + 12))) {
		w->next = WL_NEXT_ETHERNET;
	}
}

/* Linux cooked capture: the protocol field is an EtherType for all but a few ARPHRD_ types of device. */
static __always_inline void wl_follow_cooked(struct wl_walk *w, __u32 device_type, __u32 type)
{
	/* ARPHRD_NETLINK, ARPHRD_IEEE80211_RADIOTAP: the field is a netlink family, or meaningless. */
	if (device_type == 824 || device_type == 803)
		return;
	if (device_type == 801) { /* ARPHRD_IEEE80211 */
		w->value = 0;
		w->next = WL_NEXT_WLAN;
		return;
	}
	if (type == 0x0004) /* LINUX_SLL_P_802_2 */
		w->next = WL_NEXT_LLC;
	else if (type > WL_ETH_LENGTH_MAX)
		wl_next_by_type(w, type);
}

/* LINKTYPE_LINUX_SLL: packet type, ARPHRD_ type, address length, address, protocol. */
static __always_inline void wl_read_sll(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 16);

	if (!p)
		return;
	w->off += 16;
	wl_follow_cooked(w, wl_be16(p + 2), wl_be16(p + 14));
}

/* LINKTYPE_LINUX_SLL2: protocol, reserved, interface index, ARPHRD_ type, packet type, address. */
static __always_inline void wl_read_sll2(struct wl_walk *w)
{
	const __u8 *p = wl_header(w, 20);

	if (!p)
		return;
	w->off += 20;
	wl_follow_cooked(w, wl_be16(p + 8), wl_be16(p));
}

/* An address family before IP. AF_INET is 2 everywhere, AF_INET6 differs. */
static __always_inline void wl_read_family(struct wl_walk *w, int network_order)
{
	const __u8 *p = wl_header(w, 4);
	__u32 family;

	if (!p)
		return;
	family = wl_be32(p);
	/* LINKTYPE_NULL has the byte order of the capturing host, which no field states: families are
	 * small. */
	if (!network_order && family > 0xffff)
		family = __builtin_bswap32(family);
	w->off += 4;
	switch (family) {
	case 2:
		w->next = WL_NEXT_IPV4;
		break;
	case 10: /* Linux */
	case 23: /* Windows */
	case 24: /* NetBSD, OpenBSD */
	case 28: /* FreeBSD */
	case 30: /* macOS */
		w->next = WL_NEXT_IPV6;
		break;
	}
}

#endif
