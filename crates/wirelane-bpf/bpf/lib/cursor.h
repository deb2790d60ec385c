/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reading a packet: the walk over its headers, bounds checks, and loads of unaligned big-endian fields.
 *
 * This is the only file of the parser that differs between its two compilations. For BPF, a bounds check is
 * a comparison of packet pointers, because that is what the verifier understands. Natively it is a
 * comparison of lengths, because a pointer beyond the end of its object must not even be computed in C.
 */
#ifndef WL_PACKET_CURSOR_H
#define WL_PACKET_CURSOR_H

#include "lib/types.h"

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define wl_likely(x)   __builtin_expect(!!(x), 1)
#define wl_unlikely(x) __builtin_expect(!!(x), 0)

/* Headers that wl_parse() follows in one packet, and the furthest offset at which one may begin. */
#define WL_MAX_HEADERS	  20
#define WL_FREQUENT_TURNS 5 /* of these in the kernel, by the program itself: parse.h */
#define WL_MAX_OFFSET	  0x0fff
#define WL_OFFSET_MASK	  0x3fff /* holds WL_MAX_OFFSET plus the longest header that any reader skips */

/* The state of wl_parse() between two headers. */
struct wl_walk {
	const __u8 *data;
	const __u8 *data_end;
	struct wl_parsed *out;
	__u32 off;   /* offset of the next header */
	__u32 end;   /* end of the enclosing datagram, from its own length field; at most 0xffff */
	__u32 next;  /* enum wl_next */
	__u32 value; /* of WL_NEXT_TYPE and WL_NEXT_PROTOCOL */
};

/*
 * The parser uses the two pads of wl_parsed as scratch space while it works; they are 0 before and after.
 * They are volatile for the compiler, so that it loads values that it might know and the verifier cannot;
 * parse.h explains why.
 */
#define wl_scratch_zero(out) (*(volatile __u16 *)&(out)->pad[0]) /* always 0 */
#define wl_scratch_mode(out) (*(volatile __u16 *)&(out)->pad[1]) /* WL_MODE_* */
#define WL_MODE_FOLLOW	     0x01				 /* tunnels are entered: WL_PARSE_TUNNELS */
#define WL_MODE_INNER	     0x48 /* one was: the offset of wl_parsed.inner, which is filled now */

#ifdef __bpf__

/*
 * Packet data has no alignment, and clang assumes the worst: memcpy() from a __u8 pointer becomes byte loads.
 * The kernel runs BPF loads of any alignment on the machines that Wirelane supports (x86-64 and arm64).
 */
typedef __u16 __attribute__((may_alias)) wl_alias16;
typedef __u32 __attribute__((may_alias)) wl_alias32;
typedef __u64 __attribute__((may_alias)) wl_alias64;

#define wl_load16(p)	 (*(const wl_alias16 *)(p))
#define wl_load32(p)	 (*(const wl_alias32 *)(p))
#define wl_load64(p)	 (*(const wl_alias64 *)(p))
#define wl_store32(p, v) (*(wl_alias32 *)(p) = (v))
#define wl_store64(p, v) (*(wl_alias64 *)(p) = (v))

/* Without this, clang derives p and p + size from different registers, and a check of one proves nothing
 * about the other. */
#define wl_keep(p) asm volatile("" : "+r"(p))

/* The size bytes at offset at, or NULL. at must be bounded, size a constant. */
static __always_inline const __u8 *wl_captured(const struct wl_walk *w, __u32 at, __u32 size)
{
	const __u8 *p = w->data + at;

	wl_keep(p);
	return p + size > w->data_end ? (const __u8 *)0 : p;
}

/* Whether the first `upto` bytes of the packet were captured. upto must be bounded. */
static __always_inline int wl_is_captured(const struct wl_walk *w, __u32 upto)
{
	return w->data + upto <= w->data_end;
}

#else /* native */

static inline __u16 wl_load16(const void *p)
{
	__u16 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

static inline __u32 wl_load32(const void *p)
{
	__u32 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

static inline __u64 wl_load64(const void *p)
{
	__u64 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

static inline void wl_store32(void *p, __u32 v)
{
	__builtin_memcpy(p, &v, sizeof(v));
}

static inline void wl_store64(void *p, __u64 v)
{
	__builtin_memcpy(p, &v, sizeof(v));
}

static inline int wl_is_captured(const struct wl_walk *w, __u32 upto)
{
	return upto <= (__u64)(w->data_end - w->data);
}

static inline const __u8 *wl_captured(const struct wl_walk *w, __u32 at, __u32 size)
{
	return wl_is_captured(w, at + size) ? w->data + at : (const __u8 *)0;
}

#endif /* __bpf__ */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Wirelane's packet functions are written for little-endian machines (x86-64, arm64)"
#endif

/* Fields in network byte order, as host values. */
static __always_inline __u16 wl_be16(const __u8 *p)
{
	return __builtin_bswap16(wl_load16(p));
}

static __always_inline __u32 wl_be32(const __u8 *p)
{
	return __builtin_bswap32(wl_load32(p));
}

/* 16 bytes: an IPv6 address. */
static __always_inline void wl_copy16(__u8 *to, const __u8 *from)
{
	wl_store64(to, wl_load64(from));
	wl_store64(to + 8, wl_load64(from + 8));
}

/* The header of `size` bytes (a constant) at w->off, or NULL, with the reason in the flags. */
static __always_inline const __u8 *wl_header(struct wl_walk *w, __u32 size)
{
	const __u8 *p;

	if (wl_unlikely(w->off + size > w->end)) {
		w->out->flags |= WL_PKT_MALFORMED;
		return (const __u8 *)0;
	}
	p = wl_captured(w, w->off, size);
	if (wl_unlikely(!p))
		w->out->flags |= WL_PKT_CUT;
	return p;
}

/* Whether a header of `size` bytes, which need not be constant, fits at w->off; otherwise the flags give
 * the reason. */
static __always_inline int wl_reaches(struct wl_walk *w, __u32 size)
{
	if (wl_unlikely(w->off + size > w->end)) {
		w->out->flags |= WL_PKT_MALFORMED;
		return 0;
	}
	if (wl_unlikely(!wl_is_captured(w, w->off + size))) {
		w->out->flags |= WL_PKT_CUT;
		return 0;
	}
	return 1;
}

/* Limits the walk to the `size` bytes that the datagram at w->off states: later bytes do not belong to it. */
static __always_inline void wl_limit(struct wl_walk *w, __u32 size)
{
	if (w->off + size < w->end)
		w->end = w->off + size;
}

/* Whether a tunnel was entered. */
static __always_inline int wl_inside(const struct wl_walk *w)
{
	return (wl_scratch_mode(w->out) & WL_MODE_INNER) != 0;
}

/* The wl_ip that is currently filled. The mask changes nothing; it gives the verifier its bound. */
static __always_inline struct wl_ip *wl_current(const struct wl_walk *w)
{
	_Static_assert(__builtin_offsetof(struct wl_parsed, inner) == WL_MODE_INNER, "wl_ip has 72 bytes");
	return (struct wl_ip *)((__u8 *)w->out + (wl_scratch_mode(w->out) & WL_MODE_INNER));
}

#endif
