// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Does not end for some packets. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	while (packet->bytes[0])
		__asm__ volatile("");
	return 0;
}
