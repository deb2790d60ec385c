/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Padding that gives a program space to grow while it is loaded.
 *
 * The verifier rewrites a program: it removes unreachable code, and then replaces loads of the context and
 * calls by longer code. A program that outgrows its pages is moved (bpf_prog_realloc() in kernel/bpf/core.c),
 * and a program bound to a device then leaves a stale pointer in the device's bookkeeping
 * (prog->aux->offload->prog, kernel/bpf/offload.c). Deleting the device then reads freed memory: the kernel
 * crashes. (CVE-2026-53094 fixed only the move for constant blinding.)
 *
 * The verifier replaces calls of bpf_loop() by loops before it removes anything. There is no space for that
 * growth: so such a program must not call it with flags that are known to be 0 (verdict.h), and steering
 * programs of users must not call it at all.
 *
 * So such a program contains an unreachable block: it counts when pages are allocated, and is removed before
 * anything grows. engine/ring/room.rs checks for every loaded program whether that was enough.
 */
#ifndef WL_ROOM_H
#define WL_ROOM_H

#include "instance.h"

static __always_inline void wl_reserve_prog_pages(void)
{
	if (wl_config.never)
		asm volatile(".rept 2048\n\tr0 = 0\n\t.endr" ::: "r0");
}

#endif
