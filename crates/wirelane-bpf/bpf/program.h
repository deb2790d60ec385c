/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steering programs: functions of users (include/wirelane/steer.h), linked into the capture program.
 *
 * There are WL_MAX_PROGRAMS slots for them, each a weak function here. The object of a joining group's
 * program is linked with ours (crates/wirelane/src/engine/ring/program/): its function replaces a weak one.
 * The result is loaded over the maps of the running instance and replaces the program on the device, before
 * the group becomes active.
 *
 * Tail calls are not possible: a program that is bound to a device may have no array of programs. Nor are
 * extension programs (freplace): some kernels refuse them even to root. As long as no group has a program,
 * wl_config.programs is 0, which the verifier knows: none of this is in the loaded program then.
 */
#ifndef WL_PROGRAM_H
#define WL_PROGRAM_H

#include "maps.h"
#include "show.h"
#include "../include/wirelane/steer.h"

/* A slot without a linked program; never called, as no active group names it. */
#define WL_PROGRAM_PLACE(number)                                                                             \
	__weak int wirelane_steer_v1_##number(const struct steer_packet *packet)                             \
	{                                                                                                    \
		return STEER_NOT_MINE;                                                                       \
	}

WL_PROGRAM_PLACE(0)
WL_PROGRAM_PLACE(1)
WL_PROGRAM_PLACE(2)
WL_PROGRAM_PLACE(3)
WL_PROGRAM_PLACE(4)
WL_PROGRAM_PLACE(5)
WL_PROGRAM_PLACE(6)
WL_PROGRAM_PLACE(7)

/* Result of the program of group g: a worker, or a negative number if the packet is not for the group. For
 * global functions see wl_copy(). */
__noinline int wl_ask(wl_ctx *ctx, struct wl_packet *packet, struct wl_parsed *parsed, __u32 g)
{
	const struct wl_group *group;
	struct wl_lane *lane;
	__u32 key;

	if (!packet || !parsed)
		return STEER_NOT_MINE;
	key = packet->lane;
	group = bpf_map_lookup_elem(&wl_groups, &g);
	lane = bpf_map_lookup_elem(&wl_lanes, &key);
	if (!group || !lane)
		return STEER_NOT_MINE;
	wl_show(ctx, packet, parsed, group->workers);
	lane->shown.capture = g;
	switch (group->program) {
	case 0:
		return wirelane_steer_v1_0(&lane->shown);
	case 1:
		return wirelane_steer_v1_1(&lane->shown);
	case 2:
		return wirelane_steer_v1_2(&lane->shown);
	case 3:
		return wirelane_steer_v1_3(&lane->shown);
	case 4:
		return wirelane_steer_v1_4(&lane->shown);
	case 5:
		return wirelane_steer_v1_5(&lane->shown);
	case 6:
		return wirelane_steer_v1_6(&lane->shown);
	case 7:
		return wirelane_steer_v1_7(&lane->shown);
	}
	return STEER_NOT_MINE;
}

#endif
