// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Sends packets to the first worker if every described field is as it was sent: see the test. */
#include <wirelane/steer.h>

STEERING_PROGRAM(packet)
{
	const struct steer_headers *ip = &packet->outer;
	steer_u32 at;

	if (packet->workers != 2 || packet->wire_len != 300 || packet->bytes_len != STEER_BYTES)
		return STEER_NOT_MINE;
	if (packet->flags || packet->eth_type != 0x0800 || packet->vlan_count || packet->mpls_count)
		return 1;
	if (packet->tunnel != STEER_TUNNEL_NONE || packet->link != STEER_LINK_ETHERNET)
		return 1;
	if (ip->l3 != STEER_L3_IPV4 || ip->proto != 6 || ip->flags != (STEER_IP_PORTS | STEER_IP_TCP))
		return 1;
	if (ip->l3_off != 14 || ip->l4_off != 34 || ip->payload_off != 54 || ip->l3_len != 286)
		return 1;
	if (steer_be32(ip->src) != 0x0a000001 || steer_be32(ip->dst) != 0x0a4d0002)
		return 1;
	if (steer_be16(ip->src_port) != 1024 || steer_be16(ip->dst_port) != 4000 || ip->ttl != 64)
		return 1;
	if (packet->inner.l3 != STEER_L3_NONE)
		return 1;
	/* Bytes that no description covers: the magic, a number below 256, and zeros up to the last byte. */
	if (steer_32_at(packet, 54) != 0x574c6e31 || steer_32_at(packet, 58) || steer_16_at(packet, 62) ||
	    steer_byte(packet, 64))
		return 1;
	for (at = 66; at < STEER_BYTES; at++) {
		if (steer_byte(packet, at))
			return 1;
	}
	return steer_byte(packet, STEER_BYTES) || steer_byte(packet, 0xffffffff) ? 1 : 0;
}
