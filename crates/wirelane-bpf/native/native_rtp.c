/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* RTP statistics compiled natively: what crates/wirelane-bpf/src/rtp.rs calls, and the layouts for the test
 * that compares them. */
#include <stddef.h>

#include "lib/stream.h"

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

__u32 wl_native_rtp_read(const __u8 *data, __u32 captured, __u32 off, __u32 len, struct wl_rtp_packet *out);
void wl_native_rtp_update(struct wl_rtp_stream *stream, const struct wl_rtp_packet *packet, __u64 ts_ns);
void wl_native_rtp_finish(struct wl_rtp_stream *stream);
const struct wl_native_field *wl_native_rtp_layout(void);
const struct wl_native_constant *wl_native_rtp_constants(void);

__u32 wl_native_rtp_read(const __u8 *data, __u32 captured, __u32 off, __u32 len, struct wl_rtp_packet *out)
{
	struct wl_walk walk = {.data = data, .data_end = data + captured};

	return wl_rtp_read(&walk, off, len, out);
}

void wl_native_rtp_update(struct wl_rtp_stream *stream, const struct wl_rtp_packet *packet, __u64 ts_ns)
{
	wl_rtp_update(stream, (struct wl_rtp_packet *)packet, ts_ns);
}

void wl_native_rtp_finish(struct wl_rtp_stream *stream)
{
	wl_rtp_finish(stream);
}

#define WHOLE(type)	   {#type, 0, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}
#define CONSTANT(name)	   {#name, name}

