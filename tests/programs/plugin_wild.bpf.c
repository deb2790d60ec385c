// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Writes out of bounds; reads beyond the packet's bytes; or follows a number of a rule as if it were a
 * pointer. */
#include <wirelane/plugin.h>

#ifdef RULE
PLUGIN_RULE(rule)
{
	*(packet_u64 *)rule->time_ns = 1;
}
#endif

PLUGIN(packet, answer)
{
#ifdef BEYOND
	return packet->bytes[packet->wire_len] ? PLUGIN_MATCH : PLUGIN_NO;
#elif !defined(RULE)
	answer->note[packet->wire_len] = 1;
#endif
	return PLUGIN_MATCH;
}
