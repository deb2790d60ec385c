/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* HTTP detection compiled natively, for crates/wirelane-bpf/src/http.rs. */
#include <stddef.h>
#include <string.h>

#include "native.h"
#include "lib/http_read.h"

__u32 wl_native_http_first(const __u8 *bytes, size_t length)
{
	__u64 word = 0;

	if (length > sizeof(word))
		length = sizeof(word);
	memcpy(&word, bytes, length);
	return wl_http_first(word, (__u32)length);
}

/* Number of bytes up to the end of the head, including the last one: all if it does not end here. */
size_t wl_native_http_line(__u8 *line, const __u8 *bytes, size_t length)
{
	size_t i;

	for (i = 0; i < length && *line != WL_HTTP_LINE_END; i++)
		*line = (__u8)wl_http_line(*line, bytes[i]);
	return i;
}

/* Bytes that were not captured do not count as part of a head. */
__u32 wl_native_http_packet(struct wl_http_half *half, __u32 seq, __u32 stated, const __u8 *bytes,
			    size_t length)
{
	__u32 old = wl_http_begin(half, seq, stated);

	if (old < length)
		wl_http_walk(half, bytes + old, (__u32)length - old);
	return wl_http_end(half, seq, stated);
}

/* Processes a complete segment as http.h does. 1: it is delivered, and *told are the bytes skipped before
 * it, if told->bytes is not 0. */
__u32 wl_native_http_way(struct wl_http_way *way, const struct wl_native_segment *segment, const __u8 *bytes,
			 struct wl_skipped_bytes *told)
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

/* Initializes a direction that was not seen from its beginning. */
void wl_native_http_way_begin(struct wl_http_way *way, __u32 seq, __u64 now)
{
	wl_http_way_begin(way, seq, 0, now);
}
