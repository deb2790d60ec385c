/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Room for a program to grow in while it is loaded.
 *
 * The verifier rewrites a program: it removes what is never reached, and then replaces loads of the context
 * and calls by longer code. A program that outgrows the pages that it was given is moved (bpf_prog_realloc()
 * in kernel/bpf/core.c), and a program bound to a device leaves the device's bookkeeping behind at its old
 * address (prog->aux->offload->prog, kernel/bpf/offload.c). Deleting the device then reads freed memory: the
 * kernel dies. (CVE-2026-53094 mended only the move for constant blinding.)
 *
 * The verifier puts loops in the place of calls of bpf_loop() before it removes anything. That growth finds
 * no room: so such a program must not call it with flags that are known to be 0 (verdict.h), and steering
 * programs of users not at all.
 *
 * So such a program brings a block that is never reached: it counts when pages are given out, and is gone
 * before anything grows. engine/ring/room.rs looks at every loaded program whether that was enough.
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
