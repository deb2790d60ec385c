/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The next header: maps EtherTypes and IP protocol numbers to the states of wl_parse(). */
#ifndef WL_PACKET_NEXT_H
#define WL_PACKET_NEXT_H

#include "lib/cursor.h"

/* The states: the header that is read at wl_walk.off. At most WL_NEXT_MASK. */
enum wl_next {
	WL_NEXT_END = 0,
	WL_NEXT_IPV4,
	WL_NEXT_TCP,
	WL_NEXT_UDP,
	WL_NEXT_IPV6,
	WL_NEXT_ETHERNET,
	WL_NEXT_VLAN,
	WL_NEXT_ICMP,
	WL_NEXT_PORTS, /* UDP-Lite, SCTP, DCCP */
	WL_NEXT_ARP,
	WL_NEXT_MPLS,
	WL_NEXT_PPPOE,
	WL_NEXT_LLC,
	WL_NEXT_IP,	   /* the version nibble decides */
	WL_NEXT_EXTENSION, /* an IPv6 extension header of the common format */
	WL_NEXT_FRAGMENT,
	WL_NEXT_AH,
	WL_NEXT_GRE,
	WL_NEXT_VXLAN,
	WL_NEXT_GENEVE,
	WL_NEXT_GTPU,
	WL_NEXT_GTPU_EXTENSION,
	WL_NEXT_SLL,
	WL_NEXT_SLL2,
	WL_NEXT_NULL,
	WL_NEXT_LOOP,
	WL_NEXT_TYPED, /* an EtherType, the last field of a tag */
	WL_NEXT_MACSEC,
	WL_NEXT_NSH,
	WL_NEXT_TRILL,
	WL_NEXT_BATMAN,
	WL_NEXT_PPP,
	WL_NEXT_PPP_BRIDGED,
	WL_NEXT_PPP_MULTILINK,
	WL_NEXT_WLAN,
	WL_NEXT_ERSPAN_2,
	WL_NEXT_ERSPAN_3,
	WL_NEXT_WCCP,
	WL_NEXT_VXLAN_GPE,
	WL_NEXT_L2TP,
	WL_NEXT_L2TP_IP,
	WL_NEXT_L2TP_DATA, /* and three more, for the possible offsets of the payload */
	WL_NEXT_L2TP_DATA_4,
	WL_NEXT_L2TP_DATA_8,
	WL_NEXT_L2TP_DATA_12,
	WL_NEXT_TEREDO,
	WL_NEXT_ETHERIP,
	WL_NEXT_LISP,
	WL_NEXT_CAPWAP,
	WL_NEXT_TZSP,
	WL_NEXT_TZSP_ETHERNET, /* a tag of TZSP, before an Ethernet frame */
	WL_NEXT_TZSP_WLAN,     /* the same before a frame of IEEE 802.11 */
	WL_NEXT_GUE,
	WL_NEXT_AYIYA,
	WL_NEXT_GRE_UDP,
	WL_NEXT_MPLS_UDP,
	/* Not headers: wl_follow_type() and wl_follow_protocol() look up the next state for wl_walk.value. */
	WL_NEXT_TYPE,
	WL_NEXT_PROTOCOL,
};

#define WL_NEXT_MASK 63
_Static_assert(WL_NEXT_PROTOCOL <= WL_NEXT_MASK, "states fit into the mask");

/* EtherTypes (IEEE registry) that the parser knows. */
#define WL_ETH_IPV4	  0x0800
#define WL_ETH_ARP	  0x0806
#define WL_ETH_TRILL	  0x22f3
#define WL_ETH_BATMAN	  0x4305
#define WL_ETH_TEB	  0x6558 /* Transparent Ethernet Bridging: an Ethernet frame follows */
#define WL_ETH_VLAN	  0x8100
#define WL_ETH_IPV6	  0x86dd
#define WL_ETH_PPP	  0x880b
#define WL_ETH_MPLS	  0x8847
#define WL_ETH_MPLS_MC	  0x8848
#define WL_ETH_PPPOE	  0x8864
#define WL_ETH_JUMBO_LLC  0x8870
#define WL_ETH_QINQ	  0x88a8
#define WL_ETH_MACSEC	  0x88e5
#define WL_ETH_PBB	  0x88e7 /* IEEE 802.1ah: a service tag of 4 bytes, and the customer's frame */
#define WL_ETH_FABRICPATH 0x8903 /* Cisco's DCE: 2 bytes, and the frame */
#define WL_ETH_CMD	  0x8909 /* Cisco's metadata: 6 bytes, and an EtherType */
#define WL_ETH_VNTAG	  0x8926 /* 4 bytes, and an EtherType */
#define WL_ETH_HSR	  0x892f /* IEC 62439-3: 4 bytes, and an EtherType */
#define WL_ETH_ETAG	  0x893f /* IEEE 802.1BR: 6 bytes, and an EtherType */
#define WL_ETH_NSH	  0x894f
#define WL_ETH_QINQ_OLD	  0x9100
#define WL_ETH_QINQ_OLD_2 0x9200
#define WL_ETH_QINQ_OLD_3 0x9300
#define WL_ETH_EDSA	  0xdada /* Marvell's tag of a switch port: 6 bytes, and an EtherType */
#define WL_ETH_RTAG	  0xf1c1 /* IEEE 802.1CB: 4 bytes, and an EtherType */
#define WL_ETH_LENGTH_MAX 1500	 /* up to here the field is a length, and IEEE 802.2 LLC follows */

