// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Keeps a list of all changes of rules, and counts packets by the first rule that they hit, as long as it is
 * there. */
#include <wirelane/plugin.h>

struct change {
	packet_u32 id, event, flags, fields;
	packet_u64 packets, bytes;
	packet_u32 idle_s;
	packet_u16 src_port;
	packet_u8 proto, l3;
};

STATE_PARAMETER(packet_u32, factor, 1);

STATE_ARRAY(changes, 64, struct change);
STATE_ARRAY(number, 1, packet_u32);
STATE_HASH(present, 16, packet_u32, packet_u64);

PLUGIN_RULE(rule)
{
	struct change change = {
	    .id = rule->id,
	    .event = rule->event,
	    .flags = rule->flags,
	    .fields = rule->fields,
	    .packets = rule->packets,
	    .bytes = rule->bytes,
	    .idle_s = rule->idle_s,
	    .src_port = packet_be16(rule->src_port),
	    .proto = rule->proto,
	    .l3 = rule->l3,
	};
	packet_u32 zero = 0, id = rule->id, *number = state_find(rule, number, &zero), at;
	packet_u64 none = 0;

	if (!number)
		return;
	at = *number;
	*number = at + 1;
	state_set(rule, changes, &at, &change);
	if (rule->event == PLUGIN_RULE_ADDED)
		state_set(rule, present, &id, &none);
	else if (!(rule->flags & PLUGIN_RULE_MADE))
		state_remove(rule, present, &id);
}

PLUGIN(packet, answer)
{
	packet_u32 rule = packet->rules[0];
	packet_u64 *count = state_find(packet, present, &rule);

	if (count)
		state_add(count, factor);
	return PLUGIN_MATCH;
}
