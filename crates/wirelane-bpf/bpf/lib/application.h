/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Application protocol detection from the first bytes behind the transport header: only if they are certain.
 * In most packets of a conversation they are not, in those that begin it they mostly are: wl_flow_update()
 * keeps the first certain result.
 *
 * Certain means: a magic number of at least four bytes, or a line of text that no other protocol begins with,
 * or consistent fields at a port that is registered for the protocol. RTP, for example, is not included: its
 * packets have only two bits in common.
 *
 * No loops, no look-ups: it reads a window of fixed size, so that it can run in any context.
 */
#ifndef WL_PACKET_APPLICATION_H
#define WL_PACKET_APPLICATION_H

#include "lib/cursor.h"

/* Bytes of a packet's payload that wl_application() gets. */
#define WL_APPLICATION_WINDOW 32

/* wl_flow.application. The numbers are exported and must not change. */
enum wl_application {
	WL_APP_UNKNOWN = 0,
	WL_APP_TLS = 1,		/* RFC 5246, 8446: ClientHello, ServerHello */
	WL_APP_DTLS = 2,	/* RFC 6347: ClientHello, ServerHello, HelloVerifyRequest */
	WL_APP_HTTP = 3,	/* RFC 9112: the first line of a request or response */
	WL_APP_HTTP2 = 4,	/* RFC 9113, 3.4: the client's preface */
	WL_APP_SSH = 5,		/* RFC 4253, 4.2 */
	WL_APP_DNS = 6,		/* RFC 1035, at port 53 */
	WL_APP_MDNS = 7,	/* RFC 6762, at port 5353 */
	WL_APP_LLMNR = 8,	/* RFC 4795, at port 5355 */
	WL_APP_QUIC = 9,	/* RFC 9000, 17.2: long headers of versions 1 and 2 and of the drafts */
	WL_APP_SIP = 10,	/* RFC 3261: the first line */
	WL_APP_RTSP = 11,	/* RFC 2326, 7826: the first line */
	WL_APP_STUN = 12,	/* RFC 5389: the magic cookie */
	WL_APP_BITTORRENT = 13, /* BEP 3: the handshake */
	WL_APP_SMB1 = 14,	/* over TCP or NetBIOS's session service */
	WL_APP_SMB2 = 15,	/* MS-SMB2, 2.2.1 */
	WL_APP_RDP = 16,  /* MS-RDPBCGR, 2.2.1.1: the connection request with its cookie or its negotiation */
	WL_APP_NTP = 17,  /* RFC 5905, at port 123 */
	WL_APP_DHCP = 18, /* RFC 2131, at ports 67 and 68 */
	WL_APP_MQTT = 19, /* CONNECT */
	WL_APP_SMTP = 20, /* RFC 5321: EHLO, HELO */
	WL_APP_POSTGRESQL = 21, /* StartupMessage of version 3 */
	WL_APP_SSDP = 22,	/* UPnP: requests by UDP, and their responses at port 1900 */
	WL_APP_BGP = 23,	/* RFC 4271, 4.1: the marker */
};

#define WL_APP_STARTS(window, text) wl_app_starts(window, text, sizeof(text) - 1)

/* `size` bytes of a constant text, as the number that loading them gives. */
static __always_inline __u64 wl_app_word(const char *text, __u32 size)
{
	__u64 word = 0;
	__u32 i;

	for (i = 0; i < size; i++)
		word |= (__u64)(__u8)text[i] << 8 * i;
	return word;
}

/* Whether the window begins with a constant text of up to 24 bytes: by words that may overlap, as clang
 * makes of memcmp() a comparison of single bytes for BPF.
 */
static __always_inline int wl_app_starts(const __u8 *w, const char *text, __u32 size)
{
	if (size >= 16 && wl_load64(w + 8) != wl_app_word(text + 8, 8))
		return 0;
	if (size >= 8)
		return wl_load64(w) == wl_app_word(text, 8) &&
		       wl_load64(w + size - 8) == wl_app_word(text + size - 8, 8);
	if (size >= 4)
		return wl_load32(w) == wl_app_word(text, 4) &&
		       wl_load32(w + size - 4) == wl_app_word(text + size - 4, 4);
	return wl_load16(w) == wl_app_word(text, 2) &&
	       wl_load16(w + size - 2) == wl_app_word(text + size - 2, 2);
}

