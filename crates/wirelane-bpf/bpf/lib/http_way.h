/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * HTTP/1: selects the segments of a connection that a log of it needs. Segments with neither a head nor the
 * framing of a body are only counted, and are offloaded; in doubt a segment is delivered to user space.
 *
 * struct wl_http_way is the state of one direction: its heads with the framing of the body (Content-Length,
 * chunks, the end of the connection; RFC 9112, 6.3), and the sizes of chunks. A run is the range between two
 * places where something has to be read: a body, or the rest of one chunk.
 *
 *	OPEN -> HEAD -> [PROBE] -> RUN -> OPEN                       Content-Length, or up to the FIN
 *	             -> SIZE -> EXTENSION -> RUN -> DATA_END -> SIZE chunks
 *	                                  -> TRAILER -> OPEN
 *	ADRIFT: no HTTP has been seen; a segment that begins with a head is looked at
 *	ALL: something was not as expected, and everything is delivered from here on
 *
 * A segment is offloaded if it is next in its direction, lies within a run, and does not reach its end: so
 * the last segment of every message is delivered to user space on arrival. Delivered too are one segment per
 * WL_HTTP_BEAT_NS, and all out-of-order and retransmitted segments. The skipped bytes are way->bytes from
 * way->from on, the last of them at way->last_ns, and are reported before the next segment that is delivered.
 *
 * One direction does not contain the method of the request: an answer to HEAD has a length and no body. So
 * the bodies of answers are probed: if one begins with an answer's first word, or a segment in it does,
 * everything is delivered.
 *
 * lib/http_read.h reads the delivered segments. In the kernel, a program that includes this file defines
 * wl_http_word(word, count): wl_http_first().
 */
#ifndef WL_PACKET_HTTP_WAY_H
#define WL_PACKET_HTTP_WAY_H

#include "lib/flow_ends.h"
#include "lib/http.h"

#ifdef __bpf__
/* A global function: the verifier walks it once, and not at each call. */
int wl_http_word(__u64 word, __u32 count);

static __always_inline __u32 wl_http_is(__u64 word, __u32 count)
{
	/* A head begins with a capital letter. */
	if ((__u32)(word & 0xff) - 'A' > 'Z' - 'A')
		return WL_HTTP_NOTHING;
	return wl_http_word(word, count);
}
#else
#define wl_http_is wl_http_first
#endif

/* Maximum time between two delivered segments of a run: it shows a waiting reader that the run goes on. */
#define WL_HTTP_BEAT_NS 200000000ULL
/* Maximum number of bytes that are offloaded before one segment is delivered: sequence numbers are
 * compared. */
#define WL_HTTP_UNTOLD (1u << 29)
/* Length of a run that ends with the connection. */
#define WL_HTTP_EVER (~0ULL)

/* wl_http_way.phase */
enum wl_http_way_phase {
	WL_HTTP_WAY_ADRIFT = 0,
	WL_HTTP_WAY_OPEN = 1,
	WL_HTTP_WAY_HEAD = 2,
	WL_HTTP_WAY_PROBE = 3,
	WL_HTTP_WAY_SIZE = 4,
	WL_HTTP_WAY_EXTENSION = 5,
	WL_HTTP_WAY_DATA_END = 6,
	WL_HTTP_WAY_TRAILER = 7,
	/* In the phases from here on there is nothing to read. */
	WL_HTTP_WAY_RUN = 8,
	WL_HTTP_WAY_ALL = 9,
};

/* wl_http_way.flags */
#define WL_HTTP_WAY_SYNC     0x01   /* OPEN: only a head can be here, so any word may be a method */
#define WL_HTTP_WAY_TOKEN    0x02   /* OPEN: the collected bytes may be a method */
#define WL_HTTP_WAY_HTTP     0x04   /* a head has been seen */
#define WL_HTTP_WAY_RESPONSE 0x08   /* heads of this direction are responses */
#define WL_HTTP_WAY_FIRST    0x10   /* HEAD: in its first line */
#define WL_HTTP_WAY_ODD	     0x20   /* HEAD: the parser of the head decides on its meaning */
#define WL_HTTP_WAY_LENGTH   0x40   /* HEAD: there was a Content-Length */
#define WL_HTTP_WAY_CHUNKED  0x80   /* HEAD: there was a Transfer-Encoding: chunked. RUN: it is a chunk */
#define WL_HTTP_WAY_CR	     0x100  /* DATA_END, TRAILER, a value: a carriage return was the last byte */
#define WL_HTTP_WAY_DIGITS   0x200  /* a number has begun */
#define WL_HTTP_WAY_BLANK    0x400  /* a value has ended, and blanks follow */
#define WL_HTTP_WAY_TEXT     0x800  /* TRAILER: the line is not empty */
#define WL_HTTP_WAY_ACKED    0x1000 /* an acknowledgement was delivered since the last segment with payload */
/* Flags of a head, and of the bytes collected before it. */
#define WL_HTTP_WAY_MESSAGE                                                                                  \
	(WL_HTTP_WAY_SYNC | WL_HTTP_WAY_TOKEN | WL_HTTP_WAY_FIRST | WL_HTTP_WAY_ODD | WL_HTTP_WAY_LENGTH |   \
	 WL_HTTP_WAY_CHUNKED | WL_HTTP_WAY_CR | WL_HTTP_WAY_DIGITS | WL_HTTP_WAY_BLANK | WL_HTTP_WAY_TEXT)

