// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Counts in a map. */
#include <wirelane/steer.h>

static void *(*const bpf_map_lookup_elem)(void *, const void *) = (void *)1;

struct {
	int (*type)[2]; /* BPF_MAP_TYPE_ARRAY */
	int (*max_entries)[1];
	steer_u32 *key;
	steer_u32 *value;
} turns __attribute__((section(".maps"), used));

STEERING_PROGRAM(packet)
{
	steer_u32 key = 0, *turn = bpf_map_lookup_elem(&turns, &key);

	return turn ? (*turn)++ & 0xff : 0;
}
