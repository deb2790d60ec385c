/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Packets and streams of RTP (rtp.h). */
#ifndef WL_PACKET_RTP_TYPES_H
#define WL_PACKET_RTP_TYPES_H

#include "lib/types.h"

#define WL_RTP_WINDOW	256  /* sequence numbers that are tracked */
#define WL_RTP_DROPOUT	3000 /* largest gap within a stream (MAX_DROPOUT) */
#define WL_RTP_BURSTS	8    /* of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more lost packets */
#define WL_RTP_DTMF	32   /* events that are stored */
#define WL_RTP_PAYLOADS 8    /* payload types that are stored per stream */
#define WL_RTP_NO_TYPE	0xff
#define WL_RTP_JUMP_NS	1000000000ULL /* a larger deviation of a timestamp from its arrival is a jump */

#define WL_RTP_MOST_NS	0x80000000000000ULL /* maximum distance in time: more than a year */

/* wl_rtp_read() */
#define WL_RTP_OK	 0
#define WL_RTP_NOT	 1 /* too short, or another version */
#define WL_RTP_MALFORMED 2 /* header extension, sources or padding exceed the packet */
#define WL_RTP_CUT	 3 /* the header was not captured completely */

/* wl_rtp_packet.flags */
#define WL_RTP_MARKER 0x01
#define WL_RTP_EVENT  0x02 /* the event's fields are valid, if it is one */

/* wl_rtp_payload.kind */
#define WL_RTP_MEDIA 1
#define WL_RTP_DIGIT 2 /* telephone-event (RFC 4733): its timestamp does not advance */
#define WL_RTP_NOISE 3 /* comfort noise (RFC 3389) */

/* wl_rtp_stream.flags */
#define WL_RTP_TIMED   0x01 /* seq_ns and seq_ts are valid */
#define WL_RTP_STRAYED 0x02 /* bad_seq is valid */
#define WL_RTP_DIGITS  0x04 /* digit_ts is valid */
#define WL_RTP_REGULAR 0x08 /* the least delta is valid */
#define WL_RTP_JITTER  0x10 /* the least jitter is valid */

/* A header. 24 bytes. */
struct wl_rtp_packet {
	__u32 ts;
	__u32 ssrc;
	__u16 seq;
	__u16 payload_len; /* without padding */
	__u8 pt;
	__u8 flags; /* WL_RTP_* */
	__u8 event;
	__u8 event_end;
	__u16 event_duration;
	__u16 pad[3];
};

/* Meaning of a payload type. 8 bytes. */
struct wl_rtp_payload {
	__u32 clock; /* Hz; 0 for an unused type, or an unknown clock */
	__u8 pt;
	__u8 kind; /* WL_RTP_*; 0: unused entry */
	__u16 pad;
};

/*
 * A stream. The caller clears it, and fills in payload[]. A packet in order accesses the first 240 bytes
 * only: four cache lines, if the struct is aligned to one.
 */
struct wl_rtp_stream {
	__u64 packets; /* all packets: duplicates and strays too */
	__u64 bytes;   /* of payload */
	__u64 highest; /* the last number */
	__u64 left;    /* the first number that is still in the window */
	__u64 last_ns;
	__u64 seq_ns;	   /* arrival of the last packet whose timestamp did not step back */
	__u64 jitter16_ns; /* current jitter, times 16 */
	__s64 transit_ns;  /* of the last packet, less that of the first: lateness, and drift of clocks */
	__u64 window[WL_RTP_WINDOW / 64];
	__u64 deltas;	/* number of deltas in the sums */
	__u64 delta_ns; /* their sum */
	__u64 min_delta_ns;
	__u64 max_delta_ns;
	__u64 jitters;
	__u64 jitter_sum_ns;
	__u64 min_jitter_ns;
	__u64 max_jitter_ns;
	__s64 min_transit_ns;
	__s64 max_transit_ns;
	__u64 payload_types[2]; /* a bit for each */
	__u64 stray;
	__u32 seq_ts;
	__u32 run; /* consecutive lost numbers, up to the window */
	__u8 pt;
	__u8 media_pt;
	__u8 last_kind;
	__u8 flags; /* WL_RTP_* */
	__u32 ssrc;
	struct wl_rtp_payload payload[WL_RTP_PAYLOADS];
	__u64 duplicate;
	__u64 out_of_order;
	__u64 malformed;
	__u64 lost;	/* numbers that have left the window; after wl_rtp_finish(): all */
	__u64 expected; /* before the sender's last restart */
	__u64 base;	/* the first number, with cycles */
	__u64 first_ns;
	__u32 digit_ts;
	__u32 bursts;
	__u32 longest_burst;
	__u32 burst[WL_RTP_BURSTS];
	__u32 restarts;
	__u32 markers;
	__u32 timestamp_jumps;
	__u32 payload_changes;
	__u32 noise;
	__u32 digits; /* events */
	__u8 digit[WL_RTP_DTMF];
	__u16 bad_seq;
	__u16 pad;
};

#endif
