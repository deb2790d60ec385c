/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Fields of HTTP/1, SIP and RTP in a packet, for plug-ins (plugin.h) and steering programs (steer.h): those
 *that conditions of rules compare (http-method, sip-via and so on), as Record::application() of the library
 *has them.
 *
 *	#include <wirelane/plugin.h>
 *	#include <wirelane/fields.h>
 *
 *	PLUGIN(packet, answer)                  // responses of SIP whose body is a session description
 *	{
 *		struct packet_fields *fields = plugin_scratch(answer);
 *
 *		packet_fields(packet, &packet->outer, fields);
 *		return fields->protocol == PACKET_SIP && fields->status && fields->sdp ? PLUGIN_MATCH :
 *PLUGIN_NO;
 *	}
 *
 * The fields are in memory of plugin_scratch(), not on the stack, which has no space for them. Only the
 *message is read that begins with the payload, and of it the bytes that the packet shows: the first
 * PACKET_BYTES of the packet. Offsets are those of packet->bytes. A payload that continues a message has no
 *fields.
 */
#ifndef WIRELANE_FIELDS_H
#define WIRELANE_FIELDS_H

#include "packet.h"

/* packet_fields.protocol */
#define PACKET_HTTP 1
#define PACKET_SIP  2
#define PACKET_RTP  3 /* between two UDP ports from 1024 on; other payloads may begin like RTP */

/* The value of a header field, without blanks around it, with the lines that continue it. */
struct packet_field {
	packet_u16 at;	   /* offset; 0: the message does not have the field */
	packet_u16 length; /* bytes */
};

/* All fields that do not exist are 0. */
struct packet_fields {
	packet_u8 protocol;	 /* PACKET_HTTP and so on; 0: none of them */
	packet_u8 method_length; /* of a request: bytes of the method, which begins at `head` */
	packet_u16 status;	 /* of a response */
	packet_u16 head;	 /* offset of the message */
	packet_u16 body;	 /* offset of the body, if a byte of it is there */
	packet_u16 sdp;		 /* the same, if it is a session description (application/sdp) */
	packet_u16 media;	 /* RTP: offset of the media */
	packet_u8 payload_type;
	packet_u8 marker;
	packet_u16 sequence;
	packet_u32 timestamp;
	packet_u32 ssrc;
	struct packet_field none; /* not a field */
	struct packet_field host; /* the first Host (HTTP) */
	struct packet_field from; /* the first From or f, and so on (SIP) */
	struct packet_field to;
	struct packet_field via;
	struct packet_field call_id;
	struct packet_field content_type;
	struct packet_field none_too;
	/* For the functions below. In memory, their numbers are unknown to the verifier, which else follows
	 * each of them. */
	struct {
		packet_u64 low, high; /* the letters of a name: the last 8, and those before */
		packet_u16 first, last;
		packet_u8 letters, place, before, before_that;
		packet_u8 is_bad, gap, colon, over, seen;
		packet_u8 pad[3];
	} work;
};

/*
 * The code has few branches: each one is a further path for the verifier, and these multiply. The functions
 * below compute 0 or 1 from numbers below 2^63; the compiler is kept from making branches of them.
 */
PACKET_INLINE packet_u64 fields_hide(packet_u64 value)
{
	__asm__ volatile("" : "+r"(value));
	return value;
}

PACKET_INLINE packet_u64 fields_same(packet_u64 one, packet_u64 other)
{
	return fields_hide((fields_hide(one ^ other) - 1) >> 63);
}

PACKET_INLINE packet_u64 fields_below(packet_u64 one, packet_u64 other)
{
	return fields_hide(fields_hide(one - other) >> 63);
}

/* Whether any number is 0. */
PACKET_INLINE packet_u64 fields_zero(packet_u64 value)
{
	return fields_hide((fields_hide(value | (0 - value)) >> 63) ^ 1);
}

/* `yes` where `is` is 1, else `no`. */
PACKET_INLINE packet_u64 fields_if(packet_u64 is, packet_u64 yes, packet_u64 no)
{
	packet_u64 mask = fields_hide(0 - is);

	return (yes & mask) | (no & ~mask);
}

/* The byte at an offset that is valid. */
PACKET_INLINE packet_u64 fields_byte(const struct wirelane_packet *packet, packet_u64 at)
{
	return packet->bytes[fields_hide(at) & (PACKET_BYTES - 1)];
}

