// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Accepts packets with an even number only. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	steer_u32 number = steer_32_at(packet, packet->outer.payload_off + 8);

	return number & 1 ? STEER_NOT_MINE : 0;
}
