// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Has a map. */
#include <wirelane/plugin.h>

static void *(*const bpf_map_lookup_elem)(void *, const void *) = (void *)1;

struct {
	int (*type)[2]; /* BPF_MAP_TYPE_ARRAY */
	int (*max_entries)[1];
	packet_u32 *key;
	packet_u32 *value;
} turns __attribute__((section(".maps"), used));

PLUGIN(packet, answer)
{
	packet_u32 key = 0, *turn = bpf_map_lookup_elem(&turns, &key);

	return turn ? (*turn)++ & 1 : PLUGIN_NO;
}
