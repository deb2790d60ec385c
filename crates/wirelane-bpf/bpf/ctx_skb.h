/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The context of programs on tc: a socket buffer. Include first, as ctx_xdp.h. */
#ifndef WL_CTX_SKB_H
#define WL_CTX_SKB_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifdef WL_CTX_IS_SKB
#error "one kind of context for each object"
#endif
#define WL_CTX_IS_SKB 1

typedef struct __sk_buff wl_ctx;

/* Length of the packet in bytes. */
static __always_inline __u32 wl_ctx_len(wl_ctx *ctx)
{
	return ctx->len;
}

/* Loads bytes of the packet, also beyond its linear part. */
static __always_inline long wl_ctx_load(wl_ctx *ctx, __u32 offset, void *to, __u32 len)
{
	return bpf_skb_load_bytes(ctx, offset, to, len);
}

#endif
