/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * wl_parse(): every header of a packet, read once.
 *
 * A state machine. Each turn of one loop reads one header: which one is the state (wl_walk.next), and the
 * header says which one follows and where. The readers lie in link.h, network.h, transport.h and tunnel.h;
 * the tables of what follows what in next.h; everything that touches memory in cursor.h.
 *
 *	link -> [VLAN | MPLS | PPPoE | LLC]* -> IPv4 | IPv6 -> [extension]* -> TCP | UDP | ... -> END
 *	  ^                                        ^                            |
 *	  |                                        `------- IP in IP, GRE, GTP-U
 *	  `-------- GRE (bridging), VXLAN, Geneve ------------------------------'
 *
 * What ends a walk early is always one of: WL_PKT_CUT, the capture ends within a header; WL_PKT_MALFORMED, a
 * header contradicts itself or the length that an enclosing header states; WL_PKT_DEEP, more than
 * WL_MAX_HEADERS headers or one that begins beyond WL_MAX_OFFSET. What was read up to there stays in the
 * result, so that every truncation of a packet has one defined result. A transport header that is cut after
 * its ports still gives them.
 *
 * Most packets are not walked: plain.h.
 *
 * Why the verifier accepts this, and stays small
 *
 * Memory safety: every read goes through a pointer that wl_captured() compared with data_end.
 *
 * Termination: the loop counts to WL_MAX_HEADERS. The verifier walks such a loop turn by turn, and abandons a
 * path when it meets a state that it has already seen at the same place in the same turn. So the paths of one
 * turn must become equal again, or their number grows exponentially. What a path leaves behind is:
 *  - next: a constant. There are 27, and each leads to one reader only;
 *  - off: a different constant or range on every path (14, 18, 34..74, ...). It matters to the verifier,
 *    because it is added to a packet pointer. So it is made to forget: `zero` is a field of the result, which
 *    we have just set to 0, but which the verifier takes for any 16-bit value, as it does not track the
 *    contents of maps. (off + zero) & WL_OFFSET_MASK is off to the machine and any offset to the verifier;
 *  - end: the same, with 0xffff;
 *  - all else is in *out: results, whether a tunnel was entered, whether one may be (wl_scratch_mode()). The
 *    verifier does not track it, provided that it lies in a map. On the stack it would be tracked, and the
 *    argument would fail: so it must not lie there.
 *
 * Where several readers end in a table lookup (EtherType, IP protocol), they only leave the number in
 * "value", and the table is walked once, after off and end were forgotten: readers that differ in nothing
 * but their length have become one path by then. One turn is thus about the sum of the readers, not a
 * product.
 *
 * Measured with clang 19: about 4,000 instructions a turn, 81,000 for all on Linux 6.18 and 84,000 on 6.1;
 * 113,000 and 107,000 with link type and options chosen at run time. A test holds that
 * (crates/wirelane-bpf/tests/packet/verifier.rs). If the number jumps, look first for something that a path
 * leaves in a register: print the verifier's log at level 2 and count how often each instruction is
 * walked.
 */
#ifndef WL_PACKET_PARSE_H
#define WL_PACKET_PARSE_H

#include "lib/link.h"
#include "lib/network.h"
#include "lib/plain.h"
#include "lib/transport.h"
#include "lib/tunnel.h"

/* Options of wl_parse(). */
#define WL_PARSE_TUNNELS 0x01 /* enter tunnels, and fill wl_parsed.inner */

/* Clears what is valid without WL_PKT_TUNNEL; wl_parsed.inner is cleared when there is something for it. */
static __always_inline void wl_clear_parsed(struct wl_parsed *out, __u8 link)
{
	__u8 *tail = (__u8 *)&out->eth_type;

	_Static_assert(sizeof(*out) - __builtin_offsetof(struct wl_parsed, eth_type) == 24,
		       "wl_clear_parsed() clears 24 bytes behind the two wl_ip");
	wl_clear_ip(&out->outer);
	wl_store64(tail, 0);
	wl_store64(tail + 8, 0);
	wl_store64(tail + 16, 0);
	out->link = link;
}

static __always_inline __u32 wl_next_of_link(__u8 link)
{
	switch (link) {
	case WL_LINK_ETHERNET:
		return WL_NEXT_ETHERNET;
	case WL_LINK_RAW:
		return WL_NEXT_IP;
	case WL_LINK_SLL:
		return WL_NEXT_SLL;
	case WL_LINK_SLL2:
		return WL_NEXT_SLL2;
	case WL_LINK_NULL:
		return WL_NEXT_NULL;
	case WL_LINK_LOOP:
		return WL_NEXT_LOOP;
	}
	return WL_NEXT_END;
}