/* IP protocol numbers (IANA registry). */
#define WL_PROTO_HOPOPTS  0
#define WL_PROTO_ICMP	  1
#define WL_PROTO_IPV4	  4
#define WL_PROTO_TCP	  6
#define WL_PROTO_UDP	  17
#define WL_PROTO_DCCP	  33
#define WL_PROTO_IPV6	  41
#define WL_PROTO_ROUTING  43
#define WL_PROTO_FRAGMENT 44
#define WL_PROTO_GRE	  47
#define WL_PROTO_ESP	  50
#define WL_PROTO_AH	  51
#define WL_PROTO_ICMPV6	  58
#define WL_PROTO_NONE	  59
#define WL_PROTO_DSTOPTS  60
#define WL_PROTO_ETHERIP  97
#define WL_PROTO_IPCOMP	  108
#define WL_PROTO_L2TP	  115
#define WL_PROTO_SCTP	  132
#define WL_PROTO_MOBILITY 135
#define WL_PROTO_UDPLITE  136
#define WL_PROTO_MPLS	  137
#define WL_PROTO_SHIM6	  140
#define WL_PROTO_WESP	  141
#define WL_PROTO_ETHERNET 143
#define WL_PROTO_NSH	  145

static __always_inline __u32 wl_next_of_type(__u32 type)
{
	if (wl_likely(type == WL_ETH_IPV4))
		return WL_NEXT_IPV4;
	if (type == WL_ETH_IPV6)
		return WL_NEXT_IPV6;
	if (type == WL_ETH_VLAN || type == WL_ETH_QINQ || type == WL_ETH_QINQ_OLD ||
	    type == WL_ETH_QINQ_OLD_2 || type == WL_ETH_QINQ_OLD_3)
		return WL_NEXT_VLAN;
	if (type == WL_ETH_ARP)
		return WL_NEXT_ARP;
	if (type == WL_ETH_MPLS || type == WL_ETH_MPLS_MC)
		return WL_NEXT_MPLS;
	if (type == WL_ETH_PPPOE)
		return WL_NEXT_PPPOE;
	if (type == WL_ETH_TEB)
		return WL_NEXT_ETHERNET;
	return WL_NEXT_END;
}

/* The same for rarer EtherTypes. Sets *skip to the number of bytes of a tag that are skipped. */
static __always_inline __u32 wl_next_of_tag(__u32 type, __u32 *skip)
{
	switch (type) {
	case WL_ETH_ETAG:
	case WL_ETH_CMD:
	case WL_ETH_EDSA:
		*skip = 6;
		return WL_NEXT_TYPED;
	case WL_ETH_VNTAG:
	case WL_ETH_HSR:
	case WL_ETH_RTAG:
		*skip = 4;
		return WL_NEXT_TYPED;
	case WL_ETH_PBB:
		*skip = 4;
		return WL_NEXT_ETHERNET;
	case WL_ETH_FABRICPATH:
		*skip = 2;
		return WL_NEXT_ETHERNET;
	case WL_ETH_MACSEC:
		return WL_NEXT_MACSEC;
	case WL_ETH_NSH:
		return WL_NEXT_NSH;
	case WL_ETH_TRILL:
		return WL_NEXT_TRILL;
	case WL_ETH_BATMAN:
		return WL_NEXT_BATMAN;
	case WL_ETH_PPP:
		return WL_NEXT_PPP;
	case WL_ETH_JUMBO_LLC:
		return WL_NEXT_LLC;
	}
	return WL_NEXT_END;
}

/* Whether the parser knows this EtherType, which makes it likely that the field is one. */
static __always_inline int wl_is_known_type(__u32 type)
{
	__u32 skip;

	return type > WL_ETH_LENGTH_MAX &&
	       (wl_next_of_type(type) != WL_NEXT_END || wl_next_of_tag(type, &skip) != WL_NEXT_END);
}

/* Follows the EtherType that a reader left in w->value; records it if it is the packet's own. */
static __always_inline void wl_follow_type(struct wl_walk *w)
{
	__u32 type = w->value, skip = 0;

	if (wl_unlikely(type <= WL_ETH_LENGTH_MAX)) {
		w->next = WL_NEXT_LLC;
		return;
	}
	if (!wl_inside(w))
		w->out->eth_type = type;
	w->next = wl_next_of_type(type);
	if (wl_unlikely(w->next == WL_NEXT_END)) {
		w->next = wl_next_of_tag(type, &skip);
		w->off += skip;
	}
}

