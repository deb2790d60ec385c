// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Calls an undefined function. */
#include <wirelane/steer.h>

extern int elsewhere(int number);

STEERING_PROGRAM(packet)
{
	return elsewhere(packet->queue);
}