/* wl_http_way.field: the part of a head's line that is being read. */
enum wl_http_field {
	WL_HTTP_FIELD_NAME = 0,
	WL_HTTP_FIELD_OTHER = 1, /* no field of interest up to the end of the line */
	WL_HTTP_FIELD_LENGTH = 2,
	WL_HTTP_FIELD_CODING = 3,
};

/* One direction of a connection. 80 bytes. */
struct wl_http_way {
	__u64 word;    /* OPEN, PROBE: the collected bytes, the first one lowest */
	__u64 left;    /* RUN: bytes left of the content, or WL_HTTP_EVER. SIZE: the number */
	__u64 length;  /* HEAD: Content-Length */
	__u64 last_ns; /* arrival time of the last skipped byte */
	__u64 told_ns; /* time of the last delivered segment */
	__u32 next;    /* sequence number behind all bytes that have arrived */
	__u32 begin;   /* the first sequence number, with begun */
	__u32 from;    /* range that has been skipped but not reported */
	__u32 bytes;
	__u32 head; /* HEAD: bytes of it */
	__u32 ack;  /* the last delivered acknowledgement */
	__u32 flags;
	__u16 status; /* HEAD: of a response */
	__u8 phase;   /* enum wl_http_way_phase */
	__u8 line;    /* HEAD: enum wl_http_line */
	__u8 count;   /* bytes in `word` */
	__u8 begun;   /* begin is that of a SYN */
	__u8 field;   /* enum wl_http_field */
	__u8 at;      /* in a name, in "chunked", or in " HTTP/1." at the end of a first line */
	__u8 names;   /* bit per name that it may be */
	__u8 pad[3];
};

/* Report of skipped bytes to user space: WL_RECORD_HTTP. 72 bytes. */
struct wl_skipped_bytes {
	struct wl_flow_key key; /* without device and flags */
	__u64 last_ns;		/* when the last byte came; CLOCK_MONOTONIC */
	__u32 from;		/* sequence number of the first one */
	__u32 bytes;
};

/* Decision about a segment: wl_http_look(). */
enum wl_http_fate {
	WL_HTTP_STAYS = 0,
	WL_HTTP_COMES = 1,
	WL_HTTP_WALK = 2, /* deliver it, and read it */
};

/* Initial state of a direction. `syn`: `seq` is the number behind its SYN. */
static __always_inline void wl_http_way_begin(struct wl_http_way *way, __u32 seq, __u32 syn, __u64 now)
{
	__builtin_memset(way, 0, sizeof(*way));
	way->next = seq;
	way->begin = seq;
	way->begun = !!syn;
	way->told_ns = now;
	if (syn) {
		way->phase = WL_HTTP_WAY_OPEN;
		way->flags = WL_HTTP_WAY_SYNC | WL_HTTP_WAY_TOKEN;
	}
}

/* Whether a segment without payload is delivered: its acknowledgement number is needed if bytes are
 * missing, and if the other direction is not seen. */
static __always_inline __u32 wl_http_ack(struct wl_http_way *way, __u32 ack, __u64 now)
{
	if (!(way->flags & WL_HTTP_WAY_HTTP))
		return WL_HTTP_STAYS;
	if (now - way->told_ns < WL_HTTP_BEAT_NS &&
	    ((int)(ack - way->ack) <= 0 || way->flags & WL_HTTP_WAY_ACKED))
		return WL_HTTP_STAYS;
	way->flags |= WL_HTTP_WAY_ACKED;
	return WL_HTTP_COMES;
}

/* Expects a head next. */
static __always_inline void wl_http_way_open(struct wl_http_way *way, __u32 sync)
{
	way->flags = (way->flags & ~WL_HTTP_WAY_MESSAGE) | (sync ? WL_HTTP_WAY_SYNC : 0) | WL_HTTP_WAY_TOKEN;
	way->phase = WL_HTTP_WAY_OPEN;
	way->word = 0;
	way->count = 0;
}

