/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Recognising HTTP natively: what crates/datapath/src/http.rs calls, and the layouts for the test that
 * compares them. */
#include <stddef.h>
#include <string.h>

#include "packet/http.h"

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

__u32 wl_native_http_first(const __u8 *bytes, size_t length);
size_t wl_native_http_line(__u8 *line, const __u8 *bytes, size_t length);
__u32 wl_native_http_packet(struct wl_http_half *half, __u32 seq, __u32 stated, const __u8 *bytes,
			    size_t length);
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

#define WHOLE(type)	   {#type, 0, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}
#define CONSTANT(name)	   {#name, name}

const struct wl_native_field *wl_native_http_layout(void)
{
	static const struct wl_native_field fields[] = {
	    WHOLE(wl_http_half),
	    FIELD(wl_http_half, first),
	    FIELD(wl_http_half, heads),
	    FIELD(wl_http_half, body),
	    FIELD(wl_http_half, next),
	    FIELD(wl_http_half, head),
	    FIELD(wl_http_half, phase),
	    FIELD(wl_http_half, line),
	    FIELD(wl_http_half, count),
	    FIELD(wl_http_half, begun),
	    FIELD(wl_http_half, part),
	    FIELD(wl_http_half, pad),
	    {NULL, 0, 0},
	};

	return fields;
}

const struct wl_native_constant *wl_native_http_constants(void)
{
	static const struct wl_native_constant constants[] = {
	    CONSTANT(WL_HTTP_HEAD_MOST),
	    CONSTANT(WL_HTTP_NOTHING),
	    CONSTANT(WL_HTTP_REQUEST),
	    CONSTANT(WL_HTTP_RESPONSE),
	    CONSTANT(WL_HTTP_SHORT),
	    CONSTANT(WL_HTTP_OPEN),
	    CONSTANT(WL_HTTP_HEAD),
	    CONSTANT(WL_HTTP_BODY),
	    CONSTANT(WL_HTTP_LINE_TEXT),
	    CONSTANT(WL_HTTP_LINE_EMPTY),
	    CONSTANT(WL_HTTP_LINE_EMPTY_CR),
	    CONSTANT(WL_HTTP_LINE_END),
	    {NULL, 0},
	};

	return constants;
}
