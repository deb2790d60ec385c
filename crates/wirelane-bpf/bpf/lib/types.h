/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Result of parsing a packet with wl_parse(), and the header of the records that carry packets to user space.
 * This file is the source of these layouts: the Rust declarations are generated (build.rs), and re-exported
 * by src/layout.rs.
 *
 * Rules for shared structs: fixed-width types, explicit padding, no bit-fields, no bool, no enum members,
 * addresses and ports in network byte order (as in the packet), everything else in host order.
 */
#ifndef WL_PACKET_TYPES_H
#define WL_PACKET_TYPES_H

#ifdef __bpf__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint8_t __u8;
typedef uint16_t __u16;
typedef uint32_t __u32;
typedef uint64_t __u64;
typedef int64_t __s64;
#endif

/* First header of a packet: the link types of captures that Wirelane reads. The numbers are our own. */
enum wl_link {
	WL_LINK_ETHERNET = 0, /* LINKTYPE_ETHERNET */
	WL_LINK_RAW = 1,      /* LINKTYPE_RAW, _IPV4, _IPV6: the version nibble decides */
	WL_LINK_SLL = 2,      /* LINKTYPE_LINUX_SLL, Linux cooked v1 */
	WL_LINK_SLL2 = 3,     /* LINKTYPE_LINUX_SLL2, Linux cooked v2 */
	WL_LINK_NULL = 4,     /* LINKTYPE_NULL: address family in the byte order of the capturing host */
	WL_LINK_LOOP = 5,     /* LINKTYPE_LOOP: the same in network byte order */
	/* Link types of files only, which no device with a kernel program has: parsed natively only
	 * (file_link.h). The numbers are our own; crates/wirelane-bpf/src/linktype.rs has those of files.
	 */
	WL_LINK_PPP = 6,		   /* LINKTYPE_PPP, _PPP_HDLC: PPP or Cisco HDLC, by the first byte */
	WL_LINK_PPP_DIRECTION = 7,	   /* LINKTYPE_PPP_WITH_DIR, _PPP_PPPD: a byte before the PPP frame */
	WL_LINK_PPPOE = 8,		   /* LINKTYPE_PPP_ETHER: from the PPPoE header on */
	WL_LINK_CHDLC = 9,		   /* LINKTYPE_C_HDLC */
	WL_LINK_CHDLC_DIRECTION = 10,	   /* LINKTYPE_C_HDLC_WITH_DIR */
	WL_LINK_FRELAY = 11,		   /* LINKTYPE_FRELAY */
	WL_LINK_FRELAY_DIRECTION = 12,	   /* LINKTYPE_FRELAY_WITH_DIR */
	WL_LINK_WLAN = 13,		   /* LINKTYPE_IEEE802_11 */
	WL_LINK_RADIOTAP = 14,		   /* LINKTYPE_IEEE802_11_RADIOTAP */
	WL_LINK_PRISM = 15,		   /* LINKTYPE_IEEE802_11_PRISM */
	WL_LINK_AVS = 16,		   /* LINKTYPE_IEEE802_11_AVS */
	WL_LINK_PPI = 17,		   /* LINKTYPE_PPI */
	WL_LINK_TOKEN_RING = 18,	   /* LINKTYPE_IEEE802_5 */
	WL_LINK_FDDI = 19,		   /* LINKTYPE_FDDI */
	WL_LINK_LLC = 20,		   /* LINKTYPE_ATM_RFC1483, _ATM_CLIP: IEEE 802.2 LLC */
	WL_LINK_SUNATM = 21,		   /* LINKTYPE_SUNATM */
	WL_LINK_FIBRE_CHANNEL = 22,	   /* LINKTYPE_IP_OVER_FC (RFC 2625) */
	WL_LINK_IPOIB = 23,		   /* LINKTYPE_IPOIB */
	WL_LINK_NFLOG = 24,		   /* LINKTYPE_NFLOG */
	WL_LINK_ENC = 25,		   /* LINKTYPE_ENC */
	WL_LINK_PFLOG = 26,		   /* LINKTYPE_PFLOG */
	WL_LINK_FIREWIRE = 27,		   /* LINKTYPE_APPLE_IP_OVER_IEEE1394 */
	WL_LINK_MPLS = 28,		   /* LINKTYPE_MPLS */
	WL_LINK_ERF = 29,		   /* LINKTYPE_ERF */
	WL_LINK_NETANALYZER = 30,	   /* LINKTYPE_NETANALYZER */
	WL_LINK_NETANALYZER_PREAMBLE = 31, /* LINKTYPE_NETANALYZER_TRANSPARENT */
	WL_LINK_MPACKET = 32,		   /* LINKTYPE_ETHERNET_MPACKET */
	WL_LINK_DSA_BRCM = 33,		   /* LINKTYPE_DSA_TAG_BRCM */
	WL_LINK_DSA_BRCM_PREPEND = 34,	   /* LINKTYPE_DSA_TAG_BRCM_PREPEND */
	WL_LINK_DSA = 35,		   /* LINKTYPE_DSA_TAG_DSA */
	WL_LINK_EDSA = 36,		   /* LINKTYPE_DSA_TAG_EDSA */
	WL_LINK_PKTAP = 37,		   /* LINKTYPE_PKTAP */
	WL_LINK_IPNET = 38,		   /* LINKTYPE_IPNET */
	WL_LINK_DOCSIS = 39,		   /* LINKTYPE_DOCSIS */
	WL_LINK_OTHER = 255,		   /* carried and counted, not parsed */
};