const struct wl_native_field *wl_native_rtp_layout(void)
{
	static const struct wl_native_field fields[] = {
	    WHOLE(wl_rtp_packet),
	    FIELD(wl_rtp_packet, ts),
	    FIELD(wl_rtp_packet, ssrc),
	    FIELD(wl_rtp_packet, seq),
	    FIELD(wl_rtp_packet, payload_len),
	    FIELD(wl_rtp_packet, pt),
	    FIELD(wl_rtp_packet, flags),
	    FIELD(wl_rtp_packet, event),
	    FIELD(wl_rtp_packet, event_end),
	    FIELD(wl_rtp_packet, event_duration),
	    FIELD(wl_rtp_packet, pad),
	    WHOLE(wl_rtp_payload),
	    FIELD(wl_rtp_payload, clock),
	    FIELD(wl_rtp_payload, pt),
	    FIELD(wl_rtp_payload, kind),
	    FIELD(wl_rtp_payload, pad),
	    WHOLE(wl_rtp_stream),
	    FIELD(wl_rtp_stream, packets),
	    FIELD(wl_rtp_stream, bytes),
	    FIELD(wl_rtp_stream, duplicate),
	    FIELD(wl_rtp_stream, out_of_order),
	    FIELD(wl_rtp_stream, stray),
	    FIELD(wl_rtp_stream, malformed),
	    FIELD(wl_rtp_stream, lost),
	    FIELD(wl_rtp_stream, expected),
	    FIELD(wl_rtp_stream, base),
	    FIELD(wl_rtp_stream, highest),
	    FIELD(wl_rtp_stream, left),
	    FIELD(wl_rtp_stream, window),
	    FIELD(wl_rtp_stream, first_ns),
	    FIELD(wl_rtp_stream, last_ns),
	    FIELD(wl_rtp_stream, seq_ns),
	    FIELD(wl_rtp_stream, deltas),
	    FIELD(wl_rtp_stream, delta_ns),
	    FIELD(wl_rtp_stream, min_delta_ns),
	    FIELD(wl_rtp_stream, max_delta_ns),
	    FIELD(wl_rtp_stream, jitters),
	    FIELD(wl_rtp_stream, jitter_sum_ns),
	    FIELD(wl_rtp_stream, jitter16_ns),
	    FIELD(wl_rtp_stream, min_jitter_ns),
	    FIELD(wl_rtp_stream, max_jitter_ns),
	    FIELD(wl_rtp_stream, transit_ns),
	    FIELD(wl_rtp_stream, min_transit_ns),
	    FIELD(wl_rtp_stream, max_transit_ns),
	    FIELD(wl_rtp_stream, payload_types),
	    FIELD(wl_rtp_stream, ssrc),
	    FIELD(wl_rtp_stream, seq_ts),
	    FIELD(wl_rtp_stream, digit_ts),
	    FIELD(wl_rtp_stream, run),
	    FIELD(wl_rtp_stream, bursts),
	    FIELD(wl_rtp_stream, longest_burst),
	    FIELD(wl_rtp_stream, burst),
	    FIELD(wl_rtp_stream, restarts),
	    FIELD(wl_rtp_stream, markers),
	    FIELD(wl_rtp_stream, timestamp_jumps),
	    FIELD(wl_rtp_stream, payload_changes),
	    FIELD(wl_rtp_stream, noise),
	    FIELD(wl_rtp_stream, digits),
	    FIELD(wl_rtp_stream, digit),
	    FIELD(wl_rtp_stream, payload),
	    FIELD(wl_rtp_stream, bad_seq),
	    FIELD(wl_rtp_stream, pt),
	    FIELD(wl_rtp_stream, media_pt),
	    FIELD(wl_rtp_stream, last_kind),
	    FIELD(wl_rtp_stream, flags),
	    FIELD(wl_rtp_stream, pad),
	    WHOLE(wl_stream_key),
	    FIELD(wl_stream_key, src),
	    FIELD(wl_stream_key, dst),
	    FIELD(wl_stream_key, src_port),
	    FIELD(wl_stream_key, dst_port),
	    FIELD(wl_stream_key, ssrc),
	    FIELD(wl_stream_key, l3),
	    WHOLE(wl_stream_at),
	    FIELD(wl_stream_at, place),
	    FIELD(wl_stream_at, generation),
	    WHOLE(wl_stream),
	    FIELD(wl_stream, turn),
	    FIELD(wl_stream, number),
	    FIELD(wl_stream, taken),
	    FIELD(wl_stream, pad),
	    FIELD(wl_stream, generation),
	    FIELD(wl_stream, handed),
	    FIELD(wl_stream, until_ns),
	    FIELD(wl_stream, pad2),
	    FIELD(wl_stream, rtp),
	    FIELD(wl_stream, pad3),
	    {NULL, 0, 0},
	};

	return fields;
}

const struct wl_native_constant *wl_native_rtp_constants(void)
{
	static const struct wl_native_constant constants[] = {
	    CONSTANT(WL_RTP_WINDOW),
	    CONSTANT(WL_RTP_DROPOUT),
	    CONSTANT(WL_RTP_BURSTS),
	    CONSTANT(WL_RTP_DTMF),
	    CONSTANT(WL_RTP_PAYLOADS),
	    CONSTANT(WL_RTP_NO_TYPE),
	    CONSTANT(WL_RTP_JUMP_NS),
	    CONSTANT(WL_RTP_MOST_NS),
	    CONSTANT(WL_RTP_OK),
	    CONSTANT(WL_RTP_NOT),
	    CONSTANT(WL_RTP_MALFORMED),
	    CONSTANT(WL_RTP_CUT),
	    CONSTANT(WL_RTP_MARKER),
	    CONSTANT(WL_RTP_EVENT),
	    CONSTANT(WL_RTP_MEDIA),
	    CONSTANT(WL_RTP_DIGIT),
	    CONSTANT(WL_RTP_NOISE),
	    CONSTANT(WL_RTP_TIMED),
	    CONSTANT(WL_RTP_STRAYED),
	    CONSTANT(WL_RTP_DIGITS),
	    CONSTANT(WL_RTP_REGULAR),
	    CONSTANT(WL_RTP_JITTER),
	    {NULL, 0},
	};

	return constants;
}
