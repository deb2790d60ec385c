// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* All packets to one worker, which the build sets: a family of different programs. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	return WORKER;
}
