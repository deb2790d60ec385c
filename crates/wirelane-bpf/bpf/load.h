/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Loads bytes of a packet: directly for short packets, otherwise by helpers, which reach linear and paged
 * data. */
#ifndef WL_LOAD_H
#define WL_LOAD_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "fetch.h"
#include "instance.h"
#include "lib/cursor.h"

/* A packet of one to two times this many bytes is copied as its first and its last so many, which may
 * overlap. */
#define WL_SHORT 56

static __always_inline void wl_copy_short(__u8 *to, const __u8 *from)
{
	_Static_assert(WL_SHORT == 7 * 8, "the words that are copied");
	wl_store64(to, wl_load64(from));
	wl_store64(to + 8, wl_load64(from + 8));
	wl_store64(to + 16, wl_load64(from + 16));
	wl_store64(to + 24, wl_load64(from + 24));
	wl_store64(to + 32, wl_load64(from + 32));
	wl_store64(to + 40, wl_load64(from + 40));
	wl_store64(to + 48, wl_load64(from + 48));
}

/*
 * Copies the first `len` bytes of a short packet, if its linear part has them; returns whether it did. It
 * avoids the helper's calls, which are expensive for short copies. `to` has WL_SLACK bytes.
 */
static __always_inline bool wl_load_short(wl_ctx *ctx, __u8 *to, __u32 len)
{
	const __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *last;
	__u32 at = len - WL_SHORT;

	if (at > WL_SHORT)
		return false;
	/* A bound that the verifier sees on the register that is added, whatever code the compiler has
	 * merged. */
	barrier_var(at);
	at &= 63;
	last = data + at;
	wl_keep(last);
	if (data + WL_SHORT > end || last + WL_SHORT > end)
		return false;
	wl_copy_short(to, data);
	wl_copy_short(to + at, last);
	return true;
}

static __always_inline long wl_load(wl_ctx *ctx, __u32 offset, void *to, __u32 len)
{
	return wl_load_most(ctx, offset, to, len, WL_MAX_SNAP);
}

#endif
