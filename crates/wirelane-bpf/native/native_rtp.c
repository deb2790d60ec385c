/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* RTP statistics compiled natively, for crates/wirelane-bpf/src/rtp.rs. */
#include <stddef.h>

#include "native.h"
#include "lib/stream.h"

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
