// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Writes the fields of HTTP, SIP or RTP of each packet as a record. */
#include <wirelane/plugin.h>
#include <wirelane/fields.h>

PLUGIN(packet, answer)
{
	struct packet_fields *fields = plugin_scratch(answer);

	packet_fields(packet, &packet->outer, fields);
	answer->record_len = __builtin_offsetof(struct packet_fields, work);
	return PLUGIN_NO;
}
