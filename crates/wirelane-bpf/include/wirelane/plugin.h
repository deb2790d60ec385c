/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Plug-ins for Wirelane: a function of yours, in BPF, that rules use as a condition.
 *
 *	#include <wirelane/plugin.h>
 *
 *	PLUGIN(packet, answer)                  // UDP payloads whose first byte is above 0x7f
 *	{
 *		if (packet->outer.proto != 17)
 *			return PLUGIN_NO;
 *		return packet_byte(packet, packet->outer.payload_off) > 0x7f ? PLUGIN_MATCH : PLUGIN_NO;
 *	}
 *
 *	clang -O2 -g -target bpf -I/usr/local/include -c high.bpf.c -o high.bpf.o
 *	wirelane count -i eth1 --plugin high=high.bpf.o --rules rules.toml
 *
 * where rules.toml has, as a condition like any other (not.plugin = "high" is one too):
 *
 *	[[rule]]
 *	id = 10
 *	plugin = "high"
 *	action = "drop"
 *
 * The file needs nothing else: this header includes packet.h, which describes a packet, and state.h, for
 * state of its own and parameters, and no other. fields.h has fields of HTTP, SIP and RTP.
 *
 * Results
 *   PLUGIN_NO        the packet does not match; any number that is not listed here means the same
 *   PLUGIN_MATCH     it matches
 *   PLUGIN_DROP, PLUGIN_COUNT, PLUGIN_DIGEST
 *                    it matches, and rules whose action is "plugin" drop it, only count it, or deliver a
 *                    digest of it. After PLUGIN_MATCH they pass it. Rules with another action apply that one.
 *
 * Arguments
 *   packet           the parsed headers of the packet, and its first PACKET_BYTES bytes
 *                    (struct wirelane_packet). With a tunnel, packet->inner are the headers inside.
 *   answer           an optional note, which is added to the packet's record if it matches; of several
 *                    plug-ins the first note. Its counters, by plugin_add(). And an optional record of
 *                    its own, by plugin_record(), whether it matches or not.
 *
 * When it runs
 *   If all other conditions of a rule hold, in the order of the rules, and no earlier rule has ended the
 *   search: at most once for a packet and a capture. Then all plug-ins run that the rules name.
 *
 * Rules that come and go
 *   PLUGIN_RULE(rule) begins an optional second function, which is called when a rule of its capture is
 *added, removed or expires, for state by rule (struct plugin_rule). It runs between packets, on any CPU, one
 *call at a time: numbers that packets change as well are changed by state_add().
 *
 * Restrictions
 *   It runs in the kernel, in the receive path. The kernel's verifier must accept it: loops must end, memory
 *   must be read within bounds (use packet_byte() and the other functions). BPF helpers that need no context
 *   may be called, except bpf_loop().
 *
 *   Its state is in its counters and in maps (state.h): writable variables are rejected. It runs on
 *   several CPUs at once, and is reloaded whenever another plug-in is added to the device. Constant tables
 *   are allowed (`static const`), and so are functions of its own, as long as they are `static`.
 *
 *   Its time is measured. A plug-in that takes longer than --plugin-budget is switched off (for one capture,
 *   in one lane) and no longer matches.
 *
 *   The stack is shared with Wirelane's part: use no more than 128 bytes of it. There is no licence section:
 *   the licence is that of Wirelane's program, Dual BSD/GPL.
 */
#ifndef WIRELANE_PLUGIN_H
#define WIRELANE_PLUGIN_H

#include "packet.h"
#include "state.h"

/* The version of this header, which is part of the plug-in's name: incremented when a meaning changes. */
#define PLUGIN_VERSION 1

typedef __UINT64_TYPE__ plugin_u64;

/* Results of a plug-in. */
#define PLUGIN_NO	     0
#define PLUGIN_MATCH	     1
#define PLUGIN_PASS	     PLUGIN_MATCH
#define PLUGIN_DROP	     2
#define PLUGIN_COUNT	     3
#define PLUGIN_DIGEST	     4

