// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Says one thing of all packets, which the build names: plug-ins that differ. */
#include <wirelane/plugin.h>

PLUGIN(packet, answer)
{
	plugin_add(answer, 0, NUMBER);
	return PLUGIN_MATCH;
}