/* Whether `length` bytes from an offset on are there, and are these letters. */
#define fields_begin(packet, at, end, letters)                                                               \
	({                                                                                                   \
		packet_u64 fields_equal = fields_below((at) + sizeof(letters) - 2, end);                     \
		packet_u32 fields_i;                                                                         \
		_Pragma("unroll") for (fields_i = 0; fields_i < sizeof(letters) - 1; fields_i++)             \
		    fields_equal &=                                                                          \
		    fields_same(fields_byte(packet, (at) + fields_i), (packet_u8)(letters)[fields_i]);       \
		fields_equal;                                                                                \
	})

PACKET_INLINE packet_u64 fields_digit(packet_u64 byte)
{
	return fields_below('0' - 1, byte) & fields_below(byte, '9' + 1);
}

/* The status at this offset, of at most this class, or 0. */
PACKET_INLINE packet_u64 fields_status(const struct wirelane_packet *packet, packet_u64 at, packet_u64 end,
				       packet_u64 class)
{
	packet_u64 first = fields_byte(packet, at), second = fields_byte(packet, at + 1),
		   third = fields_byte(packet, at + 2), valid;

	valid = fields_below(at + 2, end) & fields_below('0', first) & fields_below(first, class + 1) &
		fields_digit(second) & fields_digit(third);
	return fields_if(valid, first * 100 + second * 10 + third - '0' * 111, 0);
}

#define FIELDS_METHOD 100 /* longest method */

/* Bytes of the method of a request that begins here, whose blank follows; else 0. */
PACKET_INLINE packet_u64 fields_method(const struct wirelane_packet *packet, packet_u64 at, packet_u64 end)
{
	packet_u64 length = 0, goes_on = 1, byte, is;
	packet_u32 i;

	for (i = 0; i < FIELDS_METHOD + 1; i++) {
		byte = fields_byte(packet, at + i);
		is = (fields_below('A' - 1, byte) & fields_below(byte, 'Z' + 1)) | fields_same(byte, '-');
		goes_on &= is & fields_below(at + i, end);
		length += goes_on;
	}
	is = fields_below(0, length) & fields_below(length, FIELDS_METHOD + 1) &
	     fields_below(at + length, end) & fields_same(fields_byte(packet, at + length), ' ');
	return fields_if(is, length, 0);
}

/* Kinds of bytes in a head. */
#define FIELDS_BLANK	0x01 /* what surrounds a value: blank, tab, the ends of a line, form feed */
#define FIELDS_CONTINUE 0x02 /* blank, tab: at its begin, the line continues the one before */
#define FIELDS_NEW_LINE 0x04
#define FIELDS_RETURN	0x08
#define FIELDS_COLON	0x10
#define FIELDS_CAPITAL	0x20 /* the difference to the small letter */
static const packet_u8 fields_kinds[256] __attribute__((unused)) = {
    ['\t'] = FIELDS_BLANK | FIELDS_CONTINUE, ['\n'] = FIELDS_BLANK | FIELDS_NEW_LINE, ['\f'] = FIELDS_BLANK,
    ['\r'] = FIELDS_BLANK | FIELDS_RETURN,   [' '] = FIELDS_BLANK | FIELDS_CONTINUE,  [':'] = FIELDS_COLON,
    ['A' ... 'Z'] = FIELDS_CAPITAL,
};

/* Whether a kind has this bit. */
#define fields_is(kind, bit) (((kind) / (bit)) & 1)

/* The letters of a name, up to 8 of them: the others are masked. */
#define FIELDS_LETTERS(count) (~0ull >> (64 - 8 * (count)))

/* Whether the name that was read has these letters, which `low` has as a number. */
#define fields_name(work, count, number)                                                                     \
	(fields_same((work)->letters, count) & fields_zero(((work)->low ^ (number)) & FIELDS_LETTERS(count)))

/* The place of a field in struct packet_fields, from `none` on, by its name. */
#define fields_place(work)                                                                                   \
	(fields_name(work, 4, 0x686f7374) * 1 |					    /* host */               \
	 (fields_name(work, 4, 0x66726f6d) | fields_name(work, 1, 'f')) * 2 |	    /* from */               \
	 (fields_name(work, 2, 0x746f) | fields_name(work, 1, 't')) * 3 |	    /* to */                 \
	 (fields_name(work, 3, 0x766961) | fields_name(work, 1, 'v')) * 4 |	    /* via */                \
	 (fields_name(work, 7, 0x63616c6c2d6964) | fields_name(work, 1, 'i')) * 5 | /* call-id */            \
	 ((fields_same((work)->letters, 12) & fields_zero((work)->low ^ 0x656e742d74797065) &                \
	   fields_zero(((work)->high ^ 0x636f6e74) & FIELDS_LETTERS(4))) |                                   \
	  fields_name(work, 1, 'c')) *                                                                       \
	     6) /* content-type */

