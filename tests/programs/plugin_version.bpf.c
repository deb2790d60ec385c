// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Built with a future version of the header. */
#include <wirelane/plugin.h>
#undef PLUGIN_FUNCTION
#define PLUGIN_FUNCTION wirelane_plugin_v2_0

PLUGIN(packet, answer)
{
	return PLUGIN_MATCH;
}
