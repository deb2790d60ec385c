// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Ends, but has more ways through it than the verifier follows. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	steer_u32 sum = 0, i;

	for (i = 0; i < 100000; i++) {
		if (steer_byte(packet, i & (STEER_BYTES - 1)) & 1)
			__asm__ volatile("%0 += 1" : "+r"(sum));
	}
	return sum & 0xff;
}