#define PLUGIN_NOTE	     32	 /* maximum length of a note in bytes */
#define PLUGIN_RECORD	     128 /* maximum length of a record in bytes */
#define PLUGIN_MOST_COUNTERS 8
#define PLUGIN_COUNTER_NAME  16 /* letters of a counter's name, and the terminating zero */

/* Output of a plug-in beside its result. All fields are 0 at first. */
struct plugin_answer {
	plugin_u64 add[PLUGIN_MOST_COUNTERS]; /* added to its counters, whether it matches or not */
	packet_u32 note_len;		      /* bytes of the note; larger values count as PLUGIN_NOTE */
	packet_u32 record_len;		      /* bytes of the record; larger values count as PLUGIN_RECORD */
	packet_u8 note[PLUGIN_NOTE];
	packet_u8 record[PLUGIN_RECORD]; /* not cleared */
} __attribute__((aligned(8)));

/* Adds to one of its counters; `number` from 0, in the order of PLUGIN_COUNTERS(). */
#define plugin_add(answer, number, value)                                                                    \
	((void)((answer)->add[(number) & (PLUGIN_MOST_COUNTERS - 1)] += (value)))

/* Appends a byte to the note. Bytes beyond PLUGIN_NOTE are dropped. */
PACKET_INLINE void plugin_note(struct plugin_answer *answer, packet_u8 byte)
{
	packet_u32 at = answer->note_len;

	/* Keeps the compiler from comparing one register and using another. */
	__asm__ volatile("" : "+r"(at));
	if (at >= PLUGIN_NOTE)
		return;
	answer->note[at] = byte;
	answer->note_len = at + 1;
}

/*
 * Writes a record to user space, such as a flow that has ended: the variable that `from` points to, of up to
 * PLUGIN_RECORD bytes. It goes to the worker of the packet's flow hash, in captures that ask for records
 * (`wirelane packets`, Builder::plugin_records()). One record for a packet: a second one replaces the first.
 * Records for which the worker's ring has no space, or that nobody asked for, are counted.
 */
#define plugin_record(answer, from)                                                                          \
	({                                                                                                   \
		_Static_assert(sizeof(*(from)) <= PLUGIN_RECORD, "a record has 128 bytes at most");          \
		__builtin_memcpy((answer)->record, (from), sizeof(*(from)));                                 \
		(answer)->record_len = sizeof(*(from));                                                      \
	})

/* PLUGIN_RECORD bytes of memory, aligned to 8, for what has no space on the stack, until the record is
 * written. They have what an earlier packet left there. */
#define plugin_scratch(answer) ((void *)(answer)->record)

/* Names its counters, as in PLUGIN_COUNTERS("queries", "answers"); at most 8, of up to 15 letters. */
#define PLUGIN_COUNTERS(...)                                                                                 \
	static const char plugin_counters[][PLUGIN_COUNTER_NAME]                                             \
	    __attribute__((section("wirelane.counters"), used)) = {__VA_ARGS__};                             \
	_Static_assert(sizeof(plugin_counters) <= PLUGIN_MOST_COUNTERS * PLUGIN_COUNTER_NAME,                \
		       "a plug-in has 8 counters at most")

/* plugin_rule.event */
#define PLUGIN_RULE_ADDED   1 /* packets are evaluated by the rule from now on */
#define PLUGIN_RULE_REMOVED 2 /* no packet is evaluated by the rule any more, and its counts are final */
#define PLUGIN_RULE_EXPIRED 3 /* the same, as its time has passed (idle, lifetime) */

/* plugin_rule.flags */
#define PLUGIN_RULE_NAMES                                                                                    \
	0x1 /* the rule names this plug-in; of a rule that a packet made: the one that asked for it */
#define PLUGIN_RULE_EXACT 0x2 /* an exact-match rule: `fields` and what follows describe it */
#define PLUGIN_RULE_MADE                                                                                     \
	0x4 /* a packet made it for the rule with this id; there is no PLUGIN_RULE_ADDED for it */