/* Counts an offloaded segment. */
static __always_inline void wl_http_way_keep(struct wl_http_way *way, __u32 seq, __u32 length, __u64 now)
{
	if (!way->bytes || seq != way->from + way->bytes) {
		way->from = seq;
		way->bytes = 0;
	}
	way->bytes += length;
	way->last_ns = now;
}

/*
 * Decides about a segment with `length` bytes of payload, which begins with the `count` bytes in `word`, the
 * first one lowest: eight, or all that it has. `ends`: it has FIN or RST. If it has to be read
 * (WL_HTTP_WALK), reading starts at byte *from.
 */
static __always_inline __u32 wl_http_look(struct wl_http_way *way, __u32 seq, __u32 length, __u64 word,
					  __u32 count, __u32 ends, __u64 now, __u32 *from)
{
	__u32 end = seq + length, fresh = length, first;
	int ahead = (int)(seq - way->next);

	*from = 0;
	if ((int)(end - way->next) <= 0)
		return WL_HTTP_COMES; /* retransmitted, or late */
	if (way->phase == WL_HTTP_WAY_ALL) {
		way->next = end;
		return WL_HTTP_COMES;
	}
	if (ahead < 0) {
		*from = (__u32)-ahead;
		fresh = length - (__u32)-ahead;
	} else if (ahead > 0 && way->phase != WL_HTTP_WAY_ADRIFT) {
		/* A gap within a run does not matter. */
		if (way->phase != WL_HTTP_WAY_RUN || way->left <= (__u32)ahead) {
			way->phase = WL_HTTP_WAY_ALL;
			way->next = end;
			return WL_HTTP_COMES;
		}
		if (way->left != WL_HTTP_EVER)
			way->left -= (__u32)ahead;
	}
	way->next = end;
	if (way->phase == WL_HTTP_WAY_RUN) {
		if (!*from && (word & 0xff) == 'H' &&
		    (way->flags & (WL_HTTP_WAY_RESPONSE | WL_HTTP_WAY_CHUNKED)) == WL_HTTP_WAY_RESPONSE) {
			first = wl_http_is(word, count);
			if (first == WL_HTTP_RESPONSE || first == WL_HTTP_SHORT) {
				way->phase = WL_HTTP_WAY_ALL;
				return WL_HTTP_COMES;
			}
		}
		if (fresh >= way->left)
			return WL_HTTP_WALK;
		if (way->left != WL_HTTP_EVER)
			way->left -= fresh;
		if (ends || ahead || now - way->told_ns >= WL_HTTP_BEAT_NS || way->bytes >= WL_HTTP_UNTOLD ||
		    (way->bytes && seq != way->from + way->bytes))
			return WL_HTTP_COMES;
		wl_http_way_keep(way, seq, length, now);
		return WL_HTTP_STAYS;
	}
	if (way->phase == WL_HTTP_WAY_ADRIFT) {
		first = *from ? WL_HTTP_NOTHING : wl_http_is(word, count);
		if (first == WL_HTTP_NOTHING) {
			if (ends || way->bytes >= WL_HTTP_UNTOLD)
				return WL_HTTP_COMES;
			wl_http_way_keep(way, seq, length, now);
			return WL_HTTP_STAYS;
		}
		wl_http_way_open(way, 0);
	}
	return WL_HTTP_WALK;
}

/* Skips the part of the next `bytes` payload bytes that lies in the current run; returns its length. */
static __always_inline __u32 wl_http_skip(struct wl_http_way *way, __u32 bytes)
{
	if (way->phase != WL_HTTP_WAY_RUN || way->left == WL_HTTP_EVER)
		return way->phase == WL_HTTP_WAY_RUN ? bytes : 0;
	if (way->left > bytes) {
		way->left -= bytes;
		return bytes;
	}
	bytes = (__u32)way->left;
	way->left = 0;
	if (way->flags & WL_HTTP_WAY_CHUNKED) {
		way->phase = WL_HTTP_WAY_DATA_END;
		way->flags &= ~WL_HTTP_WAY_CR;
	} else {
		wl_http_way_open(way, 1);
	}
	return bytes;
}

/* Records a delivered segment; `ack` is its acknowledgement number, with `acks`, and `length` its payload. */
static __always_inline void wl_http_came(struct wl_http_way *way, __u32 length, __u32 acks, __u32 ack,
					 __u64 now)
{
	way->told_ns = now;
	way->bytes = 0;
	if (acks)
		way->ack = ack;
	if (length)
		way->flags &= ~WL_HTTP_WAY_ACKED;
}

#endif
