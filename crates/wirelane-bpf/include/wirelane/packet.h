/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A packet as Wirelane passes it to functions of users: to steering programs (steer.h) and plug-ins
 * (plugin.h), which include this file. It includes no other file.
 *
 * The struct may grow at its end; existing fields keep their offsets.
 */
#ifndef WIRELANE_PACKET_H
#define WIRELANE_PACKET_H

typedef __UINT8_TYPE__ packet_u8;
typedef __UINT16_TYPE__ packet_u16;
typedef __UINT32_TYPE__ packet_u32;
typedef __UINT64_TYPE__ packet_u64;

/* Number of bytes of a packet that are passed. A power of two. */
#define PACKET_BYTES 256
/* Maximum number of rules that are passed. */
#define PACKET_RULES 16

/* wirelane_headers.l3 */
#define PACKET_L3_NONE 0
#define PACKET_L3_ARP  1
#define PACKET_L3_IPV4 4
#define PACKET_L3_IPV6 6

/* wirelane_headers.flags */
#define PACKET_IP_FRAGMENT 0x01 /* one fragment of a datagram, the first one included */
#define PACKET_IP_LATER	   0x02 /* not the first fragment: no transport header */
#define PACKET_IP_PORTS	   0x04 /* src_port and dst_port are valid */
#define PACKET_IP_TCP	   0x08 /* tcp_flags, tcp_seq, tcp_ack, tcp_window are valid */
#define PACKET_IP_ICMP	   0x10 /* icmp_type and icmp_code are valid */
#define PACKET_IP_OPTIONS  0x20 /* IPv4 options or IPv6 extension headers were skipped */
#define PACKET_IP_OPAQUE   0x40 /* what follows is encrypted or unknown: no transport header */

/* The offset of a missing header. */
#define PACKET_NO_OFFSET 0xffff

/*
 * One network layer with its transport header. Fields that a flag declares invalid are 0. Addresses and ports
 * are in network byte order, as in the packet (packet_be16(), packet_be32()), everything else is in host
 * order. Offsets count from the packet's first byte, which is bytes[0].
 */
struct wirelane_headers {
	packet_u8 src[16]; /* IPv4: the first 4 bytes, the rest zero. ARP: the sender's protocol address */
	packet_u8 dst[16];
	packet_u16 src_port; /* valid with PACKET_IP_PORTS */
	packet_u16 dst_port;
	packet_u8 l3;	 /* PACKET_L3_* */
	packet_u8 proto; /* IP protocol of the transport header, behind extension headers: 6 TCP, 17 UDP */
	packet_u8 flags; /* PACKET_IP_* */
	packet_u8 tos;	 /* IPv4 ToS or IPv6 traffic class */
	packet_u8 ttl;	 /* IPv4 TTL or IPv6 hop limit */
	packet_u8 tcp_flags;
	packet_u8 icmp_type;
	packet_u8 icmp_code;
	packet_u16 l3_off;	/* of the network header; PACKET_NO_OFFSET if there is none */
	packet_u16 l4_off;	/* of the transport header, the same */
	packet_u16 payload_off; /* first byte behind the transport header, the same */
	packet_u16 tcp_window;
	packet_u32 l3_len;  /* length of the datagram as its header states it; 0 for a jumbogram */
	packet_u32 frag_id; /* valid with PACKET_IP_FRAGMENT */
	packet_u32 tcp_seq;
	packet_u32 tcp_ack;
	packet_u16 frag_off; /* offset of this fragment in bytes */
	packet_u16 ident;    /* IPv4 identification plus UDP checksum, as far as present */
};

/* wirelane_packet.flags */
#define PACKET_CUT	 0x0001 /* the packet ends before its headers do */
#define PACKET_MALFORMED 0x0002 /* a header contradicts itself */
#define PACKET_DEEP	 0x0004 /* more headers than the parser follows */
#define PACKET_TUNNEL	 0x0008 /* inner is valid */
#define PACKET_VLAN	 0x0010 /* vlan_tci[0] is valid */
#define PACKET_MPLS	 0x0020 /* mpls_label is valid */
#define PACKET_EGRESS	 0x0200 /* the packet is leaving the device */
#define PACKET_GSO	 0x0400 /* a segmentation-offload packet: longer than any packet on the wire */

/* wirelane_packet.tunnel */
#define PACKET_TUNNEL_NONE	0
#define PACKET_TUNNEL_IPIP	1 /* IPv4 or IPv6 in IPv4 or IPv6 */
#define PACKET_TUNNEL_GRE	2
#define PACKET_TUNNEL_VXLAN	3
#define PACKET_TUNNEL_GENEVE	4
#define PACKET_TUNNEL_GTPU	5
#define PACKET_TUNNEL_ERSPAN	6
#define PACKET_TUNNEL_PPTP	7
#define PACKET_TUNNEL_L2TP	8
#define PACKET_TUNNEL_VXLAN_GPE 9
#define PACKET_TUNNEL_TEREDO	10
#define PACKET_TUNNEL_MPLS	11 /* MPLS behind IP or UDP */
#define PACKET_TUNNEL_ETHERIP	12 /* Ethernet behind IP */
#define PACKET_TUNNEL_LISP	13
#define PACKET_TUNNEL_CAPWAP	14
#define PACKET_TUNNEL_TZSP	15
#define PACKET_TUNNEL_GUE	16
#define PACKET_TUNNEL_AYIYA	17
#define PACKET_TUNNEL_NSH	18

