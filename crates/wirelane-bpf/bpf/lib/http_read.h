/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads the heads of a direction and the framing of its bodies, byte by byte (lib/http_way.h has the states).
 * Anything that differs from RFC 9112, or from the parser in crates/wirelane-analysis/src/http, is left to
 * that parser: WL_HTTP_WAY_ODD, and from there on everything is delivered to user space.
 */
#ifndef WL_PACKET_HTTP_READ_H
#define WL_PACKET_HTTP_READ_H

#include "lib/http_way.h"

/* Whether a byte is a letter, a digit or a sign that a method may have (RFC 9110, 5.6.2). */
static __always_inline __u32 wl_http_is_token(__u32 byte)
{
	const __u64 low = 0x03ff6cfa00000000ULL, high = 0x57ffffffc7fffffeULL;

	if (byte >= 128)
		return 0;
	return (byte < 64 ? low >> byte : high >> (byte - 64)) & 1;
}

/* Starts a head with the collected bytes. */
static __always_inline void wl_http_way_head(struct wl_http_way *way, __u32 response, __u32 byte)
{
	way->flags = (way->flags & ~WL_HTTP_WAY_MESSAGE) | WL_HTTP_WAY_FIRST;
	if (response)
		way->flags |= WL_HTTP_WAY_RESPONSE;
	else
		way->flags &= ~WL_HTTP_WAY_RESPONSE;
	way->phase = WL_HTTP_WAY_HEAD;
	way->head = way->count;
	way->line = WL_HTTP_LINE_TEXT;
	way->status = 0;
	way->length = 0;
	way->at = byte == ' ';
	way->names = 0;
	way->field = WL_HTTP_FIELD_OTHER;
}

/* Reads a byte where a head may begin. */
static __always_inline void wl_http_gather(struct wl_http_way *way, __u32 byte)
{
	__u32 known = way->flags & WL_HTTP_WAY_HTTP, response = way->flags & WL_HTTP_WAY_RESPONSE, first;

	/* Empty lines before a head are skipped (RFC 9112, 2.2). */
	if (!way->count && (byte == '\r' || byte == '\n'))
		return;
	if (byte == ' ' ? !way->count : !wl_http_is_token(byte))
		way->flags &= ~WL_HTTP_WAY_TOKEN;
	way->word |= (__u64)byte << (way->count * 8 & 63);
	way->count++;
	first = wl_http_is(way->word, way->count);
	if (first == WL_HTTP_SHORT)
		return;
	if (first == WL_HTTP_RESPONSE && (!known || response))
		return wl_http_way_head(way, 1, byte);
	if (!known || !response) {
		if (first == WL_HTTP_REQUEST)
			return wl_http_way_head(way, 0, byte);
		if ((way->flags & (WL_HTTP_WAY_SYNC | WL_HTTP_WAY_TOKEN)) ==
		    (WL_HTTP_WAY_SYNC | WL_HTTP_WAY_TOKEN)) {
			if (way->count >= 8 || byte == ' ')
				wl_http_way_head(way, 0, byte);
			return;
		}
	}
	way->phase = known ? WL_HTTP_WAY_ALL : WL_HTTP_WAY_ADRIFT;
}

/* Reads a byte of a response's body while it may still turn out to be a head. */
static __always_inline void wl_http_probe(struct wl_http_way *way, __u32 byte)
{
	if (way->left != WL_HTTP_EVER && !--way->left) {
		wl_http_way_open(way, 1);
		return;
	}
	if (!way->count && (byte == '\r' || byte == '\n'))
		return;
	way->word |= (__u64)byte << (way->count * 8 & 63);
	way->count++;
	switch (wl_http_is(way->word, way->count)) {
	case WL_HTTP_RESPONSE:
		way->phase = WL_HTTP_WAY_ALL;
		return;
	case WL_HTTP_SHORT:
		if ((way->word & 0xff) == 'H')
			return;
	}
	way->phase = WL_HTTP_WAY_RUN;
}

/* Reads byte number `at` of a response's head: a digit of the status, or a byte before it. */
static __always_inline void wl_http_status(struct wl_http_way *way, __u32 at, __u32 byte)
{
	__u32 digit = byte - '0';

	if (at > 11)
		return;
	if (at == 8 ? byte != ' ' : digit > 9)
		way->flags |= WL_HTTP_WAY_ODD;
	else if (at > 8)
		way->status = way->status * 10 + digit;
}

/* Reads a byte of a request's first line: checks whether it ends in " HTTP/1.1" or the like. */
static __always_inline void wl_http_version(struct wl_http_way *way, __u32 byte)
{
	const __u64 wanted = WL_HTTP_WORD(' ', 'H', 'T', 'T', 'P', '/', '1', '.');
	__u32 at = way->at;

	/* 9: it does; 10: followed by a blank. */
	if (at < 8 && byte == (wanted >> (at * 8 & 63) & 0xff))
		way->at = at + 1;
	else if (at == 8 && byte - '0' <= 9)
		way->at = 9;
	else if (at >= 9 && (byte == ' ' || byte == '\t' || byte == '\r' || byte == '\f'))
		way->at = byte == ' ' ? 10 : 9;
	else if (at == 10 && byte == 'H')
		way->at = 2;
	else
		way->at = byte == ' ';
}

