/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steering programs for Wirelane: a function of your own, in BPF, that says which worker gets a packet.
 *
 *	#include <wirelane/steer.h>
 *
 *	STEERING_PROGRAM(packet)                // by the last byte of the packet
 *	{
 *		if (packet->wire_len > packet->bytes_len)
 *			return STEER_NOT_MINE;
 *		return steer_byte(packet, packet->bytes_len - 1);
 *	}
 *
 *	clang -O2 -g -target bpf -I/usr/local/include -c mine.bpf.c -o mine.bpf.o
 *	wirelane count -i eth1 --workers 4 --steering-program mine.bpf.o
 *
 * The file needs nothing else: this header includes no other.
 *
 * What it returns
 *   0 or more        the worker; it counts modulo packet->workers: packet->hash can be returned as it is
 *   STEER_NOT_MINE   (or anything below 0) the group does not want the packet: `filtered` in its ledger, and
 *                    with --take it goes on to the host
 *
 * What it is given
 *   A struct steer_packet: what Wirelane has found in the packet's headers, and its first STEER_BYTES bytes.
 *
 * What it may do
 *   It runs in the kernel, in the place where the packet is received, once for each packet of a group that
 *   uses it. The kernel's verifier must accept it: loops must end, memory must be read within bounds (that is
 *   what steer_byte() and the others below are for). BPF helpers that need no context may be called, but for
 *   bpf_loop().
 *
 *   It has no state: maps, and variables that can be written, are refused. It runs on several CPUs at once,
 *   and is loaded anew whenever another steering program comes to the device. Constant tables are fine
 *   (`static const`), and so are functions of its own, as long as they are `static`.
 *
 *   The stack is shared with Wirelane's part: use no more than 128 bytes of it. There is no licence section:
 *   the licence is that of Wirelane's program, Dual BSD/GPL.
 */
#ifndef WIRELANE_STEER_H
#define WIRELANE_STEER_H

/* The version of this header, which the program's name carries: raised when a meaning changes. */
#define STEER_VERSION 1

typedef __UINT8_TYPE__ steer_u8;
typedef __UINT16_TYPE__ steer_u16;
typedef __UINT32_TYPE__ steer_u32;

/* Bytes of a packet that a program is given. A power of two. */
#define STEER_BYTES 256

/* To be returned for a packet that the group does not want. */
#define STEER_NOT_MINE (-1)

/* steer_headers.l3 */
#define STEER_L3_NONE 0
#define STEER_L3_ARP  1
#define STEER_L3_IPV4 4
#define STEER_L3_IPV6 6

/* steer_headers.flags */
#define STEER_IP_FRAGMENT 0x01 /* one fragment of a datagram, the first one included */
#define STEER_IP_LATER	  0x02 /* not the first fragment: no transport header */
#define STEER_IP_PORTS	  0x04 /* src_port and dst_port are valid */
#define STEER_IP_TCP	  0x08 /* tcp_flags, tcp_seq, tcp_ack, tcp_window are valid */
#define STEER_IP_ICMP	  0x10 /* icmp_type and icmp_code are valid */
#define STEER_IP_OPTIONS  0x20 /* IPv4 options or IPv6 extension headers were stepped over */
#define STEER_IP_OPAQUE	  0x40 /* what follows is encrypted or unknown: no transport header */

/* An offset that is not there. */
#define STEER_NO_OFFSET 0xffff

/*
 * One network layer with its transport header. What a flag says is not valid is 0. Addresses and ports are as
 * they stand in the packet (network byte order: steer_be16(), steer_be32()), everything else is in the order
 * of the host. Offsets count from the packet's first byte, which is bytes[0].
 */
struct steer_headers {
	steer_u8 src[16]; /* IPv4: the first 4 bytes, the rest zero. ARP: the sender's protocol address */
	steer_u8 dst[16];
	steer_u16 src_port; /* valid with STEER_IP_PORTS */
	steer_u16 dst_port;
	steer_u8 l3;	/* STEER_L3_* */
	steer_u8 proto; /* IP protocol of the transport header, behind extension headers: 6 TCP, 17 UDP */
	steer_u8 flags; /* STEER_IP_* */
	steer_u8 tos;	/* IPv4 ToS or IPv6 traffic class */
	steer_u8 ttl;	/* IPv4 TTL or IPv6 hop limit */
	steer_u8 tcp_flags;
	steer_u8 icmp_type;
	steer_u8 icmp_code;
	steer_u16 l3_off;      /* of the network header; STEER_NO_OFFSET where there is none */
	steer_u16 l4_off;      /* of the transport header, the same */
	steer_u16 payload_off; /* first byte behind the transport header, the same */
	steer_u16 tcp_window;
	steer_u32 l3_len;  /* length of the datagram as its header states it; 0 for a jumbogram */
	steer_u32 frag_id; /* valid with STEER_IP_FRAGMENT */
	steer_u32 tcp_seq;
	steer_u32 tcp_ack;
	steer_u16 frag_off; /* offset of this fragment in bytes */
	steer_u16 ident;    /* IPv4 identification plus UDP checksum, of what is there */
};

