// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Takes turns, by a variable. */
#include <wirelane/steer.h>

static steer_u32 turn;

STEERING_PROGRAM(packet)
{
	return turn++ & 0xff;
}
