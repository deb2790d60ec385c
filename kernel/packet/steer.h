/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Steering: which worker of a group gets a packet. */
#ifndef WL_PACKET_STEER_H
#define WL_PACKET_STEER_H

#include "packet/types.h"

/* Between hash and worker lies a table of buckets, so that load can be moved without touching other flows. */
#define WL_BUCKETS 512

enum wl_steering {
	WL_STEER_FLOW = 0,  /* by flow hash, through the buckets */
	WL_STEER_QUEUE = 1, /* by RX queue: queue n to worker n, wrapping around */
};

/* The bucket of a flow hash, below WL_BUCKETS. */
static inline __attribute__((always_inline)) __u32 wl_bucket(__u32 hash)
{
	return hash & (WL_BUCKETS - 1);
}

/*
 * The worker, below `workers`; 0 where there are none. `buckets` has WL_BUCKETS entries. What it holds is
 * user space's to write, so an entry that names no worker counts modulo the number of workers.
 */
static inline __attribute__((always_inline)) __u32 wl_steer(__u32 steering, const __u16 *buckets, __u32 hash,
							     __u32 queue, __u32 workers)
{
	__u32 worker = steering == WL_STEER_QUEUE ? queue : buckets[wl_bucket(hash)];

	if (worker < workers)
		return worker;
	return workers ? worker % workers : 0;
}

#endif
