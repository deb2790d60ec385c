/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The most common packet: Ethernet, IPv4 without options and not a fragment, TCP or UDP, with complete
 * headers. It is read without a walk, with one store for every eight bytes of the result, which with the hash
 * takes 12 ns instead of the 28 of the walk of parse.h (verifier.rs prints it). All other packets are left to
 * the walk, which gives the same result for every packet: a test compares the two.
 */
#ifndef WL_PACKET_PLAIN_H
#define WL_PACKET_PLAIN_H

#include "lib/transport.h"

#define WL_PLAIN_L3  14
#define WL_PLAIN_L4  34
#define WL_PLAIN_UDP (WL_PLAIN_L4 + 8)
#define WL_PLAIN_TCP (WL_PLAIN_L4 + 20)

/* Bit offset of a field within the eight bytes that it is stored with. */
#define wl_plain_shift(field) (__builtin_offsetof(struct wl_ip, field) % 8 * 8)

_Static_assert(__builtin_offsetof(struct wl_ip, src_port) == 32 &&
		   __builtin_offsetof(struct wl_ip, ttl) == 40 &&
		   __builtin_offsetof(struct wl_ip, payload_off) == 48 &&
		   __builtin_offsetof(struct wl_ip, frag_id) == 56 &&
		   __builtin_offsetof(struct wl_ip, tcp_ack) == 64 && sizeof(struct wl_ip) == 72,
	       "the words that wl_plain_store() stores");
_Static_assert(__builtin_offsetof(struct wl_parsed, eth_type) % 8 == 0 &&
		   __builtin_offsetof(struct wl_parsed, link) ==
		       __builtin_offsetof(struct wl_parsed, eth_type) + 19 &&
		   sizeof(struct wl_parsed) == __builtin_offsetof(struct wl_parsed, eth_type) + 24,
	       "the words that wl_plain_store() stores");

/* Stores the result, except out->inner, of the packet at p; `flags` are WL_IP_* flags, tcp points to the
 * TCP header, or is NULL. */
static __always_inline void wl_plain_store(struct wl_parsed *out, const __u8 *p, __u32 flags, __u32 payload,
					   const __u8 *tcp)
{
	__u8 *ip = (__u8 *)&out->outer, *tail = (__u8 *)&out->eth_type;
	__u64 ports = wl_load32(p + WL_PLAIN_L4), third, fourth, fifth, sixth, seventh;
	__u16 ident = wl_be16(p + 18);

	third = ports | (__u64)WL_L3_IPV4 << wl_plain_shift(l3) | (__u64)p[23] << wl_plain_shift(proto) |
		(__u64)flags << wl_plain_shift(flags) | (__u64)p[15] << wl_plain_shift(tos);
	fourth = (__u64)p[22] | (__u64)WL_PLAIN_L3 << wl_plain_shift(l3_off) |
		 (__u64)WL_PLAIN_L4 << wl_plain_shift(l4_off);
	fifth = payload | (__u64)wl_be16(p + 16) << wl_plain_shift(l3_len);
	sixth = 0;
	seventh = 0;
	if (tcp) {
		fourth |= (__u64)tcp[13] << wl_plain_shift(tcp_flags);
		fifth |= (__u64)wl_be16(tcp + 14) << wl_plain_shift(tcp_window);
		sixth = (__u64)wl_be32(tcp + 4) << wl_plain_shift(tcp_seq);
		seventh = wl_be32(tcp + 8);
	} else {
		ident += wl_be16(p + WL_PLAIN_L4 + 6);
	}
	seventh |= (__u64)ident << wl_plain_shift(ident);
	wl_store64(ip, wl_load32(p + 26));
	wl_store64(ip + 8, 0);
	wl_store64(ip + 16, wl_load32(p + 30));
	wl_store64(ip + 24, 0);
	wl_store64(ip + 32, third);
	wl_store64(ip + 40, fourth);
	wl_store64(ip + 48, fifth);
	wl_store64(ip + 56, sixth);
	wl_store64(ip + 64, seventh);
	wl_store64(tail, WL_ETH_IPV4);
	wl_store64(tail + 8, 0);
	wl_store64(tail + 16, (__u64)WL_LINK_ETHERNET << 24);
}

/*
 * Whether the frame is such a packet; *out is filled then, and unchanged otherwise. `tunnels`: tunnels are
 * entered, so that a packet that may be one is not plain.
 */
static __always_inline int wl_read_plain(const struct wl_walk *w, int tunnels)
{
	const __u8 *p = wl_captured(w, 0, WL_PLAIN_UDP);
	__u32 length, header;

	if (wl_unlikely(!p) || wl_load16(p + 12) != __builtin_bswap16(WL_ETH_IPV4) || p[14] != 0x45 ||
	    wl_load16(p + 20) & __builtin_bswap16(0x3fff))
		return 0;
	length = wl_be16(p + 16);
	if (p[23] == WL_PROTO_UDP) {
		if (length < 20 + 8 || wl_be16(p + WL_PLAIN_L4 + 4) < 8 ||
		    (tunnels && wl_next_of_ports(p + WL_PLAIN_L4) != WL_NEXT_END))
			return 0;
		wl_plain_store(w->out, p, WL_IP_PORTS, WL_PLAIN_UDP, 0);
		return 1;
	}
	if (p[23] != WL_PROTO_TCP)
		return 0;
	p = wl_captured(w, 0, WL_PLAIN_TCP);
	if (!p)
		return 0;
	header = (p[WL_PLAIN_L4 + 12] >> 4) * 4;
	if (header < 20 || 20 + header > length || !wl_is_captured(w, WL_PLAIN_L4 + header))
		return 0;
	wl_plain_store(w->out, p, WL_IP_PORTS | WL_IP_TCP, WL_PLAIN_L4 + header, p + WL_PLAIN_L4);
	return 1;
}

#endif
