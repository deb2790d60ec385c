// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Calls a function that is nowhere. */
#include <wirelane/steer.h>

extern int elsewhere(int number);

STEERING_PROGRAM(packet)
{
	return elsewhere(packet->queue);
}
