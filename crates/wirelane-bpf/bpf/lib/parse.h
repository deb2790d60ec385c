/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * wl_parse(): reads every header of a packet once.
 *
 * A state machine. Each turn reads one header: the state (wl_walk.next) selects the reader, and the header
 * determines the next state and offset. The readers are in link.h, tags.h, ppp.h, wlan.h, network.h,
 * transport.h, tunnel.h and tunnel_udp.h; the tables of next headers in next.h; all memory accesses in
 * cursor.h; the link types of files only in file_link.h.
 *
 *	link -> [VLAN | tag | MPLS | PPPoE | PPP | LLC]* -> IPv4 | IPv6 -> [extension]* -> TCP | UDP | ...
 *	 ^                                                   ^               |  |
 *	 |                                                   `- IP in IP, GRE, GTP-U, L2TP, ... from here
 *	 `---------- GRE (bridging), VXLAN, Geneve, ERSPAN, ... --------------'  and from UDP
 *
 * docs/reference/protocols.md lists the protocols that are parsed, and those that are not.
 *
 * A walk ends early for one of these reasons: WL_PKT_CUT, the capture ends within a header; WL_PKT_MALFORMED,
 * a header contradicts itself or the length that an enclosing header states; WL_PKT_DEEP, there are more than
 * WL_MAX_HEADERS headers or one begins beyond WL_MAX_OFFSET. The headers that were read up to there stay in
 * the result, so that every truncation of a packet has one defined result. A transport header that is cut
 * after its ports still yields them.
 *
 * Most packets do not need the walk: plain.h.
 *
 * The verifier
 *
 * Memory safety: every read goes through a pointer that wl_captured() compared with data_end.
 *
 * One turn is a global function (wl_turn_of()). The verifier walks a global function once, by
 * itself, and treats its results as unknown numbers, so that the loop over turns costs no verifier time, and
 * a new header costs only its own reader. The state between two turns is struct wl_position, with masks for
 * the ranges that the verifier cannot know. All other state is in *out: results, whether a tunnel was
 * entered, whether one may be (wl_scratch_mode()). A call costs some 15 ns: so the headers that most packets
 * have are read by a loop before that, of WL_FREQUENT_TURNS turns with six readers.
 *
 * Within a turn the paths must converge again, or their number grows. The differences are:
 *  - off: a different constant or range on every path, which is added to a packet pointer. `zero` is a field
 *    of the result that is 0, but any 16-bit value to the verifier, which does not track the contents of
 *    maps. (off + zero) & WL_OFFSET_MASK is off to the machine and any offset to the verifier;
 *  - end: the same, with 0xffff.
 * Where several readers end in a table lookup (EtherType, IP protocol), they only leave the number in
 * "value", and the table is walked once, after the values of off and end were hidden from the verifier.
 *
 * Measured with clang 19 on Linux 6.18: about 26,000 instructions with one kind of context; 74,000 (and
 * 112,000 with a link type chosen at run time) when all turns were a loop in one function that knew half of
 * these headers. A test limits that (crates/wirelane-bpf/tests/packet/verifier.rs). If the number jumps,
 * print the verifier's log at level 2 and count how often each instruction is walked. An IPv6 or VLAN packet
 * takes 25 to 30 ns, as before, 65 to 75 ns if each of its headers is a call.
 */
#ifndef WL_PACKET_PARSE_H
#define WL_PACKET_PARSE_H

#include "lib/link.h"
#include "lib/network.h"
#include "lib/plain.h"
#include "lib/transport.h"
#include "lib/wlan.h"
#ifndef __bpf__
#include "lib/file_link.h"
#endif

/* Options of wl_parse(). */
#define WL_PARSE_TUNNELS 0x01 /* enter tunnels, and fill wl_parsed.inner */

/* Clears the fields that are valid without WL_PKT_TUNNEL; wl_parsed.inner is cleared when a tunnel is
 * entered. */
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

#ifdef __bpf__

/* Sets the start and the first state of the walk. */
static __always_inline void wl_begin(struct wl_walk *w, __u8 link)
{
	switch (link) {
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
	}
}

#else

static inline void wl_begin(struct wl_walk *w, __u8 link)
{
	wl_enter_link(w, link);
}

#endif

