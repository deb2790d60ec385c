/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * RTP streams that are measured in the kernel, as it shares them with user space: streams.h says who
 * writes what, and when. Rust's view is generated (build.rs) and re-exported by src/stream.rs.
 */
#ifndef WL_PACKET_STREAM_H
#define WL_PACKET_STREAM_H

#include "lib/rtp.h"

/* What makes packets one stream. 44 bytes. */
struct wl_stream_key {
	__u8 src[16]; /* as in struct wl_ip */
	__u8 dst[16];
	__u16 src_port; /* network byte order */
	__u16 dst_port;
	__u32 ssrc; /* host order */
	__u32 l3;   /* enum wl_l3 */
};

/* Where a stream is measured. */
struct wl_stream_at {
	__u32 place;	  /* of its struct wl_stream */
	__u32 generation; /* that the place has while it is this stream's */
};

/* A place. 9 cache lines; the first is written by lanes, the second by user space, the others by whose turn
 * it is. */
struct wl_stream {
	__u64 turn;   /* odd: a lane is at it */
	__u64 number; /* of the last packet of the stream that went up; goes into its record */
	__u64 taken;  /* packets that did not */
	__u64 pad[5];
	__u64 generation;
	__u64 handed;	/* the number of the last packet that user space has added to `rtp` */
	__u64 until_ns; /* packets from then on go up */
	__u64 pad2[5];
	struct wl_rtp_stream rtp;
	__u64 pad3[1];
};

#endif