/* The network layer: wl_ip.l3. */
enum wl_l3 {
	WL_L3_NONE = 0,
	WL_L3_IPV4 = 4,
	WL_L3_IPV6 = 6,
	WL_L3_ARP = 1,
};

/* The tunnel between wl_parsed.outer and wl_parsed.inner: wl_parsed.tunnel. */
enum wl_tunnel {
	WL_TUNNEL_NONE = 0,
	WL_TUNNEL_IPIP = 1,	 /* IPv4 or IPv6 in IPv4 or IPv6: protocols 4 and 41 */
	WL_TUNNEL_GRE = 2,	 /* RFC 2784, 2890; Transparent Ethernet Bridging too */
	WL_TUNNEL_VXLAN = 3,	 /* RFC 7348, UDP port 4789 */
	WL_TUNNEL_GENEVE = 4,	 /* RFC 8926, UDP port 6081 */
	WL_TUNNEL_GTPU = 5,	 /* 3GPP TS 29.281, UDP port 2152, G-PDU messages */
	WL_TUNNEL_ERSPAN = 6,	 /* I, II and III, behind GRE */
	WL_TUNNEL_PPTP = 7,	 /* RFC 2637: PPP behind GRE of version 1 */
	WL_TUNNEL_L2TP = 8,	 /* RFC 2661, RFC 3931: UDP port 1701, protocol 115 */
	WL_TUNNEL_VXLAN_GPE = 9, /* draft-ietf-nvo3-vxlan-gpe, UDP port 4790 */
	WL_TUNNEL_TEREDO = 10,	 /* RFC 4380, UDP port 3544 */
	WL_TUNNEL_MPLS = 11,	 /* RFC 4023, RFC 7510: protocol 137, UDP port 6635 */
	WL_TUNNEL_ETHERIP = 12,	 /* RFC 3378, RFC 8986: protocols 97 and 143 */
	WL_TUNNEL_LISP = 13,	 /* RFC 9300, UDP port 4341 */
	WL_TUNNEL_CAPWAP = 14,	 /* RFC 5415, UDP port 5247 */
	WL_TUNNEL_TZSP = 15,	 /* UDP port 37008 */
	WL_TUNNEL_GUE = 16,	 /* draft-ietf-intarea-gue, UDP port 6080 */
	WL_TUNNEL_AYIYA = 17,	 /* draft-massar-v6ops-ayiya, UDP port 5072 */
	WL_TUNNEL_NSH = 18,	 /* RFC 8300 behind IP: protocol 145 */
};

/* wl_ip.flags */
#define WL_IP_FRAGMENT 0x01 /* one fragment of a datagram, the first one included */
#define WL_IP_LATER    0x02 /* not the first fragment: no transport header */
#define WL_IP_PORTS    0x04 /* src_port and dst_port are valid */
#define WL_IP_TCP      0x08 /* tcp_flags, tcp_seq, tcp_ack, tcp_window are valid */
#define WL_IP_ICMP     0x10 /* icmp_type and icmp_code are valid */
#define WL_IP_OPTIONS  0x20 /* IPv4 options or IPv6 extension headers were skipped */
#define WL_IP_OPAQUE   0x40 /* the chain ends in something encrypted or unknown before a transport header */

