// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Uses every possible answer, by the lowest bits of the number that `wirelane send` has put in. */
#include <wirelane/plugin.h>

PLUGIN_COUNTERS("lower half", "bits");

PLUGIN(packet, answer)
{
	packet_u32 number = packet_32_at(packet, packet->outer.payload_off + 8), bits = number & 7, i;

	if (bits < 4)
		plugin_add(answer, 0, 1);
	plugin_add(answer, 1, bits);
	/* A counter without a name. */
	plugin_add(answer, 7, bits == 7);
	for (i = 0; i < 4; i++)
		plugin_note(answer, number >> (24 - 8 * i));
	switch (bits) {
	case 1:
		return PLUGIN_MATCH;
	case 2:
		return PLUGIN_DROP;
	case 3:
		return PLUGIN_COUNT;
	case 4:
		return PLUGIN_DIGEST;
	case 5:
		return PLUGIN_DIGEST + 1; /* nothing that there is */
	case 7:
		return -1;
	}
	return PLUGIN_NO;
}
