// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Looks for tunnels through DNS: matches queries that ask for a name of more than LABELS labels, or for TXT
 * records. All queries and answers are counted. The note of a packet is the query's id and its type, two
 *bytes each, as they stand in the packet.
 *
 *	clang-19 -g -O2 -target bpf -I include -c examples/plugins/dns.bpf.c -o dns.bpf.o
 *	sudo wirelane record -i eth1 -w tunnels.pcapng --plugin dns=dns.bpf.o --rules
 *examples/plugins/dns.toml
 */
#include <wirelane/plugin.h>

#define LABELS	    6
#define MOST_LABELS 32 /* that are looked at: a name with more is one with more than LABELS */
#define HEADER	    12 /* bytes before the question */
#define ANSWER	    0x80
#define TXT	    16

enum { QUERIES, ANSWERS };
PLUGIN_COUNTERS("queries", "answers");

PLUGIN(packet, answer)
{
	const struct wirelane_headers *ip = &packet->outer;
	packet_u32 at = ip->payload_off, labels, length, type;

	if (ip->proto != 17 || !(ip->flags & PACKET_IP_PORTS))
		return PLUGIN_NO;
	if (packet_be16(ip->src_port) != 53 && packet_be16(ip->dst_port) != 53)
		return PLUGIN_NO;
	if (packet_byte(packet, at + 2) & ANSWER) {
		plugin_add(answer, ANSWERS, 1);
		return PLUGIN_NO;
	}
	plugin_add(answer, QUERIES, 1);
	plugin_note(answer, packet_byte(packet, at));
	plugin_note(answer, packet_byte(packet, at + 1));
	at += HEADER;
	for (labels = 0; labels < MOST_LABELS; labels++) {
		length = packet_byte(packet, at);
		if (!length)
			break;
		/* No label, but a reference to a name elsewhere, which a question has no use for. */
		if (length > 63)
			return PLUGIN_NO;
		at += 1 + length;
	}
	type = packet_16_at(packet, at + 1);
	plugin_note(answer, type >> 8);
	plugin_note(answer, type);
	return labels > LABELS || type == TXT ? PLUGIN_MATCH : PLUGIN_NO;
}
