// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Matches source ports from `first` to `last`, or others if `others` is set; moved by `offset`. */
#include <wirelane/plugin.h>

STATE_PARAMETER(packet_u16, first, 1000);
STATE_PARAMETER(packet_u16, last, 1001);
STATE_PARAMETER(packet_bool, others, 0);
STATE_PARAMETER(int, offset, 0);
STATE_PARAMETER(packet_u64, weight, 1);

PLUGIN_COUNTERS("weight");

static const packet_u8 constant[2] = {1, 2};

PLUGIN(packet, answer)
{
	int port = packet_be16(packet->outer.src_port) + offset;

	plugin_add(answer, 0, weight * constant[packet->wire_len & 1]);
	return (port >= first && port <= last) != others;
}
