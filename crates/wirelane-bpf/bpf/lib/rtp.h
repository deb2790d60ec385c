/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * RTP (RFC 3550): statistics of one stream.
 *
 * wl_rtp_read() reads a header, wl_rtp_update() adds a packet to its stream (one SSRC between two ends), and
 * wl_rtp_finish() finalizes the loss count. Integers only, no helpers, no pointers in structs; loops are
 * bounded by WL_RTP_WINDOW and run beyond their first iteration only after a gap.
 *
 * As one inlined function this is too much for the verifier. So in the kernel each WL_RTP_PART is a global
 * function, which the verifier walks once; hence these check their pointers, and return a number.
 *
 * Sequence. The last WL_RTP_WINDOW numbers are tracked individually, so that late packets and duplicates are
 * recognized. A number that leaves the window without its packet is lost; runs of lost ones are bursts. A
 * number that is further behind than the window, or WL_RTP_DROPOUT ahead, is a stray; two consecutive strays
 * are a restart of the sender (RFC 3550, A.1). So, always:
 *
 *	packets - duplicate - stray = expected - lost
 *
 * Time. The interarrival jitter is that of RFC 3550, A.8, in its integer form, with transit in nanoseconds:
 * in units of the RTP clock a packet's arrival would be rounded to 125 us. Delta and jitter are those that
 * Wireshark shows: from the last packet whose timestamp did not step back; extremes and means are over
 * packets that are not the first, have no marker, step forward, and are neither comfort noise nor follow it.
 */
#ifndef WL_PACKET_RTP_H
#define WL_PACKET_RTP_H

#include "lib/cursor.h"
#include "lib/rtp_types.h"

#ifdef __bpf__
#define WL_RTP_PART __noinline
#else
#define WL_RTP_PART static inline
#endif

/*
 * Reads the RTP header at `off`, of a datagram whose payload has `len` bytes. With WL_RTP_MALFORMED and
 * WL_RTP_CUT the fixed header has been read if it is complete; with WL_RTP_NOT nothing is valid. Both off and
 * len are 0xffff at most.
 */
static __always_inline __u32 wl_rtp_read(const struct wl_walk *w, __u32 off, __u32 len,
					 struct wl_rtp_packet *out)
{
	const __u8 *p;
	__u32 header = 12, padding = 0;

	wl_store64((__u8 *)out, 0);
	wl_store64((__u8 *)out + 8, 0);
	wl_store64((__u8 *)out + 16, 0);
	if (len < 12 || off > WL_OFFSET_MASK)
		return WL_RTP_NOT;
	p = wl_captured(w, off, 12);
	if (!p)
		return WL_RTP_CUT;
	if (p[0] >> 6 != 2)
		return WL_RTP_NOT;
	out->pt = p[1] & 0x7f;
	out->flags = p[1] & 0x80 ? WL_RTP_MARKER : 0;
	out->seq = (__u16)(p[2] << 8 | p[3]);
	out->ts = (__u32)p[4] << 24 | (__u32)p[5] << 16 | (__u32)p[6] << 8 | p[7];
	out->ssrc = (__u32)p[8] << 24 | (__u32)p[9] << 16 | (__u32)p[10] << 8 | p[11];
	header += 4 * (p[0] & 0x0f);
	if (p[0] & 0x20)
		padding = 1;
	if (p[0] & 0x10) {
		if (header + 4 > len)
			return WL_RTP_MALFORMED;
		p = wl_captured(w, (off + header) & WL_OFFSET_MASK, 4);
		if (!p)
			return WL_RTP_CUT;
		header += 4 + 4 * (__u32)(p[2] << 8 | p[3]);
	}
	if (header > len)
		return WL_RTP_MALFORMED;
	if (padding && off + len - 1 <= WL_OFFSET_MASK) {
		p = wl_captured(w, (off + len - 1) & WL_OFFSET_MASK, 1);
		if (!p)
			return WL_RTP_CUT;
		padding = p[0];
		if (!padding || header + padding > len)
			return WL_RTP_MALFORMED;
	}
	out->payload_len = (__u16)(len - header - padding);
	if (out->payload_len >= 4 && off + header <= WL_OFFSET_MASK) {
		p = wl_captured(w, (off + header) & WL_OFFSET_MASK, 4);
		if (p) {
			out->flags |= WL_RTP_EVENT;
			out->event = p[0];
			out->event_end = p[1] >> 7;
			out->event_duration = (__u16)(p[2] << 8 | p[3]);
		}
	}
	return WL_RTP_OK;
}

