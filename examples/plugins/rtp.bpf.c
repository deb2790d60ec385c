// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * RTP streams (RFC 3550), in a map of the kernel: for each SSRC between two ends the packets, those that were
 * lost, late or came twice, and the jitter. It matches the packets of RTP, so that a rule counts them without
 * delivering them.
 *
 *	clang-19 -g -O2 -target bpf -I include -c examples/plugins/rtp.bpf.c -o rtp.bpf.o
 *	sudo wirelane count -i eth1 --plugin rtp=rtp.bpf.o --rules examples/plugins/rtp.toml &
 *	sudo wirelane rules state rtp streams
 *
 * As in `wirelane voip` the last 256 sequence numbers are tracked one by one: a number that comes again is a
 * duplicate, one that comes later than a higher one is out of order, one outside of the window, or 3000
 * ahead, is a stray; two strays in a row are a restart of the sender. Of the numbers that were expected,
 * those that did not arrive are lost:
 *
 *	lost = expected + highest - base + 1 - (packets - duplicate - stray)
 *
 * A stream is on one CPU at a time, as a card puts its packets into one queue: no lock is needed.
 */
#include <wirelane/plugin.h>

/* UDP ports between which streams are looked for, at both ends. */
STATE_PARAMETER(packet_u16, first_port, 1024);
STATE_PARAMETER(packet_u16, last_port, 65535);
STATE_PARAMETER(packet_u32, clock, 8000); /* Hz, of the payload types that are measured */
STATE_PARAMETER(packet_u8, last_type, 95);

#define WINDOW	   256
#define MOST_AHEAD 3000
#define SECOND	   1000000000ULL

struct stream_key {
	packet_u8 src[16];
	packet_u8 dst[16];
	packet_u16 src_port; /* network byte order */
	packet_u16 dst_port;
	packet_u32 ssrc;
};

struct stream {
	packet_u64 packets;
	packet_u64 bytes; /* of payload */
	packet_u64 duplicate;
	packet_u64 out_of_order;
	packet_u64 stray;
	packet_u64 expected; /* before the sender's last restart */
	packet_u64 restarts;
	packet_u64 base;		/* the first number, with cycles */
	packet_u64 highest;		/* the last one */
	packet_u64 left;		/* the first one that is still in the window */
	packet_u64 window[WINDOW / 64]; /* a bit for each number: bit 0 is the highest */
	packet_u64 first_ns;
	packet_u64 last_ns;
	packet_u64 timed_ns;	/* arrival of the last packet whose timestamp did not step back */
	packet_u64 jitter16_ns; /* the jitter of RFC 3550, times 16 */
	packet_u64 max_jitter_ns;
	packet_u64 jitter_sum_ns;
	packet_u64 jitters;    /* in the sum */
	packet_u32 timestamp;  /* of the packet of timed_ns */
	packet_u16 bad_number; /* which follows a stray */
	packet_u8 strayed;
	packet_u8 timed;
};

/* A packet of RTP. */
struct rtp {
	packet_u32 timestamp;
	packet_u32 payload;
	packet_u16 number;
	packet_u8 marker;
};

STATE_LRU_HASH(streams, 8192, struct stream_key, struct stream);

PLUGIN_COUNTERS("streams", "malformed", "not kept");
enum { STREAMS, MALFORMED, NOT_KEPT };

static const struct stream nothing;

/* Whether the number `back` before the highest has arrived. */
static __attribute__((always_inline)) int has(const struct stream *s, packet_u32 back)
{
	packet_u64 word = back < 64    ? s->window[0]
			  : back < 128 ? s->window[1]
			  : back < 192 ? s->window[2]
				       : s->window[3];

	return word >> (back & 63) & 1;
}

static __attribute__((always_inline)) void set(struct stream *s, packet_u32 back)
{
	packet_u64 bit = 1ULL << (back & 63);

	if (back < 64)
		s->window[0] |= bit;
	else if (back < 128)
		s->window[1] |= bit;
	else if (back < 192)
		s->window[2] |= bit;
	else
		s->window[3] |= bit;
}

/* Begins with this number, which has arrived. */
static __attribute__((always_inline)) void begin(struct stream *s, packet_u64 number)
{
	s->base = s->highest = s->left = number;
	s->window[0] = 1;
	s->window[1] = s->window[2] = s->window[3] = 0;
	s->strayed = s->timed = 0;
}

/* Moves the window to `ahead` numbers after the highest. */
static __attribute__((always_inline)) void advance(struct stream *s, packet_u32 ahead)
{
	packet_u64 *w = s->window;
	packet_u32 bits = ahead & 63;

	if (ahead >= WINDOW)
		w[0] = w[1] = w[2] = w[3] = 0;
	if (ahead & 128) {
		w[3] = w[1];
		w[2] = w[0];
		w[1] = w[0] = 0;
	}
	if (ahead & 64) {
		w[3] = w[2];
		w[2] = w[1];
		w[1] = w[0];
		w[0] = 0;
	}
	if (bits) {
		w[3] = w[3] << bits | w[2] >> (64 - bits);
		w[2] = w[2] << bits | w[1] >> (64 - bits);
		w[1] = w[1] << bits | w[0] >> (64 - bits);
		w[0] <<= bits;
	}
	w[0] |= 1;
	s->highest += ahead;
	if (s->left + WINDOW - 1 < s->highest)
		s->left = s->highest - (WINDOW - 1);
}

