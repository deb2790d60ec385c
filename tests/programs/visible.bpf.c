// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Has another function with external linkage. */
#include <wirelane/steer.h>

int helper(int number);

__attribute__((noinline)) int helper(int number)
{
	return number & 7;
}

STEERING_PROGRAM(packet)
{
	return helper(packet->queue);
}
