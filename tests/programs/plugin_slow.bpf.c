// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Matches everything, after so many steps of a hash that no machine does them in 5 us. */
#include <wirelane/plugin.h>

#define STEPS 20000

PLUGIN(packet, answer)
{
	plugin_u64 hash = packet->hash;
	packet_u32 i;

	for (i = 0; i < STEPS; i++) {
		hash = hash * 0x9e3779b97f4a7c15 + 1;
		__asm__ volatile("" : "+r"(hash));
	}
	/* Depends on the result of the loop. */
	return hash == i ? PLUGIN_PASS : PLUGIN_MATCH;
}
