// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Flows as NetFlow has them, in a map of the kernel: for each direction of a conversation its packets, bytes,
 * times, TCP flags and type of service. It matches nothing, so that its rule passes, drops or counts packets
 * as without it.
 *
 *	clang-19 -g -O2 -target bpf -I include -c examples/plugins/netflow.bpf.c -o netflow.bpf.o
 *	sudo wirelane count -i eth1 --plugin netflow=netflow.bpf.o --rules examples/plugins/netflow.toml &
 *	sudo wirelane rules state netflow flows
 *
 * A flow that has been idle for longer than `idle_s` begins anew, and its former sums are in `ended`. The map
 * is an LRU map: where there are more flows, those that were idle for longest are forgotten.
 */
#include <wirelane/plugin.h>

STATE_PARAMETER(packet_bool, inner, 0);	   /* the headers inside tunnels */
STATE_PARAMETER(packet_u32, idle_s, 3600); /* NetFlow's inactive timeout */

struct flow_key {
	packet_u8 src[16];
	packet_u8 dst[16];
	packet_u16 src_port; /* network byte order, as in the packet */
	packet_u16 dst_port; /* of ICMP type and code */
	packet_u16 vlan;     /* 0xffff: none */
	packet_u8 l3;	     /* 4 or 6 */
	packet_u8 proto;
	packet_u32 tunnel_id;
	packet_u8 tunnel;
	packet_u8 egress;
	packet_u8 pad[2];
};

struct flow {
	packet_u64 packets;
	packet_u64 bytes;      /* from the IP header on */
	packet_u64 wire_bytes; /* of whole packets */
	packet_u64 first_ns;
	packet_u64 last_ns;
	packet_u32 tcp_flags;
	packet_u32 tos;
};

STATE_LRU_HASH(flows, 65536, struct flow_key, struct flow);
/* By protocol: sums of all flows that have ended. */
STATE_ARRAY(ended, 256, struct flow);

PLUGIN_COUNTERS("flows", "ended", "other packets", "not kept");
enum { FLOWS, ENDED, OTHER, NOT_KEPT };

static const struct flow nothing;

static __attribute__((always_inline)) void key_of(const struct wirelane_packet *packet,
						  const struct wirelane_headers *ip, int inside,
						  struct flow_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->src, ip->src, sizeof(key->src));
	__builtin_memcpy(key->dst, ip->dst, sizeof(key->dst));
	key->l3 = ip->l3;
	key->proto = ip->proto;
	key->vlan = packet->flags & PACKET_VLAN ? packet->vlan_tci[0] & 0xfff : 0xffff;
	key->egress = !!(packet->flags & PACKET_EGRESS);
	if (ip->flags & PACKET_IP_PORTS) {
		key->src_port = ip->src_port;
		key->dst_port = ip->dst_port;
	} else if (ip->flags & PACKET_IP_ICMP) {
		key->dst_port = packet_be16(ip->icmp_type << 8 | ip->icmp_code);
	}
	if (inside) {
		key->tunnel = packet->tunnel;
		key->tunnel_id = packet->tunnel_id;
	}
}

/* Adds the sums of a flow that has ended, and begins it anew. Another CPU that does so at the same time finds
 * it new. */
static __attribute__((always_inline)) void end(const struct wirelane_packet *packet, packet_u32 proto,
					       struct flow *flow)
{
	struct flow *sums = state_find(packet, ended, &proto);

	if (!sums)
		return;
	state_add(&sums->packets, __sync_lock_test_and_set(&flow->packets, 0));
	state_add(&sums->bytes, __sync_lock_test_and_set(&flow->bytes, 0));
	state_add(&sums->wire_bytes, __sync_lock_test_and_set(&flow->wire_bytes, 0));
	flow->first_ns = packet->time_ns;
	flow->tcp_flags = 0;
}

/* The flow of a key, and a new one where there is none. */
static __attribute__((always_inline)) struct flow *
flow_of(const struct wirelane_packet *packet, const struct flow_key *key, struct plugin_answer *answer)
{
	struct flow *flow = state_find(packet, flows, key);

	if (flow)
		return flow;
	if (!state_insert(packet, flows, key, &nothing))
		plugin_add(answer, FLOWS, 1);
	return state_find(packet, flows, key);
}

PLUGIN(packet, answer)
{
	int inside = inner && packet->flags & PACKET_TUNNEL;
	const struct wirelane_headers *ip = inside ? &packet->inner : &packet->outer;
	packet_u32 headers, length;
	packet_u64 now = packet->time_ns;
	struct flow_key key;
	struct flow *flow;

	if (ip->l3 != PACKET_L3_IPV4 && ip->l3 != PACKET_L3_IPV6) {
		plugin_add(answer, OTHER, 1);
		return PLUGIN_NO;
	}
	key_of(packet, ip, inside, &key);
	flow = flow_of(packet, &key, answer);
	if (!flow) {
		plugin_add(answer, NOT_KEPT, packet->segments);
		return PLUGIN_NO;
	}
	/* Of an aggregate: each of its packets has the link-layer headers, and the stated length is that of
	 * all. */
	headers = ip->l3_off;
	length = ip->l3_len;
	if (!length || packet->segments > 1)
		length = packet->wire_bytes - packet->segments * headers;
	if (flow->packets && now - flow->last_ns > idle_s * 1000000000ULL && now > flow->last_ns) {
		plugin_add(answer, ENDED, 1);
		end(packet, ip->proto, flow);
	}
	if (!state_add(&flow->packets, packet->segments)) {
		flow->first_ns = now;
		flow->tos = ip->tos;
	}
	state_add(&flow->bytes, length);
	state_add(&flow->wire_bytes, packet->wire_bytes);
	if (now > flow->last_ns)
		flow->last_ns = now;
	if (now < flow->first_ns)
		flow->first_ns = now;
	if (ip->flags & PACKET_IP_TCP && (flow->tcp_flags & ip->tcp_flags) != ip->tcp_flags)
		flow->tcp_flags |= ip->tcp_flags;
	return PLUGIN_NO;
}
