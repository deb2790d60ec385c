// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Matches even numbers. Its note begins with the flow hash, and is longer than a note can be. */
#include <wirelane/plugin.h>

PLUGIN_COUNTERS("odd");

PLUGIN(packet, answer)
{
	packet_u32 number = packet_32_at(packet, packet->outer.payload_off + 8), i;

	plugin_add(answer, 0, number & 1);
	for (i = 0; i < 4; i++)
		plugin_note(answer, packet->hash >> (24 - 8 * i));
	for (; i < PLUGIN_NOTE + 8; i++)
		plugin_note(answer, i);
	return number & 1 ? PLUGIN_NO : PLUGIN_MATCH;
}
