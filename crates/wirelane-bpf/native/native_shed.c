/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Congestion control compiled natively, for crates/wirelane-bpf/src/shed.rs. */
#include "native.h"
#include "lib/shed.h"

__u32 wl_native_shed_refuses(struct wl_shed *shed, struct wl_shed_set *set, __u32 *congested,
			     const struct wl_shed_packet *packet)
{
	wl_shed_measure(shed, packet);
	return wl_shed_refuses(shed, set, congested, packet, wl_shed_way(set, packet->hash, packet->tick));
}
