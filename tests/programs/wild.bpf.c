// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Reads beyond what it is given. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	return packet->bytes[packet->wire_len];
}
