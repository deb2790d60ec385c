/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Recognising HTTP natively: what crates/wirelane-bpf/src/http.rs calls, and the layouts for the test that
 * compares them. */
#include <stddef.h>
#include <string.h>

#include "lib/http_read.h"

/* As in native_layout.h. */
struct wl_native_field {
	const char *name;
	__u32 offset;
	__u32 size;
};

struct wl_native_constant {
	const char *name;
	__u64 value;
};

/* A segment of one direction. */
struct wl_native_segment {
	__u64 now_ns;
	__u32 seq;
	__u32 ack;
	__u32 flags; /* WL_TCP_* */
	__u32 length;
};

__u32 wl_native_http_first(const __u8 *bytes, size_t length);
size_t wl_native_http_line(__u8 *line, const __u8 *bytes, size_t length);
__u32 wl_native_http_packet(struct wl_http_half *half, __u32 seq, __u32 stated, const __u8 *bytes,
			    size_t length);
__u32 wl_native_http_way(struct wl_http_way *way, const struct wl_native_segment *segment, const __u8 *bytes,
			 struct wl_http_told *told);
void wl_native_http_way_begin(struct wl_http_way *way, __u32 seq, __u64 now);
const struct wl_native_field *wl_native_http_layout(void);
const struct wl_native_constant *wl_native_http_constants(void);

__u32 wl_native_http_first(const __u8 *bytes, size_t length)
{
	__u64 word = 0;

	if (length > sizeof(word))
		length = sizeof(word);
	memcpy(&word, bytes, length);
	return wl_http_first(word, (__u32)length);
}

/* Bytes up to the end of the head, the last one included: all of them where it does not end here. */
size_t wl_native_http_line(__u8 *line, const __u8 *bytes, size_t length)
{
	size_t i;

	for (i = 0; i < length && *line != WL_HTTP_LINE_END; i++)
		*line = (__u8)wl_http_line(*line, bytes[i]);
	return i;
}

/* Bytes that were not captured are none of a head. */
__u32 wl_native_http_packet(struct wl_http_half *half, __u32 seq, __u32 stated, const __u8 *bytes,
			    size_t length)
{
	__u32 old = wl_http_begin(half, seq, stated);

	if (old < length)
		wl_http_walk(half, bytes + old, (__u32)length - old);
	return wl_http_end(half, seq, stated);
}

/* What http.h does with a segment, of which all bytes are there. 1: it comes up, and *told is what
 * has stayed below before it, if told->bytes is not 0. */
__u32 wl_native_http_way(struct wl_http_way *way, const struct wl_native_segment *segment, const __u8 *bytes,
			 struct wl_http_told *told)
{
	__u32 ends = segment->flags & (WL_TCP_FIN | WL_TCP_RST), acks = segment->flags & WL_TCP_ACK;
	__u32 length = segment->length, fate = WL_HTTP_STAYS, at = 0;
	__u64 word = 0;

	memset(told, 0, sizeof(*told));
	told->last_ns = way->last_ns;
	told->from = way->from;
	if (segment->flags & WL_TCP_SYN) {
		if (way->begun && way->begin == segment->seq + 1 && !length)
			return 1;
		told->bytes = way->bytes;
		wl_http_way_begin(way, segment->seq + 1, 1, segment->now_ns);
		if (length)
			way->phase = WL_HTTP_WAY_ALL;
		return 1;
	}
	if (length) {
		memcpy(&word, bytes, length < sizeof(word) ? length : sizeof(word));
		fate = wl_http_look(way, segment->seq, length, word, length < 8 ? length : 8, ends,
				    segment->now_ns, &at);
	} else if (ends) {
		fate = WL_HTTP_COMES;
	} else if (acks) {
		fate = wl_http_ack(way, segment->ack, segment->now_ns);
	}
	if (fate == WL_HTTP_STAYS)
		return 0;
	while (fate == WL_HTTP_WALK && at < length) {
		at += wl_http_skip(way, length - at);
		if (at >= length || way->phase >= WL_HTTP_WAY_RUN || way->phase == WL_HTTP_WAY_ADRIFT)
			break;
		wl_http_step(way, bytes[at++]);
	}
	told->bytes = way->bytes;
	wl_http_came(way, length, acks, segment->ack, segment->now_ns);
	return 1;
}

/* A direction that was not seen from its beginning on. */
void wl_native_http_way_begin(struct wl_http_way *way, __u32 seq, __u64 now)
{
	wl_http_way_begin(way, seq, 0, now);
}

#define WHOLE(type)	   {#type, 0, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}
#define CONSTANT(name)	   {#name, name}

const struct wl_native_field *wl_native_http_layout(void)
{
	static const struct wl_native_field fields[] = {
	    WHOLE(wl_http_half),	  FIELD(wl_http_half, first),
	    FIELD(wl_http_half, heads),	  FIELD(wl_http_half, body),
	    FIELD(wl_http_half, next),	  FIELD(wl_http_half, head),
	    FIELD(wl_http_half, phase),	  FIELD(wl_http_half, line),
	    FIELD(wl_http_half, count),	  FIELD(wl_http_half, begun),
	    FIELD(wl_http_half, part),	  FIELD(wl_http_half, pad),
	    WHOLE(wl_http_way),		  FIELD(wl_http_way, word),
	    FIELD(wl_http_way, left),	  FIELD(wl_http_way, length),
	    FIELD(wl_http_way, last_ns),  FIELD(wl_http_way, told_ns),
	    FIELD(wl_http_way, next),	  FIELD(wl_http_way, begin),
	    FIELD(wl_http_way, from),	  FIELD(wl_http_way, bytes),
	    FIELD(wl_http_way, head),	  FIELD(wl_http_way, ack),
	    FIELD(wl_http_way, flags),	  FIELD(wl_http_way, status),
	    FIELD(wl_http_way, phase),	  FIELD(wl_http_way, line),
	    FIELD(wl_http_way, count),	  FIELD(wl_http_way, begun),
	    FIELD(wl_http_way, field),	  FIELD(wl_http_way, at),
	    FIELD(wl_http_way, names),	  FIELD(wl_http_way, pad),
	    WHOLE(wl_http_told),	  FIELD(wl_http_told, key),
	    FIELD(wl_http_told, last_ns), FIELD(wl_http_told, from),
	    FIELD(wl_http_told, bytes),	  {NULL, 0, 0},
	};

	return fields;
}

const struct wl_native_constant *wl_native_http_constants(void)
{
	static const struct wl_native_constant constants[] = {
	    CONSTANT(WL_HTTP_HEAD_MOST),     CONSTANT(WL_HTTP_NOTHING),
	    CONSTANT(WL_HTTP_REQUEST),	     CONSTANT(WL_HTTP_RESPONSE),
	    CONSTANT(WL_HTTP_SHORT),	     CONSTANT(WL_HTTP_OPEN),
	    CONSTANT(WL_HTTP_HEAD),	     CONSTANT(WL_HTTP_BODY),
	    CONSTANT(WL_HTTP_LINE_TEXT),     CONSTANT(WL_HTTP_LINE_EMPTY),
	    CONSTANT(WL_HTTP_LINE_EMPTY_CR), CONSTANT(WL_HTTP_LINE_END),
	    CONSTANT(WL_RECORD_HTTP),	     {NULL, 0},
	};

	return constants;
}
