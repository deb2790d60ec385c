// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Returns one answer for all packets, which the build sets: a family of different plug-ins. */
#include <wirelane/plugin.h>

PLUGIN(packet, answer)
{
	plugin_add(answer, 0, NUMBER);
	return PLUGIN_MATCH;
}