/* plugin_rule.fields: which fields an exact-match rule compares. The others are 0. */
#define PLUGIN_FIELD_SRC      0x001
#define PLUGIN_FIELD_DST      0x002
#define PLUGIN_FIELD_SRC_PORT 0x004
#define PLUGIN_FIELD_DST_PORT 0x008
#define PLUGIN_FIELD_PROTO    0x010
#define PLUGIN_FIELD_VLAN     0x020 /* vlan_id, or PLUGIN_NO_VLAN */
#define PLUGIN_FIELD_MPLS     0x040
#define PLUGIN_FIELD_TUNNEL   0x080
#define PLUGIN_FIELD_BOTH     0x100 /* packets of either direction */

#define PLUGIN_NO_VLAN	      0x1000 /* plugin_rule.vlan_id: packets without a tag */

/*
 * A change of a rule. A rule that replaces another one with its id: first that one is removed, then the new
 * one added; all others are added before the first packet is evaluated by them. With the end of the capture
 * rules end without a call. Addresses and ports are in network byte order, as in struct wirelane_packet.
 */
struct plugin_rule {
	packet_u32 capture; /* selects its state (state.h), as that of a packet */
	packet_u32 id;
	packet_u32 event;    /* PLUGIN_RULE_ADDED and so on */
	packet_u32 flags;    /* PLUGIN_RULE_NAMES and so on */
	packet_u64 time_ns;  /* now: CLOCK_MONOTONIC */
	packet_u64 packets;  /* hits, on all devices of the capture; 0 when it is added */
	packet_u64 bytes;    /* their bytes */
	packet_u64 first_ns; /* time of the first hit, 0 if there was none */
	packet_u64 last_ns;  /* of the last one */
	packet_u32 fields;   /* PLUGIN_FIELD_* */
	packet_u32 tunnel_id;
	packet_u32 mpls_label;
	packet_u16 vlan_id;
	packet_u8 l3; /* PACKET_L3_IPV4, PACKET_L3_IPV6, or 0 without an address */
	packet_u8 proto;
	packet_u8 src[16];
	packet_u8 dst[16];
	packet_u16 src_port;
	packet_u16 dst_port;
	packet_u32 idle_s; /* seconds without a hit after which it expires; 0: never */
} __attribute__((aligned(8)));

/* The name of the function that Wirelane calls, with the version of this header. */
#define PLUGIN_FUNCTION wirelane_plugin_v1_0

/*
 * Begins the plug-in; `packet` is a pointer to a struct wirelane_packet, `answer` one to a struct
 * plugin_answer. The verifier requires the check for NULL, which never occurs.
 */
#define PLUGIN(packet, answer)                                                                               \
	PACKET_INLINE int plugin_this(const struct wirelane_packet *packet, struct plugin_answer *answer);   \
	int PLUGIN_FUNCTION(const struct wirelane_packet *given, struct plugin_answer *left);                \
	int PLUGIN_FUNCTION(const struct wirelane_packet *given, struct plugin_answer *left)                 \
	{                                                                                                    \
		return given && left ? plugin_this(given, left) : PLUGIN_NO;                                 \
	}                                                                                                    \
	PACKET_INLINE int plugin_this(const struct wirelane_packet *packet, struct plugin_answer *answer)

/* Begins the function for changes of rules; `rule` is a pointer to a struct plugin_rule. */
#define PLUGIN_RULE_FUNCTION wirelane_rule_v1_0
#define PLUGIN_RULE(rule)                                                                                    \
	PACKET_INLINE void plugin_rule_this(const struct plugin_rule *rule);                                 \
	int PLUGIN_RULE_FUNCTION(const struct plugin_rule *given);                                           \
	int PLUGIN_RULE_FUNCTION(const struct plugin_rule *given)                                            \
	{                                                                                                    \
		if (given)                                                                                   \
			plugin_rule_this(given);                                                             \
		return 0;                                                                                    \
	}                                                                                                    \
	PACKET_INLINE void plugin_rule_this(const struct plugin_rule *rule)

#endif
