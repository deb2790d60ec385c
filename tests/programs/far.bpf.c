// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Numbers that no worker has: of four packets one each for the largest, for one behind the last worker, for
 * the lowest, which is below 0, and for a worker that there is.
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
