/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Time stamps: CLOCK_MONOTONIC, read for every packet or once per batch.
 *
 * A clock read costs as much as the rest of a short packet's processing (20 ns of 70 on a 2.5 GHz Xeon).
 * Packets that the kernel handles in one batch (one run of the network softirq, one poll of a NAPI thread)
 * had all arrived when it began, so one clock read serves them all, if the program can tell where a batch
 * begins. Since Linux 6.11 it can: for the length of a batch the kernel keeps a struct bpf_net_context on its
 * stack, where bpf_redirect() leaves its argument for a later XDP_REDIRECT (net/core/dev.c, bpf_net_ctx_set()
 * and bpf_net_ctx_get_ri() in include/linux/filter.h). We leave a mark there and never return XDP_REDIRECT. A
 * mark that is still present means that the batch is the one it was left in; a batch begins without
 * BPF_RI_F_RI_INIT. A program that redirects in between overwrites the mark, which costs an extra clock read
 * and nothing else.
 */
#ifndef WL_CLOCK_H
#define WL_CLOCK_H

#include <bpf/bpf_core_read.h>
#include "maps.h"

/* Maximum number of packets per clock read: NAPI's own batch size (NAPI_POLL_WEIGHT). */
#define WL_BATCH_PACKETS 64

#define WL_RI_INIT	 1 /* BPF_RI_F_RI_INIT, include/linux/filter.h */

struct bpf_redirect_info___wl {
	__u64 tgt_index;
	__u32 kern_flags;
} __attribute__((preserve_access_index));

struct bpf_net_context___wl {
	struct bpf_redirect_info___wl ri;
} __attribute__((preserve_access_index));

struct task_struct___wl {
	struct bpf_net_context___wl *bpf_net_context;
} __attribute__((preserve_access_index));

struct wl_batch {
	__u64 ts_ns;
	__u32 packets; /* that may still share the reading */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wl_batch);
} wl_batches SEC(".maps");

/* The time of the current batch; wl_config.batches means that the kernel can tell batches apart. */
static __always_inline __u64 wl_batch_time(void)
{
	/* Another instance on this CPU leaves another mark. Never 0, which another program's redirect may
	 * leave. */
	const __u32 mark = wl_config.batch_mark | 1;
	struct bpf_net_context___wl *net;
	struct task_struct___wl *task;
	struct wl_batch *batch;
	__u32 key = 0;

	batch = bpf_map_lookup_elem(&wl_batches, &key);
	task = (void *)bpf_get_current_task_btf();
	if (!batch)
		return bpf_ktime_get_ns();
	net = task->bpf_net_context;
	if (batch->packets && net->ri.tgt_index == mark && net->ri.kern_flags & WL_RI_INIT) {
		batch->packets--;
		return batch->ts_ns;
	}
	bpf_redirect(mark, 0);
	batch->packets = WL_BATCH_PACKETS - 1;
	return batch->ts_ns = bpf_ktime_get_ns();
}

#endif
