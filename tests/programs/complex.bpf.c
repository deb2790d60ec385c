// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Ends, but takes more steps than the verifier follows. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	steer_u32 sum = 0, i;

	for (i = 0; i < 10000000; i++) {
		__asm__ volatile("" : "+r"(sum));
		sum = sum * 31 + steer_byte(packet, i & (STEER_BYTES - 1));
	}
	return sum & 0xff;
}