static __always_inline int wl_app_port(const struct wl_ip *ip, __u16 port)
{
	return ip->src_port == __builtin_bswap16(port) || ip->dst_port == __builtin_bswap16(port);
}

/* Three digits, the first of which is a class of status, then a blank or the end of the line. */
static __always_inline int wl_app_status(const __u8 *w)
{
	return w[0] >= '1' && w[0] <= '6' && w[1] >= '0' && w[1] <= '9' && w[2] >= '0' && w[2] <= '9' &&
	       (w[3] == ' ' || w[3] == '\r');
}

/* The protocol, from the text behind a method's name and blank. */
static __always_inline __u32 wl_app_target(const __u8 *w)
{
	if (w[0] == '/' || WL_APP_STARTS(w, "http://") || WL_APP_STARTS(w, "* HTTP/1."))
		return WL_APP_HTTP;
	if (WL_APP_STARTS(w, "sip:") || WL_APP_STARTS(w, "sips:") || WL_APP_STARTS(w, "tel:"))
		return WL_APP_SIP;
	if (WL_APP_STARTS(w, "rtsp://") || WL_APP_STARTS(w, "rtspu://") || WL_APP_STARTS(w, "* RTSP/"))
		return WL_APP_RTSP;
	return WL_APP_UNKNOWN;
}

/* Protocols that have a method: bits above its length. */
#define WL_APP_OF_HTTP 0x100
#define WL_APP_OF_SIP  0x200
#define WL_APP_OF_RTSP 0x400
#define WL_APP_OF_ANY  (WL_APP_OF_HTTP | WL_APP_OF_SIP | WL_APP_OF_RTSP)

#define WL_APP_METHOD(text, whose)                                                                           \
	if (WL_APP_STARTS(w, text))                                                                          \
	return (sizeof(text) - 1) | (whose)

/* The length of the method including the blank, with its protocols; 0: not a method. */
static __always_inline __u32 wl_app_method(const __u8 *w)
{
	switch (w[0]) {
	case 'A':
		WL_APP_METHOD("ACK ", WL_APP_OF_SIP);
		WL_APP_METHOD("ANNOUNCE ", WL_APP_OF_RTSP);
		break;
	case 'B':
		WL_APP_METHOD("BYE ", WL_APP_OF_SIP);
		break;
	case 'C':
		WL_APP_METHOD("CANCEL ", WL_APP_OF_SIP);
		break;
	case 'D':
		WL_APP_METHOD("DELETE ", WL_APP_OF_HTTP);
		WL_APP_METHOD("DESCRIBE ", WL_APP_OF_RTSP);
		break;
	case 'G':
		WL_APP_METHOD("GET ", WL_APP_OF_HTTP);
		WL_APP_METHOD("GET_PARAMETER ", WL_APP_OF_RTSP);
		break;
	case 'H':
		WL_APP_METHOD("HEAD ", WL_APP_OF_HTTP);
		break;
	case 'I':
		WL_APP_METHOD("INVITE ", WL_APP_OF_SIP);
		WL_APP_METHOD("INFO ", WL_APP_OF_SIP);
		break;
	case 'M':
		WL_APP_METHOD("MESSAGE ", WL_APP_OF_SIP);
		break;
	case 'N':
		WL_APP_METHOD("NOTIFY ", WL_APP_OF_SIP);
		break;
	case 'O':
		WL_APP_METHOD("OPTIONS ", WL_APP_OF_ANY);
		break;
	case 'P':
		WL_APP_METHOD("POST ", WL_APP_OF_HTTP);
		WL_APP_METHOD("PUT ", WL_APP_OF_HTTP);
		WL_APP_METHOD("PATCH ", WL_APP_OF_HTTP);
		WL_APP_METHOD("PRACK ", WL_APP_OF_SIP);
		WL_APP_METHOD("PUBLISH ", WL_APP_OF_SIP);
		WL_APP_METHOD("PLAY ", WL_APP_OF_RTSP);
		break;
	case 'R':
		WL_APP_METHOD("REGISTER ", WL_APP_OF_SIP);
		WL_APP_METHOD("REFER ", WL_APP_OF_SIP);
		break;
	case 'S':
		WL_APP_METHOD("SUBSCRIBE ", WL_APP_OF_SIP);
		WL_APP_METHOD("SETUP ", WL_APP_OF_RTSP);
		break;
	case 'T':
		WL_APP_METHOD("TEARDOWN ", WL_APP_OF_RTSP);
		break;
	case 'U':
		WL_APP_METHOD("UPDATE ", WL_APP_OF_SIP);
		break;
	}
	return 0;
}

