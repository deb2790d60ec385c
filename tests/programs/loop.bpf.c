// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Calls bpf_loop(), helper 181 of linux/bpf.h. */
#include <wirelane/steer.h>

static long (*const bpf_loop)(steer_u32, void *, void *, __UINT64_TYPE__) = (void *)181;

static long turn(__UINT64_TYPE__ number, void *context)
{
	return number > 3;
}

STEERING_PROGRAM(packet)
{
	return bpf_loop(packet->workers, (void *)turn, 0, 0);
}
