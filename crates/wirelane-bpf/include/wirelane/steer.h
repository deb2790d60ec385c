/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steering programs for Wirelane: a function of yours, in BPF, that chooses the worker of a packet.
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
 * The file needs nothing else: this header includes packet.h, which describes a packet, and state.h, for
 * state of its own and parameters, and no other.
 *
 * Results
 *   0 or more        the worker, modulo packet->workers: packet->hash can be returned as it is
 *   STEER_NOT_MINE   (or anything below 0) the group does not want the packet: `filtered` in its ledger, and
 *                    with --exclusive it goes on to the host
 *
 * Argument
 *   A struct steer_packet: the parsed headers of the packet, and its first STEER_BYTES bytes.
 *
 * Restrictions
 *   It runs in the kernel, in the receive path, once for each packet of a group that uses it. The kernel's
 *   verifier must accept it: loops must end, memory must be read within bounds (use steer_byte() and the
 *   other functions below). BPF helpers that need no context may be called, except bpf_loop().
 *
 *   Its state is in maps (state.h): writable variables are rejected. It runs on several CPUs at once, and is
 *   reloaded whenever another steering program is added to the device. Constant tables are allowed
 *   (`static const`), and so are functions of its own, as long as they are `static`.
 *
 *   The stack is shared with Wirelane's part: use no more than 128 bytes of it. There is no licence section:
 *   the licence is that of Wirelane's program, Dual BSD/GPL.
 */
#ifndef WIRELANE_STEER_H
#define WIRELANE_STEER_H

#include "packet.h"
#include "state.h"

/* The version of this header, which is part of the program's name: incremented when a meaning changes. */
#define STEER_VERSION 1

typedef packet_u8 steer_u8;
typedef packet_u16 steer_u16;
typedef packet_u32 steer_u32;

/* Result for a packet that the group does not want. */
#define STEER_NOT_MINE (-1)

/* The names of packet.h for steering programs. */
#define steer_packet	    wirelane_packet
#define steer_headers	    wirelane_headers
#define steer_byte	    packet_byte
#define steer_16_at	    packet_16_at
#define steer_32_at	    packet_32_at
#define steer_be16	    packet_be16
#define steer_be32	    packet_be32

#define STEER_BYTES	    PACKET_BYTES
#define STEER_L3_NONE	    PACKET_L3_NONE
#define STEER_L3_ARP	    PACKET_L3_ARP
#define STEER_L3_IPV4	    PACKET_L3_IPV4
#define STEER_L3_IPV6	    PACKET_L3_IPV6
#define STEER_IP_FRAGMENT   PACKET_IP_FRAGMENT
#define STEER_IP_LATER	    PACKET_IP_LATER
#define STEER_IP_PORTS	    PACKET_IP_PORTS
#define STEER_IP_TCP	    PACKET_IP_TCP
#define STEER_IP_ICMP	    PACKET_IP_ICMP
#define STEER_IP_OPTIONS    PACKET_IP_OPTIONS
#define STEER_IP_OPAQUE	    PACKET_IP_OPAQUE
#define STEER_NO_OFFSET	    PACKET_NO_OFFSET
#define STEER_CUT	    PACKET_CUT
#define STEER_MALFORMED	    PACKET_MALFORMED
#define STEER_DEEP	    PACKET_DEEP
#define STEER_TUNNEL	    PACKET_TUNNEL
#define STEER_VLAN	    PACKET_VLAN
#define STEER_MPLS	    PACKET_MPLS
#define STEER_EGRESS	    PACKET_EGRESS
#define STEER_GSO	    PACKET_GSO
#define STEER_TUNNEL_NONE   PACKET_TUNNEL_NONE
#define STEER_TUNNEL_IPIP   PACKET_TUNNEL_IPIP
#define STEER_TUNNEL_GRE    PACKET_TUNNEL_GRE
#define STEER_TUNNEL_VXLAN  PACKET_TUNNEL_VXLAN
#define STEER_TUNNEL_GENEVE PACKET_TUNNEL_GENEVE
#define STEER_TUNNEL_GTPU   PACKET_TUNNEL_GTPU
#define STEER_LINK_ETHERNET PACKET_LINK_ETHERNET
#define STEER_LINK_RAW	    PACKET_LINK_RAW
#define STEER_INLINE	    PACKET_INLINE

/* The name of the function that Wirelane calls, with the version of this header. */
#define STEER_FUNCTION wirelane_steer_v1_0

/*
 * Begins the program; `packet` is a pointer to a struct steer_packet. The verifier requires the check for
 * NULL, which never occurs.
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