/* wl_parsed.flags, and the low byte of wl_record.flags */
#define WL_PKT_CUT 0x01 /* the captured bytes end before the headers do (snap length, short frame) */
#define WL_PKT_MALFORMED                                                                                     \
	0x02		     /* a header contradicts itself: a length too small, a version that is not one   \
			      */
#define WL_PKT_DEEP	0x04 /* more headers than the parser follows (WL_MAX_HEADERS, WL_MAX_OFFSET) */
#define WL_PKT_TUNNEL	0x08 /* wl_parsed.inner is valid */
#define WL_PKT_VLAN	0x10 /* vlan_tci[0] is valid */
#define WL_PKT_MPLS	0x20 /* mpls_label is valid */
#define WL_PKT_FRAGMENT 0x40 /* the chosen headers are of a fragment (records only) */
#define WL_PKT_INNER	0x80 /* the chosen headers are the inner ones (records only) */

/* The high byte of wl_record.flags */
#define WL_REC_SNAPPED 0x0100 /* cap_len < wire_len because of the snap length, or of a rule */
#define WL_REC_EGRESS  0x0200 /* the packet was leaving the device */
#define WL_REC_GSO                                                                                           \
	0x0400 /* an aggregate (GRO, GSO) of packets on the wire: struct wl_tail has its segments */
#define WL_REC_HW_CLOCK	     0x0800 /* ts_ns is the card's clock, not CLOCK_MONOTONIC */
#define WL_REC_BATCH_CLOCK   0x1000 /* ts_ns is one clock read for all packets of a batch */
#define WL_REC_TAGGED	     0x2000 /* a rule's tag: struct wl_tail follows the bytes of the packet */
#define WL_REC_FOUND	     0x4000 /* patterns, a note, or several rules: struct wl_found follows that */
#define WL_REC_HALF_SEARCHED 0x8000 /* the payload was not searched completely, or a plug-in was not run */

/* One network layer with its transport header. 72 bytes. */
struct wl_ip {
	__u8 src[16]; /* IPv4: the first 4 bytes, the rest zero. ARP: the sender's protocol address */
	__u8 dst[16];
	__u16 src_port; /* network byte order; valid with WL_IP_PORTS */
	__u16 dst_port;
	__u8 l3;    /* enum wl_l3 */
	__u8 proto; /* IP protocol of the transport header (after extension headers) */
	__u8 flags; /* WL_IP_* */
	__u8 tos;   /* IPv4 ToS or IPv6 traffic class */
	__u8 ttl;   /* IPv4 TTL or IPv6 hop limit */
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u16 l3_off;	   /* from the start of the packet; 0xffff if there is none */
	__u16 l4_off;	   /* the same */
	__u16 payload_off; /* first byte after the transport header, the same */
	__u16 tcp_window;
	__u32 l3_len;  /* length of the datagram as its header states it; 0 for a jumbogram */
	__u32 frag_id; /* IPv4 identification or IPv6 fragment id; valid with WL_IP_FRAGMENT */
	__u32 tcp_seq;
	__u32 tcp_ack;
	__u16 frag_off; /* offset of this fragment in bytes */
	__u16 ident; /* IPv4 identification plus UDP checksum, of what is there: what packets of a flow differ
			in */
};

/* Results of wl_parse(). 168 bytes. */
struct wl_parsed {
	struct wl_ip outer;
	struct wl_ip inner; /* of the innermost tunnel that was entered; valid with WL_PKT_TUNNEL */
	__u16 eth_type;	    /* host order, after VLAN tags, MPLS and PPPoE; 0 where the link has none */
	__u16 vlan_tci[2];  /* outermost first, host order */
	__u8 vlan_count;
	__u8 mpls_count;
	__u32 mpls_label; /* the top of the stack: the 20-bit label */
	__u32 tunnel_id;  /* VNI, TEID, GRE key, session, ...: tunnel.h; host order; 0 without a tunnel id */
	__u16 flags;	  /* WL_PKT_* */
	__u8 tunnel;	  /* enum wl_tunnel of the innermost tunnel that was entered */
	__u8 link;	  /* enum wl_link */
	__u16 pad[2];	  /* 0; scratch space of wl_parse() */
};