/* Reads the header that is due. A reader that sets no next state ends the walk. */
static __always_inline void wl_read_header(struct wl_walk *w, __u32 state)
{
	switch (state) {
	case WL_NEXT_IPV4:
		return wl_read_ipv4(w);
	case WL_NEXT_TCP:
		return wl_read_tcp(w);
	case WL_NEXT_UDP:
		return wl_read_udp(w);
	case WL_NEXT_IPV6:
		return wl_read_ipv6(w);
	case WL_NEXT_ETHERNET:
		return wl_read_ethernet(w);
	case WL_NEXT_VLAN:
		return wl_read_vlan(w);
	case WL_NEXT_ICMP:
		return wl_read_icmp(w);
	case WL_NEXT_PORTS:
		return wl_read_ports(w);
	case WL_NEXT_ARP:
		return wl_read_arp(w);
	case WL_NEXT_MPLS:
		return wl_read_mpls(w);
	case WL_NEXT_PPPOE:
		return wl_read_pppoe(w);
	case WL_NEXT_LLC:
		return wl_read_llc(w);
	case WL_NEXT_IP:
		return wl_read_ip(w);
	case WL_NEXT_EXTENSION:
		return wl_read_extension(w);
	case WL_NEXT_FRAGMENT:
		return wl_read_fragment(w);
	case WL_NEXT_AH:
		return wl_read_ah(w);
	case WL_NEXT_GRE:
		return wl_read_gre(w);
	case WL_NEXT_VXLAN:
		return wl_read_vxlan(w);
	case WL_NEXT_GENEVE:
		return wl_read_geneve(w);
	case WL_NEXT_GTPU:
		return wl_read_gtpu(w);
	case WL_NEXT_GTPU_EXTENSION:
		return wl_read_gtpu_extension(w);
	case WL_NEXT_SLL:
		return wl_read_sll(w);
	case WL_NEXT_SLL2:
		return wl_read_sll2(w);
	case WL_NEXT_NULL:
		return wl_read_family(w, 0);
	case WL_NEXT_LOOP:
		return wl_read_family(w, 1);
	}
}

/* The walk, for what is not plain. */
static __always_inline void wl_parse_walk(const void *data, const void *data_end, __u8 link, __u32 options,
					  struct wl_parsed *out)
{
	struct wl_walk w = {
	    .data = data,
	    .data_end = data_end,
	    .out = out,
	    .next = wl_next_of_link(link),
	};
	__u32 zero, state, i;

	wl_clear_parsed(out, link);
	wl_scratch_mode(out) = options & WL_PARSE_TUNNELS;
	zero = wl_scratch_zero(out);
	w.end = 0xffff - zero;
	for (i = 0; i < WL_MAX_HEADERS; i++) {
		state = w.next;
		if (wl_unlikely(w.off > WL_MAX_OFFSET))
			break;
		w.next = WL_NEXT_END;
		wl_read_header(&w, state);
		if (w.next == WL_NEXT_END)
			break;
		w.off = (w.off + zero) & WL_OFFSET_MASK;
		w.end = (w.end + zero) & 0xffff;
		if (w.next == WL_NEXT_PROTOCOL)
			wl_follow_protocol(&w);
		else if (w.next == WL_NEXT_TYPE)
			wl_follow_type(&w);
		if (w.next == WL_NEXT_END)
			break;
	}
	if (wl_unlikely(w.next != WL_NEXT_END))
		out->flags |= WL_PKT_DEEP;
	wl_scratch_mode(out) = 0;
}

/* Whether the packet is plain: it has been parsed then. */
static __always_inline int wl_parse_plain(const void *data, const void *data_end, __u8 link, __u32 options,
					  struct wl_parsed *out)
{
	struct wl_walk w = {.data = data, .data_end = data_end, .out = out};

	return link == WL_LINK_ETHERNET && wl_likely(wl_read_plain(&w, options & WL_PARSE_TUNNELS));
}

/*
 * wl_parse(): parses a packet that begins with a header of type `link` (enum wl_link) into *out. `options` is
 * of WL_PARSE_*. out->inner is written only where there is a tunnel (WL_PKT_TUNNEL).
 */
#ifdef __bpf__

#define wl_fresh_pointer(field) ((const void *)(long)*(volatile __u32 *)&(field))

/*
 * The packet is a context's, of which the linear part is read; *out must lie in a map, aligned to 8 bytes.
 * The walk gets pointers of its own: what the verifier has learned about those that plain.h compared would be
 * a second and a third path through the whole walk.
 */
#define wl_parse(ctx, link, options, out)                                                                    \
	do {                                                                                                 \
		if (!wl_parse_plain(wl_fresh_pointer((ctx)->data), wl_fresh_pointer((ctx)->data_end), link,  \
				    options, out))                                                           \
			wl_parse_walk(wl_fresh_pointer((ctx)->data), wl_fresh_pointer((ctx)->data_end),      \
				      link, options, out);                                                   \
	} while (0)

#else

/* The packet lies from data to data_end. */
static inline void wl_parse(const void *data, const void *data_end, __u8 link, __u32 options,
			    struct wl_parsed *out)
{
	if (!wl_parse_plain(data, data_end, link, options, out))
		wl_parse_walk(data, data_end, link, options, out);
}

#endif /* __bpf__ */

#endif
