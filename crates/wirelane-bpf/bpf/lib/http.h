/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * HTTP/1: which packets begin or continue the head of a request or of a response (RFC 9112), on any port.
 *
 * A head begins with a method and a blank, or with "HTTP/1."; eight bytes decide (wl_http_first()). It begins
 * at the start of a packet, or behind the head before it (pipelined requests). It ends with the first empty
 * line, in this packet or a later one, up to WL_HTTP_HEAD_MOST bytes (wl_http_line()). Everything else is
 * bodies, which are counted by the sequence numbers of packets with heads: wl_http_half.body.
 *
 * The state of one direction of a connection is struct wl_http_half. For each packet, the caller runs:
 *
 *	wl_http_begin(half, seq, length): from where on it is looked at
 *	block by block from there, while half->phase is not WL_HTTP_BODY: wl_http_walk(half, block, bytes)
 *	wl_http_end(half, seq, length): whether the packet has some of a head in it
 *
 * The work is bounded: one step per byte of heads, none for bodies except eight at the beginning of each
 * packet. Out-of-order segments during an open head are taken for a part of it, and a head that seems to
 * begin in the middle of a body is accepted: an extra packet is better than a missing head. Retransmitted
 * segments count as bodies.
 */
#ifndef WL_PACKET_HTTP_H
#define WL_PACKET_HTTP_H

#include "lib/cursor.h"

/* Maximum length of a head that is followed, in bytes. */
#define WL_HTTP_HEAD_MOST 65536

/* Classification of the first bytes: wl_http_first(). */
enum wl_http_first {
	WL_HTTP_NOTHING = 0,
	WL_HTTP_REQUEST = 1,
	WL_HTTP_RESPONSE = 2,
	WL_HTTP_SHORT = 3, /* too few bytes to decide */
};

/* wl_http_half.phase */
enum wl_http_phase {
	WL_HTTP_OPEN = 0, /* a head may begin here: its first bytes are collected */
	WL_HTTP_HEAD = 1,
	WL_HTTP_BODY = 2, /* nothing more to inspect in this packet */
};

/* State of the current line: wl_http_line(). */
enum wl_http_line {
	WL_HTTP_LINE_TEXT = 0,
	WL_HTTP_LINE_EMPTY = 1,	   /* no bytes yet */
	WL_HTTP_LINE_EMPTY_CR = 2, /* a carriage return */
	WL_HTTP_LINE_END = 3,	   /* the line was empty: the head ends here */
};

/* One direction of a connection. 40 bytes. */
struct wl_http_half {
	__u64 first; /* the collected bytes, the first one lowest */
	__u64 heads; /* heads that have begun */
	__u64 body;  /* bytes behind heads, by sequence numbers */
	__u32 next;  /* sequence number behind all inspected bytes */
	__u32 head;  /* bytes of the current head */
	__u8 phase;  /* enum wl_http_phase */
	__u8 line;   /* enum wl_http_line */
	__u8 count;  /* bytes in first */
	__u8 begun;  /* next is valid */
	__u8 part;   /* the current packet contains part of a head */
	__u8 pad[3];
};

/* Up to eight letters as a little-endian word. */
#define WL_HTTP_WORD(a, b, c, d, e, f, g, h)                                                                 \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 |             \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)

/*
 * Methods: those of IANA's registry that are older than HTTP/2, and those of UPnP and caches. Of methods with
 * eight letters or more, the first eight.
 */