/* Ends a run of lost packets. */
WL_RTP_PART int wl_rtp_burst(struct wl_rtp_stream *s)
{
	__u32 run, at;

	if (!s || !s->run)
		return 0;
	run = s->run;
	s->run = 0;
	s->bursts++;
	if (run > s->longest_burst)
		s->longest_burst = run;
	at = (run > 1) + (run > 2) + (run > 4) + (run > 8) + (run > 16) + (run > 32) + (run > 64);
	s->burst[at & (WL_RTP_BURSTS - 1)]++;
	return 0;
}

/*
 * Moves the numbers below `upto` out of the window: each has arrived or is lost. Each iteration reads its
 * position from memory: the verifier's knowledge of it would differ by the path through all iterations
 * before.
 */
WL_RTP_PART int wl_rtp_leave(struct wl_rtp_stream *s, __u64 upto)
{
	__u64 at, beyond;
	__u32 turn;

	if (!s)
		return 0;
	for (turn = 0; turn < WL_RTP_WINDOW; turn++) {
		at = *(volatile __u64 *)&s->left;
		if (at >= upto)
			return 0;
		*(volatile __u64 *)&s->left = at + 1;
		if (at <= s->highest && s->window[at >> 6 & (WL_RTP_WINDOW / 64 - 1)] >> (at & 63) & 1) {
			wl_rtp_burst(s);
		} else {
			s->run++;
			s->lost++;
		}
	}
	beyond = upto > s->left ? upto - s->left : 0; /* numbers beyond the highest one */
	s->run += (__u32)beyond;
	s->lost += beyond;
	s->left += beyond;
	return 0;
}

static __always_inline void wl_rtp_set(struct wl_rtp_stream *s, __u64 at)
{
	s->window[at >> 6 & (WL_RTP_WINDOW / 64 - 1)] |= 1ULL << (at & 63);
}

/* Ends the stream, or prepares a restart: numbers that have not arrived by now are lost. Idempotent. */
static __always_inline void wl_rtp_finish(struct wl_rtp_stream *s)
{
	if (!s->packets || s->left > s->highest)
		return;
	wl_rtp_leave(s, s->highest + 1);
	wl_rtp_burst(s);
}

static __always_inline void wl_rtp_begin(struct wl_rtp_stream *s, __u64 at)
{
	s->base = s->highest = s->left = at;
	s->window[0] = s->window[1] = s->window[2] = s->window[3] = 0;
	_Static_assert(WL_RTP_WINDOW == 256, "wl_rtp_begin() clears four words");
	wl_rtp_set(s, at);
	s->flags &= ~(WL_RTP_TIMED | WL_RTP_STRAYED);
}

/* Marks `ahead` numbers after the highest as not arrived. */
WL_RTP_PART int wl_rtp_clear(struct wl_rtp_stream *s, __u32 ahead)
{
	__u64 old;
	__u32 turn;

	if (!s)
		return 0;
	old = s->highest;
	for (turn = 1; turn <= WL_RTP_WINDOW; turn++) {
		__u64 at = old + turn;

		if (turn > ahead)
			break;
		s->window[at >> 6 & (WL_RTP_WINDOW / 64 - 1)] &= ~(1ULL << (at & 63));
	}
	return 0;
}

/* Advances the window to `ahead` numbers after the highest. */
static __always_inline void wl_rtp_advance(struct wl_rtp_stream *s, __u32 ahead)
{
	__u64 now = s->highest + ahead;

	/* Numbers start at one full cycle: subtraction cannot underflow. */
	wl_rtp_leave(s, now - (WL_RTP_WINDOW - 1));
	wl_rtp_clear(s, ahead);
	s->highest = now;
	wl_rtp_set(s, now);
}

/*
 * Advances the window to the next number, if nothing else changes with it: the number that leaves the window
 * has arrived, and does not end a run of lost ones. It has the bit of the new number, which stays set.
 */
static __always_inline int wl_rtp_next(struct wl_rtp_stream *s)
{
	__u64 now = s->highest + 1, bit = 1ULL << (now & 63);
	__u64 *word = &s->window[now >> 6 & (WL_RTP_WINDOW / 64 - 1)];

	if (s->left + WL_RTP_WINDOW <= now) {
		if (s->left + WL_RTP_WINDOW != now || !(*word & bit) || s->run)
			return 0;
		s->left++;
	}
	*word |= bit;
	s->highest = now;
	return 1;
}

