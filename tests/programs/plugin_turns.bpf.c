// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts in maps of each kind, by source port and by the rules that were hit before; matches every second
 * packet of a port.
 */
#include <wirelane/plugin.h>

struct port {
	packet_u16 port, zero;
};

struct count {
	packet_u64 packets, bytes;
#ifdef LATER
	packet_u64 latest_ns; /* a later version, whose values are longer */
#endif
};

STATE_HASH(ports, 512, struct port, struct count);
STATE_CPU_ARRAY(rules, 8, struct count);
STATE_LRU_HASH(latest, 1024, struct port, packet_u64);
STATE_HASH(few, 4, struct port, packet_u32);

PLUGIN_COUNTERS("refused", "removed");

static const struct count nothing;

PLUGIN(packet, answer)
{
	struct port port = {.port = packet_be16(packet->outer.src_port)};
	packet_u32 rule = packet->rules[0], one = 1;
	packet_u64 now = packet->time_ns;
	struct count *count;

	if (packet->outer.proto != 17)
		return PLUGIN_NO;
	if (!state_find(packet, ports, &port))
		state_insert(packet, ports, &port, &nothing);
	count = state_find(packet, ports, &port);
	if (!count)
		return PLUGIN_NO;
	state_add(&count->packets, 1);
	state_add(&count->bytes, packet->wire_bytes);
#ifdef LATER
	count->latest_ns = packet->time_ns;
#endif
	state_set(packet, latest, &port, &now);
	if (state_insert(packet, few, &port, &one) < 0 && !state_find(packet, few, &port))
		plugin_add(answer, 0, 1);
	if (port.port == 1003 && !state_remove(packet, few, &port))
		plugin_add(answer, 1, 1);
	/* The count is not used behind this: it may be of either map. */
	one = count->packets & 1;
	count = state_find(packet, rules, &rule);
	if (count) {
		count->packets++;
		count->bytes += packet->wire_bytes;
	}
	return one ? PLUGIN_NO : PLUGIN_MATCH;
}
