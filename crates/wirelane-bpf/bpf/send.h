/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sends packets to other devices, as rules request: tc only, where the kernel reports the result of each
 * copy.
 *
 * A group that sends the packet stores the egress devices in its lane; once every group has been offered the
 * packet, all copies are sent. Sending may move the packet in memory, and runs the egress path of the other
 * device immediately: if that sends to this device again, its capture sees a packet during the processing of
 * ours, in the same lane. Such a packet is captured and not sent on (it counts as unsent), so that it cannot
 * loop.
 */
#ifndef WL_SEND_H
#define WL_SEND_H

#include "packet.h"
#include "instance.h"
#include "maps.h"

/* Schedules the packet for packet->egress_devices of group g, once all groups have been offered it. */
static __always_inline void wl_send_later(struct wl_packet *packet, __u32 g)
{
	__u32 key = packet->lane, shift = g * WL_EGRESS_DEVICES & 63;
	struct wl_lane *lane = bpf_map_lookup_elem(&wl_lanes, &key);
	__u64 *word;

	if (!lane)
		return;
	if (!packet->sent)
		lane->senders = 0;
	packet->sent = 1;
	word = &lane->egress_devices[g * WL_EGRESS_DEVICES / 64 & (WL_EGRESS_WORDS - 1)];
	*word = (*word & ~(0xffULL << shift)) | (__u64)(packet->egress_devices & 0xff) << shift;
	lane->senders |= 1ULL << (g & (WL_MAX_GROUPS - 1));
}

#if WL_CTX_IS_SKB

/* Sends the packet to these egress devices of group g, and counts. `refuse`: sends nothing. */
__noinline int wl_send_of(struct __sk_buff *skb, __u32 lane, __u32 g, __u32 egress_devices, __u32 refuse)
{
	__u32 key = g * wl_config.lanes + lane, e;
	struct wl_egress_devices *of = bpf_map_lookup_elem(&wl_egress, &key);

	if (!of)
		return 0;
	for (e = 0; e < WL_EGRESS_DEVICES; e++) {
		if (!(egress_devices & 1 << e))
			continue;
		/* A result other than 0 includes NET_XMIT_CN, which a device that is down returns. */
		if (refuse || bpf_clone_redirect(skb, of->ifindex[e], 0))
			of->unsent[e]++;
		else
			of->sent[e]++;
	}
	return 0;
}

/* Sends the lane's packet to the devices of all groups that have scheduled it. */
__noinline int wl_send(struct __sk_buff *skb, __u32 lane_key)
{
	struct wl_lane *lane = bpf_map_lookup_elem(&wl_lanes, &lane_key);
	__u64 devices[WL_EGRESS_WORDS], senders, inside;
	__u32 g, i;

	if (!lane)
		return 0;
	/* Read before anything is sent: a packet that is captured during the sending overwrites these
	 * fields. */
#pragma unroll
	for (i = 0; i < WL_EGRESS_WORDS; i++)
		devices[i] = *(volatile __u64 *)&lane->egress_devices[i];
	senders = *(volatile __u64 *)&lane->senders;
	inside = *(volatile __u64 *)&lane->sending;
	*(volatile __u64 *)&lane->sending = 1;
#pragma unroll
	for (i = 0; i < WL_EGRESS_WORDS; i++) {
		for (g = 0; g < 64 / WL_EGRESS_DEVICES; g++, senders >>= 1) {
			if (senders & 1)
				wl_send_of(skb, lane_key, i * (64 / WL_EGRESS_DEVICES) + g, devices[i] & 0xff,
					   !!inside);
			devices[i] >>= WL_EGRESS_DEVICES;
		}
	}
	*(volatile __u64 *)&lane->sending = inside;
	return 0;
}

#endif

#endif