/* Reads a byte of a field name. */
static __always_inline void wl_http_name(struct wl_http_way *way, __u32 byte)
{
	static const __u8 length[] = "content-length:", coding[] = "transfer-encoding:";
	__u32 at = way->at, names = 0, small = byte;

	if (byte >= 'A' && byte <= 'Z')
		small = byte | 0x20;
	if (way->names & 1 && at < sizeof(length) - 1 && small == length[at & 15])
		names |= 1;
	if (way->names & 2 && at < sizeof(coding) - 1 && small == coding[at & 31])
		names |= 2;
	way->names = names;
	way->at = at + 1;
	if (!names) {
		way->field = WL_HTTP_FIELD_OTHER;
	} else if (byte == ':') {
		way->field = names & 1 ? WL_HTTP_FIELD_LENGTH : WL_HTTP_FIELD_CODING;
		/* A second length field, or both: the parser of the head decides. */
		if (way->flags & (WL_HTTP_WAY_LENGTH | WL_HTTP_WAY_CHUNKED))
			way->flags |= WL_HTTP_WAY_ODD;
		way->flags &= ~(WL_HTTP_WAY_DIGITS | WL_HTTP_WAY_BLANK | WL_HTTP_WAY_CR);
		way->flags |= names & 1 ? WL_HTTP_WAY_LENGTH : WL_HTTP_WAY_CHUNKED;
		way->length = 0;
		way->at = 0;
	}
}

/* Reads a byte of the value of one of the two fields that give the length of the body: digits, or
 * "chunked", with blanks around them. Everything else is odd. */
static __always_inline void wl_http_value(struct wl_http_way *way, __u32 byte)
{
	static const __u8 chunked[] = "chunked";
	__u32 digit = byte - '0', small = byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte;

	if (byte == '\n') {
		if (way->field == WL_HTTP_FIELD_LENGTH ? !(way->flags & WL_HTTP_WAY_DIGITS)
						       : way->at != sizeof(chunked) - 1)
			way->flags |= WL_HTTP_WAY_ODD;
		return;
	}
	if (way->flags & WL_HTTP_WAY_CR) {
		way->flags |= WL_HTTP_WAY_ODD;
	} else if (byte == '\r') {
		way->flags |= WL_HTTP_WAY_CR;
	} else if (byte == ' ' || byte == '\t') {
		if (way->flags & WL_HTTP_WAY_DIGITS || way->at)
			way->flags |= WL_HTTP_WAY_BLANK;
	} else if (way->flags & WL_HTTP_WAY_BLANK) {
		way->flags |= WL_HTTP_WAY_ODD;
	} else if (way->field == WL_HTTP_FIELD_LENGTH) {
		if (digit > 9 || way->length >> 58)
			way->flags |= WL_HTTP_WAY_ODD;
		way->flags |= WL_HTTP_WAY_DIGITS;
		way->length = way->length * 10 + digit;
	} else {
		if (way->at >= sizeof(chunked) - 1 || small != chunked[way->at & 7])
			way->flags |= WL_HTTP_WAY_ODD;
		way->at++;
	}
}

/* Handles the end of a head. */
static __always_inline void wl_http_body(struct wl_http_way *way)
{
	__u32 flags = way->flags, status = way->status;

	way->flags |= WL_HTTP_WAY_HTTP;
	if (flags & WL_HTTP_WAY_ODD) {
		way->phase = WL_HTTP_WAY_ALL;
		return;
	}
	if (flags & WL_HTTP_WAY_RESPONSE &&
	    ((status >= 100 && status < 200) || status == 204 || status == 304)) {
		wl_http_way_open(way, 1);
		return;
	}
	if (flags & WL_HTTP_WAY_CHUNKED) {
		way->phase = WL_HTTP_WAY_SIZE;
		way->flags &= ~WL_HTTP_WAY_DIGITS;
		way->left = 0;
		return;
	}
	if (flags & WL_HTTP_WAY_LENGTH ? !way->length : !(flags & WL_HTTP_WAY_RESPONSE)) {
		wl_http_way_open(way, 1);
		return;
	}
	way->left = flags & WL_HTTP_WAY_LENGTH ? way->length : WL_HTTP_EVER;
	way->phase = flags & WL_HTTP_WAY_RESPONSE ? WL_HTTP_WAY_PROBE : WL_HTTP_WAY_RUN;
	way->word = 0;
	way->count = 0;
}

