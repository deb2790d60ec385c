// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* All to one worker, which the build names: programs that differ. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	return WORKER;
}
