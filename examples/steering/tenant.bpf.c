// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Each tenant of a data centre has a worker: by the number of its virtual network (VXLAN), else by its VLAN.
 * What belongs to no tenant, but is IP, goes to workers by flow. The rest (ARP, LLDP and the like) is not
 * wanted: it is `filtered` in the ledger.
 *
 *	clang-19 -g -O2 -target bpf -I include -c examples/steering/tenant.bpf.c -o tenant.bpf.o
 *	sudo wirelane count -i eth1 --workers 4 --steering-program tenant.bpf.o
 */
#include <wirelane/steer.h>

#define VLAN_ID 0x0fff /* of a tag's 16 bits; the others are its priority */

STEERING_PROGRAM(packet)
{
	/* Both directions of a tenant's traffic carry the same number. It counts modulo packet->workers. */
	if (packet->tunnel == STEER_TUNNEL_VXLAN)
		return packet->tunnel_id;
	if (packet->flags & STEER_VLAN)
		return packet->vlan_tci[0] & VLAN_ID;
	if (packet->outer.l3 == STEER_L3_IPV4 || packet->outer.l3 == STEER_L3_IPV6)
		return packet->hash;
	return STEER_NOT_MINE;
}