/* wirelane_packet.link: the first header of the packet */
#define PACKET_LINK_ETHERNET 0
#define PACKET_LINK_RAW	     1 /* IP without a link-layer header */

/* A packet. Missing fields are 0. */
struct wirelane_packet {
	packet_u32 workers;    /* of the group */
	packet_u32 hash;       /* symmetric flow hash of 31 bits, of the inner headers with --inner; equal for
				* both directions and all fragments, its seed new for every start of a
				* device's capture
				*/
	packet_u32 wire_len;   /* bytes of the packet, without FCS */
	packet_u32 queue;      /* RX queue */
	packet_u32 bytes_len;  /* number of valid bytes in bytes[]; the others are 0 */
	packet_u32 tunnel_id;  /* VNI, TEID, GRE key, session, ...; host order */
	packet_u32 mpls_label; /* the top of the stack: the 20-bit label */
	packet_u16 flags;      /* PACKET_CUT and so on */
	packet_u16 eth_type;   /* host order, behind VLAN tags, MPLS and PPPoE */
	packet_u16 vlan_tci[2]; /* outermost first, host order; the id is the low 12 bits */
	packet_u8 vlan_count;	/* number of tags, including one that the card has stripped */
	packet_u8 mpls_count;
	packet_u8 tunnel;	       /* PACKET_TUNNEL_*: of the innermost tunnel */
	packet_u8 link;		       /* PACKET_LINK_* */
	struct wirelane_headers outer; /* the first network layer */
	struct wirelane_headers inner; /* that in the innermost tunnel; 0 without PACKET_TUNNEL */
	packet_u8 bytes[PACKET_BYTES];
	packet_u32 rules_count;		/* number of ids in rules[] */
	packet_u32 rules[PACKET_RULES]; /* for plug-ins: ids of the rules of its capture that the packet
					 * has hit so far, in order; 0 after the last
					 */
	packet_u32 capture;		/* its number on the device, which selects its state (state.h) */
	packet_u64 time_ns;		/* when the packet was received: CLOCK_MONOTONIC */
	packet_u32 segments;   /* packets on the wire that this one is made of, by GRO or GSO; else 1 */
	packet_u32 wire_bytes; /* their bytes */
} __attribute__((aligned(8)));

#define PACKET_INLINE static inline __attribute__((always_inline, unused))

/* The byte at this offset, 0 beyond the available bytes. The verifier accepts any offset. */
PACKET_INLINE packet_u8 packet_byte(const struct wirelane_packet *packet, packet_u32 offset)
{
	/* Keeps the compiler from comparing one register and using another. */
	__asm__ volatile("" : "+r"(offset));
	if (offset >= PACKET_BYTES)
		return 0;
	return packet->bytes[offset];
}

/* Whether the packet has hit the rule with this id so far: for plug-ins. */
PACKET_INLINE int packet_has_hit(const struct wirelane_packet *packet, packet_u32 id)
{
	packet_u32 found = 0, differs, i;

	for (i = 0; i < PACKET_RULES; i++) {
		differs = packet->rules[i] ^ id;
		/* The top bit: the two are equal. Without branches, as each is a path for the verifier. */
		found |= (differs - 1) & ~differs;
	}
	return id && found >> 31;
}

/* The two bytes at this offset as a big-endian number. */
PACKET_INLINE packet_u32 packet_16_at(const struct wirelane_packet *packet, packet_u32 offset)
{
	return (packet_u32)packet_byte(packet, offset) << 8 | packet_byte(packet, offset + 1);
}

/* The four bytes at this offset as a big-endian number. */
PACKET_INLINE packet_u32 packet_32_at(const struct wirelane_packet *packet, packet_u32 offset)
{
	return packet_16_at(packet, offset) << 16 | packet_16_at(packet, offset + 2);
}

/* A port in host byte order. */
PACKET_INLINE packet_u16 packet_be16(packet_u16 wire)
{
	return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(wire) : wire;
}

/* The four bytes of an address in host byte order: 10.0.0.1 is 0x0a000001. */
PACKET_INLINE packet_u32 packet_be32(const packet_u8 *address)
{
	return (packet_u32)address[0] << 24 | (packet_u32)address[1] << 16 | (packet_u32)address[2] << 8 |
	       address[3];
}

#endif
