// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Analysis load in the kernel: spins LOOPS times for each packet, and gives it to the first worker.
 *
 * A loop is that of wirelane::spin(): a multiplication and an exclusive or that wait for the loop before, in
 * a register, so that it takes as long here as in user space.
 */
#include <wirelane/steer.h>

#define MIX 0x5bd1e995

STEERING_PROGRAM(packet)
{
	__UINT64_TYPE__ value = packet->hash;
	steer_u32 turn;

	for (turn = 0; turn < LOOPS; turn++) {
		value = (value * MIX) ^ turn;
		__asm__ volatile("" : "+r"(value));
	}
	/* Uses the result, so that the compiler keeps the computation. */
	return value == 1 ? 1 : 0;
}
