// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* By the unchanged flow hash. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	return packet->hash;
}