/* Reads the next header. A reader that sets no next state ends the walk. */
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
		return wl_read_gre(w, 0);
	case WL_NEXT_GRE_UDP:
		return wl_read_gre(w, 1);
	case WL_NEXT_TYPED:
		return wl_read_typed(w);
	case WL_NEXT_MACSEC:
		return wl_read_macsec(w);
	case WL_NEXT_NSH:
		return wl_read_nsh(w);
	case WL_NEXT_TRILL:
		return wl_read_trill(w);
	case WL_NEXT_BATMAN:
		return wl_read_batman(w);
	case WL_NEXT_PPP:
		return wl_read_ppp(w);
	case WL_NEXT_PPP_BRIDGED:
		return wl_read_ppp_bridged(w);
	case WL_NEXT_PPP_MULTILINK:
		return wl_read_ppp_multilink(w);
	case WL_NEXT_WLAN:
		return wl_read_wlan(w);
	case WL_NEXT_ERSPAN_2:
		return wl_read_erspan_2(w);
	case WL_NEXT_ERSPAN_3:
		return wl_read_erspan_3(w);
	case WL_NEXT_WCCP:
		return wl_read_wccp(w);
	case WL_NEXT_VXLAN_GPE:
		return wl_read_vxlan_gpe(w);
	case WL_NEXT_L2TP:
		return wl_read_l2tp(w);
	case WL_NEXT_L2TP_IP:
		return wl_read_l2tp_ip(w);
	case WL_NEXT_L2TP_DATA:
		return wl_read_l2tp_data(w, WL_NEXT_L2TP_DATA_4);
	case WL_NEXT_L2TP_DATA_4:
		return wl_read_l2tp_data(w, WL_NEXT_L2TP_DATA_8);
	case WL_NEXT_L2TP_DATA_8:
		return wl_read_l2tp_data(w, WL_NEXT_L2TP_DATA_12);
	case WL_NEXT_L2TP_DATA_12:
		return wl_read_l2tp_data(w, WL_NEXT_END);
	case WL_NEXT_TEREDO:
		return wl_read_teredo(w);
	case WL_NEXT_ETHERIP:
		return wl_read_etherip(w);
	case WL_NEXT_LISP:
		return wl_read_lisp(w);
	case WL_NEXT_CAPWAP:
		return wl_read_capwap(w);
	case WL_NEXT_TZSP:
		return wl_read_tzsp(w);
	case WL_NEXT_TZSP_ETHERNET:
		return wl_read_tzsp_tag(w, WL_NEXT_TZSP_ETHERNET, WL_NEXT_ETHERNET);
	case WL_NEXT_TZSP_WLAN:
		return wl_read_tzsp_tag(w, WL_NEXT_TZSP_WLAN, WL_NEXT_WLAN);
	case WL_NEXT_GUE:
		return wl_read_gue(w);
	case WL_NEXT_AYIYA:
		return wl_read_ayiya(w);
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

/* Whether this is one of the frequent headers: the first ones of enum wl_next. */
static __always_inline int wl_is_frequent(__u32 state)
{
	return state >= WL_NEXT_IPV4 && state <= WL_NEXT_VLAN;
}

/* Reads a frequent header. */
static __always_inline void wl_read_frequent(struct wl_walk *w, __u32 state)
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
	}
}

/*
 * One turn: reads the next header, and finds the one that follows. Returns whether there is one. If the walk
 * ends for another reason (too deep), w->next stays as it is. `frequent`: the header is a frequent one.
 */
static __always_inline int wl_turn(struct wl_walk *w, int frequent)
{
	__u32 zero = wl_scratch_zero(w->out), state = w->next;

	if (wl_unlikely(w->off > WL_MAX_OFFSET))
		return 0;
	w->next = WL_NEXT_END;
	if (frequent)
		wl_read_frequent(w, state);
	else
		wl_read_header(w, state);
	if (w->next == WL_NEXT_END)
		return 0;
	w->off = (w->off + zero) & WL_OFFSET_MASK;
	w->end = (w->end + zero) & 0xffff;
	if (w->next == WL_NEXT_PROTOCOL)
		wl_follow_protocol(w);
	else if (w->next == WL_NEXT_TYPE)
		wl_follow_type(w);
	w->off = (w->off + zero) & WL_OFFSET_MASK;
	return w->next != WL_NEXT_END;
}

