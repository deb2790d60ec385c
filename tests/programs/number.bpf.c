// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* By the number that `wirelane send` has put into the packet, which is read from its bytes. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	/* After "WLn1": the lower half of a big-endian number of 64 bits. */
	return steer_32_at(packet, packet->outer.payload_off + 8);
}
