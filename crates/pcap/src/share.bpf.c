/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * One of several equal shares of all flows: SHARE of SHARES. Each process of a shared group steers by its
 * own.
 *
 * packet->hash would not do: a device's two hooks have seeds of their own, and both directions of a
 * conversation must have one share. As with it, all fragments of a datagram go by their addresses alone.
 */
#include <wirelane/steer.h>

/* An end of a conversation as a number: its address and port. */
STEER_INLINE unsigned long long end_of(const steer_u8 *address, steer_u32 port)
{
	unsigned long long value = port;
	steer_u32 i;

	for (i = 0; i < 16; i++)
		value = (value ^ address[i]) * 0x100000001b3ULL;
	/* High bits to the low ones: the two ends are added. */
	value = (value ^ (value >> 32)) * 0xbf58476d1ce4e5b9ULL;
	return value ^ (value >> 29);
}

STEERING_PROGRAM(packet)
{
	const struct steer_headers *headers = &packet->outer;
	int ports = (headers->flags & STEER_IP_PORTS) && !(headers->flags & STEER_IP_FRAGMENT);
	unsigned long long sum;

	sum = end_of(headers->src, ports ? headers->src_port : 0) +
	      end_of(headers->dst, ports ? headers->dst_port : 0);
	sum = (sum ^ (sum >> 31)) * 0x94d049bb133111ebULL;
	return (steer_u32)(sum >> 33) % SHARES == SHARE ? 0 : STEER_NOT_MINE;
}
