// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A tc program for the sender's device, not a steering program. Gives packets the VLAN tag 7 as the stack of
 * a VLAN device does: in the metadata, not in the packet.
 */
struct __sk_buff;

static long (*const bpf_skb_vlan_push)(struct __sk_buff *, __UINT16_TYPE__, __UINT16_TYPE__) = (void *)18;

__attribute__((section("tc"), used)) int push_tag(struct __sk_buff *packet)
{
	/* 802.1Q, in network byte order. */
	bpf_skb_vlan_push(packet, __builtin_bswap16(0x8100), 7);
	return -1; /* TC_ACT_UNSPEC: on its way */
}

char licence[] __attribute__((section("license"), used)) = "Dual BSD/GPL";