/* Kind of a record: wl_record.kind. */
enum wl_record_kind {
	WL_RECORD_PACKET = 1,
	/* A barrier: the following records must wait until the worker `hash` has read its ring of the same
	 * lane up to the position ts_ns. Written when a bucket moves, so that its flows stay in order.
	 */
	WL_RECORD_BARRIER = 2,
	/* A packet, of which the chosen headers follow as they were parsed (struct wl_ip) instead of its
	   bytes. */
	WL_RECORD_DIGEST = 3,
	/* Not a packet but a part of a flow, which has had to make place in the lane's flow cache: struct
	   wl_flow_part follows. `hash` is the epoch of the cache (flows.h), ts_ns when it was
	   written.
	 */
	WL_RECORD_FLOW = 4,
	/* Not a packet but what has been skipped of one direction of a connection of HTTP, before what came
	   up of it next: struct wl_skipped_bytes follows. */
	WL_RECORD_HTTP = 5,
	/* Not a packet but a record of a plug-in, whose bytes follow. `rule_id` is the plug-in's number in
	   its capture. */
	WL_RECORD_PLUGIN = 6,
	/* A packet that was also added to its RTP stream in the lane. */
	WL_RECORD_MEASURED = 7,
};

/*
 * The header of a record in a ring: 40 bytes, followed by cap_len bytes, padded so that the next struct
 * (struct wl_tail, struct wl_found, struct wl_note, struct wl_hits, or the next record) starts at a multiple
 * of 8.
 */
struct wl_record {
	__u64 ts_ns;	/* nanoseconds; CLOCK_MONOTONIC unless WL_REC_HW_CLOCK; UTC in file and packet */
	__u32 cap_len;	/* bytes that follow this header */
	__u32 wire_len; /* length of the packet in bytes */
	__u32 hash;	/* symmetric flow hash of the chosen headers */
	__u32 rule_id;	/* the rule whose verdict holds, else the first that was hit; 0: no rule was hit */
	__u16 queue;	/* RX queue */
	__u16 flags;	/* WL_PKT_* | WL_REC_* */
	__u16 l3_off;	/* of the chosen (outer or inner) headers, 0xffff where there is none */
	__u16 l4_off;
	__u16 payload_off;
	__u16 vlan_tci; /* valid with WL_PKT_VLAN */
	__u8 l3;	/* enum wl_l3 */
	__u8 proto;	/* IP protocol */
	__u8 kind;	/* enum wl_record_kind */
	__u8 link;	/* enum wl_link */
};

/* With WL_REC_TAGGED or WL_REC_GSO: behind the bytes of the packet and their padding, and part of the
 * record. */
struct wl_tail {
	__u32 tag;
	__u16 segment_size; /* with WL_REC_GSO: payload of each packet on the wire, except the last */
	__u16 headers;	    /* bytes before the payload, in each packet on the wire */
};

/* With WL_REC_FOUND: behind the tail, if any, and part of the record. */
struct wl_found {
	__u32 id[4]; /* of patterns, as they were found; 0 behind the last. The last has WL_FOUND_MORE if more
			were */
};

/* Flag in the first id: struct wl_note follows. */
#define WL_FOUND_NOTE 0x80000000u
/* Flag in the second id: struct wl_hits follows that. */
#define WL_FOUND_HITS 0x80000000u
/* Flag in the third id, with WL_FOUND_HITS: the packet hit more rules than struct wl_hits has, or later rules
 * were not evaluated. */
#define WL_FOUND_MORE_HITS 0x80000000u

/* With WL_FOUND_NOTE: behind the patterns, whose ids may be 0 then, and part of the record. */
struct wl_note {
	__u32 len; /* of bytes[], from 1 on */
	__u32 pad;
	__u8 bytes[32];
};

/* With WL_FOUND_HITS, which says that the packet hit several rules: behind the note, if any, and part of the
 * record. */
struct wl_hits {
	__u32 id[16]; /* of rules, in the order of their evaluation; 0 behind the last */
};

#define WL_FOUND_MORE	 0x80000000u
#define WL_RECORD_HEADER 40
#define WL_NO_OFFSET	 0xffff

#endif
