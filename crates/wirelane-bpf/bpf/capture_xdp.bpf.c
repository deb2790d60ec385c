// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The capture programs on XDP (offer.h):
 *
 *   wirelane_xdp      native or generic XDP                        received packets
 *   wirelane_xdp_md   native XDP, with what the card's descriptor says: the VLAN tag that it stripped,
 *                     its clock
 */
#include <stdbool.h>
#include "ctx_xdp.h"
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
	return wl_offer(ctx, packet) ? XDP_DROP : XDP_PASS;
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
	/* Without a timestamp, drivers return -ENODATA or set it to 0. */
	if (wl_card_clock_wanted() && bpf_xdp_metadata_rx_timestamp(ctx, &packet.card_ns))
		packet.card_ns = 0;
	return wl_xdp(ctx, &packet);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
