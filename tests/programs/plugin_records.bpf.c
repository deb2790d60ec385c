// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Writes a record for each packet: its port, and how many packets of the port there were. `every` says of how
 * many. */
#include <wirelane/plugin.h>

STATE_PARAMETER(packet_u32, every, 1);

struct port {
	packet_u32 port;
};

struct record {
	packet_u32 port;
	packet_u32 number;
	packet_u64 time_ns;
	packet_u8 more[21]; /* so that its length is not a multiple of 8 */
} __attribute__((packed));

STATE_HASH(ports, 1024, struct port, packet_u64);

PLUGIN(packet, answer)
{
	struct port port = {.port = packet_be16(packet->outer.src_port)};
	struct record record = {.port = port.port, .time_ns = packet->time_ns, .more = {1, 2, 3}};
	packet_u64 zero = 0, *number;

	state_insert(packet, ports, &port, &zero);
	number = state_find(packet, ports, &port);
	if (!number)
		return PLUGIN_NO;
	record.number = state_add(number, 1) + 1;
	if (record.number % every == 0)
		plugin_record(answer, &record);
	return record.port & 1 ? PLUGIN_MATCH : PLUGIN_NO;
}
