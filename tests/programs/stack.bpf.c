// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Uses all of the stack that the verifier allows for a whole call chain. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	volatile steer_u8 room[480];
	int i;

	for (i = 0; i < 480; i++)
		room[i] = packet->bytes[i & (STEER_BYTES - 1)];
	return room[packet->bytes_len & 0xff];
}
