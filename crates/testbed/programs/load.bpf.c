// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Analysis load in the kernel: spins LOOPS times for each packet, and gives it to the first worker.
 *
 * A loop is an addition and an exclusive or that wait for the loop before, in a register: two cycles on today's
 * cores, as many as those of wirelane::spin() take in user space. BPF has no rotation.
 */
#include <wirelane/steer.h>

#define MIX 0x5bd1e995

STEERING_PROGRAM(packet)
{
	__UINT64_TYPE__ value = packet->hash;
	steer_u32 turn;

	for (turn = 0; turn < LOOPS; turn++) {
		value = (value + turn) ^ MIX;
		__asm__ volatile("" : "+r"(value));
	}
	/* Whatever it has come to: no value is left out of being computed. */
	return value == 1 ? 1 : 0;
}