/* Reads a byte of a head. */
static __always_inline void wl_http_in_head(struct wl_http_way *way, __u32 byte)
{
	__u32 line = way->line, at = way->head++;

	way->line = wl_http_line(line, byte);
	if (at >= WL_HTTP_HEAD_MOST - 1) {
		/* The parser cuts such a long head. */
		way->flags |= WL_HTTP_WAY_HTTP;
		way->phase = WL_HTTP_WAY_ALL;
		return;
	}
	if (way->line == WL_HTTP_LINE_END) {
		wl_http_body(way);
		return;
	}
	if (way->flags & WL_HTTP_WAY_FIRST) {
		if (way->flags & WL_HTTP_WAY_RESPONSE)
			wl_http_status(way, at, byte);
		else if (byte != '\n')
			wl_http_version(way, byte);
		if (byte != '\n')
			return;
		way->flags &= ~WL_HTTP_WAY_FIRST;
		if (way->flags & WL_HTTP_WAY_RESPONSE) {
			if (at < 12)
				way->flags |= WL_HTTP_WAY_ODD;
		} else if (way->at < 9) {
			/* Another protocol that shares a word. */
			way->phase = way->flags & WL_HTTP_WAY_HTTP ? WL_HTTP_WAY_ALL : WL_HTTP_WAY_ADRIFT;
			return;
		}
		way->flags |= WL_HTTP_WAY_HTTP;
		return;
	}
	if (line == WL_HTTP_LINE_EMPTY) {
		way->at = 0;
		way->names = 3;
		way->field = WL_HTTP_FIELD_NAME;
		/* Continuation of the line before (obs-fold). */
		if (byte == ' ' || byte == '\t')
			way->flags |= WL_HTTP_WAY_ODD;
	}
	if (way->field == WL_HTTP_FIELD_NAME)
		wl_http_name(way, byte);
	else if (way->field != WL_HTTP_FIELD_OTHER)
		wl_http_value(way, byte);
}

/* Handles the end of a chunk size. */
static __always_inline void wl_http_sized(struct wl_http_way *way)
{
	way->flags &= ~(WL_HTTP_WAY_CR | WL_HTTP_WAY_TEXT);
	way->phase = way->left ? WL_HTTP_WAY_RUN : WL_HTTP_WAY_TRAILER;
}

/* Reads a byte of chunk framing (RFC 9112, 7.1). */
static __always_inline void wl_http_packing(struct wl_http_way *way, __u32 byte)
{
	__u32 digit = byte - '0', small = byte | 0x20;

	switch (way->phase) {
	case WL_HTTP_WAY_SIZE:
		if (small >= 'a' && small <= 'f')
			digit = small - 'a' + 10;
		else if (digit > 9)
			digit = 16;
		if (digit < 16 && !(way->left >> 58)) {
			way->left = way->left << 4 | digit;
			way->flags |= WL_HTTP_WAY_DIGITS;
			return;
		}
		if (digit == 16 && way->flags & WL_HTTP_WAY_DIGITS) {
			if (byte == '\n')
				return wl_http_sized(way);
			if (byte == '\r' || byte == ';' || byte == ' ' || byte == '\t') {
				way->phase = WL_HTTP_WAY_EXTENSION;
				return;
			}
		}
		way->phase = WL_HTTP_WAY_ALL;
		return;
	case WL_HTTP_WAY_EXTENSION:
		if (byte == '\n')
			wl_http_sized(way);
		return;
	case WL_HTTP_WAY_DATA_END:
		if (byte == '\n') {
			way->phase = WL_HTTP_WAY_SIZE;
			way->flags &= ~(WL_HTTP_WAY_DIGITS | WL_HTTP_WAY_CR);
			way->left = 0;
		} else if (byte == '\r' && !(way->flags & WL_HTTP_WAY_CR)) {
			way->flags |= WL_HTTP_WAY_CR;
		} else {
			way->phase = WL_HTTP_WAY_ALL;
		}
		return;
	default:
		if (byte == '\n') {
			if (!(way->flags & WL_HTTP_WAY_TEXT))
				return wl_http_way_open(way, 1);
			way->flags &= ~(WL_HTTP_WAY_TEXT | WL_HTTP_WAY_CR);
		} else if (byte == '\r' && !(way->flags & (WL_HTTP_WAY_TEXT | WL_HTTP_WAY_CR))) {
			way->flags |= WL_HTTP_WAY_CR;
		} else {
			way->flags |= WL_HTTP_WAY_TEXT;
		}
	}
}

/* Reads the next byte of a segment. 1: the following bytes are not read byte by byte. */
static __always_inline int wl_http_step(struct wl_http_way *way, __u32 byte)
{
	switch (way->phase) {
	case WL_HTTP_WAY_OPEN:
		wl_http_gather(way, byte);
		break;
	case WL_HTTP_WAY_HEAD:
		wl_http_in_head(way, byte);
		break;
	case WL_HTTP_WAY_PROBE:
		wl_http_probe(way, byte);
		break;
	case WL_HTTP_WAY_SIZE:
	case WL_HTTP_WAY_EXTENSION:
	case WL_HTTP_WAY_DATA_END:
	case WL_HTTP_WAY_TRAILER:
		wl_http_packing(way, byte);
		break;
	default:
		return 1;
	}
	return way->phase >= WL_HTTP_WAY_RUN || way->phase == WL_HTTP_WAY_ADRIFT;
}

#endif