/* Classifies a packet's number. Returns 1 if it advances the stream, or is its first. */
WL_RTP_PART int wl_rtp_sequence(struct wl_rtp_stream *s, __u32 number)
{
	__u16 seq = (__u16)number;
	__u32 ahead, back;
	__u64 at;

	if (!s)
		return 0;
	ahead = (__u16)(seq - (__u16)s->highest);
	if (ahead == 1 && wl_rtp_next(s)) {
		s->flags &= ~WL_RTP_STRAYED;
		return 1;
	}
	back = (__u16)-ahead;
	if (!ahead || back < WL_RTP_WINDOW) {
		at = s->highest - back;
		s->flags &= ~WL_RTP_STRAYED;
		if (at < s->base) {
			/* Before the first packet: that was not the first of the stream. If the window has
			 * left that range, its loss count is final. */
			if (s->left != s->base || s->highest - at >= WL_RTP_WINDOW) {
				s->stray++;
				return 0;
			}
			s->base = s->left = at;
		} else if (at < s->left) {
			s->stray++;
			return 0;
		} else if (s->window[at >> 6 & (WL_RTP_WINDOW / 64 - 1)] >> (at & 63) & 1) {
			s->duplicate++;
			return 0;
		}
		wl_rtp_set(s, at);
		s->out_of_order++;
		return 0;
	}
	if (ahead <= WL_RTP_DROPOUT) {
		s->flags &= ~WL_RTP_STRAYED;
		wl_rtp_advance(s, ahead);
		return 1;
	}
	if (s->flags & WL_RTP_STRAYED && seq == s->bad_seq) {
		/* The sender restarted with the stray before this one. */
		wl_rtp_finish(s);
		s->expected += s->highest - s->base + 1;
		s->stray--;
		s->restarts++;
		wl_rtp_begin(s, 0x10000 + (__u64)(__u16)(seq - 1));
		wl_rtp_advance(s, 1);
		return 1;
	}
	s->stray++;
	s->bad_seq = (__u16)(seq + 1);
	s->flags |= WL_RTP_STRAYED;
	return 0;
}

/* Index of the entry for the payload type; WL_RTP_PAYLOADS if it is unknown. */
WL_RTP_PART int wl_rtp_payload_of(struct wl_rtp_stream *s, __u32 pt)
{
	__u32 turn;

	if (!s)
		return WL_RTP_PAYLOADS;
	for (turn = 0; turn < WL_RTP_PAYLOADS; turn++)
		if (s->payload[turn].kind && s->payload[turn].pt == pt)
			return turn;
	return WL_RTP_PAYLOADS;
}

/* Duration of this many units of a clock, in nanoseconds. A multiplication is faster than a division. */
static __always_inline __u64 wl_rtp_duration(__u32 units, __u32 clock)
{
	switch (clock) {
	case 8000:
		return units * 125000ULL;
	case 16000:
		return units * 62500ULL;
	default:
		return units * 1000000000ULL / clock;
	}
}

/* Updates jitter, transit and delta for a packet that arrived at ts_ns, after a timed one. */
WL_RTP_PART int wl_rtp_time(struct wl_rtp_stream *s, struct wl_rtp_packet *p, __u64 ts_ns, __u32 clock,
			    __u32 counts)
{
	__u64 delta, nominal, off, jitter;
	__u32 step;
	int forward;
	__s64 late;

	if (!s || !p)
		return 0;
	step = p->ts - s->seq_ts;
	forward = step < 0x80000000u;
	delta = ts_ns > s->seq_ns ? ts_ns - s->seq_ns : 0;
	if (delta > WL_RTP_MOST_NS)
		delta = WL_RTP_MOST_NS;
	if (clock) {
		nominal = wl_rtp_duration(forward ? step : (__u32)-step, clock);
		/* A negative arrival interval, after a step of the capture's clock, counts as zero. */
		late = forward ? (__s64)delta - (__s64)nominal : (__s64)(delta + nominal);
		off = late < 0 ? (__u64)-late : (__u64)late;
		if (off > WL_RTP_MOST_NS)
			off = WL_RTP_MOST_NS;
		s->jitter16_ns += off - ((s->jitter16_ns + 8) >> 4);
		if (off > WL_RTP_JUMP_NS && !(p->flags & WL_RTP_MARKER))
			s->timestamp_jumps++;
		if (forward) {
			s->transit_ns += late < 0 ? -(__s64)off : (__s64)off;
			/* Limits the sum, so that no clock error makes it overflow. */
			if (s->transit_ns > 16 * (__s64)WL_RTP_MOST_NS)
				s->transit_ns = 16 * (__s64)WL_RTP_MOST_NS;
			if (s->transit_ns < -16 * (__s64)WL_RTP_MOST_NS)
				s->transit_ns = -16 * (__s64)WL_RTP_MOST_NS;
			if (s->transit_ns < s->min_transit_ns)
				s->min_transit_ns = s->transit_ns;
			if (s->transit_ns > s->max_transit_ns)
				s->max_transit_ns = s->transit_ns;
		}
	}
	if (!counts || !forward)
		return 0;
	s->deltas++;
	s->delta_ns += delta;
	if (delta > s->max_delta_ns)
		s->max_delta_ns = delta;
	if (!(s->flags & WL_RTP_REGULAR) || delta < s->min_delta_ns)
		s->min_delta_ns = delta;
	s->flags |= WL_RTP_REGULAR;
	if (!clock)
		return 0;
	jitter = s->jitter16_ns >> 4;
	s->jitters++;
	s->jitter_sum_ns += jitter;
	if (jitter > s->max_jitter_ns)
		s->max_jitter_ns = jitter;
	if (!(s->flags & WL_RTP_JITTER) || jitter < s->min_jitter_ns)
		s->min_jitter_ns = jitter;
	s->flags |= WL_RTP_JITTER;
	return 0;
}

