// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Reads out of bounds. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	return packet->bytes[packet->wire_len];
}
