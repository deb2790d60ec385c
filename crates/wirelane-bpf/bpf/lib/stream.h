/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * RTP streams that are measured in the kernel, in memory shared with user space: streams.h defines which side
 * writes which field, and when. The Rust declarations are generated (build.rs) and re-exported by
 * src/stream.rs.
 */
#ifndef WL_PACKET_STREAM_H
#define WL_PACKET_STREAM_H

#include "lib/rtp.h"

/* Key of a stream. 44 bytes. */
struct wl_stream_key {
	__u8 src[16]; /* as in struct wl_ip */
	__u8 dst[16];
	__u16 src_port; /* network byte order */
	__u16 dst_port;
	__u32 ssrc; /* host order */
	__u32 l3;   /* enum wl_l3 */
};

/* Location of a stream's measurement. */
struct wl_stream_at {
	__u32 place;	  /* index of its struct wl_stream */
	__u32 generation; /* generation of the slot while it belongs to this stream */
};

/* A slot. 8 cache lines: lanes write the first three words, user space the next three, and the current owner
 * `rtp`. A packet in order accesses five lines. */
struct wl_stream {
	__u64 turn;   /* odd: a lane is updating it */
	__u64 number; /* of the last packet of the stream that was delivered; part of its record */
	__u64 taken;  /* packets that were not delivered */
	__u64 generation;
	__u64 handed;	/* the number of the last packet that user space has added to `rtp` */
	__u64 until_ns; /* packets from then on are delivered */
	__u64 pad[2];
	struct wl_rtp_stream rtp;
	__u64 pad2;
};

#endif