/* Adds a packet of the stream's SSRC that arrived at ts_ns. */
WL_RTP_PART int wl_rtp_update(struct wl_rtp_stream *s, struct wl_rtp_packet *p, __u64 ts_ns)
{
	__u32 slot, clock = 0;
	__u8 kind = WL_RTP_MEDIA;
	__u64 strays;

	if (!s || !p)
		return 0;
	slot = wl_rtp_payload_of(s, p->pt);
	if (slot < WL_RTP_PAYLOADS) {
		kind = s->payload[slot].kind;
		clock = kind != WL_RTP_DIGIT ? s->payload[slot].clock : 0;
	}
	strays = s->stray;
	s->bytes += p->payload_len;
	s->payload_types[p->pt >> 6 & 1] |= 1ULL << (p->pt & 63);
	if (p->flags & WL_RTP_MARKER)
		s->markers++;
	if (!s->packets++) {
		s->ssrc = p->ssrc;
		s->first_ns = s->last_ns = ts_ns;
		s->pt = p->pt;
		s->media_pt = WL_RTP_NO_TYPE;
		s->last_kind = kind;
		wl_rtp_begin(s, 0x10000 + (__u64)p->seq);
	} else {
		wl_rtp_sequence(s, p->seq);
		if (ts_ns > s->last_ns)
			s->last_ns = ts_ns;
	}
	if (kind == WL_RTP_NOISE)
		s->noise++;
	if (kind == WL_RTP_MEDIA) {
		if (s->media_pt != p->pt && s->media_pt != WL_RTP_NO_TYPE)
			s->payload_changes++;
		s->media_pt = p->pt;
	}
	if (kind == WL_RTP_DIGIT && p->flags & WL_RTP_EVENT &&
	    (!(s->flags & WL_RTP_DIGITS) || s->digit_ts != p->ts)) {
		if (s->digits < WL_RTP_DTMF)
			s->digit[s->digits & (WL_RTP_DTMF - 1)] = p->event;
		s->digits++;
		s->digit_ts = p->ts;
		s->flags |= WL_RTP_DIGITS;
	}
	/* The timestamp of a stray is unrelated. */
	if (s->stray > strays)
		return 0;
	if (s->flags & WL_RTP_TIMED)
		wl_rtp_time(s, p, ts_ns, clock,
			    !(p->flags & WL_RTP_MARKER) && kind != WL_RTP_NOISE &&
				s->last_kind != WL_RTP_NOISE);
	if (!(s->flags & WL_RTP_TIMED) || p->ts - s->seq_ts < 0x80000000u) {
		s->seq_ns = ts_ns;
		s->seq_ts = p->ts;
		s->flags |= WL_RTP_TIMED;
	}
	s->pt = p->pt;
	s->last_kind = kind;
	return 0;
}

/* Number of packets expected so far. */
static __always_inline __u64 wl_rtp_expected(const struct wl_rtp_stream *s)
{
	return s->packets ? s->expected + (s->highest - s->base + 1) : 0;
}

#endif