static const __u64 wl_http_methods[] = {
    WL_HTTP_WORD('G', 'E', 'T', ' ', 0, 0, 0, 0),
    WL_HTTP_WORD('P', 'O', 'S', 'T', ' ', 0, 0, 0),
    WL_HTTP_WORD('H', 'E', 'A', 'D', ' ', 0, 0, 0),
    WL_HTTP_WORD('P', 'U', 'T', ' ', 0, 0, 0, 0),
    WL_HTTP_WORD('O', 'P', 'T', 'I', 'O', 'N', 'S', ' '),
    WL_HTTP_WORD('C', 'O', 'N', 'N', 'E', 'C', 'T', ' '),
    WL_HTTP_WORD('D', 'E', 'L', 'E', 'T', 'E', ' ', 0),
    WL_HTTP_WORD('P', 'A', 'T', 'C', 'H', ' ', 0, 0),
    WL_HTTP_WORD('T', 'R', 'A', 'C', 'E', ' ', 0, 0),
    WL_HTTP_WORD('P', 'R', 'O', 'P', 'F', 'I', 'N', 'D'),
    WL_HTTP_WORD('P', 'R', 'O', 'P', 'P', 'A', 'T', 'C'),
    WL_HTTP_WORD('M', 'K', 'C', 'O', 'L', ' ', 0, 0),
    WL_HTTP_WORD('C', 'O', 'P', 'Y', ' ', 0, 0, 0),
    WL_HTTP_WORD('M', 'O', 'V', 'E', ' ', 0, 0, 0),
    WL_HTTP_WORD('L', 'O', 'C', 'K', ' ', 0, 0, 0),
    WL_HTTP_WORD('U', 'N', 'L', 'O', 'C', 'K', ' ', 0),
    WL_HTTP_WORD('S', 'E', 'A', 'R', 'C', 'H', ' ', 0),
    WL_HTTP_WORD('R', 'E', 'P', 'O', 'R', 'T', ' ', 0),
    WL_HTTP_WORD('A', 'C', 'L', ' ', 0, 0, 0, 0),
    WL_HTTP_WORD('B', 'I', 'N', 'D', ' ', 0, 0, 0),
    WL_HTTP_WORD('R', 'E', 'B', 'I', 'N', 'D', ' ', 0),
    WL_HTTP_WORD('U', 'N', 'B', 'I', 'N', 'D', ' ', 0),
    WL_HTTP_WORD('L', 'I', 'N', 'K', ' ', 0, 0, 0),
    WL_HTTP_WORD('U', 'N', 'L', 'I', 'N', 'K', ' ', 0),
    WL_HTTP_WORD('L', 'A', 'B', 'E', 'L', ' ', 0, 0),
    WL_HTTP_WORD('M', 'E', 'R', 'G', 'E', ' ', 0, 0),
    WL_HTTP_WORD('U', 'P', 'D', 'A', 'T', 'E', ' ', 0),
    WL_HTTP_WORD('U', 'P', 'D', 'A', 'T', 'E', 'R', 'E'),
    WL_HTTP_WORD('C', 'H', 'E', 'C', 'K', 'I', 'N', ' '),
    WL_HTTP_WORD('C', 'H', 'E', 'C', 'K', 'O', 'U', 'T'),
    WL_HTTP_WORD('U', 'N', 'C', 'H', 'E', 'C', 'K', 'O'),
    WL_HTTP_WORD('M', 'K', 'A', 'C', 'T', 'I', 'V', 'I'),
    WL_HTTP_WORD('M', 'K', 'C', 'A', 'L', 'E', 'N', 'D'),
    WL_HTTP_WORD('M', 'K', 'R', 'E', 'D', 'I', 'R', 'E'),
    WL_HTTP_WORD('M', 'K', 'W', 'O', 'R', 'K', 'S', 'P'),
    WL_HTTP_WORD('O', 'R', 'D', 'E', 'R', 'P', 'A', 'T'),
    WL_HTTP_WORD('B', 'A', 'S', 'E', 'L', 'I', 'N', 'E'),
    WL_HTTP_WORD('V', 'E', 'R', 'S', 'I', 'O', 'N', '-'),
    WL_HTTP_WORD('N', 'O', 'T', 'I', 'F', 'Y', ' ', 0),
    WL_HTTP_WORD('S', 'U', 'B', 'S', 'C', 'R', 'I', 'B'),
    WL_HTTP_WORD('U', 'N', 'S', 'U', 'B', 'S', 'C', 'R'),
    WL_HTTP_WORD('P', 'U', 'R', 'G', 'E', ' ', 0, 0),
    WL_HTTP_WORD('B', 'A', 'N', ' ', 0, 0, 0, 0),
    WL_HTTP_WORD('S', 'O', 'U', 'R', 'C', 'E', ' ', 0),
};

#define WL_HTTP_METHODS	      (sizeof(wl_http_methods) / sizeof(wl_http_methods[0]))
#define WL_HTTP_RESPONSE_WORD WL_HTTP_WORD('H', 'T', 'T', 'P', '/', '1', '.', 0)

/* Mask of the bytes in which such a word has letters. Letters are not 0, and only zeros follow the last
 * one. */
static __always_inline __u64 wl_http_mask(__u64 word)
{
	__u64 mask = word;

	mask |= mask >> 8;
	mask |= mask >> 16;
	mask |= mask >> 32;
	/* For each byte that is not 0, all bits; a byte below a letter is a letter too. */
	mask |= mask << 1;
	mask |= mask << 2;
	mask |= mask << 4;
	mask &= 0x8080808080808080ULL;
	mask = (mask >> 7) * 0xff;
	return mask;
}

