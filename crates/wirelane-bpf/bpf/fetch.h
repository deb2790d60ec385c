/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Access to a packet's bytes by helpers, which reach linear and paged data. */
#ifndef WL_FETCH_H
#define WL_FETCH_H

#include "packet.h"

/* Loads `len` bytes; `most`, a constant, is the size of the buffer. */
static __always_inline long wl_load_most(wl_ctx *ctx, __u32 offset, void *to, __u32 len, __u32 most)
{
	/* The verifier must see the bounds on the very register that the helper gets, and Linux 6.1 learns
	 * nothing about the lower one from `len == 0`: hence a signed comparison, separate from the other
	 * one.
	 */
	barrier_var(len);
	if (len > most)
		return -1;
	barrier_var(len);
	if ((__s32)len < 1)
		return -1;
	return wl_ctx_load(ctx, offset, to, len);
}

#endif
