// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Invalid worker numbers: of four packets one each with the largest number, the one after the last worker,
 * the lowest, which is negative, and the last worker.
 */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	switch (steer_32_at(packet, packet->outer.payload_off + 8) & 3) {
	case 0:
		return 0x7fffffff;
	case 1:
		return packet->workers;
	case 2:
		return -0x7fffffff - 1;
	}
	return packet->workers - 1;
}
