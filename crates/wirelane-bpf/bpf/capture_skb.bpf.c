// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The capture programs on tc (offer.h):
 *
 *   wirelane_in       TCX or clsact, ingress                       received packets, beside others' XDP
 *   wirelane_out      TCX, egress                                  packets on their way out
 *   wirelane_in_n     TCX, ingress and egress of any number of devices, which come during the
 *   wirelane_out_n    capture: the device takes the place of the RX queue (wl_slots)
 */
#include <stdbool.h>
#include "ctx_skb.h"
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include "offer.h"

/* Bytes of the linear part that headers are read from: sufficient for the headers of an ordinary packet. */
#define WL_PULL 192

/* tc: lanes are CPUs, one per CPU for each direction; bottom halves are off in both. */
static __always_inline int wl_tc(struct __sk_buff *skb, __u32 queue, __u32 flags)
{
	struct wl_packet packet = {.queue = queue, .flags = flags};
	__u32 linear = skb->data_end - skb->data;
	bool taken;

	/* Payload may be in pages, and headers too if a driver left them there. */
	if (linear < skb->len && linear < WL_PULL)
		bpf_skb_pull_data(skb, skb->len < WL_PULL ? skb->len : WL_PULL);
	packet.lane = bpf_get_smp_processor_id();
	packet.wire_len = skb->len;
	if (skb->vlan_present) {
		packet.vlan = 1;
		packet.vlan_tag = (skb->vlan_proto & 0xffff) | (__u32)bpf_htons(skb->vlan_tci) << 16;
		packet.wire_len += WL_VLAN_TAG;
	}
	packet.card_ns = skb->hwtstamp;
	/* GRO has merged received packets; GSO has not segmented transmitted ones yet. */
	if (skb->gso_size) {
		packet.flags |= WL_REC_GSO;
		packet.segment_size = skb->gso_size;
		packet.segments = skb->gso_segs;
	}
	taken = wl_offer(skb, &packet);
#ifndef WL_SIMPLE
	/* After all groups: sending moves the packet in memory. */
	if (wl_has(WL_HAS_RULES) && packet.sent)
		wl_send(skb, packet.lane);
#endif
	return taken ? TC_ACT_SHOT : TC_ACT_UNSPEC; /* on to the next program; TCX calls it TCX_NEXT */
}

SEC("?tc")
int wirelane_in(struct __sk_buff *skb)
{
	/* The stack numbers RX queues from 1 here; 0: not reported by the driver. With one queue, the number
	 * may be that of the sender's TX queue (veth). */
	return wl_tc(skb, wl_config.queues > 1 && skb->queue_mapping ? skb->queue_mapping - 1 : 0, 0);
}

SEC("?tc")
int wirelane_out(struct __sk_buff *skb)
{
	/* The TX queue is chosen behind this hook. */
	return wl_tc(skb, 0, WL_REC_EGRESS);
}

/* The slot of a packet's device; 0: of all devices without one. */
static __always_inline __u32 wl_slot(const struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, *slot;

	slot = bpf_map_lookup_elem(&wl_slots, &ifindex);
	return slot ? *slot : 0;
}

SEC("?tc")
int wirelane_in_n(struct __sk_buff *skb)
{
	return wl_tc(skb, wl_slot(skb), 0);
}

SEC("?tc")
int wirelane_out_n(struct __sk_buff *skb)
{
	return wl_tc(skb, wl_slot(skb), WL_REC_EGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
