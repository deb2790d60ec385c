// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Writes out of bounds. */
#include <wirelane/plugin.h>

PLUGIN(packet, answer)
{
	answer->note[packet->wire_len] = 1;
	return PLUGIN_MATCH;
}
