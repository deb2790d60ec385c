// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* By the VLAN id, if the parsed headers and the packet's bytes agree; rejects all other packets. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	steer_u32 id = packet->vlan_tci[0] & 0xfff;

	if (!(packet->flags & STEER_VLAN) || packet->vlan_count != 1)
		return STEER_NOT_MINE;
	if (steer_16_at(packet, 12) != 0x8100 || (steer_16_at(packet, 14) & 0xfff) != id)
		return STEER_NOT_MINE;
	return id;
}
