// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A steering program with state: each new source port gets the next worker and keeps it; one port is refused.
 */
#include <wirelane/steer.h>

STATE_PARAMETER(packet_u16, refused, 0);

struct port {
	packet_u32 port;
};

STATE_HASH(ports, 1024, struct port, packet_u32);
STATE_ARRAY(next, 1, packet_u64);

STEERING_PROGRAM(packet)
{
	struct port port = {.port = packet_be16(packet->outer.src_port)};
	packet_u32 zero = 0, *worker, new;
	packet_u64 *turn;

	if (port.port == refused)
		return STEER_NOT_MINE;
	worker = state_find(packet, ports, &port);
	if (worker)
		return *worker;
	turn = state_find(packet, next, &zero);
	if (!turn)
		return 0;
	new = state_add(turn, 1) & 0xffff;
	state_insert(packet, ports, &port, &new);
	return new;
}
