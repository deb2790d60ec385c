/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The context of programs on XDP. Include first: the other files are compiled once for each kind of context.
 */
#ifndef WL_CTX_XDP_H
#define WL_CTX_XDP_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifdef WL_CTX_IS_SKB
#error "one kind of context for each object"
#endif
#define WL_CTX_IS_SKB 0

typedef struct xdp_md wl_ctx;

/* Length of the packet in bytes. */
static __always_inline __u32 wl_ctx_len(wl_ctx *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

/* Loads bytes of the packet, also beyond its linear part. */
static __always_inline long wl_ctx_load(wl_ctx *ctx, __u32 offset, void *to, __u32 len)
{
	return bpf_xdp_load_bytes(ctx, offset, to, len);
}

#endif
