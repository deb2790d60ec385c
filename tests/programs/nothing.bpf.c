// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Has no steering program: its function has another name. */
#include <wirelane/steer.h>

int my_steering(const struct steer_packet *packet);

int my_steering(const struct steer_packet *packet)
{
	return packet ? packet->vlan_tci[0] : 0;
}