/* The first line of text protocols with methods and status lines: HTTP, SIP, RTSP. */
static __always_inline __u32 wl_app_line(const __u8 *w)
{
	__u32 method, found;

	if ((WL_APP_STARTS(w, "HTTP/1.0 ") || WL_APP_STARTS(w, "HTTP/1.1 ")) && wl_app_status(w + 9))
		return WL_APP_HTTP;
	if ((WL_APP_STARTS(w, "RTSP/1.0 ") || WL_APP_STARTS(w, "RTSP/2.0 ")) && wl_app_status(w + 9))
		return WL_APP_RTSP;
	if (WL_APP_STARTS(w, "SIP/2.0 ") && wl_app_status(w + 8))
		return WL_APP_SIP;
	method = wl_app_method(w);
	if (!method)
		return WL_APP_UNKNOWN;
	/* Only here, for all methods: the code is long. */
	found = wl_app_target(w + (method & 0xf));
	if ((found == WL_APP_HTTP && method & WL_APP_OF_HTTP) ||
	    (found == WL_APP_SIP && method & WL_APP_OF_SIP) ||
	    (found == WL_APP_RTSP && method & WL_APP_OF_RTSP))
		return found;
	return WL_APP_UNKNOWN;
}

/* A DNS message's header: a defined opcode, the reserved bit clear, and not more records than fit.
 */
static __always_inline int wl_app_dns(const __u8 *w, __u32 length)
{
	__u32 opcode = w[2] >> 3 & 0xf;
	__u32 questions = wl_be16(w + 4);
	__u32 records = wl_be16(w + 6) + wl_be16(w + 8) + wl_be16(w + 10);

	if (length < 12 || opcode == 3 || opcode > 6 || w[3] & 0x40)
		return 0;
	/* A question takes at least 5 bytes, a record 11; one of the two must exist. */
	return questions + records > 0 && 12 + 5 * questions + 11 * records <= length;
}

/* MQTT's CONNECT: a length of up to four bytes is between its type and its name. */
static __always_inline int wl_app_mqtt(const __u8 *w)
{
	const __u8 *name = w + 2;

	if (w[1] & 0x80)
		name = w[2] & 0x80 ? w + 4 : w + 3;
	if (WL_APP_STARTS(name, "\0\4MQTT"))
		return name[6] >= 3 && name[6] <= 5;
	return WL_APP_STARTS(name, "\0\6MQIsdp") && name[8] == 3;
}