/* Counts a number that is not the first. Whether it is a stray. */
static __attribute__((always_inline)) int count(struct stream *s, packet_u16 number)
{
	packet_u32 ahead = (packet_u16)(number - s->highest), back = (packet_u16)-ahead;
	packet_u64 at = s->highest - back;

	if (!ahead || back < WINDOW) {
		s->strayed = 0;
		if (at < s->base ? s->left != s->base : at < s->left) {
			s->stray++;
			return 1;
		}
		/* Before the first packet: that was not the first of the stream. */
		if (at < s->base)
			s->base = s->left = at;
		else if (has(s, back)) {
			s->duplicate++;
			return 0;
		}
		set(s, back);
		s->out_of_order++;
		return 0;
	}
	if (ahead <= MOST_AHEAD) {
		s->strayed = 0;
		advance(s, ahead);
		return 0;
	}
	if (s->strayed && number == s->bad_number) {
		s->expected += s->highest - s->base + 1;
		s->stray--;
		s->restarts++;
		begin(s, 0x10000 + (packet_u16)(number - 1));
		advance(s, 1);
		return 0;
	}
	s->stray++;
	s->bad_number = number + 1;
	s->strayed = 1;
	return 1;
}

/* Adds the packet's deviation from its timestamp to the jitter (RFC 3550, A.8). */
static __attribute__((always_inline)) void time(struct stream *s, const struct rtp *rtp, packet_u64 now)
{
	packet_u32 step = rtp->timestamp - s->timestamp;
	int forward = step < 0x80000000u;
	packet_u64 delta = now > s->timed_ns ? now - s->timed_ns : 0, nominal, off;

	if (s->timed && clock) {
		nominal = (packet_u64)(forward ? step : -step) * SECOND / clock;
		off = !forward ? delta + nominal : delta > nominal ? delta - nominal : nominal - delta;
		s->jitter16_ns += off - ((s->jitter16_ns + 8) >> 4);
		if (forward && !rtp->marker) {
			s->jitters++;
			s->jitter_sum_ns += s->jitter16_ns >> 4;
			if (s->jitter16_ns >> 4 > s->max_jitter_ns)
				s->max_jitter_ns = s->jitter16_ns >> 4;
		}
	}
	if (!s->timed || forward) {
		s->timed_ns = now;
		s->timestamp = rtp->timestamp;
		s->timed = 1;
	}
}

/* Reads the header at `at`, of a datagram with `length` bytes of payload: 1 for RTP, -1 for RTP that is
 * malformed. */
static __attribute__((always_inline)) int read(const struct wirelane_packet *packet, packet_u32 at,
					       packet_u32 length, struct rtp *rtp)
{
	packet_u8 first = packet_byte(packet, at), type = packet_byte(packet, at + 1);
	packet_u32 header = 12 + 4 * (first & 15);

	if (length < 12 || first >> 6 != 2 || (type & 0x7f) > last_type)
		return 0;
	if (first & 0x10)
		header += 4 + 4 * packet_16_at(packet, at + header + 2);
	/* The length of padding is in the last byte, which may be beyond the bytes that a plug-in gets. */
	if (first & 0x20)
		header += packet_byte(packet, at + length - 1);
	if (header > length)
		return -1;
	rtp->payload = length - header;
	rtp->marker = type >> 7;
	rtp->number = packet_16_at(packet, at + 2);
	rtp->timestamp = packet_32_at(packet, at + 4);
	return 1;
}

static __attribute__((always_inline)) int is_port(packet_u16 wire)
{
	packet_u16 port = packet_be16(wire);

	return port >= first_port && port <= last_port;
}

PLUGIN(packet, answer)
{
	const struct wirelane_headers *ip = &packet->outer;
	packet_u32 at = ip->payload_off;
	struct stream_key key = {0};
	struct stream *stream;
	struct rtp rtp;
	int is;

	if (ip->proto != 17 || !(ip->flags & PACKET_IP_PORTS) || !is_port(ip->src_port) ||
	    !is_port(ip->dst_port))
		return PLUGIN_NO;
	/* The length of UDP, without its header. */
	is = read(packet, at, packet_16_at(packet, ip->l4_off + 4) - 8, &rtp);
	if (is < 0)
		plugin_add(answer, MALFORMED, 1);
	if (is <= 0)
		return PLUGIN_NO;
	__builtin_memcpy(key.src, ip->src, sizeof(key.src));
	__builtin_memcpy(key.dst, ip->dst, sizeof(key.dst));
	key.src_port = ip->src_port;
	key.dst_port = ip->dst_port;
	key.ssrc = packet_32_at(packet, at + 8);
	stream = state_find(packet, streams, &key);
	if (!stream) {
		if (!state_insert(packet, streams, &key, &nothing))
			plugin_add(answer, STREAMS, 1);
		stream = state_find(packet, streams, &key);
	}
	if (!stream) {
		plugin_add(answer, NOT_KEPT, 1);
		return PLUGIN_MATCH;
	}
	stream->bytes += rtp.payload;
	if (!stream->packets++) {
		stream->first_ns = stream->last_ns = packet->time_ns;
		begin(stream, 0x10000 + rtp.number);
		time(stream, &rtp, packet->time_ns);
		return PLUGIN_MATCH;
	}
	if (packet->time_ns > stream->last_ns)
		stream->last_ns = packet->time_ns;
	if (!count(stream, rtp.number))
		time(stream, &rtp, packet->time_ns);
	return PLUGIN_MATCH;
}
