// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * All that one client says and hears goes to one worker: by the last byte of its address. Clients are those
 * in 10.0.0.0/8; packets that neither come from one nor go to one are not wanted.
 *
 *	clang-19 -g -O2 -target bpf -I include -c examples/steering/client.bpf.c -o client.bpf.o
 *	sudo wirelane count -i eth1 --workers 4 --steering-program client.bpf.o
 *
 * Steering by flow keeps the two directions of a connection together, but not the connections of a client.
 */
#include <wirelane/steer.h>

#define NETWORK 0x0a000000 /* 10.0.0.0 */
#define MASK	0xff000000

static int is_client(steer_u32 address)
{
	return (address & MASK) == NETWORK;
}

STEERING_PROGRAM(packet)
{
	steer_u32 src, dst;

	if (packet->outer.l3 != STEER_L3_IPV4)
		return STEER_NOT_MINE;
	src = steer_be32(packet->outer.src);
	dst = steer_be32(packet->outer.dst);
	/* Between two clients: the lower address, which is the same one in both directions. */
	if (is_client(src) && is_client(dst))
		return (src < dst ? src : dst) & 0xff;
	if (is_client(src))
		return src & 0xff;
	if (is_client(dst))
		return dst & 0xff;
	return STEER_NOT_MINE;
}