/* Continues with the header of this EtherType. */
static __always_inline void wl_next_by_type(struct wl_walk *w, __u32 type)
{
	w->value = type;
	w->next = WL_NEXT_TYPE;
}

/* Continues with a header that was identified by other means, but has an EtherType all the same. */
static __always_inline void wl_next_known(struct wl_walk *w, __u32 type, __u32 next)
{
	if (!wl_inside(w))
		w->out->eth_type = type;
	w->next = next;
}

/* Continues with the header of this IP protocol. */
static __always_inline void wl_next_by_protocol(struct wl_walk *w, __u32 proto)
{
	w->value = proto;
	w->next = WL_NEXT_PROTOCOL;
}

/* Records a tunnel header that was read. */
static __always_inline void wl_enter_tunnel(struct wl_walk *w, __u32 tunnel, __u32 id)
{
	w->out->tunnel = tunnel;
	w->out->tunnel_id = id;
	wl_scratch_mode(w->out) = WL_MODE_INNER | WL_MODE_FOLLOW;
}

/*
 * Tunnels are entered if the caller requests it. Not in fragments: only the first one contains the inner
 * headers, and all fragments of a datagram must have the same flow hash.
 */
static __always_inline int wl_may_enter(const struct wl_walk *w, const struct wl_ip *ip)
{
	return (wl_scratch_mode(w->out) & WL_MODE_FOLLOW) && !(ip->flags & WL_IP_FRAGMENT);
}

/* The tunnels that have their own IP protocol number, except GRE, which is always read. */
static __always_inline __u32 wl_next_of_tunnel(__u32 proto, __u32 *tunnel)
{
	switch (proto) {
	case WL_PROTO_IPV4:
		*tunnel = WL_TUNNEL_IPIP;
		return WL_NEXT_IPV4;
	case WL_PROTO_IPV6:
		*tunnel = WL_TUNNEL_IPIP;
		return WL_NEXT_IPV6;
	case WL_PROTO_ETHERIP:
		*tunnel = WL_TUNNEL_ETHERIP;
		return WL_NEXT_ETHERIP;
	case WL_PROTO_ETHERNET:
		*tunnel = WL_TUNNEL_ETHERIP;
		return WL_NEXT_ETHERNET;
	case WL_PROTO_L2TP:
		*tunnel = WL_TUNNEL_L2TP;
		return WL_NEXT_L2TP_IP;
	case WL_PROTO_MPLS:
		*tunnel = WL_TUNNEL_MPLS;
		return WL_NEXT_MPLS;
	case WL_PROTO_NSH:
		*tunnel = WL_TUNNEL_NSH;
		return WL_NEXT_NSH;
	}
	return WL_NEXT_END;
}

/*
 * Follows the IP protocol that a reader left in w->value, and whose header begins at w->off. IPv6 extension
 * headers are skipped under IPv6 only; under IPv4 their numbers are protocols like any other.
 */
static __always_inline void wl_follow_protocol(struct wl_walk *w)
{
	struct wl_ip *ip = wl_current(w);
	__u32 proto = w->value, next, tunnel = 0;

	w->next = WL_NEXT_END;
	ip->proto = proto;
	if (ip->l3 == WL_L3_IPV6) {
		switch (proto) {
		case WL_PROTO_HOPOPTS:
		case WL_PROTO_ROUTING:
		case WL_PROTO_DSTOPTS:
		case WL_PROTO_MOBILITY:
		case WL_PROTO_SHIM6:
			w->next = WL_NEXT_EXTENSION;
			return;
		case WL_PROTO_FRAGMENT:
			w->next = WL_NEXT_FRAGMENT;
			return;
		case WL_PROTO_NONE:
			return;
		}
	}
	if (wl_unlikely(proto == WL_PROTO_AH)) {
		w->next = WL_NEXT_AH;
		return;
	}
	ip->l4_off = w->off;
	if (wl_likely(proto == WL_PROTO_TCP)) {
		w->next = WL_NEXT_TCP;
	} else if (wl_likely(proto == WL_PROTO_UDP)) {
		w->next = WL_NEXT_UDP;
	} else if (proto == WL_PROTO_ICMP || proto == WL_PROTO_ICMPV6) {
		w->next = WL_NEXT_ICMP;
	} else if (proto == WL_PROTO_SCTP || proto == WL_PROTO_DCCP || proto == WL_PROTO_UDPLITE) {
		w->next = WL_NEXT_PORTS;
	} else if (proto == WL_PROTO_GRE) {
		w->next = WL_NEXT_GRE;
	} else if (proto == WL_PROTO_ESP || proto == WL_PROTO_IPCOMP || proto == WL_PROTO_WESP) {
		ip->flags |= WL_IP_OPAQUE;
	} else {
		next = wl_next_of_tunnel(proto, &tunnel);
		if (next == WL_NEXT_END)
			return;
		ip->payload_off = w->off;
		if (!wl_may_enter(w, ip))
			return;
		wl_enter_tunnel(w, tunnel, 0);
		w->next = next;
	}
}

#endif