/* Begins a walk: start and first state. */
static __always_inline void wl_begin_walk(struct wl_walk *w, __u8 link, __u32 options)
{
	wl_clear_parsed(w->out, link);
	wl_scratch_mode(w->out) = options & WL_PARSE_TUNNELS;
	w->end = 0xffff;
	wl_begin(w, link);
}

/* Ends a walk. */
static __always_inline void wl_end_walk(struct wl_parsed *out, __u32 next)
{
	if (wl_unlikely(next != WL_NEXT_END))
		out->flags |= WL_PKT_DEEP;
	wl_scratch_mode(out) = 0;
}

/* Whether the packet is plain, in which case it has been parsed. */
static __always_inline int wl_parse_plain(const void *data, const void *data_end, __u8 link, __u32 options,
					  struct wl_parsed *out)
{
	struct wl_walk w = {.data = data, .data_end = data_end, .out = out};

	return link == WL_LINK_ETHERNET && wl_likely(wl_read_plain(&w, options & WL_PARSE_TUNNELS));
}

/*
 * wl_parse(): parses a packet that begins with a header of type `link` (enum wl_link) into *out. `options`
 * are WL_PARSE_* flags. out->inner is written only if there is a tunnel (WL_PKT_TUNNEL).
 */
#ifdef __bpf__

#define wl_fresh_pointer(field) ((const void *)(long)*(volatile __u32 *)&(field))

/* State between two turns. */
struct wl_position {
	__u32 off;
	__u32 end;
	__u32 next;
	__u32 value;
};

/*
 * A turn as a global function, which the verifier walks by itself and once. The masks change nothing: they
 * state the ranges of *at, which the verifier cannot know.
 */
__noinline int wl_turn_of(wl_ctx *ctx, struct wl_position *at, struct wl_parsed *out)
{
	struct wl_walk w = {};
	int more;

	if (!at || !out)
		return 0;
	w.data = wl_fresh_pointer(ctx->data);
	w.data_end = wl_fresh_pointer(ctx->data_end);
	w.out = out;
	w.off = at->off & WL_OFFSET_MASK;
	w.end = at->end & 0xffff;
	w.next = at->next & WL_NEXT_MASK;
	w.value = at->value;
	more = wl_turn(&w, 0);
	at->off = w.off;
	at->end = w.end;
	at->next = w.next;
	at->value = w.value;
	return more;
}

/*
 * The packet is that of a context, of which the linear part is read; *out must not be on the caller's stack.
 * A call for each header costs some 15 ns: so the frequent ones are read without a call, as long as no other
 * header is between them.
 */
static __always_inline void wl_parse(wl_ctx *ctx, __u32 link, __u32 options, struct wl_parsed *out)
{
	struct wl_walk walk = {.out = out};
	struct wl_position at = {};
	__u32 turns;

	if (wl_parse_plain(wl_fresh_pointer(ctx->data), wl_fresh_pointer(ctx->data_end), link, options, out))
		return;
	walk.data = wl_fresh_pointer(ctx->data);
	walk.data_end = wl_fresh_pointer(ctx->data_end);
	wl_begin_walk(&walk, link, options);
	for (turns = 0; turns < WL_FREQUENT_TURNS && wl_is_frequent(walk.next); turns++)
		if (!wl_turn(&walk, 1))
			break;
	at.next = walk.next;
	if (wl_unlikely(at.next != WL_NEXT_END)) {
		at.off = walk.off;
		at.end = walk.end;
		at.value = walk.value;
		for (; turns < WL_MAX_HEADERS; turns++)
			if (!wl_turn_of(ctx, &at, out))
				break;
	}
	wl_end_walk(out, at.next);
}

#else

/* The walk, for packets that are not plain. The packet is the range from data to data_end. */
static inline void wl_parse_walk(const void *data, const void *data_end, __u8 link, __u32 options,
				 struct wl_parsed *out)
{
	struct wl_walk w = {.data = data, .data_end = data_end, .out = out};
	__u32 turns;

	wl_begin_walk(&w, link, options);
	for (turns = 0; turns < WL_MAX_HEADERS && w.next != WL_NEXT_END; turns++)
		if (!wl_turn(&w, 0))
			break;
	wl_end_walk(out, w.next);
}

static inline void wl_parse(const void *data, const void *data_end, __u8 link, __u32 options,
			    struct wl_parsed *out)
{
	if (!wl_parse_plain(data, data_end, link, options, out))
		wl_parse_walk(data, data_end, link, options, out);
}

#endif /* __bpf__ */

#endif