static __always_inline __u32 wl_app_tcp(const __u8 *w, __u32 length, const struct wl_ip *ip)
{
	switch (w[0]) {
	case 0x00:
		/* The session service: 24 bits of length. */
		if (WL_APP_STARTS(w + 4, "\xffSMB"))
			return WL_APP_SMB1;
		if (WL_APP_STARTS(w + 4, "\xfeSMB") && w[8] == 64 && w[9] == 0)
			return WL_APP_SMB2;
		if (WL_APP_STARTS(w + 4, "\0\3\0\0user") && w[12] == 0)
			return WL_APP_POSTGRESQL;
		if (wl_app_port(ip, 53) && wl_be16(w) >= 12 && wl_be16(w) + 2u == length &&
		    wl_app_dns(w + 2, wl_be16(w)))
			return WL_APP_DNS;
		return WL_APP_UNKNOWN;
	case 0x03:
		/* TPKT, COTP's connection request, and RDP's contents of it. */
		if (w[1] == 0 && wl_be16(w + 2) == length && w[5] == 0xe0 &&
		    (WL_APP_STARTS(w + 11, "Cookie: mstshash=") || WL_APP_STARTS(w + 11, "\1\0\10\0")))
			return WL_APP_RDP;
		return WL_APP_UNKNOWN;
	case 0x10:
		return wl_app_mqtt(w) ? WL_APP_MQTT : WL_APP_UNKNOWN;
	case 0x13:
		return WL_APP_STARTS(w, "\x13"
					"BitTorrent protocol")
			   ? WL_APP_BITTORRENT
			   : WL_APP_UNKNOWN;
	case 0x16:
		/* A record of the handshake that contains a hello; both have a version, and a hello has
		 * random bytes. */
		if (w[1] == 3 && w[2] <= 4 && wl_be16(w + 3) >= 42 && wl_be16(w + 3) <= 16640 &&
		    (w[5] == 1 || w[5] == 2) && w[6] == 0 && wl_be16(w + 7) >= 38 && w[9] == 3 && w[10] <= 4)
			return WL_APP_TLS;
		return WL_APP_UNKNOWN;
	case 0xff:
		if (wl_be32(w) == 0xffffffff && wl_be32(w + 4) == 0xffffffff &&
		    wl_be32(w + 8) == 0xffffffff && wl_be32(w + 12) == 0xffffffff && wl_be16(w + 16) >= 19 &&
		    wl_be16(w + 16) <= 4096 && w[18] >= 1 && w[18] <= 5)
			return WL_APP_BGP;
		return WL_APP_UNKNOWN;
	case 'E':
		return WL_APP_STARTS(w, "EHLO ") ? WL_APP_SMTP : WL_APP_UNKNOWN;
	case 'H':
		if (WL_APP_STARTS(w, "HELO "))
			return WL_APP_SMTP;
		break;
	case 'P':
		if (WL_APP_STARTS(w, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			return WL_APP_HTTP2;
		break;
	case 'S':
		if (WL_APP_STARTS(w, "SSH-2.0-") || WL_APP_STARTS(w, "SSH-1.99-") ||
		    WL_APP_STARTS(w, "SSH-1.5-"))
			return WL_APP_SSH;
		break;
	}
	return wl_app_line(w);
}

/* QUIC's long header: its two fixed bits, a version, and valid lengths of connection ids. */
static __always_inline int wl_app_quic(const __u8 *w)
{
	__u32 version = wl_be32(w + 1);

	if ((w[0] & 0xc0) != 0xc0 || w[5] > 20)
		return 0;
	return version == 1 || version == 0x6b3343cf || (version >= 0xff000017 && version <= 0xff000022);
}

static __always_inline __u32 wl_app_udp(const __u8 *w, __u32 length, const struct wl_ip *ip)
{
	__u32 found;

	if (length < 4)
		return WL_APP_UNKNOWN;
	if (wl_app_port(ip, 53))
		return wl_app_dns(w, length) ? WL_APP_DNS : WL_APP_UNKNOWN;
	if (wl_app_port(ip, 5353))
		return wl_app_dns(w, length) ? WL_APP_MDNS : WL_APP_UNKNOWN;
	if (wl_app_port(ip, 5355))
		return wl_app_dns(w, length) ? WL_APP_LLMNR : WL_APP_UNKNOWN;
	if (wl_app_port(ip, 123)) {
		/* Versions 1 to 4, modes 1 to 5. */
		if (length >= 48 && (w[0] >> 3 & 7) >= 1 && (w[0] >> 3 & 7) <= 4 && (w[0] & 7) >= 1 &&
		    (w[0] & 7) <= 5)
			return WL_APP_NTP;
		return WL_APP_UNKNOWN;
	}
	if (wl_app_port(ip, 67)) {
		/* A request or a reply, over Ethernet, long enough for the magic cookie. */
		return length >= 240 && (w[0] == 1 || w[0] == 2) && w[1] == 1 && w[2] == 6 ? WL_APP_DHCP
											   : WL_APP_UNKNOWN;
	}
	if (length >= 20 && !(w[0] & 0xc0) && wl_be32(w + 4) == 0x2112a442 &&
	    wl_be16(w + 2) + 20u == length && !(w[3] & 3))
		return WL_APP_STUN;
	if (wl_app_quic(w))
		return WL_APP_QUIC;
	/* A handshake record of DTLS 1.0 or 1.2, in the first epoch; the message's type, and its fragment
	 * offset. */
	if (w[0] == 0x16 && w[1] == 0xfe && (w[2] == 0xff || w[2] == 0xfd) && w[3] == 0 && w[4] == 0 &&
	    w[13] >= 1 && w[13] <= 3 && w[19] == 0 && w[20] == 0 && w[21] == 0)
		return WL_APP_DTLS;
	if (WL_APP_STARTS(w, "M-SEARCH * HTTP/1.1\r\n") || WL_APP_STARTS(w, "NOTIFY * HTTP/1.1\r\n"))
		return WL_APP_SSDP;
	found = wl_app_line(w);
	if (found == WL_APP_HTTP)
		return wl_app_port(ip, 1900) ? WL_APP_SSDP : WL_APP_UNKNOWN;
	return found;
}

/* Number of bytes behind the transport header that belong to the datagram, without Ethernet's padding. */
static __always_inline __u32 wl_payload_length(const struct wl_ip *ip, __u32 wire_len)
{
	__u32 end = ip->l3_len ? ip->l3_off + ip->l3_len : wire_len;

	return ip->payload_off != WL_NO_OFFSET && end > ip->payload_off ? end - ip->payload_off : 0;
}

/* Whether wl_application() may recognize a packet with these headers. */
static __always_inline int wl_may_speak(const struct wl_ip *ip, __u32 wire_len)
{
	return ip->flags & WL_IP_PORTS && (ip->flags & WL_IP_TCP || ip->proto == 17) &&
	       wl_payload_length(ip, wire_len);
}

/* First bytes of known protocols, as bits: below 0x40 over TCP, and letters. */
#define WL_APP_BIT(byte) (1ULL << ((byte) & 0x3f))
#define WL_APP_LOW                                                                                           \
	(WL_APP_BIT(0x00) | WL_APP_BIT(0x03) | WL_APP_BIT(0x10) | WL_APP_BIT(0x13) | WL_APP_BIT(0x16))
#define WL_APP_LETTERS                                                                                       \
	(WL_APP_BIT('A') | WL_APP_BIT('B') | WL_APP_BIT('C') | WL_APP_BIT('D') | WL_APP_BIT('E') |           \
	 WL_APP_BIT('G') | WL_APP_BIT('H') | WL_APP_BIT('I') | WL_APP_BIT('M') | WL_APP_BIT('N') |           \
	 WL_APP_BIT('O') | WL_APP_BIT('P') | WL_APP_BIT('R') | WL_APP_BIT('S') | WL_APP_BIT('T') |           \
	 WL_APP_BIT('U'))

/*
 * Whether a known protocol begins with this byte, of a payload of `length` bytes: a cheap check that saves
 * most packets of unrecognizable flows (media, encrypted data) the expensive one.
 */
static __always_inline int wl_may_begin(const struct wl_ip *ip, __u32 length, __u8 first)
{
	__u32 quarter = first >> 6;

	if (quarter == 1 && WL_APP_LETTERS >> (first & 0x3f) & 1)
		return 1;
	if (ip->flags & WL_IP_TCP)
		return quarter ? first == 0xff : WL_APP_LOW >> (first & 0x3f) & 1;
	/* QUIC; STUN; DTLS; and protocols that are detected by port. */
	return quarter == 3 || (quarter == 0 && length >= 20) || first == 0x16 || wl_app_port(ip, 53) ||
	       wl_app_port(ip, 5353) || wl_app_port(ip, 5355) || wl_app_port(ip, 123) || wl_app_port(ip, 67);
}

/*
 * The application of a packet with these headers: `window` has the first of the `length` bytes behind them,
 * as many as are available and fit, padded with zeros.
 */
static __always_inline __u32 wl_application(const __u8 window[WL_APPLICATION_WINDOW], __u32 length,
					    const struct wl_ip *ip)
{
	if (!length || !(ip->flags & WL_IP_PORTS) || !wl_may_begin(ip, length, window[0]))
		return WL_APP_UNKNOWN;
	if (ip->flags & WL_IP_TCP)
		return wl_app_tcp(window, length, ip);
	return ip->proto == 17 ? wl_app_udp(window, length, ip) : (__u32)WL_APP_UNKNOWN;
}

#endif
