// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Takes turns, by a variable. */
#include <wirelane/plugin.h>

static packet_u32 turn;

PLUGIN(packet, answer)
{
	return turn++ & 1;
}
