// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The capture programs: from a device to the rings of every group that wants the packet. One is loaded and
 * attached per instance, depending on the hook:
 *
 *   wirelane_xdp      native or generic XDP                        received packets
 *   wirelane_xdp_md   native XDP, with what the card's descriptor says: the VLAN tag that it stripped,
 *                     its clock
 *   wirelane_in       tc (TCX or clsact), ingress                  received packets, beside others' XDP
 *   wirelane_out      tc (TCX), egress                             packets on their way out
 *   wirelane_in_n     tc (TCX), ingress and egress of any number of devices, which come during the
 *   wirelane_out_n    capture: the device takes the place of the RX queue (wl_slots)
 *
 *            +-- lane (RX queue, or CPU under generic XDP): one packet at a time, one writer ------------+
 *   packet ->| parse once -> for each active group: wanted? -> steer -> ring (the single copy)           |->
 * host |                       |                  |         |                                      |   stack
 *            |                     tally:             tally:    worker's ring full: tally: lost          |
 * (or |                     seen               filtered, else: delivered                          |   taken)
 *            +-------------------------------------------------------------------------------------------+
 *
 * Invariants
 *   - One writer per lane. Under native XDP a lane is an RX queue, which NAPI polls on one CPU at a time;
 *     otherwise it is a CPU, and the program runs with bottom halves off. So nothing here is locked, and
 *     counters are plain additions. No cache line is written by two lanes.
 *   - Every packet that a group saw is in exactly one column of its tally: the function that decides adds it.
 *   - Groups share nothing but the packet: a group that is full, slow or gone costs the others its look-ups.
 *     Packets that a device-wide group drops are not delivered to the others (wide.h).
 *   - Groups come and go while packets flow. The owner publishes a group by putting its data map into wl_data
 *     (the kernel waits for running programs there) and then setting its bit in wl_instance.active; it leaves
 *     in the opposite order. No program run sees a half-made group.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "offer.h"
#include "prog_padding.h"

/* Since Linux 6.8, on device-bound programs (Documentation/networking/xdp-rx-metadata.rst). */
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *vlan_proto,
					__u16 *vlan_tci) __ksym __weak;

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;

/* Whether some group wants the card's clock: querying the driver costs a call. */
static __always_inline bool wl_card_clock_wanted(void)
{
	struct wl_instance *instance;
	__u32 key = 0;

	instance = bpf_map_lookup_elem(&wl_instance, &key);
	return instance && *(volatile __u64 *)&instance->card_clock;
}

static __always_inline int wl_xdp(struct xdp_md *ctx, struct wl_packet *packet)
{
	packet->queue = ctx->rx_queue_index;
	packet->lane = wl_config.per_cpu ? bpf_get_smp_processor_id() : packet->queue;
	packet->wire_len = bpf_xdp_get_buff_len(ctx) + (packet->vlan ? WL_VLAN_TAG : 0);
	return wl_offer(ctx, WL_HOOK_XDP, packet) ? XDP_DROP : XDP_PASS;
}

SEC("?xdp.frags")
int wirelane_xdp(struct xdp_md *ctx)
{
	struct wl_packet packet = {};

	return wl_xdp(ctx, &packet);
}

SEC("?xdp.frags")
int wirelane_xdp_md(struct xdp_md *ctx)
{
	struct wl_packet packet = {};
	__be16 proto;
	__u16 tci;

	wl_reserve_prog_pages();
	if (!bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci)) {
		packet.vlan = 1;
		packet.vlan_tag = proto | (__u32)bpf_htons(tci) << 16;
	}
	/* -ENODATA and 0 both mean that there is no timestamp. */
	if (wl_card_clock_wanted() && bpf_xdp_metadata_rx_timestamp(ctx, &packet.card_ns))
		packet.card_ns = 0;
	return wl_xdp(ctx, &packet);
}

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
	taken = wl_offer(skb, WL_HOOK_SKB, &packet);
	/* After all groups: sending moves the packet in memory. */
	if (wl_has(WL_HAS_RULES) && packet.sent)
		wl_send(skb, packet.lane);
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