/*
 * Classifies the first `count` bytes of a payload, the first one lowest in `word` and the rest 0: eight are
 * sufficient. With fewer the result may be WL_HTTP_SHORT.
 */
static __always_inline __u32 wl_http_first(__u64 word, __u32 count)
{
	__u64 there = count >= 8 ? ~0ULL : (1ULL << (count * 8 & 63)) - 1, wanted;
	__u32 result = WL_HTTP_NOTHING, i;

	wanted = WL_HTTP_RESPONSE_WORD;
	if (!((word ^ wanted) & wl_http_mask(wanted) & there))
		return wl_http_mask(wanted) & ~there ? WL_HTTP_SHORT : WL_HTTP_RESPONSE;
	for (i = 0; i < WL_HTTP_METHODS; i++) {
		wanted = wl_http_methods[i];
		if ((word ^ wanted) & wl_http_mask(wanted) & there)
			continue;
		if (!(wl_http_mask(wanted) & ~there))
			return WL_HTTP_REQUEST;
		result = WL_HTTP_SHORT;
	}
	return result;
}

/* Reads one byte of a head. Lines end with a line feed, with or without a carriage return before it (RFC
 * 9112, 2.2). */
static __always_inline __u32 wl_http_line(__u32 line, __u8 byte)
{
	if (byte == '\n')
		return line == WL_HTTP_LINE_TEXT ? WL_HTTP_LINE_EMPTY : WL_HTTP_LINE_END;
	if (byte == '\r' && line == WL_HTTP_LINE_EMPTY)
		return WL_HTTP_LINE_EMPTY_CR;
	return WL_HTTP_LINE_TEXT;
}

/*
 * Begins a packet with `length` bytes of payload from sequence number `seq` on. Returns the number of bytes
 * that were seen before and are skipped.
 */
static __always_inline __u32 wl_http_begin(struct wl_http_half *half, __u32 seq, __u32 length)
{
	int ahead = half->begun ? (int)(seq - half->next) : 0;

	half->part = 0;
	if (ahead < 0)
		return (__u32)-ahead < length ? (__u32)-ahead : length;
	if (half->phase == WL_HTTP_HEAD) {
		/* Behind a gap: the missing bytes may have begun the line. */
		if (ahead)
			half->line = WL_HTTP_LINE_TEXT;
	} else if (half->phase == WL_HTTP_BODY || ahead) {
		half->phase = WL_HTTP_OPEN;
		half->first = 0;
		half->count = 0;
	}
	return 0;
}

/* Reads the next bytes of the payload. */
static __always_inline void wl_http_walk(struct wl_http_half *half, const __u8 *bytes, __u32 length)
{
	__u32 first, i;
	__u8 byte;

	for (i = 0; i < length; i++) {
		byte = bytes[i];
		if (half->phase == WL_HTTP_BODY)
			return;
		if (half->phase == WL_HTTP_HEAD) {
			half->part = 1;
			half->head++;
			half->line = wl_http_line(half->line, byte);
			if (half->line == WL_HTTP_LINE_END || half->head >= WL_HTTP_HEAD_MOST) {
				/* Another head may follow immediately. */
				half->phase = WL_HTTP_OPEN;
				half->first = 0;
				half->count = 0;
			}
			continue;
		}
		/* Empty lines before a head are skipped (RFC 9112, 2.2). */
		if (!half->count && (byte == '\r' || byte == '\n'))
			continue;
		half->first |= (__u64)byte << (half->count * 8 & 63);
		half->count++;
		first = wl_http_first(half->first, half->count);
		if (first == WL_HTTP_NOTHING) {
			half->phase = WL_HTTP_BODY;
		} else if (first != WL_HTTP_SHORT) {
			half->phase = WL_HTTP_HEAD;
			half->line = WL_HTTP_LINE_TEXT;
			half->head = half->count;
			half->heads++;
			half->part = 1;
		}
	}
}

/* Ends the packet. Returns whether it contains new bytes of a head, or bytes that may become one. */
static __always_inline __u32 wl_http_end(struct wl_http_half *half, __u32 seq, __u32 length)
{
	__u32 end = seq + length, more = end - half->next, part;

	if (half->begun && (int)more <= 0)
		return 0;
	part = half->part || (half->phase == WL_HTTP_OPEN && half->count);

	/* Missing bytes before the segment are counted, too. */
	if (!part)
		half->body += half->begun ? more : length;
	half->next = end;
	half->begun = 1;
	return part;
}

#endif