/* Finds the header fields, and the body, of the message that begins at `at`. */
PACKET_INLINE void fields_head(const struct wirelane_packet *packet, packet_u64 at, packet_u64 end,
			       struct packet_fields *fields)
{
	struct packet_field *places = &fields->none;
	__typeof__(fields->work) *work = &fields->work;
	packet_u64 byte, kind, begins, ends, is_name, is_value, ended, colon, place, low;
	packet_u32 i;

	/* The first line is none of them. */
	work->is_bad = 1;
	work->seen = 1;
	for (i = 0; i < PACKET_BYTES; i++) {
		if (i > end - at)
			break;
		/* Behind the last byte, as if another line began: its kind is 0. */
		ended = fields_same(i, end - at);
		byte = fields_byte(packet, at + i);
		kind = fields_kinds[byte] & (ended - 1);
		begins = ended |
			 (fields_is(work->before, FIELDS_NEW_LINE) & (fields_is(kind, FIELDS_CONTINUE) ^ 1));
		place = work->place & 7;
		/* The former field ends here. Of several with its name the first one counts. */
		ends = begins & work->colon & (work->over ^ 1) & (((work->seen >> place) & 1) ^ 1);
		work->seen |= ends << place;
		places[(place & (0 - ends)) & 7] = (struct packet_field){
		    .at = fields_if(fields_below(0, work->first), work->first, at + i),
		    .length = work->last - work->first,
		};
		begins ^= 1;
		work->letters *= begins;
		work->gap &= begins;
		work->is_bad &= begins;
		work->first *= begins;
		work->last *= begins;
		colon = work->colon & begins;
		work->place = place * begins;

		/* An empty line ends the head. */
		ends = fields_is(kind, FIELDS_NEW_LINE) & (work->over ^ 1) &
		       (fields_is(work->before, FIELDS_NEW_LINE) |
			(fields_is(work->before, FIELDS_RETURN) &
			 fields_is(work->before_that, FIELDS_NEW_LINE)));
		fields->body = fields_if(ends & fields_below(at + i + 1, end), at + i + 1, fields->body);
		work->over |= ends;

		/* The name: a blank before it or within it is a mistake. */
		is_name = (colon | fields_is(kind, FIELDS_COLON)) ^ 1;
		work->is_bad |=
		    is_name & ((kind & fields_same(work->letters, 0)) | ((kind ^ 1) & work->gap)) & 1;
		work->gap |= is_name & kind;
		is_name &= kind ^ 1;
		low = work->low;
		work->high = fields_if(is_name, work->high << 8 | low >> 56, work->high);
		work->low = fields_if(is_name, low << 8 | byte | (kind & FIELDS_CAPITAL), low);
		work->letters += is_name;
		/* The value. */
		is_value = colon & (kind ^ 1);
		work->first = fields_if(is_value & fields_same(work->first, 0), at + i, work->first);
		work->last = fields_if(is_value, at + i + 1, work->last);
		is_name = fields_is(kind, FIELDS_COLON) & (colon ^ 1);
		work->colon = colon | is_name;
		work->before_that = work->before;
		work->before = kind;
		/* The name is complete. */
		if (is_name & (work->is_bad ^ 1))
			work->place = fields_place(work);
	}
	fields->none = (struct packet_field){0};
}

/* Reads the header of RTP. `stated`: the end of the datagram, which may be behind the bytes that are there.
 */
