// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* By the destination port: with a constant table, a loop and a separate function. */
#include <wirelane/steer.h>

static const steer_u16 ports[] = {7, 9, 53, 4789};

static __attribute__((noinline)) int place_of(steer_u16 port)
{
	int i;

	for (i = 0; i < (int)(sizeof(ports) / sizeof(ports[0])); i++) {
		if (ports[i] == port)
			return i;
	}
	return STEER_NOT_MINE;
}

STEERING_PROGRAM(packet)
{
	if (!(packet->outer.flags & STEER_IP_PORTS) || packet->outer.proto != 17)
		return STEER_NOT_MINE;
	return place_of(steer_be16(packet->outer.dst_port));
}