/* steer_packet.flags */
#define STEER_CUT	0x0001 /* the packet ends before its headers do */
#define STEER_MALFORMED 0x0002 /* a header contradicts itself */
#define STEER_DEEP	0x0004 /* more headers than are followed */
#define STEER_TUNNEL	0x0008 /* inner is valid */
#define STEER_VLAN	0x0010 /* vlan_tci[0] is valid */
#define STEER_MPLS	0x0020 /* mpls_label is valid */
#define STEER_EGRESS	0x0200 /* the packet is leaving the device */
#define STEER_GSO	0x0400 /* a segmentation-offload packet: longer than anything on the wire */

/* steer_packet.tunnel */
#define STEER_TUNNEL_NONE   0
#define STEER_TUNNEL_IPIP   1 /* IPv4 or IPv6 in IPv4 or IPv6 */
#define STEER_TUNNEL_GRE    2
#define STEER_TUNNEL_VXLAN  3
#define STEER_TUNNEL_GENEVE 4
#define STEER_TUNNEL_GTPU   5

/* steer_packet.link: how the packet begins */
#define STEER_LINK_ETHERNET 0
#define STEER_LINK_RAW	    1 /* with its IP header */

/* A packet. What is not there is 0. */
struct steer_packet {
	steer_u32 workers;     /* of the group */
	steer_u32 hash;	       /* symmetric flow hash of 31 bits, of the inner headers with --inner; equal for
				* both directions and all fragments, its seed new for every start of a
				* device's capture
				*/
	steer_u32 wire_len;    /* bytes of the packet, without FCS */
	steer_u32 queue;       /* RX queue */
	steer_u32 bytes_len;   /* of bytes[] that are the packet's; the others are 0 */
	steer_u32 tunnel_id;   /* VNI, TEID or GRE key, host order */
	steer_u32 mpls_label;  /* the top of the stack: the 20-bit label */
	steer_u16 flags;       /* STEER_CUT and so on */
	steer_u16 eth_type;    /* host order, behind VLAN tags, MPLS and PPPoE */
	steer_u16 vlan_tci[2]; /* outermost first, host order; the id is the low 12 bits */
	steer_u8 vlan_count;   /* tags there are; also one that the card took out, which is put back */
	steer_u8 mpls_count;
	steer_u8 tunnel;	    /* STEER_TUNNEL_*: of the innermost tunnel */
	steer_u8 link;		    /* STEER_LINK_* */
	struct steer_headers outer; /* the first network layer */
	struct steer_headers inner; /* that in the innermost tunnel; 0 without STEER_TUNNEL */
	steer_u8 bytes[STEER_BYTES];
} __attribute__((aligned(8)));

#define STEER_INLINE static inline __attribute__((always_inline, unused))

/* The byte at this offset, 0 beyond what is there. The verifier follows what it is given here. */
STEER_INLINE steer_u8 steer_byte(const struct steer_packet *packet, steer_u32 offset)
{
	/* Keeps the compiler from comparing one register and using another. */
	__asm__ volatile("" : "+r"(offset));
	if (offset >= STEER_BYTES)
		return 0;
	return packet->bytes[offset];
}

/* The two bytes at this offset as a big-endian number. */
STEER_INLINE steer_u32 steer_16_at(const struct steer_packet *packet, steer_u32 offset)
{
	return (steer_u32)steer_byte(packet, offset) << 8 | steer_byte(packet, offset + 1);
}

/* The four bytes at this offset as a big-endian number. */
STEER_INLINE steer_u32 steer_32_at(const struct steer_packet *packet, steer_u32 offset)
{
	return steer_16_at(packet, offset) << 16 | steer_16_at(packet, offset + 2);
}

/* A port, as a number of the host. */
STEER_INLINE steer_u16 steer_be16(steer_u16 wire)
{
	return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(wire) : wire;
}

/* The four bytes of an address, as a number of the host: 10.0.0.1 is 0x0a000001. */
STEER_INLINE steer_u32 steer_be32(const steer_u8 *address)
{
	return (steer_u32)address[0] << 24 | (steer_u32)address[1] << 16 | (steer_u32)address[2] << 8 |
	       address[3];
}

/* The name of the function that Wirelane calls, with the version of this header. */
#define STEER_FUNCTION wirelane_steer_v1_0

/*
 * Begins the program; `packet` is a pointer to a struct steer_packet. The check for NULL, which cannot be, is
 * asked for by the verifier.
 */
#define STEERING_PROGRAM(packet)                                                                             \
	STEER_INLINE int steer_this(const struct steer_packet *packet);                                      \
	int STEER_FUNCTION(const struct steer_packet *steered);                                              \
	int STEER_FUNCTION(const struct steer_packet *steered)                                               \
	{                                                                                                    \
		return steered ? steer_this(steered) : STEER_NOT_MINE;                                       \
	}                                                                                                    \
	STEER_INLINE int steer_this(const struct steer_packet *packet)

#endif