PACKET_INLINE void fields_rtp(const struct wirelane_packet *packet, packet_u64 at, packet_u64 end,
			      packet_u64 stated, packet_u32 ports, struct packet_fields *fields)
{
	packet_u64 first = fields_byte(packet, at), second = fields_byte(packet, at + 1), media, padding = 0;

	if (at + 12 > end || first >> 6 != 2 || (second >= 192 && second <= 223) || ports >> 16 < 1024 ||
	    (ports & 0xffff) < 1024)
		return;
	media = at + 12 + 4 * (first & 0xf);
	if (first & 0x10) {
		if (media + 4 > end)
			return;
		media += 4 + 4 * (fields_byte(packet, media + 2) << 8 | fields_byte(packet, media + 3));
	}
	if (first & 0x20) {
		padding = stated <= end ? fields_byte(packet, stated - 1) : 1;
		if (!padding)
			padding = 1;
	}
	if (media + padding > stated)
		return;
	fields->protocol = PACKET_RTP;
	fields->head = at;
	fields->media = media;
	fields->payload_type = second & 0x7f;
	fields->marker = second >> 7;
	fields->sequence = fields_byte(packet, at + 2) << 8 | fields_byte(packet, at + 3);
	fields->timestamp = fields_byte(packet, at + 4) << 24 | fields_byte(packet, at + 5) << 16 |
			    fields_byte(packet, at + 6) << 8 | fields_byte(packet, at + 7);
	fields->ssrc = fields_byte(packet, at + 8) << 24 | fields_byte(packet, at + 9) << 16 |
		       fields_byte(packet, at + 10) << 8 | fields_byte(packet, at + 11);
}

/* Sets `fields` to those of the payload behind these headers: &packet->outer, or &packet->inner of a tunnel.
 */
PACKET_INLINE void packet_fields(const struct wirelane_packet *packet, const struct wirelane_headers *headers,
				 struct packet_fields *fields)
{
	packet_u64 at = headers->payload_off, end = packet->bytes_len, stated, method, target, status, is_sip,
		   is_http, is_udp = fields_same(headers->proto, 17);
	packet_u64 http_status, begin;
	packet_u32 i;

	__builtin_memset(fields, 0, sizeof(*fields));
	/* Bytes behind a datagram are padding of its frame. */
	stated = at - 8 + (fields_byte(packet, at - 4) << 8 | fields_byte(packet, at - 3));
	end = fields_if(is_udp & fields_below(stated, end), stated, end);
	if (!(fields_below(7, at) & fields_below(at, end) & fields_below(end, PACKET_BYTES + 1)))
		return;
	begin = fields_byte(packet, at);
	if ((fields_below('A' - 1, begin) & fields_below(begin, 'Z' + 1)) | fields_same(begin, '-')) {
		method = fields_method(packet, at, end);
		target = at + method + 1;
		is_sip = fields_below(0, method) & (fields_begin(packet, target, end, "sip:") |
						    fields_begin(packet, target, end, "sips:") |
						    fields_begin(packet, target, end, "tel:"));
		is_http = fields_below(0, method) &
			  (fields_begin(packet, target, end, "/") | fields_begin(packet, target, end, "*") |
			   fields_begin(packet, target, end, "http://") |
			   fields_begin(packet, target, end, "https://") |
			   (fields_same(method, 7) & fields_begin(packet, at, end, "CONNECT")));
		status = fields_begin(packet, at, end, "SIP/2.0 ") * fields_status(packet, at + 8, end, '6');
		http_status = (fields_begin(packet, at, end, "HTTP/1.0 ") |
			       fields_begin(packet, at, end, "HTTP/1.1 ")) *
			      fields_status(packet, at + 9, end, '5');
		is_sip |= fields_below(0, status);
		is_http =
		    (is_http | fields_below(0, http_status)) & (is_sip ^ 1) & fields_same(headers->proto, 6);
		if (is_sip | is_http) {
			fields->protocol = fields_if(is_sip, PACKET_SIP, PACKET_HTTP);
			fields->status = fields_if(is_sip, status, http_status);
			fields->method_length = fields_if(fields_below(0, fields->status), 0, method);
			fields->head = at;
			fields_head(packet, at, end, fields);
			at = fields->content_type.at;
			/* Letters without their case. */
			is_http = fields_below(14, fields->content_type.length);
			for (i = 0; i < 15; i++)
				is_http &=
				    fields_same(fields_byte(packet, at + i) |
						    (fields_below('A' - 1, fields_byte(packet, at + i)) &
						     fields_below(fields_byte(packet, at + i), 'Z' + 1))
							<< 5,
						(packet_u8) "application/sdp"[i]);
			fields->sdp = fields_if(is_sip & is_http, fields->body, 0);
			return;
		}
	}
	if (is_udp)
		fields_rtp(packet, at, end, stated,
			   packet_be16(headers->src_port) << 16 | packet_be16(headers->dst_port), fields);
}

#endif
